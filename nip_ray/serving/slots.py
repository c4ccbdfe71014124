"""Keys and values of the replies in the making: one slot for each, all of one tensor, so that replies come and go without copying.

Decisions that matter here:
- a slot holds its tokens from position 0 on, so a token's column is its position: no padding on the left, nothing is shifted when
  another reply joins or leaves. Rows of unlike length meet by the mask alone;
- the occupied slots are always the first ones: a step works on views. The last column is scratch, written by padding, never read;
- a slot remembers which tokens it holds, also after its reply is done. A new prompt starts from the longest beginning that it shares
  with any slot (agents ask again and again under the same instructions), and computes the rest only.
"""

from typing import Any

import torch
from torch import Tensor

from nip_ray.serving.extras import local_llm

BLOCK = 256
"""The number of columns grows by multiples of this."""


class Slots:
    """S slots of T columns. `tokens[s]` are the tokens whose keys and values slot s holds."""

    def __init__(self, num_slots: int, context: int) -> None:
        self.num_slots, self.context = num_slots, context
        self.columns = 0
        self.tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._rows = torch.zeros(0, dtype=torch.long)
        self._columns = torch.zeros(0, 0, dtype=torch.long)
        self._first, self._width = 0, 0
        self.as_cache: Any = _cache_class()(self)

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in every slot."""
        if length <= self.columns:
            return
        wanted = min(-(-length // BLOCK) * BLOCK, self.context)
        self.columns, old = max(wanted, length), self.columns
        for index, pair in self.layers.items():
            self.layers[index] = (self._grown(pair[0], old), self._grown(pair[1], old))

    def shared_beginning(self, prompt: list[int]) -> tuple[int, int]:
        """(slot, number of tokens) of the longest beginning of `prompt` held anywhere; at least one token is left to compute."""
        lengths = [_common(prompt, held) for held in self.tokens]
        best = max(range(self.num_slots), key=lengths.__getitem__)
        return best, min(lengths[best], len(prompt) - 1)

    def copy(self, source: int, target: int, length: int) -> None:
        """Let slot `target` hold the first `length` tokens of slot `source`."""
        self.tokens[target] = self.tokens[source][:length]
        if source == target:
            return
        for keys, values in self.layers.values():
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]

    def place(self, first: int, position_BQ: Tensor, width: int) -> None:
        """Where the next forward pass writes: rows from slot `first`, at these positions (negative: padding); it reads `width` columns."""
        rows = position_BQ.shape[0]
        self._rows = torch.arange(first, first + rows, device=position_BQ.device)[:, None]
        self._columns = torch.where(position_BQ < 0, self.columns, position_BQ)
        self._first, self._width = first, width

    def write(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Put (B, H, Q, D) where `place` said; returns all that these rows hold, (B, H, T, D)."""
        if layer not in self.layers:
            self.layers[layer] = (self._empty(keys), self._empty(values))
        held = self.layers[layer]
        for buffer, new in zip(held, (keys, values), strict=True):
            buffer[self._rows, :, self._columns] = new.transpose(1, 2)
        last = self._first + self._rows.shape[0]
        return held[0][self._first : last, :, : self._width], held[1][self._first : last, :, : self._width]

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.num_slots, like.shape[1], self.columns + 1, like.shape[3])

    def _grown(self, buffer: Tensor, old: int) -> Tensor:
        made = self._empty(buffer)
        made[:, :, :old] = buffer[:, :, :old]
        return made


def _common(first: list[int], second: list[int]) -> int:
    """The length of the longest common beginning, by bisection over slices (each compared at C speed)."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cache_class() -> type:
    """The adapter by which transformers' models write to slots; made on first use, since transformers is an extra."""
    cache_utils = local_llm("transformers.cache_utils")

    class SlotCache(cache_utils.Cache):
        """What a model sees of `Slots`."""

        def __init__(self, slots: Slots) -> None:
            super().__init__(layers=[])
            self.slots = slots

        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            return self.slots.write(key_states, value_states, layer_idx)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

    return SlotCache
