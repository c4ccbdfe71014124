"""Turns of language agents as rows of tokens to learn from: every distinct beginning is computed once.

Decisions that matter here:
- what a model is given for a turn is its prompt and all of its reply but the last token. Where that is the beginning of another turn's
  (earlier turns of a dialogue, equal replies to one prompt), both are read off one row. Causal attention sees to it that nothing changes;
- rows are sorted by length and cut into parts of at most so many tokens, padding included. Padding stands at the right, where causal
  attention never looks, so no mask is needed;
- a part has whole turns. Whatever weighs tokens by sums over the minibatch is told these sums, so gradients of parts add up to the
  minibatch's whatever the parts are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turn:
    """A reply (at least one token) to a prompt. logprobs: of its tokens as they were drawn, at `temperature`; none: no model drew them."""

    prompt: Sequence[int]
    reply: Sequence[int]
    logprobs: Sequence[float] = ()
    advantage: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True)
class Part:
    """R rows of L tokens, the N turns that are read off them, of at most T tokens of reply, and their E tokens in all, turn by turn.

    turns: their numbers. column_C: the columns after which something is read. row_E, column_E: the row, and the place in column_C, after
    which a token is read. mask_NT: 1 where a turn has a token, so `mask_NT.bool()` has E places.
    """

    turns: list[int]
    ids_RL: Tensor
    column_C: Tensor
    row_E: Tensor
    column_E: Tensor
    token_E: Tensor
    temperature_E: Tensor
    mask_NT: Tensor
    old_logprob_NT: Tensor
    advantage_N: Tensor

    def to(self, device: torch.device) -> "Part":
        """The same on a device."""
        tensors: dict[str, Any] = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)

    def by_turn(self, value_E: Tensor) -> Tensor:
        """(N, T) of what was computed for each token; zero elsewhere."""
        return torch.zeros_like(self.mask_NT).masked_scatter(self.mask_NT.bool(), value_E)


def merge(rows: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each distinct row -> itself, or a longer row that begins with it. In sorted order these follow one another."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    longer: tuple[int, ...] = ()
    for row in sorted(set(rows), reverse=True):
        if longer[: len(row)] != row:
            longer = row
        found[row] = longer
    return found


def parts_of(turns: Sequence[Turn], max_tokens: int) -> Iterator[Part]:
    """The turns in parts of at most `max_tokens` tokens of rows (but of one row at least), shortest rows first."""
    given = [(*turn.prompt, *turn.reply[:-1]) for turn in turns]
    merged = merge(given)
    members: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(given):
        members.setdefault(merged[row], []).append(number)
    rows: list[tuple[int, ...]] = []
    for row in sorted(members, key=lambda row: (len(row), row)):
        if rows and len(row) * (len(rows) + 1) > max_tokens:
            yield _part(turns, rows, [members[row] for row in rows])
            rows = []
        rows.append(row)
    if rows:
        yield _part(turns, rows, [members[row] for row in rows])


def shares(turns: Sequence[Turn], count: int) -> list[list[int]]:
    """The numbers of the turns that each of `count` learners computes: whole rows, the longest first to whoever has the fewest tokens."""
    given = [(*turn.prompt, *turn.reply[:-1]) for turn in turns]
    merged = merge(given)
    tokens = [0] * count
    owner: dict[tuple[int, ...], int] = {}
    for row in sorted(set(merged.values()), key=lambda row: (-len(row), row)):
        owner[row] = min(range(count), key=lambda learner: tokens[learner])
        tokens[owner[row]] += len(row)
    return [[number for number, row in enumerate(given) if owner[merged[row]] == learner] for learner in range(count)]


def _part(turns: Sequence[Turn], rows: Sequence[tuple[int, ...]], members: Sequence[Sequence[int]]) -> Part:
    numbers = list(chain.from_iterable(members))
    here = [turns[number] for number in numbers]
    length_N = torch.tensor([len(turn.reply) for turn in here])
    row_N = torch.tensor([row for row, inside in enumerate(members) for _ in inside])
    start_N = torch.tensor([len(turn.prompt) - 1 for turn in here])
    mask_NT = torch.arange(int(length_N.max())) < length_N[:, None]
    ids_RL = torch.zeros(len(rows), len(rows[-1]), dtype=torch.long)
    ids_RL[torch.arange(len(rows[-1])) < torch.tensor([[len(row)] for row in rows])] = torch.tensor(list(chain.from_iterable(rows)))
    column_C, column_E = (start_N[:, None] + torch.arange(mask_NT.shape[1]))[mask_NT].unique(return_inverse=True)
    old_logprob_NT = torch.zeros(mask_NT.shape)
    drawn_N = torch.tensor([len(turn.logprobs) > 0 for turn in here])
    logprobs = list(chain.from_iterable(turn.logprobs for turn in here))
    old_logprob_NT[mask_NT & drawn_N[:, None]] = torch.tensor(logprobs, dtype=torch.float32)
    return Part(
        turns=numbers,
        ids_RL=ids_RL,
        column_C=column_C,
        row_E=row_N.repeat_interleave(length_N),
        column_E=column_E,
        token_E=torch.tensor(list(chain.from_iterable(turn.reply for turn in here))),
        temperature_E=torch.tensor([turn.temperature for turn in here]).repeat_interleave(length_N),
        mask_NT=mask_NT.float(),
        old_logprob_NT=old_logprob_NT,
        advantage_N=torch.tensor([turn.advantage for turn in here], dtype=torch.float32),
    )
