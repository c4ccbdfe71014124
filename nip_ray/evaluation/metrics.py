"""Flat metrics of a rollout (verifier, rewards, zero knowledge), and the worst of several rollouts.

Decisions that matter here:
- keys are relative: a caller prefixes ``train/``, ``eval/`` or ``eval_sampled/``. docs/metrics.md defines each;
- a share of no episodes has no value, so its key is left out; a game without a verifier has no ``verifier/…`` at all;
- ``verifier`` is the role, whatever the agent's name. For a panel it is the panel's verdict, and every member has the
  same shares of its own vote under its name: ``judge0/accuracy`` and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nip_ray.evaluation.claims import score_difference, shares, sides
from nip_ray.evaluation.intervals import Mean, mean, proportion
from nip_ray.play.panels import VERDICT, judged
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol

Array = npt.NDArray[Any]


def rollout_metrics(protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor]) -> dict[str, float]:
    """The metrics of a rollout of B complete episodes.

    groups: name -> (I,) integer labels by instance id, as `Scenario.group_I` gives them; {} for none.
    """
    found = {name: successes / n for name, (successes, n) in _counts(protocol, rollout, groups).items() if n}
    if (honesty := _score_difference(protocol, rollout).estimate) is not None:
        found["score_difference"] = honesty
    return found | {
        name: float(x_B.mean(dtype=np.float64)) for name, x_B in _episode_values(protocol, rollout).items() if len(x_B)
    }


def evaluation_record(
    protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor]
) -> dict[str, dict[str, float | int | None]]:
    """The same metrics with intervals: ``{key: {"estimate", "lower", "upper", "n"}}``, ready for JSON.

    Shares have exact intervals, means Student's (see `intervals`). They hold for instances drawn independently: play
    each instance once, because repeated plays of one instance are not independent trials.
    """
    found = {name: proportion(*count).record() for name, count in _counts(protocol, rollout, groups).items()}
    if not protocol.two_verdicts:
        # Among the instances of each label, the count of each verdict.
        verdict_B, y_B = rollout.verdict_B.cpu().numpy(), rollout.y_B.cpu().numpy()
        counts = {}
        for label, name in enumerate(protocol.verdicts):
            given = np.bincount(verdict_B[y_B == label], minlength=protocol.undecided + 1).tolist()
            counts |= {
                f"{VERDICT}/confusion/{name}={word}": (k, sum(given)) for word, k in zip(protocol.verdict_words, given)
            }
        found |= {key: proportion(k, n).record() for key, (k, n) in counts.items()}
    if (honesty := _score_difference(protocol, rollout)).estimate is not None:
        found["score_difference"] = honesty.record()
    return found | {name: mean(x_B).record() for name, x_B in _episode_values(protocol, rollout).items()}


def _counts(protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """`verdict_counts`, if there is a decider; also by role where roles are drawn."""
    if protocol.verifier is None:
        return {}
    counts = {}
    for who, seen in judged(protocol, rollout).items():
        counts |= verdict_counts(protocol, seen, groups, who)
        for role, role_B in _by_role(protocol, rollout).items():
            own = verdict_counts(protocol, seen.copies(role_B), {}, who)
            counts |= {f"{name}/role={role}": count for name, count in own.items() if name.count("/") == 1}
    return counts


def _score_difference(protocol: Protocol, rollout: Rollout) -> Mean:
    """The mean return of honest provers less that of lying ones; see `nip_ray.evaluation.claims`."""
    side_BA = sides(protocol, rollout.seed_B.cpu().numpy(), rollout.y_B.cpu().numpy())
    return_BA = rollout.reward_BRA.cpu().numpy().sum(1, dtype=np.float64)
    return score_difference(return_BA, side_BA * rollout.turn_BRA.any(1).cpu().numpy())


def _by_role(protocol: Protocol, rollout: Rollout) -> dict[str, Tensor]:
    """Role -> (B,) bool, the episodes that drew it; {} where none is drawn."""
    role_B = protocol.role_B(rollout.seed_B)
    return {role: role_B == place for place, role in enumerate(protocol.roles)}


def verdict_counts(
    protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor], who: str = VERDICT
) -> dict[str, tuple[int, int]]:
    """Key -> (successes, trials) of each share; group values that do not occur have no key. who: first part of keys."""
    verdict_B, y_B = rollout.verdict_B.cpu().numpy(), rollout.y_B.cpu().numpy()
    correct_B = verdict_B == y_B
    counts = {
        f"{who}/{name}": (int(np.count_nonzero(hit_B)), int(np.count_nonzero(of_B)))
        for name, (hit_B, of_B) in shares(protocol, verdict_B, y_B, rollout.seed_B.cpu().numpy()).items()
    }
    for group, label_I in groups.items():
        label_B = label_I[rollout.id_B.to(label_I.device)].cpu().numpy()
        values, where_B = np.unique(label_B, return_inverse=True)
        trials, successes = np.bincount(where_B), np.bincount(where_B, weights=correct_B)
        for value, k, n in zip(values.tolist(), successes.tolist(), trials.tolist(), strict=True):
            counts[f"{who}/accuracy/{group}={value}"] = (int(k), n)
    return counts


def _episode_values(protocol: Protocol, rollout: Rollout) -> dict[str, Array]:
    """Key -> (B,) of all values averaged over episodes."""
    return_BA = rollout.reward_BRA.cpu().numpy().sum(1, dtype=np.float64)
    values: dict[str, Array] = {"episode_length": rollout.length_B.cpu().numpy(), **simulation_values(rollout)}
    values |= {f"{agent}/return": return_BA[:, a] for a, agent in enumerate(protocol.agents)}
    for role, role_B in _by_role(protocol, rollout).items():
        own_BA = return_BA[role_B.cpu().numpy()]
        values |= {f"{agent}/return/role={role}": own_BA[:, a] for a, agent in enumerate(protocol.agents)}
    return values


def simulation_values(rollout: Rollout) -> dict[str, Array]:
    """Key -> (B',) mean distance of episodes that have any; {} without zero knowledge, no key where nothing is
    comparable."""
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
    """(distance, episodes): total variation between the kinds of symbols of the adversarial verifier and the simulator.

    Per round, channel and position, over the copies in which both sent a message; their mean weighted by the number of
    these copies. Kinds: `Scenario.symbol_kinds`. Two samples of one distribution are not at 0: with n episodes and k
    equally likely kinds at about sqrt(k / (pi n)). None without zero knowledge, or where the two never coincide.
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
        first_N, second_N = (
            scenario.symbol_kinds(rollout.id_B[copy_N], said_BF[copy_N, factor]) for said_BF in (first_BF, second_BF)
        )
        size = int(torch.maximum(first_N.max(), second_N.max())) + 1
        counts = torch.bincount(first_N, minlength=size) - torch.bincount(second_N, minlength=size)
        total += float(counts.abs().sum()) / (2 * len(first_N)) * len(copy_N)
        weight += len(copy_N)
    return (total / weight, rollout.num_copies) if weight else None


def worst_case(
    protocol: Protocol, rollouts: Sequence[Rollout], groups: Mapping[str, Tensor], who: str = VERDICT
) -> dict[str, Any]:
    """{"episodes": E, name: record} with the names of `verdict_counts`.

    An instance counts as right only if the verdict was right in *every* episode, with sampled actions and other episode
    seeds in each (a prover that may try again); as undecided if any was. So each instance is one trial with the exact
    interval of a share. More episodes lower the metric: do not compare different numbers of episodes.

    rollouts: E sampled ones of the same instances, in the same order. groups: as of `Scenario.group_I`. who: as of
    `verdict_counts`.
    """
    first = rollouts[0]
    verdict_EB = torch.stack([rollout.verdict_B for rollout in rollouts])
    wrong_EB = verdict_EB != first.y_B
    # of an instance's episodes the first wrong one (undecided is wrong)
    worst_B = verdict_EB.gather(0, wrong_EB.long().argmax(0)[None])[0]
    counts = verdict_counts(protocol, replace(first, verdict_B=worst_B), groups, who)
    # claims may differ by episode: any verdict that was given counts
    if not protocol.two_verdicts:
        counts = {name: count for name, count in counts.items() if name.startswith(f"{who}/accuracy")}
        for code, name in enumerate(protocol.verdicts):
            other_B = first.y_B != code
            never_B = ((verdict_EB != code) & (verdict_EB != protocol.undecided)).all(0)
            counts[f"{who}/soundness/{name}"] = int((never_B & other_B).sum()), int(other_B.sum())
    undecided_B = (verdict_EB == protocol.undecided).any(0)
    counts[f"{who}/undecided"] = (int(undecided_B.sum()), len(undecided_B))
    return {"episodes": len(rollouts), **{name: proportion(*count).record() for name, count in counts.items()}}
