"""Fine-tuning jobs on disk, which outlive their processes, and running them.

    FOLDER/files/SHA256.jsonl      training data
    FOLDER/jobs/ID/job.json        spec and status, replaced atomically
    FOLDER/jobs/ID/events.jsonl    a line for each step: step, loss, time
    FOLDER/jobs/ID/cancel          exists once a cancellation is requested
    FOLDER/jobs/ID/checkpoints/    the weights (lora: adapters) after each epoch
    FOLDER/models/SUFFIX-KEY       the resulting model

Decisions that matter here:
- the id of a job is a function of its key, and creating it twice gives the one job: repeating after a lost answer is
  harmless;
- a job found `running` without a process was interrupted. It starts again from its data: the same seed gives the same
  model. One that took its process down with it MAX_STARTS times fails instead;
- the model is renamed into place before the job's status is `succeeded`.
"""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FINAL, FineTuneJob, FineTuneSpec, JobStatus
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.files import write_atomically

MAX_STARTS = 3
VERSION = 1
"""The format of job.json."""

_ID = re.compile(r"ftjob-[0-9a-f]{24}")
_FILE = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"[A-Za-z0-9-]{0,40}")


@dataclass(frozen=True)
class StoredJob:
    """A job on disk. created, finished: Unix time. starts: number of starts. metadata, upload_id: a client's own data
    and name, not read here."""

    id: str
    spec: FineTuneSpec
    file_id: str
    status: JobStatus
    created: float
    starts: int = 0
    finished: float | None = None
    model: str | None = None
    trained_tokens: int | None = None
    error: str | None = None
    metadata: dict[str, str] | None = None
    upload_id: str | None = None

    def brief(self) -> FineTuneJob:
        """The job in the interface of fine-tuning."""
        return FineTuneJob(self.id, self.spec.key, self.status, self.model, self.trained_tokens, self.error)


