"""The provider `dummy`: random replies, and fine-tuning that changes nothing, to try out a config without a model.

Jobs succeed at once, and are kept in a journal so that they are found after a restart.
"""

from dataclasses import asdict
from pathlib import Path

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method
from nip_ray.text.jobs import Entry, Journal
from nip_ray.text.providers.interface import Provider, file_name


class DummyJobs:
    """A `FineTuneBackend` whose jobs are kept at `path`. The resulting model has the old name with `-ft` appended.

    Raises UserError when the file is damaged.
    """

    methods = frozenset({"supervised", "dpo"})
    poll_interval_s = 0.0
    doubt_s = 0.0

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend`. Accepts every model."""
        if method not in self.methods:
            raise UserError(f"the dummy provider fine-tunes by {' and '.join(sorted(self.methods))} (got {method!r})")

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend`. Nothing is stored."""
        return file_name(data)

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend`."""
        return [_job(entry) for entry in self._journal.entries(key=key)]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        number, tokens = len(list(self._journal.entries())), spec.num_tokens * (spec.num_epochs or 1)
        job = FineTuneJob(f"dummy-{number:06d}", spec.key, "succeeded", f"{spec.model}-ft", tokens)
        self._journal.append("job", **asdict(job))
        return job

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        entry = self._journal.last(id=job_id)
        if entry is None:
            raise TrainingError(f"{self._journal.path} has no job {job_id}; it belongs to another run")
        return _job(entry)

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        return await self.poll(job_id)

    async def close(self) -> None:
        """See `FineTuneBackend`."""
        self._journal.close()


def _job(entry: Entry) -> FineTuneJob:
    return FineTuneJob(**{name: value for name, value in entry.items() if name != "kind"})


PROVIDER = Provider(chat=None, fine_tuning=lambda given: DummyJobs(given.run_dir / f"dummy-{given.name}.jsonl"))
