"""A strict stand-in for a training service: the names of the client's library over a model that really learns.

The model is the one of words in a folder, so that what is sampled and learned can be compared with a model here; or a
bigram table, which can be followed to known numbers. Types are the library's own where it is installed, else ones that
check as much. A `Service` outlives its clients: it keeps what they saved, counts their requests, and is killed, or
loses an answer, where a test says so.
"""

import copy
import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.providers import LocalProvider

T = TypeVar("T")
MODEL, BIGRAMS, KEY = "words-1", "bigrams", "tml-canary-8c2d"
V, END = 257, 256
INPUTS = {
    "cross_entropy": {"target_tokens", "weights"},
    "importance_sampling": {"target_tokens", "logprobs", "advantages"},
    "ppo": {"target_tokens", "logprobs", "advantages"},
}


class Killed(BaseException):
    """This process is gone."""


class AuthenticationError(Exception):
    """As the library's."""


class APIConnectionError(Exception):
    """As the library's."""


class Future(Generic[T]):
    """Awaitable and with `result`, as the library's. Work is done in the order in which it was asked for."""

    def __init__(self, value: T | None = None, error: Exception | None = None) -> None:
        self._value, self._error = value, error

    def __await__(self) -> Generator[Any, None, T]:
        yield
        return self.result()

    def result(self, timeout: float | None = None) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


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
    data: Any
    dtype: str
    shape: list[int]

    def __post_init__(self) -> None:
        assert self.dtype in ("float32", "int64")
        assert math.prod(self.shape) == len(self.data)

    def to_torch(self) -> Tensor:
        return torch.tensor(self.data, dtype=getattr(torch, self.dtype)).view(self.shape)


@dataclass(frozen=True)
class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]

    def __post_init__(self) -> None:
        assert isinstance(self.model_input, ModelInput)
        assert all(isinstance(value, TensorData) for value in self.loss_fn_inputs.values())


@dataclass(frozen=True)
class AdamParams:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int
    seed: int
    temperature: float = 1
    top_p: float = 1
    stop: Sequence[int] | None = None


OWN_TYPES = SimpleNamespace(
    AdamParams=AdamParams, Datum=Datum, ModelInput=ModelInput, SamplingParams=SamplingParams, TensorData=TensorData
)


def library_types() -> Any:
    """The library's own where it is installed."""
    if importlib.util.find_spec("tinker") is None:
        return OWN_TYPES
    import tinker  # pyright: ignore[reportMissingImports]

    return tinker.types


class Bytes:
    """A tokenizer: bytes, and one mark for the end."""

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


class Bigrams(torch.nn.Module):
    """`table`: logits (V, V) of the next byte given the last."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer, self.table = Bytes(), torch.nn.Parameter(torch.zeros(V, V, dtype=torch.float64))

    def forward(self, input_ids: Tensor) -> Any:
        return SimpleNamespace(logits=self.table[input_ids])

    def reply(self, prompt: Sequence[int], given: SamplingParams) -> Any:
        dice, tokens = torch.Generator().manual_seed(given.seed), list[int]()
        while len(tokens) < given.max_tokens and tokens[-1:] != [END]:
            logits = self.table[[*prompt, *tokens][-1]].detach()
            likely = logits.argmax() if given.temperature == 0 else None
            drawn = (
                torch.multinomial((logits / given.temperature).softmax(-1), 1, generator=dice)
                if likely is None
                else likely
            )
            tokens.append(int(drawn))
        return SimpleNamespace(tokens=tokens, logprobs=None, stop_reason="stop" if tokens[-1] == END else "length")


class Words(torch.nn.Module):
    """The model in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.policy = PolicyModel(folder, LocalProvider(method="full"), trained=True)
        self.tokenizer, self.network = self.policy.chat.tokenizer, self.policy._model

    def forward(self, input_ids: Tensor) -> Any:
        return self.network(input_ids=input_ids)

    def reply(self, prompt: Sequence[int], given: SamplingParams) -> Any:
        assert list(given.stop or ()) == sorted(self.policy.chat.ends)
        self.policy.forget()
        made = self.policy.sample(
            [GenerationRequest(list(prompt), given.max_tokens, given.temperature, given.top_p, given.seed)]
        )[0]
        tokens, logprobs = np.array(made.tokens, np.int32).tolist(), np.array(made.logprobs, np.float32).tolist()
        return SimpleNamespace(tokens=tokens, logprobs=logprobs, stop_reason=made.finish_reason)


