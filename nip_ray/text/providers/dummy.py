"""The provider `dummy`: replies that nobody is asked for, and fine-tuning that changes nothing, to try out a config without a model.

Jobs succeed at once, and are kept in a file so that they are found after a restart.
"""

import json
from dataclasses import asdict
from pathlib import Path

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method
from nip_ray.storage.files import write_atomically
from nip_ray.text.providers.interface import Provider, file_name

VERSION = 1
"""The format of the file."""


class DummyJobs:
    """A `FineTuneBackend` whose jobs are kept at `path`. The resulting model is called as the old one, with `-ft` at the end.

    Raises UserError when the file is damaged.
    """

    methods = frozenset({"supervised", "dpo"})
    poll_interval_s = 0.0
    doubt_s = 0.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs = _read(path)

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend`. No model is refused."""
        if method not in self.methods:
            raise UserError(f"the dummy provider fine-tunes by {' and '.join(sorted(self.methods))} (got {method!r})")

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend`. Nothing is kept."""
        return file_name(data)

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend`."""
        return [job for job in self._jobs if job.key == key]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        job = FineTuneJob(
            id=f"dummy-{len(self._jobs):06d}",
            key=spec.key,
            status="succeeded",
            model=f"{spec.model}-ft",
            trained_tokens=spec.num_tokens * (spec.num_epochs or 1),
        )
        rows = [asdict(known) for known in (*self._jobs, job)]
        write_atomically(self._path, json.dumps({"version": VERSION, "jobs": rows}, indent=1).encode())
        self._jobs.append(job)
        return job

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        for job in self._jobs:
            if job.id == job_id:
                return job
        raise TrainingError(f"{self._path} has no job {job_id}; it belongs to another run")

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        return await self.poll(job_id)

    async def close(self) -> None:
        """Nothing is open."""


def _read(path: Path) -> list[FineTuneJob]:
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            raise ValueError(f"format version {document['version']!r}")
        return [FineTuneJob(**row) for row in document["jobs"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be used ({type(error).__name__}: {error}); remove it, and the dummy jobs with it") from None


PROVIDER = Provider(chat=None, fine_tuning=lambda given: DummyJobs(given.run_dir / f"dummy-{given.name}.json"))
