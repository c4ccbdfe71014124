"""The values of a fine-tuning job: what is asked for, and how it stands; the same for every provider."""

from dataclasses import dataclass
from typing import Literal

JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled"]
Method = Literal["supervised", "dpo"]
USUAL_EPOCHS = 4
"""Epochs that money is set aside for when a provider chooses their number."""
FINAL: tuple[JobStatus, ...] = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class FineTuneSpec:
    """A job to be made. key: see `nip_ray.text.jobs.job_key`. model: what it starts from. suffix: part of the new
    model's name, at most 40 of [A-Za-z0-9-]. The hyper-parameters are None where the provider chooses. num_examples, num_tokens:
    of the data, estimated, for one epoch; worst-case costs are computed from them. token_pusd: picodollars per token trained on.
    """

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
        """Tokens that the job is trained on at most."""
        return self.num_tokens * (self.num_epochs or USUAL_EPOCHS)


@dataclass(frozen=True)
class FineTuneJob:
    """A job as the provider tells of it. model: the resulting model, once succeeded. trained_tokens: what is billed, once known.
    unknown: the provider's word for a status that is not known here; `status` is then a guess.
    """

    id: str
    key: str
    status: JobStatus
    model: str | None = None
    trained_tokens: int | None = None
    error: str | None = None
    unknown: str | None = None