class Client:
    """A model with the weights of what was kept, or with those that it began with."""

    def __init__(self, server: "Service", kept: dict[str, Any] | None) -> None:
        self.server, self.model = server, Bigrams() if server.folder is None else Words(server.folder)
        if kept is not None:
            self.model.load_state_dict(kept["weights"])

    def get_tokenizer(self) -> Any:
        return self.model.tokenizer

    def weights(self) -> dict[str, Tensor]:
        return copy.deepcopy(self.model.state_dict())


class TrainingClient(Client):
    """Weights and an optimiser; losses by the formulas of the service's documentation."""

    def __init__(
        self, server: "Service", number: int, kept: dict[str, Any] | None = None, with_optimizer: bool = False
    ) -> None:
        super().__init__(server, kept)
        self.number, self.adam = number, torch.optim.AdamW(self.model.parameters(), lr=0.0)
        if kept is not None and with_optimizer:
            self.adam.load_state_dict(copy.deepcopy(kept["optimizer"]))

    def logprobs(self, data: list[Any], passes: int = 1) -> list[Tensor]:
        found = []
        for datum in data:
            assert isinstance(datum, self.server.types.Datum)
            ids = torch.tensor([datum.model_input.to_ints()])
            target = datum.loss_fn_inputs["target_tokens"].to_torch()
            assert target.dtype == torch.int64
            assert all(value.to_torch().shape == ids[0].shape for value in datum.loss_fn_inputs.values())
            found.append(self.model(input_ids=ids).logits[0].log_softmax(-1).gather(1, target[:, None])[:, 0])
            self.server.tokens += passes * (len(target) + 1)
        return found

    def forward(self, data: list[Any], loss_fn: str) -> Future[Any]:
        assert loss_fn == "cross_entropy"
        return self.server.do("forward", lambda: self._output(self.logprobs(data)))

    def forward_backward(
        self, data: list[Any], loss_fn: str, loss_fn_config: dict[str, float] | None = None
    ) -> Future[Any]:
        return self.server.do("forward_backward", lambda: self._backward(data, loss_fn, loss_fn_config))

    def _backward(self, data: list[Any], loss_fn: str, config: dict[str, float] | None) -> Any:
        assert (set(config) if config else set()) == (
            {"clip_low_threshold", "clip_high_threshold"} if loss_fn == "ppo" else set()
        )
        rows, total = self.logprobs(data), torch.zeros(())
        for datum, row in zip(data, rows, strict=True):
            assert set(datum.loss_fn_inputs) == INPUTS[loss_fn]
            given = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
            if loss_fn == "cross_entropy":
                total = total - (row * given["weights"]).sum()
                continue
            ratio, advantage = (row - given["logprobs"]).exp(), given["advantages"]
            low, high = (config["clip_low_threshold"], config["clip_high_threshold"]) if config else (0.0, math.inf)
            total = total - torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage).sum()
        total.backward()
        return self._output(rows)

    def forward_backward_custom(
        self, data: list[Any], loss_fn: Callable[..., tuple[Tensor, dict[str, float]]]
    ) -> Future[Any]:
        def work() -> Any:
            rows = self.logprobs(data, 2)
            leaves = [row.detach().clone().requires_grad_() for row in rows]
            loss_fn(data, leaves)[0].backward()
            torch.autograd.backward(rows, [leaf.grad for leaf in leaves])
            return self._output(rows)

        return self.server.do("forward_backward", work)

    def _output(self, rows: list[Tensor]) -> Any:
        types = self.server.types
        outputs = [{"logprobs": types.TensorData(data=row.tolist(), dtype="float32", shape=[len(row)])} for row in rows]
        return SimpleNamespace(loss_fn_outputs=outputs, metrics={})

    def optim_step(self, optim_params: Any) -> Future[Any]:
        def step() -> Any:
            assert isinstance(optim_params, self.server.types.AdamParams)
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), optim_params.grad_clip_norm or math.inf)
            for group in self.adam.param_groups:
                group.update(
                    lr=optim_params.learning_rate, betas=(optim_params.beta1, optim_params.beta2), eps=optim_params.eps
                )
                group.update(weight_decay=optim_params.weight_decay)
            self.adam.step()
            self.adam.zero_grad()
            return SimpleNamespace(metrics={"grad_norm:mean": float(norm)})

        return self.server.do("optim_step", step)

    def save_state(self, name: str, ttl_seconds: int | None = None, overwrite: bool = False) -> Future[Any]:
        kept = {"weights": self.weights(), "optimizer": copy.deepcopy(self.adam.state_dict())}
        return self.server.do(
            "save_state", lambda: self.server.keep(f"tinker://run-{self.number}/weights/{name}", kept, overwrite)
        )

    def save_weights_for_sampler(self, name: str, ttl_seconds: int | None = None) -> Future[Any]:
        assert ttl_seconds is None or 3600 <= ttl_seconds <= 10 * 365 * 24 * 3600
        kept, path = {"weights": self.weights()}, f"tinker://run-{self.number}/sampler_weights/{name}"
        return self.server.do("save_weights_for_sampler", lambda: self.server.keep(path, kept, False))