class JobStore:
    """Jobs and their data in a folder. Holds nothing in memory: several objects and processes may read; one runs
    jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files, self.jobs, self.models = folder / "files", folder / "jobs", folder / "models"
        for made in (self.files, self.jobs, self.models):
            made.mkdir(parents=True, exist_ok=True)

    def put_file(self, data: bytes) -> str:
        """The id of training data with this content."""
        file_id = hashlib.sha256(data).hexdigest()
        if not (self.files / f"{file_id}.jsonl").exists():
            write_atomically(self.files / f"{file_id}.jsonl", data)
        return file_id

    def read_file(self, file_id: str) -> bytes:
        """Raises UserError for an unknown id."""
        path = self.files / f"{file_id}.jsonl"
        if not _FILE.fullmatch(file_id) or not path.is_file():
            raise UserError(f"there is no training data {file_id!r} here")
        return path.read_bytes()

    def create(
        self, spec: FineTuneSpec, file_id: str, metadata: dict[str, str] | None = None, upload_id: str | None = None
    ) -> StoredJob:
        """The job with the key of `spec`: created, or the existing one. Raises UserError for an unusable suffix or
        unknown data."""
        job_id = job_id_of(spec.key)
        if (self.jobs / job_id / "job.json").exists():
            return self.get(job_id)
        if not _SUFFIX.fullmatch(spec.suffix):
            raise UserError(f"the suffix of a model has at most 40 of [A-Za-z0-9-], not {spec.suffix!r}")
        self.read_file(file_id)
        job = StoredJob(job_id, spec, file_id, "pending", time.time(), metadata=metadata, upload_id=upload_id)
        self.save(job)
        return job

    def save(self, job: StoredJob) -> None:
        """Write the job's current state."""
        home = self.jobs / job.id
        home.mkdir(exist_ok=True)
        write_atomically(home / "job.json", (json.dumps({"version": VERSION, **asdict(job)}, indent=1) + "\n").encode())

    def get(self, job_id: str) -> StoredJob:
        """Raises UserError for an unknown id."""
        path = self.jobs / job_id / "job.json"
        if not _ID.fullmatch(job_id) or not path.is_file():
            raise UserError(f"there is no fine-tuning job {job_id!r} here")
        try:
            stored = json.loads(path.read_bytes())
            version = stored.pop("version")
            if version > VERSION:
                raise UserError(
                    f"{path} has the format version {version}, and this nip_ray knows those up to {VERSION}; use a"
                    " newer one"
                )
            return StoredJob(**{**stored, "spec": FineTuneSpec(**stored["spec"])})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); remove the job's folder to have it made again") from None

    def find(self, key: str) -> list[StoredJob]:
        """The job with this key, if there is one."""
        job_id = job_id_of(key)
        return [self.get(job_id)] if (self.jobs / job_id / "job.json").exists() else []

    def all(self) -> list[StoredJob]:
        """Every job, the oldest first."""
        found = [self.get(path.parent.name) for path in self.jobs.glob("ftjob-*/job.json")]
        return sorted(found, key=lambda job: (job.created, job.id))

    def open_jobs(self) -> list[StoredJob]:
        """Unfinished jobs."""
        return [job for job in self.all() if job.status not in FINAL]

    def cancel(self, job_id: str) -> StoredJob:
        """Request an end of the job; a job without a process ends at once, a finished one stays as it is."""
        job = self.get(job_id)
        if job.status in FINAL:
            return job
        (self.jobs / job_id / "cancel").touch()
        return self.finish(job, "cancelled") if job.status == "pending" else job

    def begin(self, job: StoredJob) -> StoredJob | None:
        """The job, marked as running with a clean slate; None, with the job over, if there is nothing to run."""
        if job.status in FINAL:
            return None
        if self.cancel_wanted(job.id):
            self.finish(job, "cancelled")
            return None
        if job.starts >= MAX_STARTS:
            self.finish(job, "failed", error=f"its process died {MAX_STARTS} times (out of memory?)")
            return None
        begun = replace(job, status="running", starts=job.starts + 1)
        self.save(begun)
        (self.jobs / job.id / "events.jsonl").unlink(missing_ok=True)
        shutil.rmtree(self.jobs / job.id / "checkpoints", ignore_errors=True)
        return begun

    def finish(self, job: StoredJob, status: JobStatus, **outcome: Any) -> StoredJob:
        """Record the end of a job."""
        done = replace(job, status=status, finished=time.time(), **outcome)
        self.save(done)
        return done

    def cancel_wanted(self, job_id: str) -> bool:
        """True if a cancellation was requested."""
        return (self.jobs / job_id / "cancel").exists()

    def add_event(self, job_id: str, step: int, loss: float) -> None:
        """Record one step of a job."""
        with (self.jobs / job_id / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "loss": loss, "time": time.time()}) + "\n")

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """The steps of a job so far, each with `step`, `loss` and `time` (Unix)."""
        self.get(job_id)
        path = self.jobs / job_id / "events.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


def job_id_of(key: str) -> str:
    """The id of the job with this key."""
    return f"ftjob-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def model_name_of(spec: FineTuneSpec) -> str:
    """Name of a job's model: SUFFIX-KEY, the key cut to 12 characters (or its hash's, if short or with punctuation)."""
    key = spec.key if re.fullmatch(r"[A-Za-z0-9]{12,}", spec.key) else hashlib.sha256(spec.key.encode()).hexdigest()
    return f"{spec.suffix or 'tuned'}-{key[:12]}"


def run_job(store: JobStore, job: StoredJob, provider: LocalProvider, base_dir: Callable[[str], Path]) -> StoredJob:
    """Run a started job until it is over; returns it. base_dir: maps a model's name to its folder.

    Raises nothing: failures become the job's error.
    """
    from nip_ray.serving.fine_tune import Cancelled, fine_tune, recipe

    name = model_name_of(job.spec)
    watch = (partial(store.add_event, job.id), partial(store.cancel_wanted, job.id))
    try:
        base, data = base_dir(job.spec.model), store.read_file(job.file_id)
        done = fine_tune(
            base, data, store.models / name, recipe(job.spec, provider), store.jobs / job.id / "checkpoints", *watch
        )
    except Cancelled:
        return store.finish(job, "cancelled")
    except (UserError, TrainingError) as error:
        return store.finish(job, "failed", error=str(error))
    except Exception as error:
        return store.finish(job, "failed", error=f"{type(error).__name__}: {error}")
    return store.finish(job, "succeeded", model=name, trained_tokens=done.trained_tokens)
