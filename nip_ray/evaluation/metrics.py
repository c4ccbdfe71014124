"""What a rollout says of the verifier and of everyone's pay, as flat figures.

Keys are relative: a caller puts ``train/``, ``eval/`` or ``eval_sampled/`` before them. `docs/metrics.md` defines each.

- ``verifier/accuracy``, ``verifier/completeness`` (accepted, of y = 1), ``verifier/soundness`` (rejected, of y = 0),
  ``verifier/undecided``: shares of episodes. An episode that ends undecided counts as wrong in the first three.
- ``verifier/accuracy/<group>=<value>``: accuracy on the instances of one group, for example ``verifier/accuracy/wl_score=-1``.
- ``episode_length``: mean rounds. ``<agent>/return``: mean undiscounted sum of an episode's rewards, for every agent.
- ``simulator/message_distance``, ``simulator/decision_distance``: under zero knowledge; see `nip_ray.evaluation.simulation`.

A share of no episodes has no value, so its key is left out; a game without a verifier has no ``verifier/…`` at all. The word
``verifier`` stands for the role, whatever the agent is called.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.simulation import simulation_values
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Protocol

Array = npt.NDArray[np.generic]


def rollout_metrics(protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor]) -> dict[str, float]:
    """The figures of a rollout of B complete episodes.

    groups: name -> (I,) integer labels by instance id, as `Scenario.group_I` gives them; {} for none.
    """
    shares = {name: successes / n for name, (successes, n) in _counts(protocol, rollout, groups).items() if n}
    return shares | {name: float(x_B.mean(dtype=np.float64)) for name, x_B in _episode_values(protocol, rollout).items() if len(x_B)}


def evaluation_record(
    protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor], level: float = 0.95
) -> dict[str, dict[str, float | int | None]]:
    """The same figures with intervals: ``{key: {"estimate", "lower", "upper", "n"}}``, ready for JSON.

    Shares have exact intervals, means Student's (see `intervals`). They hold for instances drawn independently: play each
    instance once, because repeated plays of one instance are not independent trials.
    """
    shares = {name: proportion(*count, level).record() for name, count in _counts(protocol, rollout, groups).items()}
    return shares | {name: mean(x_B, level).record() for name, x_B in _episode_values(protocol, rollout).items()}


def _counts(protocol: Protocol, rollout: Rollout, groups: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """`verdict_counts`, where there is somebody to give a verdict."""
    return {} if protocol.verifier is None else verdict_counts(rollout, groups)


def verdict_counts(rollout: Rollout, groups: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Key -> (successes, trials) of every share; group values that do not occur have no key."""
    verdict_B, y_B = rollout.verdict_B.cpu().numpy(), rollout.y_B.cpu().numpy()
    correct_B = verdict_B == y_B
    count, positives = len(y_B), int(np.count_nonzero(y_B == ACCEPT))
    counts = {
        "verifier/accuracy": (int(np.count_nonzero(correct_B)), count),
        "verifier/completeness": (int(np.count_nonzero(correct_B & (y_B == ACCEPT))), positives),
        "verifier/soundness": (int(np.count_nonzero(correct_B & (y_B == REJECT))), count - positives),
        "verifier/undecided": (int(np.count_nonzero(verdict_B == CONTINUE)), count),
    }
    for group, label_I in groups.items():
        label_B = label_I[rollout.id_B.to(label_I.device)].cpu().numpy()
        values, where_B = np.unique(label_B, return_inverse=True)
        trials, successes = np.bincount(where_B), np.bincount(where_B, weights=correct_B)
        for value, k, n in zip(values.tolist(), successes.tolist(), trials.tolist(), strict=True):
            counts[f"verifier/accuracy/{group}={value}"] = (int(k), n)
    return counts


def _episode_values(protocol: Protocol, rollout: Rollout) -> dict[str, Array]:
    """Key -> (B,) of everything that is averaged over episodes."""
    return_BA = rollout.reward_BRA.cpu().numpy().sum(1, dtype=np.float64)
    values: dict[str, Array] = {"episode_length": rollout.length_B.cpu().numpy(), **simulation_values(rollout)}
    return values | {f"{agent}/return": return_BA[:, a] for a, agent in enumerate(protocol.agents)}
