"""A strict stand-in for a training service: the client's names and signatures, over a small model that really learns.

The model is a bigram table, logits (V, V) of the next byte given the last, trained by torch's own AdamW. A `Server` outlives its
clients: it keeps what they saved, counts their requests, and fails when told to.
"""

import asyncio
import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
V, END = 257, 256


class Future(Generic[T]):
    """Awaitable and with `result`, as the library's. Work is done in the order in which it was asked for."""

    def __init__(self, value: T | None = None, error: Exception | None = None) -> None:
        self._value, self._error = value, error

    def __await__(self) -> Generator[Any, None, T]:
        yield from asyncio.sleep(0).__await__()
        return self.result()

    def result(self, timeout: float | None = None) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class AuthenticationError(Exception):
    """As the library's."""


class APIConnectionError(Exception):
    """As the library's."""


class Tokenizer:
    """Bytes, and one mark for the end."""

    eos_token_id = END
    chat_template = "<{{ role }}>{{ content }}"
    all_special_tokens: tuple[str, ...] = ()

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())

    def apply_chat_template(
        self, chat: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool, return_dict: bool = False
    ) -> Any:
        assert add_generation_prompt
        assert not return_dict
        text = "".join(f"<{message['role']}>{message['content']}" for message in chat) + "<assistant>"
        return list(text.encode()) if tokenize else text

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(token for token in tokens if token != END).decode(errors="replace")


@dataclass(frozen=True)
class ModelInput:
    tokens: list[int]

    @classmethod
    def from_ints(cls, tokens: list[int]) -> "ModelInput":
        assert all(type(token) is int for token in tokens)
        return cls(tokens)

    def to_ints(self) -> list[int]:
        return self.tokens


@dataclass(frozen=True)
class TensorData:
    data: list[float]
    dtype: str
    shape: list[int]

    def __post_init__(self) -> None:
        assert self.shape == [len(self.data)]

    def to_torch(self) -> Tensor:
        return torch.tensor(self.data, dtype=torch.float64)


@dataclass(frozen=True)
class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]

    def __post_init__(self) -> None:
        assert set(self.loss_fn_inputs) == {"target_tokens", "weights"}
        assert all(row.shape == [len(self.model_input.tokens)] for row in self.loss_fn_inputs.values())
        assert [self.loss_fn_inputs[name].dtype for name in ("target_tokens", "weights")] == ["int64", "float32"]


@dataclass(frozen=True)
class AdamParams:
    learning_rate: float = 1e-4


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int
    seed: int
    temperature: float = 1
    top_p: float = 1


class Types:
    """What the library calls `types`."""

    AdamParams, Datum, ModelInput, SamplingParams, TensorData = AdamParams, Datum, ModelInput, SamplingParams, TensorData


