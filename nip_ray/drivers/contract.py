"""What drivers ask of agents, and what they hand them.

Decisions that matter here:
- observations, actions, rewards and ends are numpy arrays with one row a copy, or, where one agent plays for several
  players, mappings player -> such an array. Drivers treat both alike, by `rows` and `stack`, and know nothing of
  networks;
- greedy or sampled is an argument of `act`, not an entry of what it returns: so there is no place in which evaluation
  of a multi-agent learner could fail to find it;
- a transition's next observations are always those that its actions led to, also where the environment has begun a new
  episode since; what an environment does in a step that ignores its action (Gymnasium's reset in the next step) is
  marked as no transition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nip_ray.errors import UserError

MASK = "action_mask"
"""The part of an observation that says which actions are legal: (n, actions), true for legal."""

Rows = Any
"""A numpy array with one row a copy, or a mapping of such (of players, or of the parts of an observation)."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What one timestep was for the n copies of one learner.

    observations, actions, next_observations: rows. rewards (n,) float, terminated (n,) bool, truncated (n,) bool, or
    mappings of players. valid: (n,) bool, which rows are transitions at all (None: all; a row that is none must not be
    learned from or counted). states, next_states: the environment's global state for critics, None where it has none.
    infos: as the environment gave them, but for "outcomes" (tag -> (n,): what the episodes that end here came to, NaN
    where that does not apply), of which a learner gets its rows.
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
    `timesteps` is how many there will be in all."""

    observation_space: Any  # of one copy; a mapping of players for a multi-agent learner
    action_space: Any

    def enable_training_mode(self, enabled: bool) -> None:
        """Before training and before evaluation. While off, nothing is stored or learned, and what was stored is
        kept."""
        ...

    def begin(self) -> None:
        """What comes next does not follow from what came before: all copies were reset, and episodes in flight were
        cut."""
        ...

    def pre_interaction(self, timestep: int, timesteps: int) -> None:
        """Before acting."""
        ...

    def act(
        self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None
    ) -> Rows:
        """Actions, one row a copy: sampled (explore) or the most likely ones."""
        ...

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Take note of what the actions led to. Arrays may be reused by their owner afterwards: copy what is to be
        kept."""
        ...

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """After the timestep: calls `update` when, in training, it is time to learn."""
        ...

    def update(self, timestep: int, timesteps: int) -> None:
        """Learn. Raises TrainingError where numbers are no longer finite."""
        ...

    def track_data(self, tag: str, value: float) -> None:
        """Add one value to a figure."""
        ...

    def tracked(self) -> dict[str, float]:
        """The figures since the last call."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that training depends on: nested dicts and lists of tensors, arrays and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`: training continues as if it had never stopped."""
        ...


class Tracker:
    """Figures by tag. Tags that end in `_min` or `_max` are reduced by minimum and maximum, all others by their
    mean."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, tag: str, value: float) -> None:
        """One more value."""
        self._values.setdefault(tag, []).append(float(value))

    def take(self) -> dict[str, float]:
        """The reduced figures, which are then forgotten."""
        values, self._values = self._values, {}
        reduced = {"_min": min, "_max": max}
        return {tag: reduced.get(tag[-4:], _mean)(found) for tag, found in values.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """What was added since the last `take`."""
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
    """How many rows the arrays in a tree of mappings have."""
    while isinstance(tree, Mapping):
        tree = next(iter(tree.values()))
    return len(tree)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of the same form as one, their rows one after the other."""
    if len(trees) == 1:
        return trees[0]
    if isinstance(trees[0], Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in trees[0]}
    return np.concatenate(trees)


def arrays(tree: Any) -> Any:
    """A tree whose leaves are tensors (as checkpoints give them back) or arrays, as arrays of its own; None stays
    None."""
    if isinstance(tree, Mapping):
        return {key: arrays(part) for key, part in tree.items()}
    return None if tree is None else np.array(tree.numpy() if hasattr(tree, "numpy") else tree)


def replaced_rows(tree: Any, where: np.ndarray, other: Any) -> Any:
    """`tree` with the rows in which `where` (n,) holds taken from `other`."""
    if isinstance(tree, Mapping):
        return {key: replaced_rows(part, where, other[key]) for key, part in tree.items()}
    return np.where(where.reshape(-1, *(1,) * (tree.ndim - 1)), other, tree)


def ended(terminated: Any, truncated: Any) -> np.ndarray:
    """(n,) bool: whose episode is over; with several players, when it is over for all of them."""
    if isinstance(terminated, Mapping):
        return np.logical_and.reduce([terminated[player] | truncated[player] for player in terminated])
    return terminated | truncated


Scope = tuple[int, int]
"""A half-open range of copies; those of all learners follow each other in their order."""


def resolve_scopes(num_copies: int, num_learners: int, sizes: Sequence[int] | None = None) -> tuple[Scope, ...]:
    """The range of copies of each learner. sizes: how many copies each has (None: equal shares, the remainder to the
    last).

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
