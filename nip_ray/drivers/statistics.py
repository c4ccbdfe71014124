"""Returns and lengths of episodes, copy by copy.

Gymnasium's RecordEpisodeStatistics supports neither several players nor waiting copies.

Decisions that matter here:
- sums run per copy and are cleared exactly where that copy's episode ended;
- a step that only begins an episode counts neither for its copy's length nor as an env step;
- with several players an episode's return is the sum over players; theirs are kept too;
- an environment's results of finished episodes (`infos["outcomes"]`) are averaged over the episodes they apply to.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from nip_ray.drivers.contract import Transition, arrays, ended

_ARRAYS = ("return_B", "length_B", "player_return_B")
_STATE = (*_ARRAYS, "env_steps", "episodes", "finished", "player_finished", "outcomes", "reward_sum", "reward_count")


class EpisodeStatistics:
    """Of n copies. env_steps: transitions so far. episodes: finished so far. return_B, length_B: of open episodes."""

    def __init__(self, num_copies: int) -> None:
        self.env_steps = self.episodes = self.reward_count = 0
        self.reward_sum = 0.0
        self.return_B, self.length_B = np.zeros(num_copies), np.zeros(num_copies, dtype=np.int64)
        self.player_return_B: dict[str, np.ndarray] = {}
        self.finished: list[tuple[int, float, int]] = []
        """(copy, return, length) of each finished episode since the last `take`, in order."""
        self.player_finished: dict[str, list[float]] = {}
        self.outcomes: dict[str, list[float]] = {}

    def begin(self) -> None:
        """Forget the episodes in flight: all copies were reset."""
        for running_B in (self.return_B, self.length_B, *self.player_return_B.values()):
            running_B[:] = 0

    def add(self, transition: Transition) -> None:
        """One timestep of all copies."""
        valid, reward_B = transition.valid, transition.rewards
        if isinstance(reward_B, Mapping):
            for player, own_B in reward_B.items():
                running_B = self.player_return_B.setdefault(player, np.zeros(len(self.return_B)))
                running_B += own_B if valid is None else own_B * valid
            reward_B = np.sum(list(reward_B.values()), axis=0)
        if valid is not None:
            reward_B = reward_B * valid
        count = len(reward_B) if valid is None else int(valid.sum())
        self.return_B += reward_B
        self.length_B += 1 if valid is None else valid
        self.env_steps += count
        self.reward_sum += float(reward_B.sum())
        self.reward_count += count
        over = ended(transition.terminated, transition.truncated)
        if over.any():
            places = np.flatnonzero(over if valid is None else over & valid)
            self.episodes += len(places)
            self.finished += zip(
                places.tolist(), self.return_B[places].tolist(), self.length_B[places].tolist(), strict=True
            )
            self.return_B[places] = 0
            self.length_B[places] = 0
            for player, running_B in self.player_return_B.items():
                self.player_finished.setdefault(player, []).extend(running_B[places].tolist())
                running_B[places] = 0
            for tag, value_B in transition.infos.get("outcomes", {}).items():
                self.outcomes.setdefault(tag, []).extend(value_B[places][~np.isnan(value_B[places])].tolist())

    def take(self) -> dict[str, float]:
        """Metrics since the last call; those of episodes are left out if none ended."""
        taken: dict[str, float] = {"reward_mean": self.reward_sum / self.reward_count} if self.reward_count else {}
        for name, column in (("return", 1), ("length", 2)):
            if values := [episode[column] for episode in self.finished]:
                taken |= {
                    f"{name}_mean": sum(values) / len(values),
                    f"{name}_min": min(values),
                    f"{name}_max": max(values),
                }
        means = {**{f"{player}/return_mean": own for player, own in self.player_finished.items()}, **self.outcomes}
        taken |= {tag: sum(values) / len(values) for tag, values in means.items() if values}
        taken["episodes"] = len(self.finished)
        self.finished, self.player_finished, self.outcomes = [], {}, {}
        self.reward_sum, self.reward_count = 0.0, 0
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Its full state, in values for a checkpoint."""
        return {name: copy.deepcopy(getattr(self, name)) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for name in state.keys() & {*_STATE}:
            setattr(self, name, arrays(state[name]) if name in _ARRAYS else copy.deepcopy(state[name]))


def information(infos: Mapping[str, Any], name: str) -> dict[str, float]:
    """The scalars in `infos[name]`: tag -> value. A key with "/" is the tag itself, others get the prefix `info/`.

    Gymnasium's masks `_KEY` of KEY, and values that they exclude, are not scalars.
    """
    found = infos.get(name)
    if not isinstance(found, Mapping):
        return {}
    tags = {}
    for key, value in found.items():
        number, absent = np.asarray(value), not np.all(found.get(f"_{key}", True))
        if absent or (key.startswith("_") and key[1:] in found):
            continue
        if number.size == 1 and number.dtype.kind in "biuf":
            tags[key if "/" in key else f"info/{key}"] = float(number.reshape(-1)[0])
    return tags
