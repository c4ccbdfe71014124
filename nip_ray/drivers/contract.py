"""The interface between drivers and agents.

Decisions that matter here:
- observations, actions, rewards and ends are numpy arrays with one row per copy, or, if one agent plays for several
  players, mappings player -> such an array. Drivers treat both alike, by `rows` and `stack`, and do not use networks;
- greedy or sampled is an argument of `act`, not a part of its result, so evaluation handles every kind of learner;
- a transition's next observations are always those that its actions led to, also if the environment has begun a new
  episode since; a step that ignores its action (Gymnasium's reset in the next step) is marked as not a transition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nip_ray.errors import UserError

MASK = "action_mask"
"""The part of an observation with legal actions: (n, actions), true for legal."""

Rows = Any
"""A numpy array with one row per copy, or a mapping of such (of players, or of the parts of an observation)."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One timestep of the n copies of one learner.

    observations, actions, next_observations: rows. rewards (n,) float, terminated (n,) bool, truncated (n,) bool, or
    mappings of players. valid: (n,) bool, mask of transitions (None: all; other rows must not be learned from or
    counted). states, next_states: the environment's global state for critics, None if it has none. infos: as the
    environment returns them, except "outcomes" (tag -> (n,): results of the episodes that end here, NaN if not
    applicable), of which a learner gets its rows.
    """

    observations: Rows
    actions: Rows
    rewards: Rows
    next_observations: Rows
    terminated: Rows
    truncated: Rows
    valid: np.ndarray | None
    infos: Mapping[str, Any]
    states: Rows | None = None
    next_states: Rows | None = None


@runtime_checkable
class Agent(Protocol):
    """A learner. In each timestep a driver calls, in this order: `pre_interaction`, `act`, (the environment),
    `record_transition`, `track_data` for the environment's infos, `post_interaction`. Timesteps count from 0;
    `timesteps` is their total."""

    observation_space: Any  # of one copy; a mapping of players for a multi-agent learner
    action_space: Any

    def enable_training_mode(self, enabled: bool) -> None:
        """Called before training and before evaluation. Off: nothing is stored or learned; stored data is kept."""
        ...

    def begin(self) -> None:
        """Called when all copies were reset and episodes in flight were cut."""
        ...

    def pre_interaction(self, timestep: int, timesteps: int) -> None:
        """Before acting."""
        ...

    def act(
        self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None
    ) -> Rows:
        """Actions, one row per copy: sampled (explore) or the most likely ones."""
        ...

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Record the results of the actions. Arrays may be reused by their owner afterwards: copy data to keep."""
        ...

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Called after the timestep: calls `update` when due, in training."""
        ...

    def update(self, timestep: int, timesteps: int) -> None:
        """Learn. Raises TrainingError for non-finite numbers."""
        ...

    def track_data(self, tag: str, value: float) -> None:
        """Add one value to a metric."""
        ...

    def tracked(self) -> dict[str, float]:
        """The metrics since the last call."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The full state of training: nested dicts and lists of tensors, arrays and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`: training continues as if uninterrupted."""
        ...


class Tracker:
    """Metrics by tag. Tags that end in `_min` or `_max` are reduced by minimum and maximum, all others by mean."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, tag: str, value: float) -> None:
        """One more value."""
        self._values.setdefault(tag, []).append(float(value))

    def take(self) -> dict[str, float]:
        """The reduced metrics, which are then cleared."""
        values, self._values = self._values, {}
        reduced = {"_min": min, "_max": max}
        return {tag: reduced.get(tag[-4:], _mean)(found) for tag, found in values.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """The values since the last `take`."""
        return {tag: list(values) for tag, values in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """The inverse of `state_dict`."""
        self._values = {tag: [float(value) for value in values] for tag, values in state.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def rows(tree: Any, start: int, stop: int) -> Any:
    """Rows start to stop of every array in a tree of mappings (views)."""
    if isinstance(tree, Mapping):
        return {key: rows(part, start, stop) for key, part in tree.items()}
    return tree[start:stop]


def count_rows(tree: Any) -> int:
    """Number of rows of the arrays in a tree of mappings."""
    while isinstance(tree, Mapping):
        tree = next(iter(tree.values()))
    return len(tree)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of the same form concatenated along rows."""
    if len(trees) == 1:
        return trees[0]
    if isinstance(trees[0], Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in trees[0]}
    return np.concatenate(trees)


def arrays(tree: Any) -> Any:
    """A copy of a tree whose leaves are tensors (as in checkpoints) or arrays, as arrays; None stays None."""
    if isinstance(tree, Mapping):
        return {key: arrays(part) for key, part in tree.items()}
    return None if tree is None else np.array(tree.numpy() if hasattr(tree, "numpy") else tree)


def replaced_rows(tree: Any, where: np.ndarray, other: Any) -> Any:
    """`tree` with the rows where `where` (n,) is true taken from `other`."""
    if isinstance(tree, Mapping):
        return {key: replaced_rows(part, where, other[key]) for key, part in tree.items()}
    return np.where(where.reshape(-1, *(1,) * (tree.ndim - 1)), other, tree)


def ended(terminated: Any, truncated: Any) -> np.ndarray:
    """(n,) bool: the episode is over; with several players, for all of them."""
    if isinstance(terminated, Mapping):
        return np.logical_and.reduce([terminated[player] | truncated[player] for player in terminated])
    return terminated | truncated


Scope = tuple[int, int]
"""A half-open range of copies; those of all learners are consecutive."""


def resolve_scopes(num_copies: int, num_learners: int, sizes: Sequence[int] | None = None) -> tuple[Scope, ...]:
    """The range of copies of each learner. sizes: copies of each (None: equal shares, the remainder to the last).

    Raises UserError when there is no learner, more learners than copies, or when sizes do not fit.
    """
    if num_learners < 1:
        raise UserError("learners: got an empty list, expected at least one learner")
    if num_learners > num_copies:
        raise UserError(f"learners: got {num_learners} for {num_copies} copies, expected at most one learner a copy")
    if sizes is None:
        share = num_copies // num_learners
        sizes = [*[share] * (num_learners - 1), num_copies - share * (num_learners - 1)]
    if len(sizes) != num_learners:
        raise UserError(f"scopes: got {len(sizes)} for {num_learners} learners, expected one for each")
    if any(type(size) is not int or size < 1 for size in sizes):
        raise UserError(f"scopes: got {list(sizes)}, expected integers >= 1")
    if sum(sizes) != num_copies:
        raise UserError(
            f"scopes: got {list(sizes)}, which is {sum(sizes)} copies, expected a sum of {num_copies}, as many as"
            " there are"
        )
    return tuple(pairwise(accumulate(sizes, initial=0)))
