"""`OpenAIJobs`: fine-tuning jobs of any service with the OpenAI protocol.

Decisions that matter here:
- all requests but creations are retried (`OpenAIService.patiently`): repeating those may make, and charge for, two
  jobs;
- a job carries its key twice: as metadata, by which it is listed, and at the end of its suffix, for services that drop
  metadata. Lists are also filtered here, since some services ignore the filter;
- a file is named by the SHA-256 of its content, so that the same content is found instead of uploaded again;
- an answer 4xx to a creation means that nothing was created; no answer, or 5xx, leaves it in doubt;
- a refusal that a later request may not meet (the file is still being processed, a daily limit) is waited out, like a
  429.
"""

import asyncio
import re
import warnings
from collections import defaultdict
from collections.abc import AsyncIterable
from typing import Any

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, JobStatus, Method
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.jobs import Busy
from nip_ray.text.providers.interface import FIRST_WAIT_S, MAX_WAIT_S, InDoubt, file_name
from nip_ray.text.providers.openai_service import Failure, NotThere, OpenAIService, Refused

_KEY = "nip_key"  # in a job's metadata
_MARK = 16  # digits of the key at the end of a suffix
_NO_FILE = "file-that-does-not-exist"
_FOR_THE_METHOD = re.compile(r"\b(?:method|dpo|preference)", re.IGNORECASE)
_NOT_READY = re.compile(
    r"not (yet )?ready|(still|currently) (being )?(process|validat)|being processed|try again"
    r" (later|tomorrow)|rate.?limit|daily limit",
    re.IGNORECASE,
)
_WORDS: dict[JobStatus, str] = {
    "pending": "validating_files queued pending created started notrunning validating validated",
    "running": "running paused",
    "succeeded": "succeeded completed success",
    "failed": "failed failed_validation error user_error expired",
    "cancelled": "cancelled canceled",
}
_STATUS: dict[str, JobStatus] = {word: status for status, words in _WORDS.items() for word in words.split()}
_STOPPING = ("cancelling", "canceling", "cancel_requested", "cancellation_requested", "pausing", "resuming")
"""Status of jobs that still run."""


