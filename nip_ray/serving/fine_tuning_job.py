"""Values of a fine-tuning job: its request and state, for every provider; the recipe and result of a local one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from nip_ray.settings.providers import LocalProvider

JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled"]
Method = Literal["supervised", "dpo"]
USUAL_EPOCHS = 4
"""Epochs to set money aside for if a provider chooses their number."""
FINAL: tuple[JobStatus, ...] = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class FineTuneSpec:
    """A job to create. key: see `nip_ray.text.jobs.job_key`. model: its start. suffix: part of the new model's name,
    at most 40 of [A-Za-z0-9-]. The hyper-parameters are None if the provider chooses. num_examples, num_tokens: of
    the data, estimated, for one epoch; worst-case costs are computed from them. token_pusd: picodollars per trained
    token."""

    key: str
    method: Method
    model: str
    suffix: str
    num_examples: int
    num_tokens: int
    seed: int = 0
    num_epochs: int | None = None
    batch_size: int | None = None
    learning_rate_multiplier: float | None = None
    learning_rate: float | None = None
    beta: float | None = None
    token_pusd: int = 0
    nll_coefficient: float = 0.0

    @property
    def worst_tokens(self) -> int:
        """Maximum number of tokens that the job is trained on."""
        return self.num_tokens * (self.num_epochs or USUAL_EPOCHS)


@dataclass(frozen=True)
class FineTuneJob:
    """A job in the provider's words. model: the resulting model, once succeeded. trained_tokens: billed ones, once
    known. unknown: the provider's word for an unknown status; `status` is then a guess."""

    id: str
    key: str
    status: JobStatus
    model: str | None = None
    trained_tokens: int | None = None
    error: str | None = None
    unknown: str | None = None


OnStep = Callable[[int, float], None]
ShouldStop = Callable[[], bool]


class Cancelled(Exception):
    """The fine-tuning was cancelled."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the result, apart from base and data. batch_size: examples in a step, over all workers
    and parts. beta: of DPO. nll_coefficient: weight of the better reply's negative log-likelihood, per token, beside
    DPO's loss. provider: how it is computed."""

    method: Method = "supervised"
    seed: int = 0
    num_epochs: int = 3
    batch_size: int = 8
    learning_rate: float = 1e-4
    beta: float = 0.1
    nll_coefficient: float = 0.0
    provider: LocalProvider = field(default_factory=LocalProvider)


@dataclass(frozen=True)
class Trained:
    """Result of a fine-tuning. trained_tokens: of all examples, once for each epoch. loss: of the last step."""

    steps: int
    trained_tokens: int
    loss: float | None
