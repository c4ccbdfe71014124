"""Continuous batching: replies join and leave the running batch at every token. A batch is used by one thread.

Decisions that matter here:
- our own loop over transformers' models, because its own continuous batching draws every reply from one global
  generator: here the same request and seed give the same reply with any neighbours (up to float noise);
- a waiting request joins as soon as a slot is free. Its prompt is computed beside the running replies, in pieces of at
  most `PREFILL` tokens over all rows, starting from the prefix that any slot already holds (see
  `nip_ray.serving.slots`). A beginning that waiting prompts share, and equal prompts, are computed once;
- replies with equal prompts share a slot and every computation until their tokens differ (a branch);
- work per row and token is plain Python on numbers; tensors are made for all rows together. Tokens become text when a
  reply is done, or at each token if there is a listener.
"""

import inspect
import json
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.learning.token_rows import common_beginning
from nip_ray.serving.chat_format import ChatFormat
from nip_ray.serving.generation import Generation, GenerationRequest, OnText, TooLong
from nip_ray.serving.grammar import Grammar, Writer
from nip_ray.serving.sampling import draw, stream, uniforms
from nip_ray.serving.slots import Slots
from nip_ray.serving.stream import TextStream
from nip_ray.serving.windows import layer_masks, refuse_other_attention

PREFILL = 4096
"""Maximum number of prompt tokens in one forward pass."""
LEAST_SHARED = 8
"""Tokens that waiting prompts must share beyond what is held, to be computed in a pass of their own."""

_MOST_GRAMMARS = 16


@dataclass(eq=False, slots=True)
class Row:
    """A reply in progress. future: of the caller; done early, it removes the row. reply: once it is complete."""

    request: GenerationRequest
    stream: int
    text: TextStream
    writer: Writer | None = None
    on_text: OnText | None = None
    future: "Future[Generation] | None" = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reply: Generation | None = None

    def given_up(self) -> bool:
        """Cancelled, or its listener failed."""
        return self.future is not None and self.future.done()


