"""A language model in this process that samples, with log-probabilities, and learns: the `Policy` of a group of agents.

Decisions that matter here:
- sampler and learner use the same weights in memory, and the model is always in evaluation mode (no dropout), so both
  compute the same log-probabilities up to float noise. A step clears the sampler's caches;
- `trained` models learn all weights, or low-rank adapters. Adapters, and frozen models, share their base's weights
  within this process by folder: a frozen model costs memory once, and no optimizer;
- a step is one AdamW step on the exact minibatch: its parts (`nip_ray.learning.token_rows`) only save memory;
- before weights change, loss and gradient are checked: a non-finite value ends the run with the last good weights;
- state is tensors and plain values, independent of its holder. On a CPU a restored model continues identically.
"""

import copy
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.learners import Learners
from nip_ray.learning.token_losses import (
    LossFigures,
    Surrogate,
    clipped_surrogate,
    join,
    log_probs_and_entropy,
    no_figures,
    not_finite,
    token_loss,
    token_weights,
)
from nip_ray.learning.token_rows import Part, Turn, parts_of, shares
from nip_ray.progress import say
from nip_ray.seeding import seeded, stable_seed
from nip_ray.serving.batch import ContinuousBatch
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.extras import local_llm
from nip_ray.serving.generation import Generation, GenerationRequest
from nip_ray.serving.memory import kept_bytes, refuse_pass
from nip_ray.serving.model_folder import (
    adapter_rank,
    base_of,
    context_of,
    dtype_of,
    learning_dtype,
    load_model,
    lora_config,
    name_base,
    save_model,
    with_adapters,
)
from nip_ray.serving.windows import layer_masks
from nip_ray.settings.policy_gradient import BETAS, TokenTrainingSettings
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.files import put_in_place

_BASES: "WeakValueDictionary[tuple[Any, ...], Any]" = WeakValueDictionary()


