"""`FineTuneBackend`: what a provider of fine-tuning must be able to do, and the values that pass.

`nip_ray.text.jobs` builds on it the one function that makes a job exactly once.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from nip_ray.text.spending import Amount

JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled"]
Method = Literal["supervised", "dpo"]
USUAL_EPOCHS = 4
"""Epochs that money is set aside for when a provider chooses their number."""
FINAL: tuple[JobStatus, ...] = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class FineTuneSpec:
    """A job to be made. key: see `nip_ray.text.jobs.job_key`. model: what it starts from. suffix: part of the new model's name, at
    most 40 of [A-Za-z0-9-]. The hyper-parameters are None where the provider chooses. num_examples, num_tokens: of the data, estimated,
    for one epoch; worst-case costs are computed from them. token_pusd: picodollars per token trained on.
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

    @property
    def worst(self) -> Amount:
        """What the job can cost at most."""
        tokens = self.num_tokens * (self.num_epochs or USUAL_EPOCHS)
        return Amount(tokens * self.token_pusd, tokens)


@dataclass(frozen=True)
class FineTuneJob:
    """A job as the provider tells of it. model: the resulting model, once succeeded. trained_tokens: what is billed, once known."""

    id: str
    key: str
    status: JobStatus
    model: str | None = None
    trained_tokens: int | None = None
    error: str | None = None


class InDoubt(Exception):
    """Creating a job got no clear answer: it may exist or come to exist."""


class FineTuneBackend(Protocol):
    """A provider of fine-tuning. Every method but `submit` may be called again without harm, and retries what may be retried.

    Errors: UserError for what the user must mend (key, model, method), TrainingError when the provider stays away.
    """

    methods: frozenset[str]
    poll_interval_s: float
    doubt_s: float

    async def check(self, model: str, method: Method) -> None:
        """Raise UserError, before any money is spent, when `model` cannot be fine-tuned by `method` here."""
        ...

    async def upload(self, name: str, data: bytes) -> str:
        """The id of a file with this content; the same content is uploaded once. data: JSON lines in the OpenAI form."""
        ...

    async def find(self, key: str) -> list[FineTuneJob]:
        """All jobs with this key, the oldest first."""
        ...

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """Create a job, by one request that is never repeated. Raises InDoubt when its fate is unknown."""
        ...

    async def poll(self, job_id: str) -> FineTuneJob:
        """How a job stands."""
        ...

    async def cancel(self, job_id: str) -> FineTuneJob:
        """Cancel a job; one that is over stays as it is."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...
