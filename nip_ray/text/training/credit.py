"""Credit for every turn of an iteration: returns from the protocol's payments, advantages by the rule."""

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.learning.policy_gradient import returns_to_go
from nip_ray.learning.token_losses import Advantages, AgentTurns, group_numbers
from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import Dialogue
from nip_ray.protocols import Protocol
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.text.training.model_play import Reply

TurnAdvantages = Callable[[AgentTurns, Mapping[str, float], Any], tuple[Advantages, dict[str, float]]]
"""(an agent's turns, the rule's memory, settings) -> (advantages, its new memory: numbers, kept in checkpoints)."""


@dataclass(frozen=True)
class Credit:
    """replies: each with its turn, which has an advantage now. memory: of the rule. figures: metrics."""

    replies: list[tuple[Reply, Turn]]
    memory: dict[str, float]
    figures: dict[str, float]


def credit(
    advantages: TurnAdvantages,
    settings: TokenTrainingSettings,
    protocol: Protocol,
    dialogues: Sequence[Dialogue],
    replies: Sequence[Reply],
    memory: Mapping[str, float],
) -> Credit:
    """Credit the replies, agent by agent. A turn's group has the same item, agent, round, opponents and known role."""
    made = Credit([], dict(memory), {})
    longest = max(len(dialogue.rounds) for dialogue in dialogues)
    for agent in protocol.agents:
        own = [reply for reply in replies if reply.agent == agent]
        if not own:
            continue
        reward_BR = torch.zeros(len(dialogues), longest)
        for place, dialogue in enumerate(dialogues):
            for r, paid in enumerate(dialogue.rewards):
                reward_BR[place, r] = paid.get(agent, 0.0)
        return_BR = returns_to_go(reward_BR, settings.discount)
        return_N = return_BR[[reply.place for reply in own], [reply.round for reply in own]]
        if settings.invalid_penalty:
            taken = [dialogues[reply.place].rounds[reply.round] for reply in own]
            invalid = [any(turn.invalid for turn in turns if turn.agent == agent) for turns in taken]
            return_N = return_N - settings.invalid_penalty * torch.tensor(invalid)
        roles = [protocol.told_role(agent, one.round, dialogues[one.place].seed) for one in own]
        keys = (
            (dialogues[one.place].item.id, one.round, one.snapshot, role) for one, role in zip(own, roles, strict=True)
        )
        turns = AgentTurns(
            agent,
            return_N,
            group_numbers(*zip(*keys, strict=True)),
            torch.tensor([reply.place for reply in own]),
            roles,
        )
        found, memory = advantages_of(advantages, turns, made.memory, settings)
        made.memory.update(memory)
        made.figures[f"learn/{agent}/return"] = float(return_N.mean())
        if found.num_groups:
            made.figures[f"learn/{agent}/groups_equal"] = found.equal_share
            made.figures[f"learn/{agent}/groups_alone"] = found.num_alone / found.num_groups
        made.replies.extend(
            (one, replace(one.turn, advantage=value))
            for one, value in zip(own, found.advantage_N.tolist(), strict=True)
        )
    return made


def advantages_of(
    advantages: TurnAdvantages, turns: AgentTurns, memory: Mapping[str, float], settings: Any
) -> tuple[Advantages, dict[str, float]]:
    """Advantages by the rule of these settings. Raises UserError unless there is a finite number for each turn, and a
    memory of numbers."""
    place, given = f"algorithm {settings.name!r}: advantages", advantages(turns, memory, settings)
    if not (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], Advantages)
        and isinstance(given[1], Mapping)
    ):
        raise UserError(
            f"{place} gives {reprlib.repr(given)}, expected (Advantages(advantage_N), what to remember by name)"
        )
    advantage_N, new = given[0].advantage_N, given[1]
    if not (
        isinstance(advantage_N, Tensor) and advantage_N.shape == turns.return_N.shape and advantage_N.isfinite().all()
    ):
        raise UserError(f"{place} must be one finite number for each turn (got {reprlib.repr(advantage_N)})")
    if not all(
        isinstance(name, str) and isinstance(value, float | int) and math.isfinite(value) for name, value in new.items()
    ):
        raise UserError(f"{place} must remember finite numbers by name (got {reprlib.repr(dict(new))})")
    return given[0], dict(new)
