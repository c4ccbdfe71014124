"""/v1/files and /v1/fine_tuning/jobs: OpenAI's objects over the job store.

Decisions that matter here:
- uploaded files are kept as `uploads/ID.data` with their metadata in `uploads/ID.json`, written last: an upload is
  complete or missing;
- data is checked when the job is created, and refused by a 400, so that no client polls a job that could never run;
- a job's key is the client's Idempotency-Key, else a random one: the same key gives the same job, also after a restart
  of the server.
"""

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from ray.exceptions import RayError

from nip_ray.errors import UserError
from nip_ray.serving.fine_tuning_job import FineTuneSpec, Method
from nip_ray.serving.host import as_ours
from nip_ray.serving.jobs import JobStore, StoredJob
from nip_ray.serving.protocol import ApiError, Strict, page
from nip_ray.serving.training_data import parse_examples
from nip_ray.storage.files import write_atomically

_STATUS = {"pending": "queued"}
_AUTO = BeforeValidator(lambda given: None if given == "auto" else given)
Count = Annotated[int | None, _AUTO, Field(ge=1)]
Positive = Annotated[float | None, _AUTO, Field(gt=0)]


class Hyperparameters(Strict):
    """Of either method; `auto` is the same as none."""

    n_epochs: Count = None
    batch_size: Count = None
    learning_rate_multiplier: Positive = None
    beta: Positive = None


class MethodOptions(Strict):
    """Of either method."""

    hyperparameters: Hyperparameters | None = None


class MethodBody(Strict):
    """The method of learning."""

    type: Method
    supervised: MethodOptions | None = None
    dpo: MethodOptions | None = None


class JobBody(Strict):
    """The request for a job."""

    model: str
    training_file: str
    method: MethodBody | None = None
    hyperparameters: Hyperparameters | None = None
    seed: int | None = Field(None, ge=0)
    suffix: str | None = Field(None, pattern=r"^[A-Za-z0-9-]{1,40}$")
    metadata: dict[str, str] | None = Field(None, max_length=16)
    validation_file: None = None
    integrations: list[None] | None = Field(None, max_length=0)

    def spec(self, key: str, num_examples: int, size: int) -> FineTuneSpec:
        """The job to create. size: bytes of data; four make about a token."""
        method: Method = self.method.type if self.method else "supervised"
        options = getattr(self.method, method, None) if self.method else None
        hyper = (options.hyperparameters if options else None) or self.hyperparameters or Hyperparameters()
        return FineTuneSpec(
            key=key,
            method=method,
            model=self.model,
            suffix=self.suffix or "tuned",
            num_examples=num_examples,
            num_tokens=size // 4,
            seed=self.seed or 0,
            num_epochs=hyper.n_epochs,
            batch_size=hyper.batch_size,
            learning_rate_multiplier=hyper.learning_rate_multiplier,
            beta=hyper.beta,
        )


