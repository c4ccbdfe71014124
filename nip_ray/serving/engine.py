"""Generation for many threads: a dedicated thread drives a continuous batch (`nip_ray.serving.batch`).

Decisions that matter here:
- a request is a `concurrent.futures.Future`: cancelling it, also by losing a client, frees its slot at the next token;
- one thread works; every method may be called from any thread. If the loop fails, all waiting callers get the error.
"""

import atexit
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import torch

from nip_ray.errors import TrainingError
from nip_ray.serving.batch import ContinuousBatch, Row
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.generation import Generation, GenerationRequest, OnText
from nip_ray.serving.model_folder import context_of, load_served


class Engine:
    """Generates for many at once with one model; a context manager. See `GenerationRequest` and `Generation` for input
    and output. closed: it accepts no more, after `close` or since generation broke off."""

    def __init__(
        self, model_dir: Path, max_batch_size: int = 32, max_context: int | None = None, device: str | None = None
    ) -> None:
        """max_context: most tokens of prompt and reply (None: the model's). Raises UserError for unsupported models."""
        model = load_served(model_dir).to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.chat = load_format(model_dir, context_of(model.config, max_context))
        self.batch = ContinuousBatch(model, self.chat, max_batch_size)
        self._inbox: list[Row] = []
        self._wake = threading.Condition()
        self.closed = False
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    def submit(self, request: GenerationRequest, on_text: OnText | None = None) -> "Future[Generation]":
        """Generate soon; cancel the future to stop. on_text: called with new pieces of text, from the engine's thread.

        Raises as `ContinuousBatch.row` does, and TrainingError once the engine was closed.
        """
        future: Future[Generation] = Future()
        row = self.batch.row(request, on_text, future)
        with self._wake:
            if self.closed:
                raise TrainingError("the engine was closed")
            self._inbox.append(row)
            self._wake.notify()
        return future

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """All replies, in the order of the requests."""
        return [future.result() for future in [self.submit(request) for request in requests]]

    def close(self) -> None:
        """Stop; waiting callers get a TrainingError. May be called twice."""
        with self._wake:
            self.closed = True
            self._wake.notify()
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def _work(self) -> None:
        error: Exception = TrainingError("the engine was closed")
        try:
            while self._await_work():
                self.batch.advance()
        except Exception as broken:
            error = TrainingError(f"generation broke off: {type(broken).__name__}: {broken}")
        with self._wake:
            self.closed = True
            for row in [*self.batch.rows, *self.batch.waiting, *self._inbox]:
                assert row.future is not None
                with suppress(Exception):  # cancelled meanwhile
                    row.future.set_exception(error)

    def _await_work(self) -> bool:
        """Wait for work and accept it; False once the engine was closed."""
        with self._wake:
            while not (self.batch.rows or self.batch.waiting or self._inbox or self.closed):
                self._wake.wait()
            self.batch.waiting.extend(self._inbox)
            self._inbox.clear()
            return not self.closed