class TrainingClient:
    """Weights and an optimiser."""

    def __init__(self, server: "Server", weights: Tensor, optimizer: dict[str, Any] | None = None) -> None:
        self.server, self.weights = server, weights.clone().requires_grad_()
        self.adam = torch.optim.AdamW([self.weights], lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
        if optimizer is not None:
            self.adam.load_state_dict(copy.deepcopy(optimizer))

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def logprobs(self, data: list[Datum]) -> list[Tensor]:
        found = []
        for datum in data:
            rows = self.weights[torch.tensor(datum.model_input.tokens)].log_softmax(-1)
            found.append(rows.gather(1, torch.tensor(datum.loss_fn_inputs["target_tokens"].data)[:, None])[:, 0])
        return found

    def forward(self, data: list[Datum], loss_fn: str) -> Future[Any]:
        assert loss_fn == "cross_entropy"
        self.server.count(data, 1)
        return self.server.do(
            "forward",
            lambda: SimpleNamespace(
                loss_fn_outputs=[{"logprobs": TensorData(row.tolist(), "float32", [len(row)])} for row in self.logprobs(data)]
            ),
        )

    def forward_backward(self, data: list[Datum], loss_fn: str) -> Future[None]:
        assert loss_fn == "cross_entropy"
        self.server.count(data, 1)
        weights = [torch.tensor(datum.loss_fn_inputs["weights"].data, dtype=torch.float64) for datum in data]
        return self.server.do(
            "forward_backward", lambda: (-torch.cat([row * w for row, w in zip(self.logprobs(data), weights)]).sum()).backward()
        )

    def forward_backward_custom(self, data: list[Datum], loss_fn: Callable[..., tuple[Tensor, dict[str, float]]]) -> Future[None]:
        self.server.count(data, 2)
        return self.server.do("forward_backward", lambda: loss_fn(data, self.logprobs(data))[0].backward())

    def optim_step(self, optim_params: AdamParams) -> Future[None]:
        def step() -> None:
            for group in self.adam.param_groups:
                group["lr"] = optim_params.learning_rate
            self.adam.step()
            self.adam.zero_grad()

        return self.server.do("optim_step", step)

    def save_state(self, name: str, overwrite: bool = False) -> Future[Any]:
        kept = (self.weights.detach().clone(), copy.deepcopy(self.adam.state_dict()))
        return self.server.do("save_state", lambda: self.server.keep(f"tinker://run/weights/{name}", kept, overwrite))

    def save_weights_for_sampler(self, name: str) -> Future[Any]:
        kept = (self.weights.detach().clone(), None)
        return self.server.do("save_weights_for_sampler", lambda: self.server.keep(f"tinker://run/sampler_weights/{name}", kept, True))


class SamplingClient:
    """Weights to sample from."""

    def __init__(self, server: "Server", weights: Tensor) -> None:
        self.server, self.weights = server, weights

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def sample(self, prompt: ModelInput, num_samples: int, sampling_params: SamplingParams) -> Future[Any]:
        assert num_samples == 1
        return self.server.do("sample", lambda: SimpleNamespace(sequences=[self._sample(prompt.tokens, sampling_params)]))

    def _sample(self, prompt: Sequence[int], params: SamplingParams) -> Any:
        dice, tokens = torch.Generator().manual_seed(params.seed), list[int]()
        while len(tokens) < params.max_tokens:
            logits = self.weights[[*prompt, *tokens][-1]]
            if params.temperature == 0:
                tokens.append(int(logits.argmax()))
            else:
                tokens.append(int(torch.multinomial((logits / params.temperature).softmax(-1), 1, generator=dice)))
            if tokens[-1] == END:
                return SimpleNamespace(tokens=tokens, stop_reason="stop")
        return SimpleNamespace(tokens=tokens, stop_reason="length")


class ServiceClient:
    """A session."""

    def __init__(self, server: "Server", base_url: str | None, api_key: str | None) -> None:
        self.server, self.key = server, api_key

    def create_lora_training_client(self, base_model: str, rank: int = 32, seed: int | None = None) -> Future[TrainingClient]:
        assert rank > 0
        assert base_model in self.server.base
        return self._do("create", lambda: TrainingClient(self.server, self.server.base[base_model]))

    def create_training_client_from_state(self, path: str) -> Future[TrainingClient]:
        return self._do("create", lambda: TrainingClient(self.server, self._state(path)[0]))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Future[TrainingClient]:
        return self._do("create", lambda: TrainingClient(self.server, *self._state(path)))

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None) -> Future[SamplingClient]:
        assert (model_path is None) != (base_model is None)
        assert model_path is None or "/sampler_weights/" in model_path
        weights = self.server.kept[model_path][0] if model_path else self.server.base[str(base_model)]
        return self._do("create_sampler", lambda: SamplingClient(self.server, weights))

    def close(self, status: str, detail: str | None = None) -> Future[None]:
        return Future()

    def _state(self, path: str) -> tuple[Tensor, Any]:
        assert "/weights/" in path, "sampling weights cannot be trained"
        return self.server.kept[path]

    def _do(self, what: str, work: Callable[[], T]) -> Future[T]:
        if self.key != self.server.key:
            return Future(error=AuthenticationError(f"wrong key {self.key}"))
        return self.server.do(what, work)


@dataclass
class Server:
    """The service, and the library that talks to it: has `ServiceClient`, `RestClient` and `types`. fail: how many of the next
    requests of a kind fail. tokens: that went through the model, passes forward counted like those backward.
    """

    key: str = "tml-canary-3f7a"
    base: dict[str, Tensor] = field(default_factory=lambda: {"bigrams": torch.zeros(V, V, dtype=torch.float64)})
    kept: dict[str, tuple[Tensor, Any]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    fail: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    types: type[Types] = Types

    def ServiceClient(self, base_url: str | None = None, api_key: str | None = None) -> ServiceClient:
        return ServiceClient(self, base_url, api_key)

    def RestClient(self, *, base_url: str | None = None, api_key: str | None = None) -> "Server":
        return self

    def get_server_capabilities(self) -> Awaitable[Any]:
        return Future(SimpleNamespace(supported_models=[SimpleNamespace(model_name=name) for name in self.base]))

    def count(self, data: list[Datum], passes: int) -> None:
        self.tokens += passes * sum(len(datum.model_input.tokens) + 1 for datum in data)

    def do(self, what: str, work: Callable[[], T]) -> Future[T]:
        self.requests[what] += 1
        if self.fail[what] > 0:
            self.fail[what] -= 1
            return Future(error=APIConnectionError("no answer"))
        return Future(work())

    def keep(self, path: str, kept: tuple[Tensor, Any], overwrite: bool) -> Any:
        assert overwrite or path not in self.kept, f"{path} is there already"
        self.kept[path] = kept
        return SimpleNamespace(path=path)
