"""Generation with continuous batching: replies join and leave the running batch at every token.

Decisions that matter here:
- our own loop over transformers' models, because its own continuous batching draws every reply from one global generator: here the
  same request and seed give the same reply whatever its neighbours are (up to float noise);
- a waiting request joins as soon as a slot is free. Its prompt is computed beside the running replies, in pieces of at most
  `PREFILL` tokens over all rows, starting from what any slot already holds of it (see `nip_ray.serving.slots`);
- a request is a `concurrent.futures.Future`: whoever cancels it, a lost client too, frees its slot at the next token;
- one thread works; every method may be called from any thread. If the loop breaks, all who wait are told why.
"""

import atexit
import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.chat_format import context_of, load_format, load_model
from nip_ray.serving.grammar import Grammar, Writer
from nip_ray.serving.sampling import draw, uniforms
from nip_ray.serving.slots import Slots
from nip_ray.serving.stream import TextStream

PREFILL = 4096
"""The most tokens of prompts in one forward pass."""

_MOST_GRAMMARS = 16

OnText = Callable[[str], None]


class TooLong(UserError):
    """A prompt and its reply do not fit into the model's context."""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt and how to continue. temperature 0: the likeliest token. top_p: see `nip_ray.serving.sampling`. stop: texts that end it.
    schema: what the reply is held to (`nip_ray.serving.grammar`; none: any text).
    """

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Generation:
    """A reply. tokens: as drawn, with the one that ended it. finish_reason: the model or a stop text ended it, or its limit did (under a
    schema a reply that nears its limit is brought to its end, and has this reason).
    """

    text: str
    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int

    @property
    def completion_tokens(self) -> int:
        """Tokens generated."""
        return len(self.tokens)


@dataclass
class _Row:
    """A reply in the making: the request in one slot."""

    request: GenerationRequest
    future: "Future[Generation]"
    uniform: Tensor
    stream: TextStream
    on_text: OnText | None
    writer: Writer | None
    tokens: list[int] = field(default_factory=list)


class Engine:
    """Generates for many at once with one model; a context manager. See `GenerationRequest` and `Generation` for what goes in and out."""

    def __init__(self, model_dir: Path, max_batch_size: int = 32, max_context: int | None = None, device: str | None = None) -> None:
        """max_context: the most tokens of prompt and reply (none: what the model can). Raises UserError for a model it cannot run."""
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = load_model(model_dir).to(self.device)
        _check_attention(self.model, model_dir)
        self.chat = load_format(model_dir, context_of(self.model, max_context))
        self._ends = self.chat.ends | _ends_of(self.model)
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._slots = Slots(max_batch_size, self.chat.context)
        self._rows: list[_Row] = []
        self._waiting: deque[_Row] = deque()
        self._wake, self._making = threading.Condition(), threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    def submit(self, request: GenerationRequest, on_text: OnText | None = None) -> "Future[Generation]":
        """Generate soon; cancel the future to stop. on_text: told each new piece of text, from the engine's thread.

        Raises TooLong for a request that does not fit into the model's context, UserError for one without sense, and for a schema that
        this engine or the model's vocabulary does not have.
        """
        if not request.prompt or request.max_tokens < 1:
            raise UserError("a request needs a prompt of at least one token, and max_tokens of at least 1")
        if len(request.prompt) + request.max_tokens > self.chat.context:
            raise TooLong(
                f"the prompt has {len(request.prompt)} tokens and the reply may have {request.max_tokens}, "
                f"but the context of this model is {self.chat.context} tokens; shorten either"
            )
        stream = TextStream(self.chat.text, request.stop)
        writer = None if request.schema is None else Writer(self._grammar(request.schema), request.max_tokens, bool(self.chat.opened))
        row = _Row(request, Future(), uniforms(request.seed, request.max_tokens), stream, on_text, writer)
        with self._wake:
            if self._closed:
                raise TrainingError("the engine was closed")
            self._waiting.append(row)
            self._wake.notify()
        return row.future

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """All replies, in the order of the requests."""
        return [future.result() for future in [self.submit(request) for request in requests]]

    def _grammar(self, schema: Mapping[str, Any]) -> Grammar:
        key = json.dumps(schema)
        with self._making:
            found = self._grammars.pop(key, None) or Grammar(schema, self.chat.pieces)
            self._grammars[key] = found
            while len(self._grammars) > _MOST_GRAMMARS:
                self._grammars.popitem(last=False)
        return found

    def close(self) -> None:
        """Stop; whoever still waits gets a TrainingError. May be called twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    @torch.inference_mode()
    def _work(self) -> None:
        """The loop: admit, compute one token for every row, let those that are done go."""
        error: Exception = TrainingError("the engine was closed")
        try:
            while self._await_work():
                self._drop_cancelled()
                self._admit()
                if self._rows:
                    self._step()
        except Exception as broken:
            error = TrainingError(f"generation broke off: {type(broken).__name__}: {broken}")
        with self._wake:
            self._closed = True
            for row in [*self._rows, *self._waiting]:
                with suppress(Exception):  # cancelled in the meantime
                    row.future.set_exception(error)

    def _await_work(self) -> bool:
        with self._wake:
            while not (self._rows or self._waiting or self._closed):
                self._wake.wait()
            return not self._closed

    def _drop_cancelled(self) -> None:
        for index in reversed(range(len(self._rows))):
            if self._rows[index].future.done():  # cancelled, or its listener failed
                self._leave(index)

    def _admit(self) -> None:
        """Fill free slots from the queue, in the order of arrival: compute the prompts, and draw the first token of each reply."""
        while joining := self._next_in_line():
            self._slots.reserve(max(len(row.request.prompt) + row.request.max_tokens for row in joining))
            while joining:
                joining = joining[self._prefill(joining) :]

    def _next_in_line(self) -> list[_Row]:
        """The first of those who wait for whom there are slots. They stay in the queue until their prompts are computed."""
        with self._wake:
            self._waiting = deque(row for row in self._waiting if not row.future.cancelled())
            return list(islice(self._waiting, self._slots.num_slots - len(self._rows)))

    def _prefill(self, joining: list[_Row]) -> int:
        """Compute the prompts of the first few rows, as many as `PREFILL` allows; returns how many."""
        first, starts, longest = len(self._rows), [], 0
        for slot, row in enumerate(joining, first):
            source, shared = self._slots.shared_beginning(row.request.prompt)
            length = max(longest, len(row.request.prompt) - shared)
            if starts and length * (len(starts) + 1) > PREFILL:
                break
            self._slots.copy(source, slot, shared)
            starts.append(shared)
            longest = length
        rows = joining[: len(starts)]
        ids, positions = _aligned([row.request.prompt[start:] for row, start in zip(rows, starts)], starts, longest)
        piece = max(PREFILL // len(rows), 1)
        logits = [self._forward(ids[:, at : at + piece], positions[:, at : at + piece], first) for at in range(0, longest, piece)][-1]
        for slot, row in enumerate(rows, first):
            self._slots.tokens[slot] = list(row.request.prompt)
        with self._wake:
            self._rows.extend(self._waiting.popleft() for _ in rows)
        self._take(logits, first)
        return len(rows)

    def _step(self) -> None:
        """One more token for every row."""
        last = torch.tensor([[row.tokens[-1]] for row in self._rows])
        lengths = torch.tensor([[len(self._slots.tokens[slot])] for slot in range(len(self._rows))])
        logits = self._forward(last, lengths, 0)
        for slot, row in enumerate(self._rows):
            self._slots.tokens[slot].append(row.tokens[-1])
        self._take(logits, 0)

    def _forward(self, ids_BQ: Tensor, position_BQ: Tensor, first: int) -> Tensor:
        """Logits (B, V) after the last of these tokens, whose rows are the slots from `first` on. Negative positions are padding."""
        width = int(position_BQ.max()) + 1
        ids_BQ, position_BQ = ids_BQ.to(self.device), position_BQ.to(self.device)
        self._slots.place(first, position_BQ, width)
        seen_BQ = position_BQ.clamp(min=0)
        mask = torch.arange(width, device=self.device) <= seen_BQ[:, None, :, None]  # (B, 1, Q, T)
        out = self.model(
            input_ids=ids_BQ,
            attention_mask=mask,
            position_ids=seen_BQ,
            past_key_values=self._slots.as_cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]

    def _take(self, logits_BV: Tensor, first: int) -> None:
        """Draw a token for each row from slot `first` on, and let those rows go that are done."""
        rows = self._rows[first:]
        for index, row in enumerate(rows):
            if row.writer and (allowed := row.writer.allowed()) is not None:
                kept = logits_BV[index, allowed.to(self.device)].clone()
                logits_BV[index] = -torch.inf
                logits_BV[index, allowed.to(self.device)] = kept
        options = [(row.request.temperature, row.request.top_p, float(row.uniform[len(row.tokens)])) for row in rows]
        temperature, top_p, uniform = torch.tensor(options, dtype=torch.float64, device=self.device).unbind(1)
        drawn = draw(logits_BV, temperature, top_p, uniform).tolist()
        for index in reversed(range(len(rows))):
            if self._extend(rows[index], drawn[index]):
                self._leave(first + index)

    def _extend(self, row: _Row, token: int) -> bool:
        """Add a token to a reply; True when that was its last."""
        row.tokens.append(token)
        if row.writer:
            row.writer.add(token, lambda: self.chat.text(row.tokens))
        complete = row.writer is not None and row.writer.complete
        ended = token in self._ends
        full = len(row.tokens) >= row.request.max_tokens
        said = row.tokens[:-1] if ended else row.tokens
        final = ended or full or complete
        if row.on_text or row.request.stop or final:
            piece = row.stream.advance(said, final=final)
            if row.on_text and piece:
                _tell(row, piece)
        if not (final or row.stream.stopped):
            return False
        cut = row.writer.hurried if row.writer and complete else full and not ended
        reason = "length" if cut and not row.stream.stopped else "stop"
        with suppress(Exception):  # cancelled in the meantime
            row.future.set_result(Generation(row.stream.text, row.tokens, reason, len(row.request.prompt)))
        return True

    def _leave(self, index: int) -> None:
        """Free a slot; the last row moves into it, so that occupied slots stay the first ones."""
        last = len(self._rows) - 1
        if index != last:
            self._slots.copy(last, index, len(self._slots.tokens[last]))
            self._rows[index] = self._rows[last]
        self._rows.pop()


def _tell(row: _Row, piece: str) -> None:
    """Pass on a piece of text. A listener that fails ends its own reply, and nobody else's."""
    try:
        assert row.on_text is not None
        row.on_text(piece)
    except Exception as error:
        with suppress(Exception):  # cancelled in the meantime
            row.future.set_exception(error)


def _aligned(parts: list[list[int]], starts: list[int], longest: int) -> tuple[Tensor, Tensor]:
    """Token ids and positions (B, Q), aligned at the right; padding has position -1."""
    ids, positions = torch.zeros(len(parts), longest, dtype=torch.long), torch.full((len(parts), longest), -1)
    for index, (part, start) in enumerate(zip(parts, starts, strict=True)):
        ids[index, longest - len(part) :] = torch.tensor(part)
        positions[index, longest - len(part) :] = torch.arange(start, start + len(part))
    return ids, positions


def _ends_of(model: Any) -> frozenset[int]:
    """The end tokens that the model's own generation settings name."""
    named = model.generation_config.eos_token_id
    return frozenset(named if isinstance(named, list) else [named]) - {None}


def _check_attention(model: Any, folder: Path) -> None:
    """Slots hold all keys of all layers: layers that forget (sliding windows, recurrent states) are another engine's business."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UserError(f"{folder}: this engine runs models with full attention, not {sorted(kinds - {'full_attention'})}; use engine vllm")