class Uploads:
    """Files that clients uploaded, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, fields: dict[str, tuple[bytes, str | None]]) -> dict[str, Any]:
        """The file object of an uploaded form."""
        purpose = fields.get("purpose", (b"", None))[0].decode("utf-8", "replace")
        if purpose != "fine-tune":
            raise ApiError(400, f"purpose: files are for `fine-tune` here, not for {purpose!r}", "purpose")
        if "file" not in fields or fields["file"][1] is None:
            raise ApiError(400, "file: there is no file in the form", "file")
        content, name = fields["file"]
        made = {
            "id": f"file-{secrets.token_hex(12)}",
            "object": "file",
            "bytes": len(content),
            "created_at": int(time.time()),
        }
        made |= {"filename": name, "purpose": purpose, "status": "processed"}
        write_atomically(self._folder / f"{made['id']}.data", content)
        write_atomically(self._folder / f"{made['id']}.json", json.dumps(made).encode())
        return made

    def get(self, file_id: str) -> dict[str, Any]:
        """The file object. Raises ApiError 404."""
        if file_id not in self._ids():
            raise ApiError(404, f"there is no file {file_id!r}", "file_id", "not_found")
        return json.loads((self._folder / f"{file_id}.json").read_bytes())

    def content(self, file_id: str) -> bytes:
        """The uploaded bytes. Raises ApiError 404."""
        self.get(file_id)
        return (self._folder / f"{file_id}.data").read_bytes()

    def list(self, query: dict[str, str]) -> dict[str, Any]:
        """A page of file objects, the newest first."""
        found = sorted(
            (self.get(file_id) for file_id in self._ids()),
            key=lambda made: (made["created_at"], made["id"]),
            reverse=True,
        )
        if "purpose" in query:
            found = [made for made in found if made["purpose"] == query["purpose"]]
        return page(found, query.get("after"), query.get("limit"), 10000)

    def delete(self, file_id: str) -> dict[str, Any]:
        """Remove the file; jobs made from it keep their data."""
        self.get(file_id)
        (self._folder / f"{file_id}.json").unlink()
        (self._folder / f"{file_id}.data").unlink()
        return {"id": file_id, "object": "file", "deleted": True}

    def _ids(self) -> set[str]:
        return {path.stem for path in self._folder.glob("file-*.json")}


class Jobs:
    """Fine-tuning jobs: read from disk, created and cancelled through the training actor."""

    def __init__(self, store: JobStore, uploads: Uploads, training: Any) -> None:
        self._store, self._uploads, self._training = store, uploads, training

    async def create(self, body: JobBody, key: str | None) -> dict[str, Any]:
        """The job object. Raises ApiError for data that cannot be learned, and a key that belongs to another job."""
        data = await asyncio.to_thread(self._uploads.content, body.training_file)
        method: Method = body.method.type if body.method else "supervised"
        try:
            examples = parse_examples(data, method)
        except UserError as error:
            raise ApiError(400, str(error), "training_file", "invalid_training_file") from None
        spec = body.spec(f"client:{key}" if key else secrets.token_hex(32), len(examples), len(data))
        file_id = await self._ask(self._training.upload.remote(data))
        job = await self._ask(self._training.submit.remote(spec, file_id, body.metadata, body.training_file))
        if (job.spec, job.file_id) != (spec, file_id):
            raise ApiError(400, "this Idempotency-Key was used for another job", code="idempotency_error")
        return job_object(job)

    def get(self, job_id: str) -> dict[str, Any]:
        """The job object. Raises ApiError 404."""
        return job_object(self._stored(job_id))

    def list(self, query: dict[str, str]) -> dict[str, Any]:
        """A page of job objects, the newest first; `metadata[KEY]=VALUE` filters them."""
        wanted = {
            name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name.endswith("]")
        }
        jobs = [job for job in self._store.all() if wanted.items() <= (job.metadata or {}).items()]
        return page([job_object(job) for job in reversed(jobs)], query.get("after"), query.get("limit"))

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """The job object after recording the cancellation. Raises ApiError for a job that is over."""
        job = await asyncio.to_thread(self._stored, job_id)
        if job.finished is not None:
            raise ApiError(400, f"the job is over: {job.status}", "fine_tuning_job_id")
        return job_object(await self._ask(self._training.cancel.remote(job_id)))

    def events(self, job_id: str, query: dict[str, str]) -> dict[str, Any]:
        """A page of the job's events, the newest first: each step's loss."""
        self._stored(job_id)
        found = [_event_object(job_id, number, event) for number, event in enumerate(self._store.events(job_id))]
        return page(found[::-1], query.get("after"), query.get("limit"))

    def _stored(self, job_id: str) -> StoredJob:
        try:
            return self._store.get(job_id)
        except UserError as error:
            raise ApiError(404, str(error), "fine_tuning_job_id", "not_found") from None

    async def _ask(self, reference: Any) -> Any:
        try:
            return await reference
        except RayError as error:
            ours = as_ours(error)
            raise ApiError(400 if isinstance(ours, UserError) else 500, str(ours)) from None


def job_object(job: StoredJob) -> dict[str, Any]:
    """OpenAI's object of a job."""
    spec = job.spec
    hyper: dict[str, Any] = {"n_epochs": spec.num_epochs, "batch_size": spec.batch_size}
    hyper["learning_rate_multiplier"] = spec.learning_rate_multiplier
    if spec.method == "dpo":
        hyper["beta"] = spec.beta
    hyper = {name: "auto" if value is None else value for name, value in hyper.items()}
    return {
        "id": job.id,
        "object": "fine_tuning.job",
        "created_at": int(job.created),
        "finished_at": None if job.finished is None else int(job.finished),
        "status": _STATUS.get(job.status, job.status),
        "model": spec.model,
        "fine_tuned_model": job.model,
        "trained_tokens": job.trained_tokens,
        "error": {"code": "job_failed", "message": job.error, "param": None} if job.error else None,
        "training_file": job.upload_id or job.file_id,
        "validation_file": None,
        "result_files": [],
        "organization_id": "local",
        "seed": spec.seed,
        "metadata": job.metadata,
        "hyperparameters": hyper,
        "method": {"type": spec.method, spec.method: {"hyperparameters": hyper}},
    }


def _event_object(job_id: str, number: int, event: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"ftevent-{job_id.removeprefix('ftjob-')}-{number}",
        "object": "fine_tuning.job.event",
        "created_at": int(event["time"]),
        "level": "info",
        "type": "metrics",
        "message": f"Step {event['step']}: loss {event['loss']:.4f}",
        "data": {"step": event["step"], "train_loss": event["loss"]},
    }
