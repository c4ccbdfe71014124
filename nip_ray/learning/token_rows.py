"""Turns of language agents as rows of tokens to learn from: every distinct prefix is computed once.

Decisions that matter here:
- the model's input for a turn is its prompt and all of its reply but the last token. If that is a prefix of another
  turn's (earlier turns of a dialogue, equal replies to one prompt), both are read off one row; causal attention makes
  this exact. Equal tokens of equal replies share one distribution over the vocabulary;
- rows that share enough with another (see `joins`) branch off it: one row holds them all, one branch after the other,
  and a token attends to those before it in its own row;
- rows are sorted by length and cut into parts of a maximum number of tokens, padding included. Padding is at the right,
  where causal attention never looks, so no mask is needed;
- a part has whole turns. Token weights use the sums of the whole minibatch, so gradients of parts add up to the
  minibatch's for any division.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

PAIRS_PER_TOKEN = 1
"""Pairs of tokens, per unit of a model's width, whose attention takes as long as all else that a token passes."""


def joins(tree: int, shared: int, row: int, width: int) -> bool:
    """Return True if a row of `row` tokens is computed faster on a tree of `tree` tokens, with which it shares the
    first `shared`, than alone.

    On the tree its own tokens are paired with all of the tree's, though they attend to their own row only; alone it
    computes the shared tokens again.
    """
    own = row - shared
    return (2 * tree + own) * own <= PAIRS_PER_TOKEN * width * shared + row * row


@dataclass(frozen=True)
class Turn:
    """A reply (at least one token) to a prompt. logprobs: of its tokens when sampled, at `temperature`; empty if no
    model sampled them."""

    prompt: Sequence[int]
    reply: Sequence[int]
    logprobs: Sequence[float] = ()
    advantage: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True)
class Part:
    """R rows of L tokens, the N turns that are read off them, of at most T tokens of reply, and their E tokens in all,
    turn by turn, of which U are distinct.

    turns: their numbers. column_C: the columns after which something is read. row_U, column_U: the row, and the place
    in column_C, after which a token is read. distinct_E: the distinct token of each. mask_NT: 1 where a turn has a
    token, so `mask_NT.bool()` has E places.
    """

    turns: list[int]
    ids_RL: Tensor
    column_C: Tensor
    row_U: Tensor
    column_U: Tensor
    token_U: Tensor
    temperature_U: Tensor
    distinct_E: Tensor
    mask_NT: Tensor
    old_logprob_NT: Tensor
    advantage_N: Tensor
    place_RL: Tensor | None = None
    seen_RLL: Tensor | None = None

    def to(self, device: torch.device) -> "Part":
        """The same on a device."""
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)

    def by_turn(self, value_E: Tensor) -> Tensor:
        """(N, T) of the values of tokens; zero elsewhere."""
        return torch.zeros_like(self.mask_NT).masked_scatter(self.mask_NT.bool(), value_E)