class ContinuousBatch:
    """Generates for many at once with a model in memory. waiting: not yet started; branches: rows in progress, those
    in one slot together, at most as many rows as there are slots.

    The model may be shared: after changing its weights call `forget` before generating.
    """

    def __init__(self, model: Any, chat: ChatFormat, num_slots: int) -> None:
        """Raises UserError for a model that it cannot run."""
        chat.refuse_without_embedding(model.get_input_embeddings().weight.shape[0])
        refuse_other_attention(model, chat.tokenizer.name_or_path)
        self.model, self.chat = model, chat
        # without adapters, which hide its arguments
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._cache_key = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
        self.waiting: deque[Row] = deque()
        self.branches: list[list[Row]] = []
        named = model.generation_config.eos_token_id
        self._ends = chat.ends | {*(named if isinstance(named, list) else [named])} - {None}
        self._slots = Slots(num_slots, chat.context)
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._making = threading.Lock()

    @property
    def rows(self) -> list[Row]:
        """In progress."""
        return [row for branch in self.branches for row in branch]

    def row(
        self, request: GenerationRequest, on_text: OnText | None = None, future: "Future[Generation] | None" = None
    ) -> Row:
        """A row for `waiting`; may be called from any thread.

        Raises TooLong for a request that does not fit into the model's context, UserError for an invalid one, and for a
        schema that the model's vocabulary cannot write.
        """
        if not request.prompt or request.max_tokens < 1:
            raise UserError("a request needs a prompt of at least one token, and max_tokens of at least 1")
        if len(request.prompt) + request.max_tokens > self.chat.context:
            raise TooLong(
                f"the prompt has {len(request.prompt)} tokens and the reply may have {request.max_tokens}, "
                f"but the context of this model is {self.chat.context} tokens; shorten either"
            )
        writer = (
            None
            if request.schema is None
            else Writer(self._grammar(request.schema), request.max_tokens, bool(self.chat.opened))
        )
        return Row(request, stream(request.seed), TextStream(self.chat.text, request.stop), writer, on_text, future)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """All replies, in the order of the requests, computed in the calling thread. Raises as `row` does."""
        rows = [self.row(request) for request in requests]
        self.waiting.extend(rows)
        try:
            while self.branches or self.waiting:
                self.advance()
        finally:
            self.branches.clear()
            self.waiting.clear()
        return [row.reply for row in rows if row.reply is not None]

    def forget(self) -> None:
        """Discard cached computations: the weights have changed."""
        self._slots.forget()

    @torch.inference_mode()
    def advance(self) -> None:
        """Admit rows to free slots, compute one token for every row, release finished ones."""
        self.branches = [[row for row in branch if not row.given_up()] for branch in self.branches]
        self._leave()
        room = self._slots.num_slots - len(self.rows)
        if room:  # drop cancelled rows; new rows join in the order of their remaining prompts
            waiting = [row for row in self.waiting if not row.given_up()]
            joining = waiting[:room]
            if len(joining) > 1:
                joining.sort(
                    key=lambda row: len(row.request.prompt) - self._slots.shared_beginning(row.request.prompt)[1]
                )
            self.waiting = deque([*joining, *waiting[room:]])
        while self.waiting and len(self.rows) < self._slots.num_slots:
            self._prefill()
        if self.branches:  # one more token for every row
            last = torch.tensor([branch[0].tokens[-1] for branch in self.branches])
            lengths = torch.tensor([len(self._slots.tokens[slot]) for slot in range(len(self.branches))])
            logits = self._forward(last[:, None], lengths[:, None], 0)
            for slot, branch in enumerate(self.branches):
                self._slots.tokens[slot].append(branch[0].tokens[-1])
            self._slots.changed()
            self._take(logits, 0)

    def _grammar(self, schema: Mapping[str, Any]) -> Grammar:
        key = json.dumps(schema)
        with self._making:
            found = self._grammars.pop(key, None) or Grammar(schema, self.chat.pieces)
            self._grammars[key] = found
            while len(self._grammars) > _MOST_GRAMMARS:
                self._grammars.popitem(last=False)
        return found

    def _prefill(self) -> None:
        """Compute the prompts of the first waiting rows, as many as `PREFILL` and the slots allow, and draw the first
        token of each reply."""
        self._prefill_shared()
        # choose prompts, equal ones once, each with the slot that holds its longest prefix
        first, count, longest = len(self.branches), 0, 0
        alike: dict[tuple[int, ...], list[Row]] = {}
        sources: list[tuple[int, int]] = []
        for row in islice(self.waiting, self._slots.num_slots - len(self.rows)):
            prompt = row.request.prompt
            if (key := tuple(prompt)) not in alike:
                source, shared = self._slots.shared_beginning(prompt)
                length = max(longest, len(prompt) - shared)
                if sources and length * (len(sources) + 1) > PREFILL:
                    break
                sources.append((source, shared))
                longest, alike[key] = length, []
            alike[key].append(row)
            count += 1
        # compute the missing part of each, in pieces
        self._slots.reserve(
            max(len(rows[0].request.prompt) + row.request.max_tokens for rows in alike.values() for row in rows)
        )
        self._slots.bring(first, sources)
        parts = [list(prompt[shared:]) for prompt, (_, shared) in zip(alike, sources, strict=True)]
        logits = self._read(parts, [shared for _, shared in sources], longest, first)
        for slot, prompt in enumerate(alike, first):
            self._slots.hold(slot, list(prompt))
        for _ in range(count):
            self.waiting.popleft()
        self.branches.extend(alike.values())
        self._take(logits, first)

    def _prefill_shared(self) -> None:
        """Compute the beginning that all prompts of the first waiting rows share, once, unless a slot holds it."""
        first = len(self.branches)
        prompts = [row.request.prompt for row in islice(self.waiting, self._slots.num_slots - len(self.rows))]
        least, most = min(prompts), max(prompts)
        shared = common_beginning(least, most)  # of the first and the last in sorted order: of all
        source, held = self._slots.shared_beginning(least)
        if least == most or shared - held < LEAST_SHARED:
            return
        self._slots.reserve(shared)
        self._slots.bring(first, [(source, held)])
        self._read([least[held:shared]], [held], shared - held, first)
        self._slots.hold(first, least[:shared])

    def _read(self, parts: list[list[int]], starts: list[int], longest: int, first: int) -> Tensor:
        """Compute these parts of prompts, the longest of `longest` tokens, in pieces; logits (B, V) after the last."""
        ids, positions = _aligned(parts, starts, longest)
        piece = max(PREFILL // len(parts), 1)
        return [
            self._forward(ids[:, at : at + piece], positions[:, at : at + piece], first)
            for at in range(0, longest, piece)
        ][-1]

    def _forward(self, ids_BQ: Tensor, position_BQ: Tensor, first: int) -> Tensor:
        """Logits (B, V) after the last of these tokens, whose rows are the slots from `first` on. Negative positions
        are padding."""
        width, device = int(position_BQ.max()) + 1, self.model.device
        ids_BQ, position_BQ = ids_BQ.to(device), position_BQ.to(device)
        self._slots.place(first, position_BQ, width)
        seen_BQ = position_BQ.clamp(min=0)
        # by index, which copies: torch multiplies a view row by row, and may copy the output layer for each
        last = torch.tensor([ids_BQ.shape[1] - 1], device=device)
        distance = seen_BQ[:, None, :, None] - torch.arange(width, device=device)  # (B, 1, Q, T)
        out = self.model(
            input_ids=ids_BQ,
            attention_mask=layer_masks(self.model, distance >= 0, distance),
            position_ids=seen_BQ,
            use_cache=True,
            logits_to_keep=last,
            **{self._cache_key: self._slots.as_cache},
        )
        return out.logits[:, -1]

    def _take(self, logits_BV: Tensor, first: int) -> None:
        """Draw a token for each row of the branches from slot `first` on, release finished rows, and give a slot of its
        own to each branch whose token differs from the first's."""
        rows, owners, numbers = [], [], dict[tuple[Any, ...], int]()
        for place, branch in enumerate(self.branches[first:]):
            for row in branch:
                rows.append(row)
                how = place, row.request.temperature, row.request.top_p, row.writer and id(row)
                owners.append(numbers.setdefault(how, len(numbers)))
        device = logits_BV.device
        logits_DV = logits_BV[torch.tensor([place for place, *_ in numbers], device=device)]
        for row, number in zip(rows, owners, strict=True):
            if row.writer and (allowed := row.writer.allowed()) is not None:
                kept = logits_DV[number, allowed.to(device)].clone()
                logits_DV[number] = -torch.inf
                logits_DV[number, allowed.to(device)] = kept
        uniform_B = uniforms([row.stream for row in rows], [len(row.tokens) for row in rows])
        temperature_D = torch.tensor([temperature for _, temperature, *_ in numbers], dtype=torch.float64)
        top_p_D = torch.tensor([top_p for _, _, top_p, _ in numbers], dtype=torch.float64)
        drawn = draw(
            logits_DV,
            temperature_D.to(device),
            top_p_D.to(device),
            uniform_B.to(device),
            torch.tensor(owners, device=device),
        )
        tokens = iter(zip(*(values.tolist() for values in drawn), strict=True))
        parting: list[tuple[int, list[Row]]] = []
        for slot, branch in enumerate(self.branches[first:], first):
            alike: dict[int, list[Row]] = {}
            for row in branch:
                token, logprob = next(tokens)
                if not self._extend(row, token, logprob):
                    alike.setdefault(token, []).append(row)
            self.branches[slot], *others = alike.values() or [[]]
            parting += [(slot, other) for other in others]
        if parting:
            held = [(slot, len(self._slots.tokens[slot])) for slot, _ in parting]
            self._slots.bring(len(self.branches), held)
            self.branches += [other for _, other in parting]
        self._leave()

    def _extend(self, row: Row, token: int, logprob: float) -> bool:
        """Add a token to a reply; True when that was its last."""
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if row.writer:
            row.writer.add(token, lambda: self.chat.text(row.tokens))
        complete = row.writer is not None and row.writer.complete
        ended = token in self._ends
        full = len(row.tokens) >= row.request.max_tokens
        final = ended or full or complete
        if row.on_text or row.request.stop or final:
            piece = row.text.advance(row.tokens[:-1] if ended else row.tokens, final=final)
            if row.on_text and piece:
                _tell(row, piece)
        if not (final or row.text.stopped):
            return False
        cut = row.writer.hurried if row.writer and complete else full and not ended
        reason = "length" if cut and not row.text.stopped else "stop"
        row.reply = Generation(row.text.text, row.tokens, reason, len(row.request.prompt), row.logprobs)
        if row.future is not None:
            with suppress(Exception):  # cancelled meanwhile
                row.future.set_result(row.reply)
        return True

    def _leave(self) -> None:
        """Free the slots of empty branches; the last branches move into them, so that occupied slots stay the first
        ones."""
        holes = [slot for slot, branch in enumerate(self.branches) if not branch]
        left = len(self.branches) - len(holes)
        moves = list(zip(holes, (slot for slot in range(left, len(self.branches)) if self.branches[slot])))
        for hole, index in moves:
            self.branches[hole] = self.branches[index]
        self._slots.swap(moves)
        del self.branches[left:]


def _tell(row: Row, piece: str) -> None:
    """Pass on a piece of text. A failing listener ends only its own reply."""
    assert row.on_text is not None
    assert row.future is not None
    try:
        row.on_text(piece)
    except Exception as error:
        with suppress(Exception):  # cancelled meanwhile
            row.future.set_exception(error)


def _aligned(parts: list[list[int]], starts: list[int], longest: int) -> tuple[Tensor, Tensor]:
    """Token ids and positions (B, Q), aligned at the right; padding has position -1."""
    length_B1 = torch.tensor([[len(part)] for part in parts])
    place_BQ = torch.arange(longest) - longest + length_B1
    ids_BQ = torch.zeros_like(place_BQ)
    ids_BQ[place_BQ >= 0] = torch.tensor(list(chain.from_iterable(parts)))
    return ids_BQ, torch.where(place_BQ >= 0, place_BQ + torch.tensor(starts)[:, None], -1)
