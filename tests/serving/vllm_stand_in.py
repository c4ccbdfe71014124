"""A stand-in for vLLM with real models behind it: the names and parameters that are used here, and what vLLM does with adapters."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import peft
import pytest

from nip_ray.serving.batch import ContinuousBatch
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.model_folder import context_of, load_model


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    logprobs: int
    detokenize: bool

    def __post_init__(self) -> None:
        assert self.logprobs == 0
        assert self.max_tokens > 0


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str

    def __post_init__(self) -> None:
        assert self.lora_int_id > 0


class LLM:
    """Adapters are read when their number is first asked for, and kept by it whatever then happens to the folder; so is the base."""

    made: list["LLM"]

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        gpu_memory_utilization: float,
        max_model_len: int | None,
        max_num_seqs: int,
        enable_prefix_caching: bool,
        enable_lora: bool,
        max_loras: int,
        max_lora_rank: int,
        logprobs_mode: str,
        trust_remote_code: bool,
    ) -> None:
        assert (enable_lora, enable_prefix_caching, max_loras, trust_remote_code) == (True, True, 1, False)
        assert logprobs_mode == "processed_logprobs", "those of other modes are not at the temperature"
        assert 0 < gpu_memory_utilization <= 1
        assert dtype in ("auto", "float32", "bfloat16")
        self.folder, self.max_lora_rank, self.seqs = Path(model), max_lora_rank, max_num_seqs
        self.batches: dict[int, Any] = {}
        self.limit = max_model_len
        LLM.made.append(self)

    def generate(
        self, prompts: Sequence[dict[str, list[int]]], sampling_params: Sequence[SamplingParams], *, use_tqdm: bool, lora_request: Any
    ) -> list[Any]:
        number = 0 if lora_request is None else lora_request.lora_int_id
        if number not in self.batches:
            model = load_model(self.folder, "float32")
            if lora_request is not None:
                model = peft.PeftModel.from_pretrained(model, lora_request.lora_path).eval()
                assert model.peft_config["default"].r <= self.max_lora_rank
                model = model.get_base_model()
            self.batches[number] = ContinuousBatch(model, load_format(self.folder, context_of(model, self.limit)), self.seqs)
        requests = [
            GenerationRequest(given["prompt_token_ids"], own.max_tokens, own.temperature, own.top_p, own.seed)
            for given, own in zip(prompts, sampling_params, strict=True)
        ]
        made = self.batches[number].generate(requests)
        rows = [[{token: SimpleNamespace(logprob=found)} for token, found in zip(one.tokens, one.logprobs, strict=True)] for one in made]
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=one.tokens, logprobs=row, finish_reason=one.finish_reason)])
            for one, row in zip(made, rows, strict=True)
        ]


def install(monkeypatch: pytest.MonkeyPatch) -> type[LLM]:
    """Put it where vLLM would be."""
    LLM.made = []
    modules = {"vllm": {"LLM": LLM, "SamplingParams": SamplingParams}, "vllm.lora": {}, "vllm.lora.request": {"LoRARequest": LoRARequest}}
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return LLM