class OpenAIJobs:
    """A `FineTuneBackend` over the `openai` SDK; one for each event loop.

    first_wait_s: see `OpenAIService`. Raises UserError when the extra or the key is missing.
    """

    methods = frozenset({"supervised", "dpo"})

    def __init__(self, provider: OpenAIProvider, first_wait_s: float = FIRST_WAIT_S) -> None:
        self.poll_interval_s, self.doubt_s = provider.poll_interval_s, provider.doubt_s
        self._provider = provider
        self._service = OpenAIService(provider, first_wait_s=first_wait_s)
        self._client, self._where, self._patiently = self._service.sdk, self._service.where, self._service.patiently
        self._left_out: set[str] = set()
        """Members of creations that the service refuses."""
        self._uploading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend`. A service that checks a job's file before its method refuses the method only at the
        first job; nothing is charged for that job."""
        if not self._provider.fine_tuning:
            raise UserError(
                "providers: this one has `fine_tuning: false`; freeze its agents, or give them another provider"
            )
        if method not in self.methods:
            raise UserError(f"this provider fine-tunes by {' and '.join(sorted(self.methods))} (got {method!r})")
        is_listed = await self._is_listed(model)
        try:
            await self._patiently(lambda: self._client.get("/fine_tuning/jobs?limit=1", cast_to=object))
        except NotThere:
            raise UserError(
                f"{self._where} has no fine-tuning jobs; set `fine_tuning: false` for it and freeze its agents, "
                "or let them be spoken for by a provider that has, such as `local`"
            ) from None
        if not is_listed or method != "supervised":  # which every service has
            await self._probe(model, method, is_listed)

    async def _probe(self, model: str, method: Method, is_listed: bool) -> None:
        """Request a job on a missing file. It cannot start, but the refusal may name the method or the model."""
        jobs, asked = self._client.fine_tuning.jobs, {"type": method}
        try:
            job = await self._patiently(
                lambda: jobs.create(model=model, training_file=_NO_FILE, method=asked)  # pyright: ignore[reportArgumentType]
            )
        except Refused as error:
            if method != "supervised" and _FOR_THE_METHOD.search(str(error)):
                raise UserError(
                    f"{error}; {method} is not available for {model!r} there, choose another provider or algorithm"
                ) from None
            if not is_listed and (isinstance(error, NotThere) or "model" in str(error).lower()):
                raise UserError(
                    f"{self._where} has no model {model!r} to fine-tune: it is not listed, and {error}"
                ) from None
            return
        if job.id:
            await self.cancel(job.id)  # a service that checks files later

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend`. `name` is for people; at the service content is named by its hash (`file_name`)."""
        del name
        async with self._uploading[file_name(data)]:
            file_id = await self._find_file(data)
            for attempt in range(self._provider.max_retries + 1):
                file_id = file_id or await self._upload_once(data, attempt)
                if file_id is not None:
                    return file_id
                file_id = await self._find_file(data, within_s=self.doubt_s)
        raise TrainingError(f"{self._where} takes no files; when it works again, resume the run")

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend`. If the filter finds nothing all jobs are searched: the service may drop metadata."""
        mine = await self._list(key, metadata={_KEY: key}) or await self._list(key)
        mine.sort(key=lambda job: (getattr(job, "created_at", None) or 0, job.id))
        return [_as_job(job, key) for job in mine]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend`. Raises Busy when the service asks to come back later, UserError when it refuses."""
        job: Any = None
        refusal: Exception | None = None
        members: dict[str, Any] = {"seed": spec.seed % 2**31, "metadata": {_KEY: spec.key}}
        optional = {name: value for name, value in members.items() if name not in self._left_out}
        try:
            job = await self._client.fine_tuning.jobs.create(
                model=spec.model,
                training_file=file_id,
                method=method_of(spec),  # pyright: ignore[reportArgumentType]
                suffix=f"{spec.suffix}-{spec.key[:_MARK]}",
                extra_headers={"Idempotency-Key": "-".join([spec.key, *sorted(self._left_out)])},
                **optional,
            )
        except self._service.errors as error:
            failure = self._service.failure(error)
            named = [name for name in optional if re.search(rf"\b{name}\b", failure.said)]
            if failure.status in (400, 422) and named:  # nothing was created
                warnings.warn(
                    f"{self._where} takes no {' and '.join(named)} of fine-tuning jobs: left out", stacklevel=2
                )
                self._left_out.update(named)
                return await self.submit(spec, file_id)
            refusal = self._refused(failure, spec)
        if refusal is None and not getattr(job, "id", None):
            body = job.model_dump() if hasattr(job, "model_dump") else job
            refusal = self._refused(self._service.in_answer(body), spec)
        if refusal is not None:
            raise refusal
        return _as_job(job, spec.key)

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        try:
            job = await self._patiently(lambda: self._client.fine_tuning.jobs.retrieve(job_id))
        except NotThere:
            raise TrainingError(f"{self._where} knows no fine-tuning job {job_id} any more") from None
        return _as_job(job)

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        try:
            job = await self._patiently(lambda: self._client.fine_tuning.jobs.cancel(job_id))
        except Refused:  # already over
            return await self.poll(job_id)
        return _as_job(job)

    async def close(self) -> None:
        """See `FineTuneBackend`."""
        await self._service.close()

    async def _list(self, key: str, **filters: Any) -> list[Any]:
        try:
            jobs = await self._patiently(lambda: _all(self._client.fine_tuning.jobs.list(limit=100, **filters)))
        except Refused:
            if not filters:
                raise
            return []  # a service that does not know the filter
        return [job for job in jobs if _has_key(job, key)]

    async def _is_listed(self, model: str) -> bool:
        """True if the service lists the model; lists may be incomplete."""
        try:
            await self._patiently(lambda: self._client.models.retrieve(model))
        except Refused:
            try:
                return model in [entry.id for entry in await self._patiently(lambda: _all(self._client.models.list()))]
            except Refused:
                return False
        return True

    async def _find_file(self, data: bytes, within_s: float = 0.0) -> str | None:
        """The id of a file with this content; polls until `within_s` have passed."""
        for share in (0.0, 0.1, 0.3, 0.6) if within_s else (0.0,):
            await asyncio.sleep(share * within_s)
            for file in await self._patiently(lambda: _all(self._client.files.list(purpose="fine-tune"))):
                is_same = file.filename == file_name(data) and getattr(file, "bytes", len(data)) == len(data)
                if is_same and getattr(file, "status", None) != "error":
                    return file.id
        return None

    async def _upload_once(self, data: bytes, attempt: int) -> str | None:
        """The id of the new file; None in doubt, after the wait for the next attempt."""
        try:
            return (await self._client.files.create(file=(file_name(data), data), purpose="fine-tune")).id
        except self._service.errors as error:
            failure = self._service.failure(error)
        if failure.reaction not in ("retry", "pause"):
            raise failure.error()
        await asyncio.sleep(self._service.wait_s(failure, file_name(data), attempt))
        return None

    def _refused(self, failure: Failure, spec: FineTuneSpec) -> Exception:
        """The exception for an error in answer to a creation."""
        status = failure.status
        if status is None or status in (408, 409, 425) or status >= 500:
            return InDoubt(failure.message)
        wait_s = None if failure.wait_s is None else min(failure.wait_s, MAX_WAIT_S)
        if status == 429 and (failure.reaction == "pause" or wait_s is not None):
            return Busy(failure.message, wait_s)
        if status not in (401, 402) and failure.reaction != "fatal" and _NOT_READY.search(failure.said):
            return Busy(failure.message, wait_s)
        if status in (400, 404, 405, 422) and _FOR_THE_METHOD.search(failure.said):
            return UserError(
                f"{spec.model!r} is not fine-tuned by {spec.method}, nothing was charged: {failure.message}"
            )
        return UserError(f"the fine-tuning job on {spec.model!r} was refused, nothing was charged: {failure.message}")


def method_of(spec: FineTuneSpec) -> dict[str, Any]:
    """The `method` of a creation; None values are left to the service. `tuning_keys` have no place in this protocol."""
    chosen = {
        "n_epochs": spec.num_epochs,
        "batch_size": spec.batch_size,
        "learning_rate_multiplier": spec.learning_rate_multiplier,
        "beta": spec.beta if spec.method == "dpo" else None,
    }
    return {
        "type": spec.method,
        spec.method: {"hyperparameters": {name: value for name, value in chosen.items() if value is not None}},
    }


async def _all(pages: AsyncIterable[Any]) -> list[Any]:
    """The items of all pages; a service that ignores the cursor repeats the first page."""
    found: dict[str, Any] = {}
    async for entry in pages:
        if entry.id in found:
            break
        found[entry.id] = entry
    return list(found.values())


def _has_key(job: Any, key: str) -> bool:
    metadata = getattr(job, "metadata", None) or {}
    if _KEY in metadata:
        return metadata[_KEY] == key
    suffix = getattr(job, "user_provided_suffix", None) or getattr(job, "suffix", None) or ""
    return suffix.endswith(key[:_MARK])


def _as_job(job: Any, key: str = "") -> FineTuneJob:
    """The job; unnamed models and token counts that are not positive are None."""
    error, word = getattr(job, "error", None), str(getattr(job, "status", None))
    is_known = word.lower() in (*_STATUS, *_STOPPING)
    if not is_known:
        warnings.warn(
            f"fine-tuning job {job.id} is {word!r}, which is an unknown status; it is waited for",
            stacklevel=2,
        )
    model, tokens = getattr(job, "fine_tuned_model", None), getattr(job, "trained_tokens", None)
    return FineTuneJob(
        id=job.id,
        key=key or (getattr(job, "metadata", None) or {}).get(_KEY, ""),
        status=_STATUS.get(word.lower(), "running"),
        model=model if isinstance(model, str) and model else None,
        trained_tokens=tokens if type(tokens) is int and tokens > 0 else None,
        error=_reason(error),
        unknown=None if is_known else word,
    )


def _reason(error: Any) -> str | None:
    """The reason a job ended, in the service's words: OpenAI's object, or a text, list or mapping of other services."""
    if isinstance(error, list):
        return "; ".join(filter(None, map(_reason, error))) or None
    if hasattr(error, "__dict__"):
        error = vars(error) | (getattr(error, "model_extra", None) or {})  # the SDK's form of an object
    if isinstance(error, dict):
        error = next((error[name] for name in ("message", "detail", "msg", "code") if error.get(name)), None)
    return None if error in (None, "") else str(error)
