"""`FineTuneBackend`: what a provider of fine-tuning must be able to do.

`nip_ray.text.jobs.exactly_once` builds on it the one function that makes a job exactly once.
"""

from typing import Protocol

from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method


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
