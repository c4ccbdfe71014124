"""A policy that vLLM samples: another one learns, and gives its low-rank adapters to vLLM through the interface that this offers to all.

Written against `vllm.LLM`, `SamplingParams` and `LoRARequest` (extra `vllm`, 0.20 and later; signatures compared with 0.33). No test of
this package runs vLLM, since it needs a GPU; one runs this file over something with the same names whose model is a real one.

Decisions that matter here:
- adapters are written as a folder in PEFT's form and asked for by a name and number of their own for each set of weights. So neither
  adapters nor beginnings of prompts that vLLM has cached are ever taken for those of other weights;
- all policies of one base in a process share one vLLM: each batch of replies is by one policy's adapters, so one place for adapters does;
- log-probabilities are those of the distribution that was drawn from (`processed_logprobs`), as vLLM computes them: in bfloat16, and by
  other kernels than the learner's. They differ by some tenths at single tokens (`max_logprob_difference`); ratios take them as recorded;
- log-probabilities of given replies, which only exact figures ask for, are the learner's.
"""

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

from nip_ray.errors import UserError
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.generation import Generation, GenerationRequest
from nip_ray.serving.model_folder import base_of, load_model, save_model, write_adapters
from nip_ray.settings.providers import VLLM_RANKS, LocalProvider

_NUMBERS = itertools.count(1)
_SAMPLERS: "WeakValueDictionary[tuple[Any, ...], VllmSampler]" = WeakValueDictionary()


class VllmSampler:
    """vLLM with one base model. Raises UserError where it is not installed."""

    def __init__(self, folder: Path, settings: LocalProvider) -> None:
        try:
            from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]
            from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UserError(f"engine vllm needs an extra ({error}): pip install 'nip_ray[vllm]'") from None
        self._params, self._request = SamplingParams, LoRARequest
        self._llm = LLM(
            model=str(folder),
            dtype="auto" if settings.dtype == "auto" else settings.dtype,
            gpu_memory_utilization=settings.vllm_memory,
            max_model_len=settings.max_length,
            max_num_seqs=settings.max_batch_size,
            enable_prefix_caching=True,
            enable_lora=True,
            max_loras=1,
            max_lora_rank=next(rank for rank in VLLM_RANKS if rank >= settings.lora_rank),
            logprobs_mode="processed_logprobs",
            trust_remote_code=False,
        )

    def generate(self, requests: Sequence[GenerationRequest], adapters: Path | None, number: int) -> list[Generation]:
        """Replies, in the order of the requests. adapters: their folder (none: the base alone), known by `number`."""
        params = [
            self._params(
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                logprobs=0,
                detokenize=False,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        which = None if adapters is None else self._request(f"adapters-{number}", number, str(adapters))
        made = self._llm.generate(prompts, params, use_tqdm=False, lora_request=which)
        return [_generation(request, one.outputs[0]) for request, one in zip(requests, made, strict=True)]


class VllmPolicy:
    """A `Policy`: see there for its methods. learner: another one, which does all but sample. folder: the model that it was made of."""

    samples_apart = True

    def __init__(self, learner: Any, folder: Path, settings: LocalProvider) -> None:
        self._learner, self._rank = learner, settings.lora_rank
        self._scratch = TemporaryDirectory(prefix="nip-ray-vllm-")
        self._base = folder if base_of(folder) is None else self._merged(folder)
        self._chat = load_format(self._base, 0)
        key = (str(self._base.resolve()), settings.vllm_memory, settings.max_batch_size, settings.max_length, settings.dtype, self._rank)
        self._sampler = _SAMPLERS.get(key) or VllmSampler(self._base, settings)
        _SAMPLERS[key] = self._sampler
        self._adapters: Path | None = None
        self._number = 0
        self.prompt_tokens, self.reply_tokens, self.logprobs = learner.prompt_tokens, learner.reply_tokens, learner.logprobs
        self.keep_start, self.step, self.supervised_step = learner.keep_start, learner.step, learner.supervised_step
        self.weights, self.state, self.save = learner.weights, learner.state, learner.save

    @property
    def steps(self) -> int:
        """Of the learner."""
        return self._learner.steps

    @property
    def prompts_cut(self) -> int:
        """By the learner, which makes the prompts."""
        return self._learner.prompts_cut

    def sample(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """By the weights of the last `take`, at first by those of the folder: new adapters change nothing."""
        made = self._sampler.generate(requests, self._adapters, self._number)
        return [replace(one, text=self._chat.opened + self._chat.text(one.tokens)) for one in made]

    def forget(self) -> None:
        """See `Policy.forget`; what vLLM keeps of earlier prompts is its own affair."""
        self._learner.forget()

    def take(self, weights: Mapping[str, Any]) -> None:
        """Sample by these adapters from here on."""
        if self._learner.samples_apart:
            self._learner.take(weights)
        before, self._number = self._adapters, next(_NUMBERS)
        self._adapters = Path(self._scratch.name) / str(self._number)
        write_adapters(weights, self._adapters, self._rank, self._base)
        if before is not None:
            shutil.rmtree(before)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Learn on, and sample, from a `state`."""
        self._learner.set_state(state)
        self.take(self.weights())

    def close(self) -> None:
        """Give back the learner, and what was written for vLLM."""
        self._learner.close()
        self._scratch.cleanup()

    def _merged(self, folder: Path) -> Path:
        """The model of a folder with adapters, as one with all of its weights."""
        base = Path(self._scratch.name) / "base"
        save_model(load_model(folder), load_format(folder, 0).tokenizer, base)
        return base


def _generation(request: GenerationRequest, output: Any) -> Generation:
    """The reply without its text."""
    tokens = list(output.token_ids)
    logprobs = [known[token].logprob for token, known in zip(tokens, output.logprobs, strict=True)]
    return Generation("", tokens, "length" if output.finish_reason == "length" else "stop", len(request.prompt), logprobs)
