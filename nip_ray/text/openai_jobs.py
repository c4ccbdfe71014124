"""`OpenAIJobs`: fine-tuning jobs of any service that speaks the OpenAI protocol, and the forms that its training files have.

Decisions that matter here:
- the SDK's own repeats are off: its default sends a creation up to three times without any key, and may so make, and charge for, two
  jobs. What may be repeated is repeated here (`_patiently`), creations never;
- a job carries its key twice: as metadata, by which it is listed, and at the end of its suffix, for services that drop metadata. The
  answer to a listing is filtered here as well, since some services ignore the filter;
- a file is named by the SHA-256 of its content, so that the same content is found instead of uploaded again;
- an answer 4xx to a creation means that nothing was made; no answer, or 5xx, that nobody knows;
- keys come from the environment, and no message that leaves this file contains one: services like to quote them.
"""

import asyncio
import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from nip_ray.errors import TrainingError, UserError
from nip_ray.play.dialogue import Chat
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.errors import require
from nip_ray.text.fine_tuning import FineTuneJob, FineTuneSpec, InDoubt, JobStatus, Method
from nip_ray.text.jobs import Busy

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

T = TypeVar("T")

_KEY = "nip_key"  # in a job's metadata
_MARK = 16  # digits of the key at the end of a suffix
_NO_FILE = "file-that-does-not-exist"
_FOR_THE_METHOD = re.compile(r"\b(?:method|dpo|preference)", re.IGNORECASE)
_STATUS: dict[str, JobStatus] = {
    "validating_files": "pending",
    "queued": "pending",
    "pending": "pending",
    "created": "pending",
    "running": "running",
    "paused": "running",
    "succeeded": "succeeded",
    "completed": "succeeded",
    "failed": "failed",
    "error": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
}
_NO_SUCH_PLACE = (404, 405, 501)
_LONGEST_WAIT_S = 3600.0


def supervised_line(chat: Chat, completion: str) -> dict[str, Any]:
    """One example of supervised learning: what was said, and what to say next."""
    return {"messages": [*chat, {"role": "assistant", "content": completion}]}


def dpo_line(chat: Chat, preferred: str, rejected: str) -> dict[str, Any]:
    """One example of direct preference optimisation: what was said, the better and the worse continuation."""
    return {
        "input": {"messages": list(chat)},
        "preferred_output": [{"role": "assistant", "content": preferred}],
        "non_preferred_output": [{"role": "assistant", "content": rejected}],
    }


