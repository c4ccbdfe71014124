"""The common base of the built-in agents: flags, metrics, and observations as rows of numbers.

Decisions that matter here:
- nothing random has a state: every draw is seeded by (seed, purpose, counter). A checkpoint holds counters, and a
  loaded agent continues with the same draws;
- rollouts are numpy arrays, of which torch sees views: storing a row takes a third of a microsecond, not three;
- legal actions are in the observations, as "action_mask" (n, actions), wherever the environment has them (see
  `Copies`). They are not features: networks do not read them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from nip_ray.drivers.contract import MASK, Rows, Tracker, Transition
from nip_ray.errors import TrainingError, UserError


class BaseAgent:
    """The parts of `contract.Agent` that do not depend on the algorithm. One agent acts for `num_copies` copies.

    own: the other arguments of its constructor, so that another process can rebuild it (networks share one flat tensor
    of parameters, which pickling would split).
    """

    def __init__(self, observation_space: Any, action_space: Any, num_copies: int, *own: Any) -> None:
        self.observation_space, self.action_space, self.num_copies = observation_space, action_space, num_copies
        self.training = False
        self.tracker = Tracker()
        self._arguments = (observation_space, action_space, num_copies, *own)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self._arguments, self.training, self.state_dict())

    def enable_training_mode(self, enabled: bool) -> None:
        """Set whether transitions are stored and learned from."""
        self.training = enabled

    def begin(self) -> None:
        """Do nothing."""

    def pre_interaction(self, timestep: int, timesteps: int) -> None:
        """Do nothing."""

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Do nothing."""

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Do nothing."""

    def update(self, timestep: int, timesteps: int) -> None:
        """Do nothing."""

    def track_data(self, tag: str, value: float) -> None:
        """Add one value to a metric."""
        self.tracker.add(tag, value)

    def tracked(self) -> dict[str, float]:
        """The metrics since the last call."""
        return self.tracker.take()

    def state_dict(self) -> dict[str, Any]:
        """Metrics since the last call."""
        return {"tracked": self.tracker.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.tracker.load_state_dict(state["tracked"])


def refuse_not_finite(what: str, figures: Any, **seen: np.ndarray) -> None:
    """Raise TrainingError if `figures` of `what` are not finite. seen: their inputs, by name."""
    if np.isfinite(figures).all():
        return
    broken = " and ".join(name for name, values in seen.items() if not np.isfinite(values).all())
    advice = f"the environment gave {broken} that are not finite" if broken else "a smaller lr may help"
    raise TrainingError(f"{what} is not finite; {advice}")


def _rebuilt(kind: type, arguments: tuple[Any, ...], training: bool, state: Mapping[str, Any]) -> Any:
    made = kind(*arguments)
    made.load_state_dict(state)
    made.enable_training_mode(training)
    return made


def copies_of_weights(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """For a checkpoint."""
    return [parameter.detach().clone() for parameter in parameters]


@torch.no_grad()
def put_weights(parameters: Iterable[torch.Tensor], stored: Iterable[torch.Tensor]) -> None:
    """The inverse of `copies_of_weights`."""
    for parameter, value in zip(parameters, stored, strict=True):
        parameter.copy_(value)


def encoder(space: Any) -> tuple[int, Callable[[Rows], np.ndarray]]:
    """(width, function from observations to (n, width) float32 rows): parts of a Dict or Tuple joined in order.

    Observations may be {"observation", "action_mask"} (see `legal_of`), and tuples mappings (see `Copies`). Raises
    UserError for a space that is not Box, MultiBinary, Discrete or MultiDiscrete, nor a Dict or Tuple of such.
    """
    width, encode = _encoder(space)
    if isinstance(space, gymnasium.spaces.Dict) and MASK in space.spaces:
        return width, encode
    flat = not isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)

    def unwrapped(observations: Rows) -> Rows:
        return (
            observations["observation"]
            if isinstance(observations, Mapping) and (flat or MASK in observations)
            else observations
        )

    return width, lambda observations: encode(unwrapped(observations))


def _encoder(space: Any) -> tuple[int, Callable[[Rows], np.ndarray]]:
    if not isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return _flat_encoder(space)
    own = (
        space.spaces
        if isinstance(space, gymnasium.spaces.Dict)
        else {str(place): part for place, part in enumerate(space.spaces)}
    )
    parts = {name: _encoder(part) for name, part in own.items() if name != MASK}
    if not parts:
        raise UserError(
            f"environment: its observations are an empty {type(space).__name__}, expected a space with something in it"
        )
    width = sum(part[0] for part in parts.values())
    return width, lambda observations: np.concatenate([parts[name][1](observations[name]) for name in parts], -1)


def legal_of(observations: Rows) -> np.ndarray | None:
    """(n, actions) bool: mask of legal actions; None if all are legal."""
    return (
        np.asarray(observations[MASK], dtype=bool)
        if isinstance(observations, Mapping) and MASK in observations
        else None
    )


def _flat_encoder(space: Any) -> tuple[int, Callable[[Rows], np.ndarray]]:
    if isinstance(space, gymnasium.spaces.Box | gymnasium.spaces.MultiBinary):
        width = int(np.prod(space.shape))
        if space.dtype == np.float32 and len(space.shape) == 1:
            return width, lambda observations: observations  # type: ignore[return-value,arg-type]
        return width, lambda observations: np.asarray(observations, dtype=np.float32).reshape(-1, width)
    if isinstance(space, gymnasium.spaces.Discrete):
        table = np.eye(int(space.n), dtype=np.float32)
        return int(space.n), lambda observations: table[np.asarray(observations) - int(space.start)]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        counts = space.nvec.reshape(-1)
        first = np.cumsum(counts) - counts - np.asarray(space.start).reshape(-1)  # column of the lowest value of each

        def one_hots(observations: Rows) -> np.ndarray:
            columns = np.asarray(observations).reshape(-1, len(counts)) + first
            made = np.zeros((len(columns), counts.sum()), dtype=np.float32)
            np.put_along_axis(made, columns, 1.0, -1)
            return made

        return int(counts.sum()), one_hots
    raise UserError(
        f"environment: its observations are a {type(space).__name__}, expected a Box, MultiBinary, Discrete or"
        " MultiDiscrete space, or a Dict or Tuple of these (use a wrapper)"
    )
