"""Players in place of the network of a role that is not trained: players without weights, by name, or a module."""

# pyright: basic, reportArgumentType=false
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from torch import nn

from nip_ray.errors import UserError


@dataclass(frozen=True)
class Opponent:
    """A player. names: of players without weights (None: a module, which is not in checkpoints); refs: the module in
    the object store."""

    module: nn.Module
    names: tuple[str, ...] | None
    refs: tuple[ray.ObjectRef, ...] = ()


def opponent_of(scenario: Any, role: str, given: nn.Module | str | Sequence[str], remote: bool) -> Opponent:
    """The player of `role`. remote: for env runners in other processes too. Raises UserError for an invalid player or
    an unknown name."""
    if isinstance(given, nn.Module):
        if not callable(getattr(given, "groups", None)):
            raise UserError(
                f"opponent: got a {type(given).__name__}, which has no groups(), expected a network of the same form"
            )
        module, names = given, None
    else:
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"opponent: got {given!r}, expected weights, a module, the name of a player or several names"
            )
        if not hasattr(scenario, "scripted_agent"):
            raise UserError(f"opponent: {scenario.name} has no players without weights, give a module or weights")
        module, names = scenario.scripted_agent(role, *names), tuple(names)
    return Opponent(module, names, (ray.put(module),) if remote else ())


def names_of(opponents: Mapping[str, Opponent]) -> dict[str, list[str] | None]:
    """Their form in checkpoints."""
    return {role: None if opponent.names is None else list(opponent.names) for role, opponent in opponents.items()}
