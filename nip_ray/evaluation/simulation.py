"""Zero knowledge in figures: how far the simulator's conversation is from the adversarial verifier's.

- ``simulator/message_distance``, ``simulator/decision_distance``: of the two agents' distributions, turn by turn, each in the
  conversation that it sees (`nip_ray.learning.similarity.choice_distances`); the mean over an episode's rounds, then over episodes.
- ``simulator/symbol_distance``: of what was in fact said, counted over all episodes of an examination.
All are total variations in [0, 1], and 0 is what zero knowledge asks for. They measure this simulator: another might come nearer.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario

Array = npt.NDArray[np.generic]


def simulation_values(rollout: Rollout) -> dict[str, Array]:
    """Key -> (B',) mean distance of each episode that has any; {} without zero knowledge, no key where nothing could be compared."""
    if rollout.simulation_BR2 is None:
        return {}
    found = {}
    for number, name in enumerate(("message", "decision")):
        distance_BR = rollout.simulation_BR2[:, :, number].double()
        there_BR = distance_BR >= 0
        count_B = there_BR.sum(1)
        mean_B = (distance_BR * there_BR).sum(1) / count_B.clamp_min(1)
        if bool(count_B.any()):
            found[f"simulator/{name}_distance"] = mean_B[count_B > 0].cpu().numpy()
    return found


def symbol_distance(scenario: Scenario, rollout: Rollout) -> tuple[float, int] | None:
    """(distance, episodes): total variation between the kinds of symbols that the adversarial verifier and the simulator sent.

    In every round, channel and position apart, over the copies in which both spoke; their mean weighted by the number of these copies.
    Kinds: `Scenario.symbol_kinds`. Two samples of the very same distribution are not at 0: with n episodes and k equally likely kinds
    at about sqrt(k / (pi n)). None without zero knowledge, or where the two never spoke.
    """
    protocol = scenario.protocol
    if protocol.zero_knowledge is None:
        return None
    said = []
    for agent in (protocol.zero_knowledge.adversary, protocol.zero_knowledge.simulator):
        said_BRCM = rollout.main_BRACM[:, :, protocol.agents.index(agent)][:, :, list(protocol.writes[agent])]
        said.append(said_BRCM.flatten(1))
    first_BF, second_BF = said
    there_BF = (first_BF >= 0) & (second_BF >= 0)
    total, weight = 0.0, 0
    for factor in there_BF.any(0).nonzero().flatten().tolist():
        copy_N = there_BF[:, factor].nonzero().flatten()
        kinds = [scenario.symbol_kinds(rollout.id_B[copy_N], said_BF[copy_N, factor]) for said_BF in (first_BF, second_BF)]
        total += _variation(*kinds) * len(copy_N)
        weight += len(copy_N)
    return (total / weight, rollout.num_copies) if weight else None


def _variation(first_N: Tensor, second_N: Tensor) -> float:
    """Total variation between the empirical distributions of two samples of one size."""
    size = int(torch.maximum(first_N.max(), second_N.max())) + 1
    counts = torch.bincount(first_N, minlength=size) - torch.bincount(second_N, minlength=size)
    return float(counts.abs().sum()) / (2 * len(first_N))
