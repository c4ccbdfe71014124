"""`DummyJobs`: found after a restart."""

import asyncio
from pathlib import Path

import pytest

from nip_ray.errors import TrainingError
from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.text.jobs import Journal, await_job, ensure_job
from nip_ray.text.providers.dummy import DummyJobs

SPEC = FineTuneSpec("k" * 64, "dpo", "base", "s", 3, 50, num_epochs=2)


def test_jobs_succeed_at_once_and_are_found_again(tmp_path: Path) -> None:
    async def run(journal: Journal) -> None:
        backend = DummyJobs(tmp_path / "dummy.jsonl")
        await backend.check("base", "dpo")
        job = await await_job(backend, journal, await ensure_job(backend, journal, SPEC, b"{}\n", "x"))
        assert (job.id, job.model, job.trained_tokens) == ("dummy-000000", "base-ft", 100)
        assert await backend.find(SPEC.key) == [job]
        assert await backend.cancel(job.id) == job
        with pytest.raises(TrainingError):
            await backend.poll("dummy-9")
        await backend.close()

    for name in ("journal", "journal", "another journal"):
        with Journal(tmp_path / name) as journal:
            asyncio.run(run(journal))
