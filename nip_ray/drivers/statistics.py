"""Returns and lengths of episodes, copy by copy.

Decisions that matter here:
- sums run per copy and are cleared where, and only where, that copy's episode ended;
- a step that begins an episode and is no transition counts for no copy's length, nor as an env step;
- with several players an episode's return is the sum over players; theirs are kept beside it;
- what an environment says of episodes that end (`infos["outcomes"]`) is averaged over those that it is about.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nip_ray.drivers.contract import Transition, arrays, ended


class EpisodeStatistics:
    """Of n copies. env_steps: transitions so far. episodes: finished ones so far. return_B, length_B: of the episodes in flight."""

    def __init__(self, num_copies: int) -> None:
        self.env_steps = self.episodes = 0
        self.return_B, self.length_B = np.zeros(num_copies), np.zeros(num_copies, dtype=np.int64)
        self.player_return_B: dict[str, np.ndarray] = {}
        self.finished: list[tuple[int, float, int]] = []
        """(copy, return, length) of each episode that ended since the last `take`, in order."""
        self.player_finished: dict[str, list[float]] = {}
        self.outcomes: dict[str, list[float]] = {}
        self._reward_sum = 0.0
        self._reward_count = 0

    def begin(self) -> None:
        """Forget the episodes in flight: all copies were reset."""
        self.return_B[:] = 0
        self.length_B[:] = 0
        for running_B in self.player_return_B.values():
            running_B[:] = 0

    def add(self, transition: Transition) -> None:
        """One timestep of all copies."""
        reward_B = self._total(transition)
        valid = transition.valid
        if valid is None:
            self.return_B += reward_B
            self.length_B += 1
            count = len(reward_B)
        else:
            reward_B = reward_B * valid
            self.return_B += reward_B
            self.length_B += valid
            count = int(valid.sum())
        self.env_steps += count
        self._reward_sum += float(reward_B.sum())
        self._reward_count += count
        over = ended(transition.terminated, transition.truncated)
        if over.any():
            places = np.flatnonzero(over if valid is None else over & valid)
            self._finish(places)
            for tag, value_B in transition.infos.get("outcomes", {}).items():
                self.outcomes.setdefault(tag, []).extend(value_B[places][~np.isnan(value_B[places])].tolist())

    def _total(self, transition: Transition) -> np.ndarray:
        rewards = transition.rewards
        if not isinstance(rewards, Mapping):
            return rewards
        for player, reward_B in rewards.items():
            running_B = self.player_return_B.setdefault(player, np.zeros(len(self.return_B)))
            running_B += reward_B if transition.valid is None else reward_B * transition.valid
        return np.sum(list(rewards.values()), axis=0)

    def _finish(self, places: np.ndarray) -> None:
        self.episodes += len(places)
        self.finished += zip(places.tolist(), self.return_B[places].tolist(), self.length_B[places].tolist(), strict=True)
        self.return_B[places] = 0
        self.length_B[places] = 0
        for player, running_B in self.player_return_B.items():
            self.player_finished.setdefault(player, []).extend(running_B[places].tolist())
            running_B[places] = 0

    def take(self) -> dict[str, float]:
        """Figures since the last call; what is about episodes is left out where none ended."""
        taken: dict[str, float] = {}
        if self._reward_count:
            taken["reward_mean"] = self._reward_sum / self._reward_count
        if self.finished:
            for name, column in (("return", 1), ("length", 2)):
                values = [episode[column] for episode in self.finished]
                taken |= {f"{name}_mean": sum(values) / len(values), f"{name}_min": min(values), f"{name}_max": max(values)}
        for player, values in self.player_finished.items():
            if values:
                taken[f"{player}/return_mean"] = sum(values) / len(values)
        taken |= {tag: sum(values) / len(values) for tag, values in self.outcomes.items() if values}
        taken["episodes"] = len(self.finished)
        self.finished, self.player_finished, self.outcomes = [], {}, {}
        self._reward_sum, self._reward_count = 0.0, 0
        return taken

    def state_dict(self) -> dict[str, Any]:
        """All of it, in values that a checkpoint holds."""
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "return_B": self.return_B,
            "length_B": self.length_B,
            "player_return_B": dict(self.player_return_B),
            "finished": [list(episode) for episode in self.finished],
            "player_finished": {player: list(values) for player, values in self.player_finished.items()},
            "outcomes": {tag: list(values) for tag, values in self.outcomes.items()},
            "reward_sum": self._reward_sum,
            "reward_count": self._reward_count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.env_steps, self.episodes = int(state["env_steps"]), int(state["episodes"])
        self.return_B, self.length_B = arrays(state["return_B"]), arrays(state["length_B"])
        self.player_return_B = arrays(state["player_return_B"])
        self.finished = [(int(copy), float(gain), int(length)) for copy, gain, length in state["finished"]]
        self.player_finished = {player: [float(value) for value in values] for player, values in state["player_finished"].items()}
        self.outcomes = {tag: [float(value) for value in values] for tag, values in state.get("outcomes", {}).items()}
        self._reward_sum, self._reward_count = float(state["reward_sum"]), int(state["reward_count"])


def information(infos: Mapping[str, Any], name: str) -> dict[str, float]:
    """The single numbers in `infos[name]`: tag -> value. A key with "/" in it is the tag itself, others come below `info/`.

    Where Gymnasium says in `_KEY` whether there is a value of KEY, neither that nor a value that there is not is a number of its own.
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
