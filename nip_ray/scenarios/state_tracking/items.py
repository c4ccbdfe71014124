"""Chains as items of language agents, and their words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Probabilities
from nip_ray.protocols import DECISIONS
from nip_ray.scenarios.state_tracking.chains import GENERATORS, Chains, draw_chains
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings

STATES = ("a", "b", "c", "d", "e")
HALVES = ("left", "right")
VERDICTS = DECISIONS[:2]
MOVES = tuple(f"m{move}" for move in range(len(GENERATORS)))
_KEYS = ("states", "claim", "true", "needed", "move", "start", "moves", "committed", "pass")
_PLACES = 16  # minimum for models, so that one trained on shorter chains can continue with longer ones


@dataclass(frozen=True)
class ChainItem:
    """A chain and its claimed end. states: the true ones, at the places 0 to n. y: 1 for a true claim, else 0."""

    id: int
    moves: tuple[int, ...]
    states: tuple[int, ...]
    claim: int
    y: int


@dataclass(frozen=True)
class Dispute:
    """The interval that is left of a bisection: its ends, the states committed there, and the one in the middle once it
    is said."""

    low: int
    high: int
    low_state: int
    high_state: int
    middle: int | None = None

    @property
    def halfway(self) -> int:
        """The place of the middle."""
        return (self.low + self.high) // 2

    def half(self, right: bool) -> "Dispute":
        """The half that is kept."""
        assert self.middle is not None
        if right:
            return Dispute(self.halfway, self.high, self.middle, self.high_state)
        return Dispute(self.low, self.halfway, self.low_state, self.middle)


def words_of_chains(length: int) -> tuple[str, ...]:
    """States, places, moves, and a few more."""
    places = map(str, range(max(_PLACES, length) + 1))
    return (*STATES, *places, *MOVES, *HALVES, *VERDICTS, *_KEYS)


def chains_of(items: Sequence[ChainItem]) -> Chains:
    """The chains of these items, as tensors."""
    return Chains(*(torch.tensor([getattr(item, name) for item in items]) for name in ("moves", "states", "claim")))


def chain_items(settings: LanguageStateTrackingSettings, seed: int) -> dict[str, list[ChainItem]]:
    """The chains of `seed` by split. Raises UserError if there are not enough."""
    chains = draw_chains(settings, seed)
    rows = zip(*(x.tolist() for x in (chains.move_IT, chains.state_IP, chains.claim_I, chains.label_I)))
    items = [
        ChainItem(number, tuple(moves), tuple(states), claim, y)
        for number, (moves, states, claim, y) in enumerate(rows)
    ]
    return {"train": items[: settings.num_train], "test": items[settings.num_train :]}


def read_chain_item(record: Mapping[str, Any]) -> ChainItem:
    """An item from its record. Raises UserError if the moves do not lead to its states."""
    item = ChainItem(record["id"], tuple(record["moves"]), tuple(record["states"]), record["claim"], record["y"])
    steps = zip(item.moves, item.states, item.states[1:], strict=False)
    if any(GENERATORS[move][before] != after for move, before, after in steps) or item.y != int(
        item.states[-1] == item.claim
    ):
        raise UserError(f"item {item.id}: its states or its label do not follow from its moves; make the items again")
    return item


def reply_shares(
    probabilities: Probabilities, agent: str, chats: Sequence[Chat], replies: Sequence[str], attempts: int
) -> tuple[Tensor, Tensor]:
    """((N, replies) the probability of each reply, (N, 1) of none), float64; equal chats are queried once."""
    number: dict[str, int] = {}
    place_N = torch.tensor([number.setdefault(chat[0]["content"], len(number)) for chat in chats])
    different = [[{"role": "user", "content": content}] for content in number]
    given = torch.as_tensor(probabilities(agent, different, replies), dtype=torch.float64)
    lost = (1 - given.sum(1, keepdim=True)).clamp(0, 1)
    return (given * sum(lost**attempt for attempt in range(attempts)))[place_N], (lost**attempts)[place_N]
