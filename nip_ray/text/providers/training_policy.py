"""A model at a training service that samples, with log-probabilities, and learns, with the methods of `PolicyModel`.

Decisions that matter here:
- the service's own loss (`importance_sampling`; `ppo` if a bound on the ratio is set), weighted by each token's weight
  times advantage, is `nip_ray.learning.token_losses.token_loss` with a ratio per token, in one pass. With a KL term, or
  one ratio for the whole turn, `token_loss` itself is sent as the library's custom loss, which needs one more forward
  pass. There is no entropy over all tokens;
- gradient and step are requested together, as the service recommends, and both are awaited. The library numbers its
  requests, so that a repeated one is not done twice. If no answer comes, it is unknown whether the step was taken: the
  run ends, and a resumed one starts a new client from the weights and moments saved last. So no step is taken twice on
  the same weights;
- weights to sample from and to learn from are saved under one name, so the address of either gives that of the other;
- the sampler has the weights of the last `take`, and may be used while a step is taken. Log-probabilities are at
  temperature 1.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.token_losses import (
    LossFigures,
    Surrogate,
    clipped_surrogate,
    is_ppo,
    not_finite,
    token_loss,
    token_weights,
)
from nip_ray.learning.token_rows import Turn
from nip_ray.serving.chat_format import ChatFormat
from nip_ray.serving.generation import Generation, GenerationRequest
from nip_ray.settings.policy_gradient import BETAS, RatioClipSettings, TokenTrainingSettings
from nip_ray.settings.providers import TrainingServiceProvider
from nip_ray.storage.files import put_in_place
from nip_ray.text.providers.training_service import ADDRESS, SAMPLE, TRAIN, ServiceLink

SAVED = "service.json"
"""In the folder of a saved model: the address of its weights to sample from."""
_SAMPLER_TTL_S = 30 * 24 * 3600  # of weights that only play: a run that is paused for longer has checkpoints
_UNBOUNDED = 1e6  # a ratio that is never reached, if only one bound is set


class ServicePolicy:
    """A set of weights. model: a base model of the service, or the address of saved weights. Methods: see `Policy`.

    Raises UserError for a missing library or key, and for a model that the service does not have.
    """

    samples_apart = True

    def __init__(
        self, model: str, provider: TrainingServiceProvider, *, trained: bool, seed: int = 0, library: Any = None
    ) -> None:
        """seed: of the adapters' initial weights."""
        self.model, self.trained, self.steps = model, trained, 0
        self._link, self._seed = ServiceLink(provider, library), seed
        self._state: str | None = None  # the start of the client that learns, optimiser included
        self._client: Any = None
        self._kept: dict[str, str] = {}  # name -> address of what this client has saved to sample from
        base = model
        if model.startswith(ADDRESS):
            base = self._link.made(
                self._link.rest().get_weights_info_by_tinker_path, model.replace(SAMPLE, TRAIN)
            ).base_model
        context = provider.max_length or self._link.base_model(base).max_context_length
        if context is None:
            raise UserError(
                f"providers.<name>.max_length: the training service does not say how many tokens {base} can read,"
                " set it"
            )
        self._sampler = self._sampler_of(model)
        self.chat = ChatFormat(self._sampler.get_tokenizer(), context)
        self._start: Any = None
        self._start_logprobs: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}

    def sample(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Replies, in the order of the requests, which are all sent at once."""
        types, asked = self._link.types, []
        for request in requests:
            params = types.SamplingParams(
                max_tokens=request.max_tokens,
                seed=request.seed,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=sorted(self.chat.ends),
            )
            asked.append(self._sampler.sample(types.ModelInput.from_ints(list(request.prompt)), 1, params))
        made = []
        for request, one in zip(requests, asked, strict=True):
            sequence = self._link.result(one).sequences[0]
            tokens, logprobs = list(sequence.tokens), list(sequence.logprobs or list[float]())
            if not tokens or len(tokens) != len(logprobs):
                raise TrainingError(
                    f"the training service gave {len(tokens)} tokens with {len(logprobs)} log-probabilities for a reply"
                )
            reason = "length" if sequence.stop_reason == "length" else "stop"
            made.append(
                Generation(self.chat.opened + self.chat.text(tokens), tokens, reason, len(request.prompt), logprobs)
            )
        return made

    def forget(self) -> None:
        """Forget the log-probabilities of the start model; the service manages its own caches."""
        self._start_logprobs.clear()

    def logprobs(self, turns: Sequence[Turn], max_tokens: int = 16384) -> list[list[float]]:
        """The log-probability of every token of these replies, by the sampling weights."""
        return self._logprobs_by(self._sampler, turns)

    def _logprobs_by(self, sampler: Any, turns: Sequence[Turn]) -> list[list[float]]:
        if any(turn.temperature != 1 for turn in turns):
            raise UserError(
                "scenario.agents.<agent>.temperature: a training service gives log-probabilities at temperature 1, set"
                " it to that"
            )
        inputs = [self._link.types.ModelInput.from_ints([*turn.prompt, *turn.reply]) for turn in turns]
        asked = [sampler.compute_logprobs(one) for one in inputs]
        return [
            [float(found) for found in self._link.result(one)[-len(turn.reply) :]]
            for one, turn in zip(asked, turns, strict=True)
        ]

    def keep_start(self, folder: Path) -> None:
        """Tie KL divergences to the model that `save` put into `folder`, else to the initial one."""
        saved = folder / SAVED
        self._start = self._sampler_of(
            json.loads(saved.read_text(encoding="utf-8"))["model"] if saved.is_file() else self.model
        )
        self._start_logprobs.clear()

    def step(
        self,
        turns: Sequence[Turn],
        settings: TokenTrainingSettings,
        max_tokens: int,
        surrogate: Surrogate = clipped_surrogate,
    ) -> dict[str, float]:
        """One step of policy gradient on a minibatch; see `PolicyModel.step`. There is no entropy, and a norm only if
        reported."""
        num_tokens = sum(len(turn.reply) for turn in turns)
        mask_NT = _padded([[1.0] * len(turn.reply) for turn in turns])
        weight_NT = token_weights(mask_NT, settings.aggregation, num_tokens, len(turns), max_tokens)
        advantage_N = torch.tensor([turn.advantage for turn in turns], dtype=torch.float32)
        drawn = (_padded([turn.logprobs for turn in turns]), advantage_N, mask_NT)
        start_NT = _padded(self._start_of(turns)) if settings.kl_coefficient else None

        def loss_of(logprobs: Sequence[Tensor]) -> tuple[Tensor, LossFigures]:
            own = [row[-len(turn.reply) :] for row, turn in zip(logprobs, turns, strict=True)]
            log_prob_NT = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
            return token_loss(log_prob_NT, torch.zeros_like(mask_NT), *drawn, weight_NT, settings, start_NT, surrogate)

        client = self._learner()
        named = _named_loss(settings) if is_ppo(settings, surrogate) else None
        if named is None:
            figures: list[LossFigures] = []

            def own_loss(_: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
                loss, told = loss_of(logprobs)
                figures.append(told)
                return loss, {}

            data = [self._link.datum(turn) for turn in turns]
            norm = self._descend(
                client,
                client.forward_backward_custom(data, own_loss),
                settings,
                settings.learning_rate,
                settings.momentum,
            )[1]
        else:
            credit_NT = weight_NT * advantage_N[:, None]
            data = [
                self._link.datum(turn, logprobs=turn.logprobs, advantages=credit_T[: len(turn.reply)].tolist())
                for turn, credit_T in zip(turns, credit_NT, strict=True)
            ]
            output, norm = self._descend(
                client, client.forward_backward(data, *named), settings, settings.learning_rate, settings.momentum
            )
            figures = [loss_of([_logprobs(found) for found in output.loss_fn_outputs])[1]]
        told = figures[-1].metrics()
        del told["entropy"]
        return _finite({**told, **norm})

    def supervised_step(self, turns: Sequence[Turn], settings: TokenTrainingSettings) -> dict[str, float]:
        """One step of supervised learning on replies; see `PolicyModel.supervised_step`."""
        client, num_tokens = self._learner(), sum(len(turn.reply) for turn in turns)
        data = [self._link.datum(turn, weights=[1 / num_tokens] * len(turn.reply)) for turn in turns]
        output, norm = self._descend(
            client, client.forward_backward(data, "cross_entropy"), settings, settings.warmup_rate, BETAS[0]
        )
        found = [_logprobs(one)[-len(turn.reply) :] for one, turn in zip(output.loss_fn_outputs, turns, strict=True)]
        return _finite({"loss": -float(torch.cat(found).sum()) / num_tokens, **norm})

    def _descend(
        self, client: Any, gradient: Any, settings: TokenTrainingSettings, rate: float, momentum: float
    ) -> tuple[Any, dict[str, float]]:
        """Apply a requested gradient; return the metrics of both, and the norm if reported."""
        params = self._link.types.AdamParams(
            learning_rate=rate,
            beta1=momentum,
            beta2=BETAS[1],
            eps=1e-8,
            weight_decay=settings.weight_decay,
            grad_clip_norm=settings.max_grad_norm or 0.0,
        )
        update = client.optim_step(params)
        output, done = self._link.result(gradient), self._link.result(update)
        self.steps += 1
        self._kept.clear()
        norms = [value for name, value in (done.metrics or {}).items() if "grad_norm" in name]
        return output, {"grad_norm": norms[0]} if norms else {}

    def _start_of(self, turns: Sequence[Turn]) -> list[list[float]]:
        """Log-probabilities by the start model, computed once per iteration."""
        keys = [(tuple(turn.prompt), tuple(turn.reply)) for turn in turns]
        new = {key: turn for key, turn in zip(keys, turns, strict=True) if key not in self._start_logprobs}
        self._start_logprobs |= zip(new, self._logprobs_by(self._start, list(new.values())), strict=True)
        return [self._start_logprobs[key] for key in keys]

    def forget_moments(self) -> None:
        """Go on with a new client, which starts from these weights."""
        saved = self._link.result(self._learner().save_state(f"weights-{self.steps:06d}", overwrite=True))
        self._client = self._link.made(self._link.learner_of(saved.path, self._seed))

    def average(self, decay: float) -> None:
        """Not here: the rules of the config refuse `average_weights` with a service."""
        raise TrainingError(f"{self.model}: its weights are at the service, where they are not averaged")

    def show_averages(self, shown: bool) -> None:
        """Nothing: there are none."""

    def weights(self) -> dict[str, Any]:
        """The address of the current learning weights, for sampling."""
        if self._client is None and self._state is None:
            return {"model": self.model}  # new adapters change nothing
        return {"model": self._saved(f"play-{self.steps:06d}", _SAMPLER_TTL_S)}

    def take(self, weights: Mapping[str, Any]) -> None:
        """Sample with these `weights` from now on."""
        self._sampler = self._sampler_of(weights["model"])

    def state(self) -> dict[str, Any]:
        """Addresses of the learning weights and the optimizer's moments, and the number of steps."""
        saved = self._link.result(self._learner().save_state(f"state-{self.steps:06d}", overwrite=True))
        return {"steps": self.steps, "path": saved.path}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue learning and sampling from a `state`; discards later changes."""
        self._client, self._state, self.steps = None, str(state["path"]), int(state["steps"])
        self._kept.clear()
        self.take(self.weights())

    def save(self, folder: Path) -> str:
        """Save the weights at the service, under the folder's name, and their address in the folder; return it."""
        self._link.result(self._learner().save_state(folder.name, overwrite=True))
        address = self._saved(folder.name, None)
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        (aside / SAVED).write_text(json.dumps({"model": address}) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        put_in_place(aside, folder)
        return address

    def close(self) -> None:
        """End the session at the service; saved weights stay there."""
        self._link.close()

    def _saved(self, name: str, ttl_s: int | None) -> str:
        """The address of the current weights, for sampling, saved once under this name."""
        if name not in self._kept:
            self._kept[name] = self._link.result(self._learner().save_weights_for_sampler(name, ttl_seconds=ttl_s)).path
        return self._kept[name]

    def _learner(self) -> Any:
        """The client that learns, created on first use."""
        if not self.trained:
            raise TrainingError(f"{self.model}: this model is frozen")
        if self._client is None:
            self._client = self._link.made(self._link.learner_of(self.model, self._seed, self._state))
        return self._client

    def _sampler_of(self, model: str) -> Any:
        return self._link.made(self._link.service().create_sampling_client, **self._link.which(model))


def _named_loss(settings: TokenTrainingSettings) -> tuple[str, dict[str, float] | None]:
    """The service's loss that equals PPO's with these settings, and its options."""
    assert isinstance(settings, RatioClipSettings)
    low, high = settings.clip_low, settings.clip_high
    if low is None and high is None:
        return "importance_sampling", None
    return "ppo", {
        "clip_low_threshold": 0.0 if low is None else 1 - low,
        "clip_high_threshold": _UNBOUNDED if high is None else 1 + high,
    }


def _logprobs(output: Mapping[str, Any]) -> Tensor:
    return output["logprobs"].to_torch().float()


def _padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """(N, T), zero after the end of a row."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor([*row], dtype=torch.float32) for row in rows], batch_first=True
    )


def _finite(told: dict[str, float]) -> dict[str, float]:
    """The metrics. Raises TrainingError if the loss is not a number: a resumed run starts from the saved weights."""
    if not math.isfinite(told["loss"]):
        raise not_finite(f"loss {told['loss']}")
    return told