class PolicyModel:
    """One set of weights. steps: optimizer steps since its folder. chat: its `ChatFormat`."""

    samples_apart = False
    _start: "PolicyModel | None"

    def __init__(
        self,
        model_dir: Path,
        settings: LocalProvider,
        *,
        trained: bool,
        seed: int = 0,
        device: str | None = None,
        learners: Learners | None = None,
    ) -> None:
        """seed: of the adapters' initial weights. learners: processes that learn it together, each from its share of a
        step's turns (None: this one alone).

        Raises UserError for an unusable model.
        """
        self.folder, self.trained, self.steps, self._learners = model_dir, trained, 0, learners
        self._settings, self._start = settings, None
        self._lora = trained and settings.method == "lora"
        on = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        with _enough_memory(f"{model_dir}: its weights", _SMALLER):
            self._base, self._adapted, self._model = _load(model_dir, settings, trained, seed, on)
        self.chat = load_format(model_dir, context_of(self._model.config, settings.max_length))
        self._width = self._model.config.get_text_config().hidden_size
        rank = settings.lora_rank if self._lora else 0
        self._kept = kept_bytes(self._model.config, rank, self._model.dtype.itemsize) if on.type == "cpu" else 0
        self._batch = ContinuousBatch(self._model, self.chat, settings.max_batch_size)
        self._learned = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        self._optimizer = torch.optim.AdamW(self._learned.values(), lr=0.0) if trained else None
        self._averages, self._averaged, self._newest = dict[str, Tensor](), 0, dict[str, Tensor]()

    # --------------------------------------------------------------------------------------------------------- sampling

    def sample(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Replies, in the requests' order. Raises as `ContinuousBatch.row` does, and UserError when memory runs out."""
        with _enough_memory(f"providers.<provider>.max_batch_size: {self._settings.max_batch_size} replies at once"):
            made = self._batch.generate(requests)
        return [replace(one, text=self.chat.opened + one.text) for one in made] if self.chat.opened else made

    def forget(self) -> None:
        """Clear sampling caches: cached prompts change the last bits of later results."""
        self._batch.forget()

    @torch.inference_mode()
    def logprobs(self, turns: Sequence[Turn], max_tokens: int = 16384) -> list[list[float]]:
        """Log-probabilities of all tokens of replies, at each turn's temperature. max_tokens: in one forward pass."""
        found: list[list[float]] = [[] for _ in turns]
        with _enough_memory(f"algorithm.micro_batch_tokens: {max_tokens} tokens in one pass"):
            for part in parts_of(turns, max_tokens, self._width):
                drawn = iter(self._log_probs(part.to(self._model.device))[0].tolist())
                for number in part.turns:
                    found[number] = [next(drawn) for _ in turns[number].reply]
        return found

    # --------------------------------------------------------------------------------------------------------- learning

    def keep_start(self, folder: Path) -> None:
        """See `Policy.keep_start`."""
        with _enough_memory("algorithm.kl_coefficient: the start model beside the one that learns", _SMALLER):
            self._start = PolicyModel(folder, self._settings, trained=False, learners=self._learners)

    def step(
        self,
        turns: Sequence[Turn],
        settings: TokenTrainingSettings,
        max_tokens: int,
        surrogate: Surrogate = clipped_surrogate,
    ) -> dict[str, float]:
        """One step of policy gradient on a minibatch, by `token_loss`; returns `LossFigures.metrics` and grad_norm
        (before clipping).

        max_tokens: maximum length of a reply. surrogate: see `token_loss`. Raises TrainingError, with weights
        unchanged, if loss or gradient are not finite.
        """
        num_tokens = sum(len(turn.reply) for turn in turns)
        start = self._start if settings.kl_coefficient else None

        def loss_of(part: Part) -> tuple[Tensor, LossFigures]:
            log_prob_E, entropy_E = self._log_probs(part, bool(settings.entropy_coefficient))
            start_NT = None
            if start is not None:
                with torch.no_grad():
                    start_NT = part.by_turn(start._log_probs(part)[0])
            weight_NT = token_weights(part.mask_NT, settings.aggregation, num_tokens, len(turns), max_tokens)
            log_prob_NT, entropy_NT = part.by_turn(log_prob_E), part.by_turn(entropy_E)
            drawn = (part.old_logprob_NT, part.advantage_N, part.mask_NT)
            return token_loss(log_prob_NT, entropy_NT, *drawn, weight_NT, settings, start_NT, surrogate)

        loss, norm, figures = self._descend(turns, loss_of, settings, settings.learning_rate, settings.momentum)
        told = join(figures or [no_figures(settings, start is not None, surrogate, self._model.device)])
        told = told if self._learners is None else self._learners.join(told)
        return {**told.metrics(), "loss": loss, "grad_norm": norm}

    def supervised_step(self, turns: Sequence[Turn], settings: TokenTrainingSettings) -> dict[str, float]:
        """One step of supervised learning on replies: mean cross-entropy of tokens. Returns loss and grad_norm."""
        num_tokens = sum(len(turn.reply) for turn in turns)

        def loss_of(part: Part) -> tuple[Tensor, None]:
            return -self._log_probs(part)[0].sum() / num_tokens, None

        loss, norm, _ = self._descend(turns, loss_of, settings, settings.warmup_rate, BETAS[0])
        return {"loss": loss, "grad_norm": norm}

    def _log_probs(self, part: Part, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """(log_prob_E, entropy_E) of a part's tokens."""
        seen = {}
        if part.seen_RLL is not None and part.place_RL is not None:
            distance_RLL = part.place_RL[:, :, None] - part.place_RL[:, None, :]
            mask = layer_masks(self._model, part.seen_RLL[:, None], distance_RLL[:, None])
            seen = {"attention_mask": mask, "position_ids": part.place_RL}
        out = self._model(input_ids=part.ids_RL, use_cache=False, logits_to_keep=part.column_C, **seen)
        logits_UV = out.logits[part.row_U, part.column_U]
        found = log_probs_and_entropy(logits_UV, part.token_U, part.temperature_U[:, None], entropy_gradient)
        return found[0][part.distinct_E], found[1][part.distinct_E]

    def _descend(
        self,
        turns: Sequence[Turn],
        loss_of: Callable[[Part], tuple[Tensor, Any]],
        settings: TokenTrainingSettings,
        rate: float,
        momentum: float,
    ) -> tuple[float, float, list[Any]]:
        """Sum the gradients of all parts and learners, and take one step; returns loss, gradient norm and metrics."""
        if self._optimizer is None:
            raise TrainingError(f"{self.folder}: this model is frozen")
        self._optimizer.zero_grad()
        total, figures, learners = 0.0, [], self._learners
        own = turns if learners is None else [turns[number] for number in shares(turns, learners.size)[learners.rank]]
        with _enough_memory(f"algorithm.micro_batch_tokens: {settings.micro_batch_tokens} tokens in one pass"):
            for part in parts_of(own, settings.micro_batch_tokens, self._width):
                refuse_pass(part.ids_RL.numel(), self._kept)
                loss, told = loss_of(part.to(self._model.device))
                loss.backward()
                total += float(loss.detach())
                figures.append(told)
        if learners is not None:
            learners.add_gradients([*self._learned.values()])
            total = learners.add(total)
        with _enough_memory("the optimizer's moments", _SMALLER):
            norm = float(torch.nn.utils.clip_grad_norm_(self._learned.values(), settings.max_grad_norm or float("inf")))
            if not (math.isfinite(total) and math.isfinite(norm)):
                raise not_finite(f"loss {total}, norm of the gradient {norm}")
            for group in self._optimizer.param_groups:
                group.update(lr=rate, betas=(momentum, BETAS[1]), weight_decay=settings.weight_decay)
            self._optimizer.step()
        self.steps += 1
        self._batch.forget()
        return total, norm, figures

    def forget_moments(self) -> None:
        """Restart the optimizer."""
        if self._optimizer is not None:
            self._optimizer.state.clear()

    @torch.no_grad()
    def average(self, decay: float) -> None:
        """Add the weights to their exponential average. Its decay is at most (1 + n) / (10 + n) for n weights before,
        so that the first ones do not prevail for long."""
        decay = min(decay, (1 + self._averaged) / (10 + self._averaged))
        with _enough_memory("algorithm.average_weights: the averages", _SMALLER):
            for name, weight in self._learned.items():
                if name in self._averages:
                    self._averages[name].lerp_(weight.float(), 1 - decay)
                else:
                    self._averages[name] = weight.detach().float().clone()
        self._averaged += 1

    @torch.no_grad()
    def show_averages(self, shown: bool) -> None:
        """Put the averages, if there are any, in the place of the weights, or put these back."""
        if not self._averages:
            return
        with _enough_memory("algorithm.average_weights: a copy of the weights", _SMALLER):
            newest = {name: weight.detach().clone() for name, weight in self._learned.items()} if shown else {}
        for name, weight in self._learned.items():
            weight.copy_((self._averages if shown else self._newest)[name])
        self._newest = newest
        self._batch.forget()

    # ------------------------------------------------------------------------------------------------------------ state

    def weights(self) -> dict[str, Tensor]:
        """The learned weights, by name (copies, on the CPU): all weights or the adapters."""
        return _copies(self._learned)

    @torch.no_grad()
    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Load the `weights` of a model of the same folder and settings. Raises ValueError if names differ."""
        if weights.keys() != self._learned.keys():
            raise ValueError(f"weights are {sorted(weights)[:3]}..., expected {sorted(self._learned)[:3]}...")
        for name, weight in self._learned.items():
            weight.copy_(weights[name])
        self._batch.forget()

    def state(self) -> dict[str, Any]:
        """The learned weights, the optimizer's moments and steps: tensors (copies, on the CPU) and plain values."""
        if self._optimizer is None:
            raise TrainingError(f"{self.folder}: this model is frozen, its state is its folder")
        known = self._optimizer.state
        moments = {name: _copies(known[weight]) for name, weight in self._learned.items() if weight in known}
        averages = {"averages": _copies(self._averages), "averaged": self._averaged} if self._averages else {}
        return {"steps": self.steps, "weights": self.weights(), "moments": moments, **averages}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`. Raises UserError if it belongs to another model."""
        if self._optimizer is None:
            raise TrainingError(f"{self.folder}: this model is frozen")
        try:
            self.take(state["weights"])
        except (ValueError, RuntimeError) as error:
            raise UserError(f"this state is not of the model in {self.folder} ({error})") from None
        self.steps = state["steps"]
        averages, self._averaged = state.get("averages", {}), state.get("averaged", 0)
        self._averages = {name: averages[name].to(self._model.device, copy=True) for name in averages}
        self._optimizer.state.clear()
        for name, kinds in state["moments"].items():
            weight = self._learned[name]
            self._optimizer.state[weight] = {
                kind: (value if kind == "step" else value.to(weight)).clone() for kind, value in kinds.items()
            }

    def save(self, folder: Path) -> str:
        """Write it as a model's folder for `load_model` and the local provider, atomically; adapters name their base.

        Returns its name, by which the provider serves it.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        save_model(self._adapted or self._model, self.chat.tokenizer, aside)
        if self._adapted is not None:
            name_base(aside, folder, base_of(self.folder) or self.folder, self._model.dtype)
        shutil.rmtree(folder, ignore_errors=True)
        put_in_place(aside, folder)
        return folder.name

    def close(self) -> None:
        """See `Policy.close`."""


_SMALLER = "use providers.<provider>.method: lora, or a smaller model"


@contextmanager
def _enough_memory(what: str, remedy: str = "lower it") -> Iterator[None]:
    """Give advice when memory runs out. what: the key, if any, and its value."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(f"{what} need more memory than there is; {remedy}") from None


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def _load(
    folder: Path, settings: LocalProvider, trained: bool, seed: int, device: torch.device
) -> tuple[Any, Any, Any]:
    """(the shared base or None, the model of PEFT or None, the model that computes). Raises UserError for adapters of
    another rank than what learns."""
    adapters_of, full = base_of(folder), trained and settings.method == "full"
    dtype = learning_dtype(settings, device.type == "cuda")
    if settings.dtype == "auto" and adapters_of is not None and (known := dtype_of(folder)) != "auto" and not full:
        dtype = known
    if dtype == "bfloat16" and device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2":
        _warn_of_bfloat16()
    if full:
        return None, None, _aligned(load_model(folder, dtype).to(device))
    base = _shared(adapters_of or folder, dtype, device)
    if not trained and adapters_of is None:
        return base, None, base
    model = copy.deepcopy(base, {id(held): held for held in chain(base.parameters(), base.buffers())})
    if adapters_of is None:
        with seeded(stable_seed(seed, "adapters")):
            adapted = local_llm("peft").get_peft_model(model, lora_config(settings.lora_rank))
    elif trained and (rank := adapter_rank(folder)) != settings.lora_rank:
        got = settings.lora_rank
        raise UserError(f"providers.<provider>.lora_rank: got {got}, but {folder} has rank {rank}, use that")
    else:
        adapted = with_adapters(model, folder, trained)
    return base, adapted, adapted.get_base_model().eval()


@lru_cache
def _warn_of_bfloat16() -> None:
    say(
        "warning: this processor has no instructions for bfloat16, in which models learn many times more slowly; set"
        " providers.<provider>.dtype: float32"
    )


def _aligned(model: Any) -> Any:
    """The model with its weights in torch's own memory: a file's may be unaligned, which changes the last bits of sums
    of products."""
    for weight in model.parameters():
        weight.data = weight.data.clone()
    return model


def _shared(folder: Path, dtype: Any, device: torch.device) -> Any:
    """The frozen model in a folder, shared within this process, as long as it is in use and its files do not change."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    seen = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
    key = (str(folder.resolve()), dtype, str(device), seen)
    found = _BASES.get(key)
    if found is None:
        found = _BASES[key] = _aligned(load_model(folder, dtype).to(device)).requires_grad_(False)
    return found
