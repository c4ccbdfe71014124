"""The local model on a Ray cluster: one actor answers, another fine-tunes, so that neither blocks the other.

Decisions that matter here:
- both work in one folder (a run's), which all nodes must see: `models/` and the files of `nip_ray.serving.jobs`. All
  state is there, so both are restarted indefinitely: a lost chat is requested again (the same seed gives the same
  reply), an interrupted job starts again;
- the actors belong to the driver that starts them, and die with it. The next driver starts new ones on the same folder,
  and the jobs continue;
- jobs run one at a time, oldest first, in a thread; status queries never wait for them.
"""

import asyncio
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError

from nip_ray.cluster.liveness import watchable
from nip_ray.cluster.ray_session import first_words
from nip_ray.errors import TrainingError, UserError
from nip_ray.play.dialogue import Chat
from nip_ray.serving.extras import check_installed, check_quantized, local_llm
from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.serving.jobs import JobStore, StoredJob, run_job
from nip_ray.serving.shelf import ModelFolders, Shelf
from nip_ray.settings.providers import LocalProvider


@dataclass(frozen=True)
class LocalHost:
    """Handles of the two actors; may be passed to other actors and tasks."""

    chat: Any
    training: Any


def start_host(settings: LocalProvider, folder: Path) -> LocalHost:
    """Start both actors on `folder`, and wait until they are ready. Ray must be running. Raises UserError for missing
    libraries."""
    check_installed()
    folders = ModelFolders(Path(folder).resolve(), settings.default_model_seed)
    chat = _actor(ChatHost, settings, 1000, folders, settings)
    training = start_training(settings, folders)
    host = LocalHost(chat, training)
    try:
        ray.get([chat.ready.remote(), training.ready.remote()])
    except RayError as error:
        stop_host(host)
        raise as_ours(error) from None
    return host


def start_training(settings: LocalProvider, folders: ModelFolders) -> Any:
    """Start only the actor that fine-tunes. Raises UserError for missing libraries."""
    check_installed()
    return _actor(TrainingHost, settings, 16, folders, settings)


def stop_host(host: LocalHost) -> None:
    """End both actors. An interrupted job continues when a host is next started on the folder."""
    for actor in (host.chat, host.training):
        ray.kill(actor)


def as_ours(error: RayError, who: str = "the local model's actor") -> Exception:
    """The error behind one that came through Ray: UserError and TrainingError unchanged, others as a TrainingError."""
    if isinstance(error, RayActorError):
        return TrainingError(f"{who} is lost ({first_words(str(error))}); see Ray's logs, then resume the run")
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, UserError | TrainingError):
        return type(cause)(*cause.args)
    return TrainingError(f"{who} failed: {type(cause).__name__}: {cause}")


def _actor(kind: type, settings: LocalProvider, concurrency: int, *arguments: Any) -> Any:
    options = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus, "max_concurrency": concurrency}
    return watchable(kind).options(**options, max_restarts=-1, max_task_retries=-1).remote(*arguments)


class ChatHost:
    """Answers, for any model of the folder. An actor on an event loop."""

    def __init__(self, folders: ModelFolders, settings: LocalProvider) -> None:
        """See `start_host`."""
        torch.set_num_threads(settings.threads)
        self._folders = folders
        self._shelf = Shelf(settings.max_batch_size)

        def load() -> None:  # the first reply's imports take seconds: do them while the other actor starts
            transformers = local_llm("transformers")
            _ = transformers.AutoModelForCausalLM, transformers.AutoTokenizer

        threading.Thread(target=load, name="loading", daemon=True).start()

    async def ready(self) -> None:
        """Return once the actor is ready."""
        await asyncio.to_thread(self._folders.locate, "default")

    async def generate(self, model: str, messages: Chat, request: Any) -> Any:
        """The `Generation` for a `GenerationRequest` without the prompt; one beyond the context loses its middle."""
        return await self._shelf.generate(self._folders.locate(model), messages, request, "cut")


class TrainingHost:
    """Runs the jobs of the folder, one after the other. An actor with threads."""

    def __init__(self, folders: ModelFolders, settings: LocalProvider) -> None:
        """Continues all unfinished jobs."""
        torch.set_num_threads(settings.threads)
        self._folders, self._settings = folders, settings
        self.store = JobStore(folders.folder)
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._queued: set[str] = set()
        for job in self.store.open_jobs():
            self._enqueue(job)
        threading.Thread(target=self._work, name="fine-tuning", daemon=True).start()

    def ready(self) -> None:
        """Return once the actor is ready. Raises UserError if it cannot fine-tune with these settings."""
        check_quantized(self._settings.quantize_base or self._settings.optimizer == "adamw_8bit")

    def check(self, model: str) -> None:
        """Raise UserError for an unknown model."""
        self._folders.locate(model)

    def upload(self, data: bytes) -> str:
        """See `JobStore.put_file`."""
        return self.store.put_file(data)

    def submit(
        self, spec: FineTuneSpec, file_id: str, metadata: dict[str, str] | None = None, upload_id: str | None = None
    ) -> StoredJob:
        """See `JobStore.create`; the job starts as soon as those before it are over."""
        self._folders.locate(spec.model)
        with self._lock:
            job = self.store.create(spec, file_id, metadata, upload_id)
        self._enqueue(job)
        return job

    def find(self, key: str) -> list[StoredJob]:
        """See `JobStore.find`."""
        return self.store.find(key)

    def poll(self, job_id: str) -> StoredJob:
        """See `JobStore.get`."""
        return self.store.get(job_id)

    def cancel(self, job_id: str) -> StoredJob:
        """See `JobStore.cancel`."""
        with self._lock:
            return self.store.cancel(job_id)

    def _enqueue(self, job: StoredJob) -> None:
        if job.status in ("pending", "running") and job.id not in self._queued:
            self._queued.add(job.id)
            self._queue.put(job.id)

    def _work(self) -> None:
        while True:
            job_id, job = self._queue.get(), None
            with self._lock, suppress(UserError):  # None: it was cancelled before, or its folder was removed
                job = self.store.begin(self.store.get(job_id))
            if job is not None:
                run_job(self.store, job, self._settings, self._folders.locate)