def encode(lines: Iterable[dict[str, Any]]) -> bytes:
    """JSON lines in UTF-8; equal lines give equal bytes, whatever the order of their keys."""
    return b"".join(json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n" for line in lines)


def file_name(data: bytes) -> str:
    """The name under which a file with this content is uploaded."""
    return f"nip-{hashlib.sha256(data).hexdigest()[:32]}.jsonl"


class OpenAIJobs:
    """A `FineTuneBackend` over the `openai` SDK; one for each event loop.

    first_wait_s: seconds before the first repeat of a call that failed, doubled for each further one. Raises UserError when the extra
    or the key is missing.
    """

    methods = frozenset({"supervised", "dpo"})

    def __init__(self, provider: OpenAIProvider, first_wait_s: float = 0.5) -> None:
        self.poll_interval_s, self.doubt_s = provider.poll_interval_s, provider.doubt_s
        self._provider, self._first_wait_s = provider, first_wait_s
        self._secret = _secret(provider)
        self._client = _client(provider, self._secret)
        self._uploading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend`. A service that looks at a job's file before its method tells only later, when the first job is asked for,
        that it refuses the method; nothing is charged for that job.
        """
        if not self._provider.fine_tuning:
            raise UserError("providers: this one has `fine_tuning: false`; freeze its agents, or give them another provider")
        if method not in self.methods:
            raise UserError(f"this provider fine-tunes by {' and '.join(sorted(self.methods))} (got {method!r})")
        await self._check_model(model)
        try:
            await self._patiently(lambda: self._client.get("/fine_tuning/jobs?limit=1", cast_to=object))
        except _NotThere:
            raise UserError(
                f"{self._client.base_url} has no fine-tuning jobs; set `fine_tuning: false` for it and freeze its agents, "
                "or let them be spoken for by a provider that has, such as `local`"
            ) from None
        if method != "supervised":  # which every service has
            await self._probe(model, method)

    async def _probe(self, model: str, method: Method) -> None:
        """Ask for a job on a file that does not exist. No job can come of it, but the refusal may say that it is for the method."""
        jobs, asked = self._client.fine_tuning.jobs, {"type": method}
        try:
            job = await self._patiently(
                lambda: jobs.create(model=model, training_file=_NO_FILE, method=asked)  # pyright: ignore[reportArgumentType]
            )
        except _Refused as error:
            if _FOR_THE_METHOD.search(str(error)):
                raise UserError(f"{error}; {method} is not to be had for {model!r} there, choose another provider or algorithm") from None
            return
        await self.cancel(job.id)  # a service that looks at files later

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend`. `name` is what people call the content; at the service it is named by its hash (`file_name`)."""
        del name
        async with self._uploading[file_name(data)]:
            file_id = await self._find_file(data)
            for wait_s in (0.0, *self._waits()):
                await asyncio.sleep(wait_s)
                file_id = file_id or await self._upload_once(data)
                if file_id is not None:
                    return file_id
                file_id = await self._find_file(data, within_s=self.doubt_s)
        raise TrainingError(f"{self._client.base_url} takes no files; when it works again, resume the run")

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend`. Where the filter finds nothing all jobs are looked through: the service may not keep metadata."""
        mine = await self._list(key, metadata={_KEY: key}) or await self._list(key)
        mine.sort(key=lambda job: (getattr(job, "created_at", None) or 0, job.id))
        return [_as_job(job, key) for job in mine]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend`. Raises Busy when the service asks to come back later, UserError when it refuses."""
        import openai

        try:
            job = await self._client.fine_tuning.jobs.create(
                model=spec.model,
                training_file=file_id,
                method=method_of(spec),  # pyright: ignore[reportArgumentType]
                suffix=f"{spec.suffix}-{spec.key[:_MARK]}",
                seed=spec.seed % 2**31,
                metadata={_KEY: spec.key},
                extra_headers={"Idempotency-Key": spec.key},
            )
        except openai.APIStatusError as error:
            self._refused(error, spec)
        except openai.OpenAIError as error:
            raise InDoubt(self._clean(str(error))) from None
        if not getattr(job, "id", None):
            raise InDoubt("the answer to a creation names no job")
        return _as_job(job, spec.key)

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        try:
            job = await self._patiently(lambda: self._client.fine_tuning.jobs.retrieve(job_id))
        except _NotThere:
            raise TrainingError(f"{self._client.base_url} knows no fine-tuning job {job_id} any more") from None
        return _as_job(job)

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        try:
            job = await self._patiently(lambda: self._client.fine_tuning.jobs.cancel(job_id))
        except _Refused:  # over already
            return await self.poll(job_id)
        return _as_job(job)

    async def close(self) -> None:
        """See `FineTuneBackend`."""
        await self._client.close()

    async def _list(self, key: str, **filters: Any) -> list[Any]:
        try:
            jobs = await self._patiently(lambda: _all(self._client.fine_tuning.jobs.list(limit=100, **filters)))
        except _Refused:
            if not filters:
                raise
            return []  # a service that does not know the filter
        return [job for job in jobs if _has_key(job, key)]

    async def _check_model(self, model: str) -> None:
        try:
            await self._patiently(lambda: self._client.models.retrieve(model))
        except _NotThere:
            names = [entry.id for entry in await self._patiently(lambda: _all(self._client.models.list()))]
            if model not in names:
                some = ", ".join(sorted(names)[:5]) or "none"
                raise UserError(f"{self._client.base_url} has no model {model!r} (it has {some}{', ...' if names[5:] else ''})") from None

    async def _find_file(self, data: bytes, within_s: float = 0.0) -> str | None:
        """The id of a file with this content; asks again and again until `within_s` have passed."""
        for share in (0.0, 0.1, 0.3, 0.6) if within_s else (0.0,):
            await asyncio.sleep(share * within_s)
            for file in await self._patiently(lambda: _all(self._client.files.list(purpose="fine-tune"))):
                is_same = file.filename == file_name(data) and getattr(file, "bytes", len(data)) == len(data)
                if is_same and getattr(file, "status", None) != "error":
                    return file.id
        return None

    async def _upload_once(self, data: bytes) -> str | None:
        """The id of the file made, None in doubt."""
        import openai

        try:
            return (await self._client.files.create(file=(file_name(data), data), purpose="fine-tune")).id
        except openai.APIStatusError as error:
            if not _may_be_repeated(error.status_code) or _is_out_of_money(error):
                self._fatal(error)
        except openai.OpenAIError:
            pass  # no answer: the file may be there
        return None

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call that may be repeated, and is while the failure is not ours: no answer, 408, 409, 425, 429, 5xx.

        Raises _NotThere for 404, 405 and 501, UserError for other refusals, TrainingError after the last repeat.
        """
        import openai

        reason, waits = "", iter(self._waits())
        while True:
            try:
                return await call()
            except openai.APIStatusError as error:
                if not _may_be_repeated(error.status_code) or _is_out_of_money(error):
                    self._fatal(error)
                reason, asked = f"it answers {error.status_code}", _retry_after(error)
            except openai.OpenAIError as error:
                reason, asked = self._clean(str(error)), None
            wait_s = next(waits, None)
            if wait_s is None:
                raise TrainingError(f"{self._client.base_url} stays away: {reason}; when it works again, resume the run") from None
            await asyncio.sleep(max(wait_s, asked or 0.0))

    def _waits(self) -> list[float]:
        return [min(self._first_wait_s * 2**n, 60.0) for n in range(self._provider.max_retries)]

    def _refused(self, error: "APIStatusError", spec: FineTuneSpec) -> NoReturn:
        """What an error in answer to a creation means."""
        if error.status_code in (408, 409, 425) or error.status_code >= 500:
            raise InDoubt(f"the answer to a creation was {error.status_code}") from None
        if error.status_code == 429 and not _is_out_of_money(error):
            raise Busy(self._clean(str(error)), _retry_after(error)) from None
        if error.status_code in (400, 404, 405, 422):
            raise UserError(
                f"{self._client.base_url} refuses to fine-tune {spec.model!r} by {spec.method}, nothing was charged: {self._said(error)}"
            ) from None
        self._fatal(error)

    def _fatal(self, error: "APIStatusError") -> NoReturn:
        where, variable = self._client.base_url, self._provider.api_key_variable
        if error.status_code == 401:
            raise UserError(f"{where} does not accept the key in ${variable} (401); set that variable to a valid one") from None
        if error.status_code == 403:
            raise UserError(f"{where}: the key in ${variable} may not do this (403): {self._said(error)}") from None
        if error.status_code in _NO_SUCH_PLACE:
            raise _NotThere(f"{where} answers {error.status_code}: {self._said(error)}") from None
        raise _Refused(f"{where} refuses ({error.status_code}): {self._said(error)}") from None

    def _said(self, error: "APIStatusError") -> str:
        body = error.body if isinstance(error.body, dict) else {}
        return self._clean(str(body.get("message") or error.message))

    def _clean(self, text: str) -> str:
        """`text` on one line, without the key."""
        return " ".join(text.replace(self._secret, "***").split())[:300]


class _Refused(UserError):
    """The service will not do this: a 4xx that is no matter of keys."""


class _NotThere(_Refused):
    """The service has no such place or thing: 404, 405, 501."""


def method_of(spec: FineTuneSpec) -> dict[str, Any]:
    """The `method` of a creation; what is None is left to the service. `learning_rate` has no place in this protocol."""
    chosen = {
        "n_epochs": spec.num_epochs,
        "batch_size": spec.batch_size,
        "learning_rate_multiplier": spec.learning_rate_multiplier,
        "beta": spec.beta if spec.method == "dpo" else None,
    }
    return {"type": spec.method, spec.method: {"hyperparameters": {name: value for name, value in chosen.items() if value is not None}}}


def _secret(provider: OpenAIProvider) -> str:
    secret = os.environ.get(provider.api_key_variable, "").strip()
    if not secret:
        raise UserError(
            f"the environment variable {provider.api_key_variable} is not set; it must hold the provider's key "
            "(any text for a service that asks for none)"
        )
    return secret


def _client(provider: OpenAIProvider, secret: str) -> "AsyncOpenAI":
    return require("openai", "text").AsyncOpenAI(api_key=secret, base_url=provider.base_url, timeout=provider.timeout_s, max_retries=0)


async def _all(pages: AsyncIterable[Any]) -> list[Any]:
    """Everything that is listed, of all pages; a service that ignores the cursor sends the first page for ever."""
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
    error = getattr(job, "error", None)
    return FineTuneJob(
        id=job.id,
        key=key or (getattr(job, "metadata", None) or {}).get(_KEY, ""),
        status=_STATUS.get(str(getattr(job, "status", "")).lower(), "running"),  # a word we do not know is no end
        model=getattr(job, "fine_tuned_model", None),
        trained_tokens=getattr(job, "trained_tokens", None),
        error=getattr(error, "message", None) or getattr(error, "code", None),
    )


def _may_be_repeated(status: int) -> bool:
    return status in (408, 409, 425, 429) or (status >= 500 and status != 501)


def _is_out_of_money(error: "APIStatusError") -> bool:
    """429 says so too when an account has no credit left, which no waiting mends."""
    return error.code == "insufficient_quota"


def _retry_after(error: "APIStatusError") -> float | None:
    """Seconds to wait, as the service asks; a date, which is only as good as two clocks, counts as none."""
    for header, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return min(max(float(error.response.headers[header]) * unit, 0.0), _LONGEST_WAIT_S)
        except (KeyError, ValueError):
            continue
    return None
