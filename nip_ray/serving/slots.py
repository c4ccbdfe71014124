"""Keys and values of the replies in progress: a slot for each, in one tensor, so that replies join and leave without
copying.

Decisions that matter here:
- a slot holds its tokens from position 0 on, so a token's column is its position: no padding on the left, and no shifts
  when another reply joins or leaves. Rows of different length are handled by the mask alone;
- the occupied slots are always the first ones: a step works on views. The last column is scratch, written by padding,
  never read;
- a slot remembers its tokens, also after its reply is done. A new prompt starts from the longest prefix that it shares
  with any slot (agents repeat the same instructions), and computes only the rest.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nip_ray.learning.token_rows import common_beginning
from nip_ray.serving.extras import local_llm

BLOCK = 256
"""The number of columns grows by multiples of this."""
FEWEST = 8
"""Slots that get memory first; their number then doubles when more hold tokens. A game with twelve prompts never fills
hundreds."""


class Slots:
    """S slots of T columns. `tokens[s]` are the tokens whose keys and values slot s holds; after changing one of these
    lists call `changed`. room: slots that have memory."""

    def __init__(self, num_slots: int, context: int) -> None:
        self.num_slots, self.context = num_slots, context
        self.columns, self.room = 0, min(FEWEST, num_slots)
        self.tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._sorted: list[int] | None = None
        self._rows = torch.zeros(0, dtype=torch.long)
        self._columns = torch.zeros(0, 0, dtype=torch.long)
        self._first, self._width = 0, 0
        self.as_cache: Any = _cache_class()(self)

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in every slot."""
        if length <= self.columns:
            return
        wanted = min(-(-length // BLOCK) * BLOCK, self.context)
        self.columns = max(wanted, length)
        self._grow()

    def shared_beginning(self, prompt: list[int]) -> tuple[int, int]:
        """(slot, number of tokens) of the longest prefix of `prompt` held anywhere; at least one token remains to
        compute.

        In sorted order, one of the two neighbours of `prompt` shares most with it.
        """
        if self._sorted is None:
            self._sorted = sorted((slot for slot, held in enumerate(self.tokens) if held), key=self.tokens.__getitem__)
        at = bisect_left(self._sorted, prompt, key=self.tokens.__getitem__)
        near = [(common_beginning(prompt, self.tokens[slot]), -slot) for slot in self._sorted[max(at - 1, 0) : at + 1]]
        length, slot = max(near, default=(0, 0))
        return -slot, min(length, len(prompt) - 1)

    def changed(self) -> None:
        """Call after changing `tokens`."""
        self._sorted = None

    def hold(self, slot: int, tokens: list[int]) -> None:
        """Set the tokens of slot `slot`."""
        self.tokens[slot] = tokens
        self.changed()

    def forget(self) -> None:
        """Clear all slots."""
        self.tokens = [[] for _ in range(self.num_slots)]
        self.changed()

    def bring(self, first: int, wanted: Sequence[tuple[int, int]]) -> None:
        """Let slots from `first` on each hold the first `length` tokens of a slot, for (slot, length) in `wanted`.

        Slots before `first` are unchanged. Of the others, the former content of a target moves to where its new tokens
        come from, or to an empty slot, so that as much as possible is kept for later prompts.
        """
        # current place of a slot's content, and current content of a slot; others: unmoved
        at, holds = {}, {}
        swaps, copies, given = [], [], set()
        after = range(self.num_slots - 1, first + len(wanted) - 1, -1)
        empty = [slot for slot in after if not self.tokens[slot]]  # taken from its end: low slots have memory
        for target, (source, length) in enumerate(wanted, first):
            moved = source
            if length and source >= first and source not in given:
                given.add(source)
            else:
                copies.append((target, source, length))
                moved = empty.pop() if empty else holds.get(target, target)
            place, other = at.get(moved, moved), holds.get(target, target)
            if place != target:
                swaps.append((target, place))
                at[moved], at[other], holds[target], holds[place] = target, place, moved, other
        self.swap(swaps)
        copies = [(target, at.get(source, source), length) for target, source, length in copies]
        copied = [self.tokens[source][:length] for _, source, length in copies]
        self._copy([copy for copy in copies if copy[2]])
        for (target, *_), tokens in zip(copies, copied, strict=True):
            self.tokens[target] = tokens
        for target, (_, length) in enumerate(wanted, first):
            del self.tokens[target][length:]
        self.changed()

    def swap(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Exchange the contents of the two slots of each pair, one pair after the other."""
        if not pairs:
            return
        holds: dict[int, int] = {}
        for one, other in pairs:
            holds[one], holds[other] = holds.get(other, other), holds.get(one, one)
        length = max(len(self.tokens[slot]) for slot in holds)
        self._copy([(target, source, length) for target, source in holds.items()])
        moved = [self.tokens[source] for source in holds.values()]
        for target, tokens in zip(holds, moved, strict=True):
            self.tokens[target] = tokens
        self.changed()

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first `length` columns, for (target, source, length), all at once."""
        if not copies:
            return
        target, source, length = zip(*copies)
        self._reserve_slots(max(*target, *source) + 1)
        for buffer in chain.from_iterable(self.layers.values()):
            buffer[torch.tensor(target), :, : max(length)] = buffer[torch.tensor(source), :, : max(length)]

    def place(self, first: int, position_BQ: Tensor, width: int) -> None:
        """Set the target of the next forward pass: rows from slot `first`, at these positions (negative: padding); it
        reads `width` columns."""
        rows = position_BQ.shape[0]
        self._reserve_slots(first + rows)
        self._rows = torch.arange(first, first + rows, device=position_BQ.device)[:, None]
        self._columns = torch.where(position_BQ < 0, self.columns, position_BQ)
        self._first, self._width = first, width

    def write(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write (B, H, Q, D) to the target of `place`; returns everything that these rows hold, (B, H, T, D)."""
        if layer not in self.layers:
            self.layers[layer] = (self._empty(keys), self._empty(values))
        held = self.layers[layer]
        for buffer, new in zip(held, (keys, values), strict=True):
            buffer[self._rows, :, self._columns] = new.transpose(1, 2)
        last = self._first + self._rows.shape[0]
        return held[0][self._first : last, :, : self._width], held[1][self._first : last, :, : self._width]

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.room, like.shape[1], self.columns + 1, like.shape[3])

    def _reserve_slots(self, count: int) -> None:
        """Give memory to the first `count` slots."""
        if count > self.room:
            self.room = min(max(count, 2 * self.room), self.num_slots)
            self._grow()

    def _grow(self) -> None:
        """Move all that is held to tensors of the present room and columns."""
        for index, pair in self.layers.items():
            self.layers[index] = (self._grown(pair[0]), self._grown(pair[1]))

    def _grown(self, buffer: Tensor) -> Tensor:
        made, (rows, _, columns, _) = self._empty(buffer), buffer.shape
        made[:rows, :, : columns - 1] = buffer[:, :, :-1]
        return made


def _cache_class() -> type:
    """The adapter by which transformers' models write to slots; made on first use, since transformers is an extra."""
    cache_utils = local_llm("transformers.cache_utils")

    class SlotCache(cache_utils.Cache):
        """A model's view of `Slots`."""

        def __init__(self, slots: Slots) -> None:
            super().__init__(layers=[])
            self.slots = slots

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            return self.slots.write(key_states, value_states, layer_idx)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

    return SlotCache