class SamplingClient(Client):
    """Weights to sample from."""

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Future[Any]:
        assert num_samples == 1
        assert isinstance(prompt, self.server.types.ModelInput)
        assert isinstance(sampling_params, self.server.types.SamplingParams)
        return self.server.do(
            "sample", lambda: SimpleNamespace(sequences=[self.model.reply(prompt.to_ints(), sampling_params)])
        )

    def compute_logprobs(self, prompt: Any) -> Future[list[float | None]]:
        ids = torch.tensor([prompt.to_ints()])
        with torch.no_grad():
            found = self.model(input_ids=ids[:, :-1]).logits[0].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        return self.server.do("compute_logprobs", lambda: [None, *found.tolist()])


@dataclass
class Service:
    """The service, and the library that talks to it. folder: of the words (none: bigrams). killed_at: (kind of request,
    its number among these, whether it is still done).

    fail: how many of the next requests of a kind are done and get no answer. runs: training runs begun. tokens: that
    went through the model, passes forward counted like those backward.
    """

    folder: Path | None = None
    types: Any = field(default_factory=library_types)
    context: int | None = 256
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    fail: Counter[str] = field(default_factory=Counter)
    killed_at: tuple[str, int, bool] | None = None
    runs: int = 0
    tokens: int = 0
    key: str | None = None

    @property
    def name(self) -> str:
        return BIGRAMS if self.folder is None else MODEL

    def ServiceClient(self, base_url: str | None = None, api_key: str | None = None) -> "Service":
        self.key = api_key
        return self

    def RestClient(self, *, base_url: str | None = None, api_key: str | None = None) -> "Service":
        self.key = api_key
        return self

    def close(self, status: str, detail: str | None = None) -> Future[None]:
        return Future()

    def get_server_capabilities(self) -> Future[Any]:
        model = SimpleNamespace(model_name=self.name, max_context_length=self.context)
        return self.do("capabilities", lambda: SimpleNamespace(supported_models=[model]))

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> Future[Any]:
        assert "/weights/" in tinker_path
        return self.do("info", lambda: SimpleNamespace(base_model=self.name))

    def create_lora_training_client(
        self, base_model: str, rank: int = 32, seed: int | None = None
    ) -> Future[TrainingClient]:
        assert (base_model, rank > 0) == (self.name, True)
        return self._create(None, False)

    def create_training_client_from_state(self, path: str) -> Future[TrainingClient]:
        return self._create(path, False)

    def create_training_client_from_state_with_optimizer(self, path: str) -> Future[TrainingClient]:
        return self._create(path, True)

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> Future[SamplingClient]:
        assert (base_model, model_path is None) in ((self.name, True), (None, False))
        assert model_path is None or "/sampler_weights/" in model_path
        return self.do("create_sampler", lambda: SamplingClient(self, self.kept[model_path] if model_path else None))

    def _create(self, path: str | None, with_optimizer: bool) -> Future[TrainingClient]:
        assert path is None or "/weights/" in path, "sampling weights cannot be trained"
        self.runs += 1
        return self.do(
            "create", lambda: TrainingClient(self, self.runs, self.kept[path] if path else None, with_optimizer)
        )

    def keep(self, path: str, kept: dict[str, Any], overwrite: bool) -> Any:
        assert overwrite or path not in self.kept, f"{path} is there already"
        self.kept[path] = kept
        return SimpleNamespace(path=path)

    def do(self, what: str, work: Callable[[], T]) -> Future[T]:
        if self.key != KEY:
            return Future(error=AuthenticationError(f"wrong key {self.key}"))
        kind, number, done = self.killed_at or ("", 0, False)
        killed = (what, self.requests[what]) == (kind, number)
        self.requests[what] += 1
        if killed and not done:
            raise Killed
        made = work()
        if killed:
            raise Killed
        if self.fail[what] > 0:
            self.fail[what] -= 1
            return Future(error=APIConnectionError(f"no answer, by the key {KEY}"))
        return Future(made)
