"""vLLM behind the interface of `Engine`: for GPUs, and for models that the built-in engine does not run.

Written against the asynchronous engine of vLLM (extra `vllm`, `AsyncLLM`, version 0.20). No test of this package runs it, since it
needs a GPU; `docs/serving.md` says so too.

Decisions that matter here: vLLM batches continuously and caches beginnings by itself, so this file only translates. Each request brings
its own seed, which vLLM honours for each request alone. An event loop in a thread of its own drives it.
"""

import asyncio
import importlib.util
import threading
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.generation import Generation, GenerationRequest, OnText, TooLong


def vllm_is_usable() -> bool:
    """Whether vLLM is installed and there is a GPU."""
    if importlib.util.find_spec("vllm") is None:
        return False
    import torch

    return torch.cuda.is_available()


class VllmEngine:
    """Generates for many at once with one model. See `nip_ray.serving.engine.Engine` for its methods."""

    def __init__(self, model_dir: Path, max_batch_size: int = 32, max_context: int | None = None) -> None:
        """Raises UserError where vLLM is not installed."""
        try:
            from vllm import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
            from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UserError(f"engine vllm needs an extra ({error}): pip install 'nip_ray[vllm]'") from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        arguments = AsyncEngineArgs(
            model=str(model_dir),
            max_num_seqs=max_batch_size,
            max_model_len=max_context,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            trust_remote_code=False,
        )

        async def build() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        self._llm = self._call(build()).result()
        self.chat = load_format(model_dir, self._llm.model_config.max_model_len)

    def submit(self, request: GenerationRequest, on_text: OnText | None = None) -> "Future[Generation]":
        """See `Engine.submit`."""
        if len(request.prompt) + request.max_tokens > self.chat.context:
            raise TooLong(f"prompt and reply may have {self.chat.context} tokens together; shorten either")
        return self._call(self._generate(request, on_text))

    def close(self) -> None:
        """See `Engine.close`."""
        self._llm.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _generate(self, request: GenerationRequest, on_text: Callable[[str], None] | None) -> Generation:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

        options = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            logprobs=0,
            stop=list(request.stop),
            structured_outputs=None if request.schema is None else StructuredOutputsParams(json=dict(request.schema)),
        )
        told, output = 0, None
        async for state in self._llm.generate({"prompt_token_ids": request.prompt}, options, request_id=uuid.uuid4().hex):
            output = state.outputs[0]
            if on_text and len(output.text) > told:
                on_text(output.text[told:])
                told = len(output.text)
        assert output is not None
        reason = "length" if output.finish_reason == "length" else "stop"
        tokens = list(output.token_ids)
        logprobs = [known[token].logprob for token, known in zip(tokens, output.logprobs, strict=True)]
        return Generation(output.text, tokens, reason, len(request.prompt), logprobs)