def merge(rows: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each distinct row -> itself, or a longer row with this prefix. In sorted order these are adjacent."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    longer: tuple[int, ...] = ()
    for row in sorted(set(rows), reverse=True):
        if longer[: len(row)] != row:
            longer = row
        found[row] = longer
    return found


def parts_of(turns: Sequence[Turn], max_tokens: int, width: int = 64) -> Iterator[Part]:
    """The turns in parts of at most `max_tokens` tokens of rows (but of one row at least), shortest rows first.
    width: the model's."""
    given = [(*turn.prompt, *turn.reply[:-1]) for turn in turns]
    merged = merge(given)
    members: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(given):
        members.setdefault(merged[row], []).append(number)
    trees: list[_Tree] = []
    for tree in sorted(_trees(sorted(members), max_tokens, width), key=lambda tree: (len(tree.ids), tree.ids)):
        if trees and len(tree.ids) * (len(trees) + 1) > max_tokens:
            yield _part(turns, trees, members)
            trees = []
        trees.append(tree)
    if trees:
        yield _part(turns, trees, members)


def common_beginning(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix, by bisection over slices (each compared at C speed)."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass
class _Tree:
    """Rows with shared prefixes, as one. ids, places: the token at each column, and its place in its own row. paths:
    row -> the columns of its tokens. branches: (its first column, columns before it that it continues), in the order of
    columns."""

    ids: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    paths: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    branches: list[tuple[int, list[int]]] = field(default_factory=list)

    def add(self, row: tuple[int, ...], path: list[int]) -> list[int]:
        """Add a row that begins with the tokens at the columns of `path`; returns the columns of all of it."""
        start, rest = len(self.ids), row[len(path) :]
        self.branches.append((start, path))
        self.ids += rest
        self.places += range(len(path), len(row))
        self.paths[row] = [*path, *range(start, start + len(rest))]
        return self.paths[row]


def _trees(rows: Sequence[tuple[int, ...]], most: int, width: int) -> list[_Tree]:
    """Sorted rows, none a prefix of another, as trees of at most `most` tokens."""
    trees: list[_Tree] = []
    before: tuple[int, ...] = ()
    path: list[int] = []
    for row in rows:
        shared = common_beginning(row, before)
        tree = len(trees[-1].ids) if trees else 0
        if not trees or tree + len(row) - shared > most or not joins(tree, shared, len(row), width):
            trees.append(_Tree())
            shared = 0
        before, path = row, trees[-1].add(row, path[:shared])
    return trees


def shares(turns: Sequence[Turn], count: int) -> list[list[int]]:
    """The numbers of the turns that each of `count` learners computes: whole rows, the longest first to the learner
    with the fewest tokens."""
    given = [(*turn.prompt, *turn.reply[:-1]) for turn in turns]
    merged = merge(given)
    tokens = [0] * count
    owner: dict[tuple[int, ...], int] = {}
    for row in sorted(set(merged.values()), key=lambda row: (-len(row), row)):
        owner[row] = min(range(count), key=lambda learner: tokens[learner])
        tokens[owner[row]] += len(row)
    return [[number for number, row in enumerate(given) if owner[merged[row]] == learner] for learner in range(count)]


def _part(turns: Sequence[Turn], trees: Sequence[_Tree], members: Mapping[tuple[int, ...], Sequence[int]]) -> Part:
    found = [
        (number, place, path)
        for place, tree in enumerate(trees)
        for row, path in tree.paths.items()
        for number in members[row]
    ]
    numbers = [number for number, _, _ in found]
    here = [turns[number] for number in numbers]
    length_N = torch.tensor([len(turn.reply) for turn in here])
    mask_NT = torch.arange(int(length_N.max())) < length_N[:, None]
    held_RL = torch.arange(len(trees[-1].ids)) < torch.tensor([[len(tree.ids)] for tree in trees])
    ids_RL = torch.zeros(held_RL.shape, dtype=torch.long)
    ids_RL[held_RL] = torch.tensor(list(chain.from_iterable(tree.ids for tree in trees)))
    drawn = [
        (place, column, token, turn.temperature)
        for turn, (_, place, path) in zip(here, found, strict=True)
        for column, token in zip(path[len(turn.prompt) - 1 :], turn.reply, strict=False)
    ]
    distinct = {one: number for number, one in enumerate(dict.fromkeys(drawn))}  # equal tokens of equal replies
    row_U, column_U, token_U, temperature_U = (torch.tensor(value) for value in zip(*distinct, strict=True))
    column_C, column_U = column_U.unique(return_inverse=True)
    old_logprob_NT = torch.zeros(mask_NT.shape)
    drawn_N = torch.tensor([len(turn.logprobs) > 0 for turn in here])
    logprobs = list(chain.from_iterable(turn.logprobs for turn in here))
    old_logprob_NT[mask_NT & drawn_N[:, None]] = torch.tensor(logprobs, dtype=torch.float32)
    return Part(
        turns=numbers,
        ids_RL=ids_RL,
        column_C=column_C,
        row_U=row_U,
        column_U=column_U,
        token_U=token_U,
        temperature_U=temperature_U.float(),
        distinct_E=torch.tensor([distinct[one] for one in drawn]),
        mask_NT=mask_NT.float(),
        old_logprob_NT=old_logprob_NT,
        advantage_N=torch.tensor([turn.advantage for turn in here], dtype=torch.float32),
        **(_seen(trees, held_RL) if any(len(tree.branches) > 1 for tree in trees) else {}),
    )


def _seen(trees: Sequence[_Tree], held_RL: Tensor) -> dict[str, Tensor]:
    """Places of tokens in their own rows, and the attention mask: those before it in its own row, and itself. (Padding
    attends to itself.)"""
    size = held_RL.shape[1]
    place_RL = torch.zeros(held_RL.shape, dtype=torch.long)
    place_RL[held_RL] = torch.tensor(list(chain.from_iterable(tree.places for tree in trees)))
    seen_RLL = torch.eye(size, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, tree in enumerate(trees):
        ends = [start for start, _ in tree.branches[1:]] + [len(tree.ids)]
        for (start, path), end in zip(tree.branches, ends, strict=True):
            seen_RLL[row, start:end, start:end] = torch.ones(end - start, end - start, dtype=torch.bool).tril()
            seen_RLL[row, start:end, path] = True
    return {"place_RL": place_RL, "seen_RLL": seen_RLL}
