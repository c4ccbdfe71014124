"""Fine-tuning jobs, each made exactly once: their journal, the procedure, and their costs.

Decisions that matter here (of the journal):
- one entry is one line of JSON, appended by a single write and fsynced before `append` returns, so an entry is on disk
  before it is acted upon;
- a kill or a power failure can damage only the last line. Such a line has no line break at its end, or zeros in it
  where blocks never reached the disk; it was never acted upon, and is ignored. Any other damage is reported, never
  guessed at;
- every line carries the format version and a CRC-32 of its entry;
- one writer at a time; readers need no lock (`read_journal`);
- after a failed write nothing more is written: only reopening the file shows what is on disk.
"""

import asyncio
import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FINAL, FineTuneJob, FineTuneSpec, Method
from nip_ray.storage.files import LineFile, lines_of, sealed, unsealed
from nip_ray.text.costs.prices import NOTHING, Amount, ModelSpending, Spending
from nip_ray.text.providers.interface import MAX_WAIT_S, FineTuneBackend, InDoubt, backoff_s

VERSION = 1
"""The format of every line."""

Entry = dict[str, Any]
"""An entry: "kind" and the fields given with it."""


class Journal:
    """The journal at `path`, opened for writing, created if missing. Safe to use from several threads.

    Raises UserError when the file is damaged, of a newer version, cannot be opened, or is open for writing elsewhere.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._guard = threading.Lock()
        self._failed: UserError | None = None
        self._file = LineFile(self.path)
        try:
            self._entries, whole = _read(self.path)
            self._file.cut(whole)
        except BaseException:
            self._file.close()
            raise

    def append(self, kind: str, /, **fields: Any) -> Entry:
        """Add an entry; it is on disk when this returns. `fields` are plain JSON values.

        Raises UserError when it cannot be written, and for every later call; RuntimeError when it is closed.
        """
        line = sealed({"kind": kind, **fields}, VERSION)
        with self._guard:
            if self._failed is not None:  # other users of the object learn the reason, not that it is closed
                raise UserError(*self._failed.args)
            try:
                self._file.append(line)
                self._file.sync()
            except UserError as error:
                self._failed = error
                self._file.close()
                raise
            entry = json.loads(line)["entry"]
            self._entries.append(entry)
        return entry

    def entries(self, kind: str | None = None, /, **fields: Any) -> Iterator[Entry]:
        """The entries of this kind (None: any) with these field values, oldest first."""
        for entry in tuple(self._entries):
            if kind in (None, entry["kind"]) and all(entry.get(name) == value for name, value in fields.items()):
                yield entry

    def last(self, kind: str | None = None, /, **fields: Any) -> Entry | None:
        """The newest entry of this kind (None: any) with these field values."""
        found = list(self.entries(kind, **fields))
        return found[-1] if found else None

    def close(self) -> None:
        """Close the file and release the lock. May be called again."""
        with self._guard:
            self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path | str) -> list[Entry]:
    """All entries of a journal, also one that another process is writing; none if it is missing. Raises UserError if it
    is damaged."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[list[Entry], int]:
    """The entries, and the length in bytes of the complete lines."""
    lines = lines_of(path)
    if lines and (not lines[-1].endswith(b"\n") or b"\0" in lines[-1]):
        lines.pop()
    entries = [_parse(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]
    return entries, sum(len(line) for line in lines)


def _parse(line: bytes, where: str) -> Entry:
    try:
        entry = unsealed(line, VERSION, where)
        if isinstance(entry, dict) and "kind" in entry:
            return entry
    except ValueError:
        pass
    raise UserError(
        f"{where} is damaged; restore the file from a copy, or check it by hand: it lists the jobs that were paid for"
    )


# ----------------------------------------------------------------------------------------------------------------------
# `ensure_job`: a fine-tuning job made exactly once, in spite of kills, lost answers and delays.
# - a job's key depends on its purpose alone (`job_key`). The provider stores the key with the job, and the journal
#   records the intent, so a resumed process can query whether it was made;
# - look first, create later. A job with the key is adopted. After a creation request without a clear answer, the
#   provider is queried for the key until `backend.doubt_s` have passed, and only then the job is made again;
# - after a kill the time of the lost connection is unknown, and the clock may have been set since, so a resumed process
#   counts that time from its own start;
# - no provider can be trusted to create only once (a proxy may deliver twice). So the key is looked up once more after
#   the answer and once more at the end; of several jobs the oldest stays, the others are cancelled, recorded and
#   billed. The provider has `CANCEL_S` to cancel; a job that has not ended by then counts at its worst case;
# - a provider may report "succeeded" before it can name the model. It is queried again for `NAMELESS_S`, and on
#   resuming; until then the job does not count as over. The same holds for an unknown status, for `UNKNOWN_S`;
# - failed and cancelled jobs are over. Within a process they stop the training; a retry is another attempt with another
#   key, made on resuming (`next_attempt`).
# The journal's entries, all with "key": intent (purpose, and maximum cost), submit (before the creation request),
# refused (not created), in_doubt, job (the id; adopted or not), duplicate (another job with the key), duplicate_over
# (how that ended), final (how the job ended). Times are seconds since 1970, by our clock.

_MAX_DOUBTS = 10  # requests without a clear answer in one process before the provider counts as broken
_PATIENCE_S = 26 * 3600.0  # for a busy provider: a daily limit is over after a day
NAMELESS_S = 300.0
"""Seconds for which a provider is queried for the model of a job that succeeded."""
UNKNOWN_S = 3600.0
"""Seconds to wait for a job with an unknown status."""
CANCEL_S = 300.0
"""Seconds for which a cancelled job may keep running."""


class Busy(InDoubt):
    """The provider created nothing and asked to come back: a rate or daily limit. wait_s: its own proposal, or None."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def job_key(run_id: str, iteration: int, group: str, data: bytes, method: Method, model: str, attempt: int = 0) -> str:
    """64 hex digits that identify a job by its purpose. attempt: 0, and one more for each failure (`next_attempt`)."""
    parts = {
        "run_id": run_id,
        "iteration": iteration,
        "group": group,
        "data": hashlib.sha256(data).hexdigest(),
        "method": method,
        "model": model,
        "attempt": attempt,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def next_attempt(journal: Journal, key_of: Callable[[int], str]) -> int:
    """The first attempt, from 0, whose job is not failed or cancelled in the journal; `key_of` gives an attempt's key.

    The trainer calls this before `ensure_job`. Since a failure stops the training, a new attempt is made only after a
    resume.
    """
    attempt = 0
    while (final := journal.last("final", key=key_of(attempt))) is not None and final["status"] != "succeeded":
        attempt += 1
    return attempt


async def ensure_job(
    backend: FineTuneBackend, journal: Journal, spec: FineTuneSpec, data: bytes, name: str
) -> FineTuneJob:
    """The one job with `spec.key`: found, or created. It may already be over; see `await_job`.

    data: JSON lines to learn from. name: of the file. Call it for one key at a time, with `worst_of(spec)` set aside.
    Raises the backend's errors, and TrainingError if creation stays unclear.
    """
    key = spec.key
    known = ended(journal, key)
    if known is not None:
        return known
    if journal.last("intent", key=key) is None:
        cost = {"token_pusd": spec.token_pusd, "worst_tokens": spec.worst_tokens}
        journal.append(
            "intent",
            key=key,
            model=spec.model,
            method=spec.method,
            suffix=spec.suffix,
            examples=spec.num_examples,
            **cost,
        )
    job = await _ask(backend, journal, key, _rest_of_doubt(journal, key, backend.doubt_s))
    if job is not None:
        return job
    return await _create(backend, journal, spec, await backend.upload(name, data))


async def await_job(backend: FineTuneBackend, journal: Journal, job: FineTuneJob) -> FineTuneJob:
    """The job once it has succeeded, with the model and, if the provider reports them, the billed tokens.

    Polls every `backend.poll_interval_s`. Raises TrainingError with the provider's reason when it failed or was
    cancelled, when it succeeded and the provider names no model for `NAMELESS_S`, and when its status is unknown for
    `UNKNOWN_S`.
    """
    key = job.key
    known = ended(journal, key)
    if known is not None:
        job = known
    else:
        job = await _over(backend, job)
        patience_ends = time.monotonic() + CANCEL_S
        while await _cancel_others(backend, journal, key, job.id, last=time.monotonic() >= patience_ends):
            await asyncio.sleep(backend.poll_interval_s)
        journal.append(
            "final",
            key=key,
            id=job.id,
            status=job.status,
            model=job.model,
            trained_tokens=job.trained_tokens,
            error=job.error,
        )
    if job.status != "succeeded":
        what = "failed" if job.status == "failed" else "was cancelled"
        raise TrainingError(
            f"fine-tuning job {job.id} {what}: {job.error or 'the provider gives no reason'}. Mend the cause and resume"
            " the run: that makes a new attempt with the same examples. Where the service refuses what is in them,"
            " start a new run without the items, or at another service"
        )
    return job


async def _over(backend: FineTuneBackend, job: FineTuneJob) -> FineTuneJob:
    """The job once it is over and, if it succeeded, its model is known."""
    doubt, ends = None, 0.0
    while job.status not in FINAL or (job.status == "succeeded" and job.model is None):
        before, doubt = doubt, None
        if job.status in FINAL:
            doubt = (NAMELESS_S, "succeeded, but the provider has named no model")
        elif job.unknown is not None:
            doubt = (UNKNOWN_S, f"has been {job.unknown!r}, which is an unknown status,")
        if doubt is not None:
            ends = ends if doubt == before else time.monotonic() + doubt[0]
            if time.monotonic() >= ends:
                raise TrainingError(
                    f"fine-tuning job {job.id} {doubt[1]} for {doubt[0]:g} s; resume the run to ask again"
                )
        await asyncio.sleep(backend.poll_interval_s)
        job = replace(await backend.poll(job.id), key=job.key)
    return job


def ended(journal: Journal, key: str) -> FineTuneJob | None:
    """The finished job, by the journal."""
    final = journal.last("final", key=key)
    if final is None or (final["status"] == "succeeded" and final["model"] is None):
        return None
    return FineTuneJob(final["id"], key, final["status"], final["model"], final["trained_tokens"], final["error"])


def _rest_of_doubt(journal: Journal, key: str, doubt_s: float) -> float:
    """Seconds for which a job may still appear that was requested before this process began."""
    last = None
    for entry in journal.entries(key=key):
        last = entry if entry["kind"] in ("submit", "refused", "in_doubt") else last
    return 0.0 if last is None or last["kind"] == "refused" else doubt_s


async def _ask(backend: FineTuneBackend, journal: Journal, key: str, wait_s: float) -> FineTuneJob | None:
    """Adopt a job with this key, polling until `wait_s` have passed, with a last look after that."""
    ends, pause = time.monotonic() + wait_s, min(0.25, wait_s / 8)
    while True:
        is_last = time.monotonic() >= ends
        job = await _adopt(backend, journal, key, adopted=True)
        if job is not None or is_last:
            return job
        await asyncio.sleep(max(min(pause, ends - time.monotonic()), 0.0))
        pause = min(2 * pause, 5.0)


async def _adopt(backend: FineTuneBackend, journal: Journal, key: str, adopted: bool) -> FineTuneJob | None:
    """The job with this key: the one in the journal, else the oldest alive, else the oldest. Others are cancelled."""
    found = await backend.find(key)
    known = journal.last("job", key=key)
    if known is not None:
        job = next((job for job in found if job.id == known["id"]), None) or await backend.poll(known["id"])
    elif found:
        job = next((job for job in found if job.status not in ("failed", "cancelled")), found[0])
        journal.append("job", key=key, id=job.id, adopted=adopted)
    else:
        return None
    await _cancel_others(backend, journal, key, job.id, found)
    return replace(job, key=key)


async def _cancel_others(
    backend: FineTuneBackend,
    journal: Journal,
    key: str,
    kept: str,
    found: list[FineTuneJob] | None = None,
    last: bool = False,
) -> bool:
    """Cancel the other jobs with this key; return True if some keep running. found: all jobs. last: no later look."""
    go_on = False
    for job in await backend.find(key) if found is None else found:
        if job.id == kept:
            continue
        if journal.last("duplicate", key=key, id=job.id) is None:
            journal.append("duplicate", key=key, id=job.id)
        if journal.last("duplicate_over", id=job.id) is not None:
            continue
        over = job if job.status in FINAL else await backend.cancel(job.id)
        if over.status not in FINAL and not last:
            go_on = True
            continue  # looked at again at the end
        journal.append(
            "duplicate_over",
            key=key,
            id=job.id,
            status=over.status,
            trained_tokens=over.trained_tokens,
            ran=job.status != "pending",
        )
        what = (
            "is cancelled"
            if over.status == "cancelled"
            else f"had {over.status} before it could be cancelled, and is booked"
        )
        what = (
            what if over.status in FINAL else "keeps running though it was cancelled, and is booked at its worst case"
        )
        warnings.warn(
            f"the provider made a second fine-tuning job for one request: {job.id} {what}; {kept} stays", stacklevel=2
        )
    return go_on


async def _create(backend: FineTuneBackend, journal: Journal, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
    """Request creation until a job certainly exists."""
    doubts, refusals, patience_ends = 0, 0, time.monotonic() + _PATIENCE_S
    while True:
        job, wait_s = await _submit(backend, journal, spec, file_id)
        if job is not None:
            return job
        if wait_s is None:
            doubts += 1
            job = await _ask(backend, journal, spec.key, backend.doubt_s)
        else:
            await asyncio.sleep(wait_s or backoff_s(0, spec.key, refusals, longest_s=MAX_WAIT_S))
            refusals += 1
            job = await _adopt(backend, journal, spec.key, adopted=True)
        if job is not None:
            return job
        if doubts >= _MAX_DOUBTS or time.monotonic() > patience_ends:
            said = [entry["reason"] for entry in journal.entries(key=spec.key) if "reason" in entry][-1]
            raise TrainingError(
                f"the provider made no fine-tuning job in {doubts or 'many'} requests (last: {said}); when it works"
                " again, resume the run"
            )


async def _submit(
    backend: FineTuneBackend, journal: Journal, spec: FineTuneSpec, file_id: str
) -> tuple[FineTuneJob | None, float | None]:
    """One request. (job, None), (None, None) in doubt, or (None, seconds to wait) if certainly none was created."""
    key = spec.key
    journal.append("submit", key=key, file=file_id, at=time.time())
    try:
        job = await backend.submit(spec, file_id)
    except Busy as busy:
        journal.append("refused", key=key, at=time.time(), reason=str(busy))
        return None, busy.wait_s or 0.0
    except InDoubt as doubt:
        journal.append("in_doubt", key=key, at=time.time(), reason=str(doubt))
        return None, None
    # any other exception has no known meaning: the request stays open, as after a kill
    except UserError as error:
        journal.append("refused", key=key, at=time.time(), reason=str(error))
        raise
    journal.append("job", key=key, id=job.id, adopted=False)
    await _cancel_others(backend, journal, key, job.id)
    return replace(job, key=key), None


# ----------------------------------------------------------------------------------------------------------------------
# The cost of fine-tuning jobs: a function of their journal, as `nip_ray.text.dialogues.records.total` is for calls.
# - a job costs the provider's count of trained tokens at the price in its intent. A succeeded job without a count may
#   have cost its worst case, which is booked as uncertain;
# - a failed job is free unless the provider counts tokens for it; so is one cancelled before it ran. One cancelled
#   later may have cost its worst case;
# - a duplicate that was over before it could be cancelled is billed like any other job;
# - a requested job that is not known to be over may cost its worst case (`under_way`).


@dataclass(frozen=True)
class Bill:
    """The cost of one job. key: its purpose. id: the provider's."""

    key: str
    id: str
    spending: Spending


def bills(entries: Iterable[Entry]) -> list[Bill]:
    """The bills of all jobs that are over, by the journal."""
    intents: dict[str, Entry] = {}
    found: dict[str, Bill] = {}
    for entry in entries:
        if entry["kind"] == "intent":
            intents[entry["key"]] = entry
        elif entry["kind"] in ("final", "duplicate_over"):
            found[entry["id"]] = Bill(entry["key"], entry["id"], _spending(intents[entry["key"]], entry))
    return list(found.values())


def under_way(entries: Iterable[Entry]) -> Amount:
    """The maximum cost of requested or duplicate jobs that are not known to be over or refused."""
    intents: dict[str, Entry] = {}
    is_open: dict[str, Entry] = {}
    for entry in entries:
        kind, key = entry["kind"], entry["key"]
        if kind == "intent":
            intents[key] = entry
        elif kind in ("submit", "job", "duplicate"):
            is_open[entry["id"] if kind == "duplicate" else key] = intents[key]
        elif kind in ("refused", "final", "duplicate_over"):
            is_open.pop(entry["id"] if kind == "duplicate_over" else key, None)
    return sum(map(worst, is_open.values()), NOTHING)


def worst(intent: Entry) -> Amount:
    """The maximum cost of the job of this intent."""
    return Amount(intent["worst_tokens"] * intent["token_pusd"], intent["worst_tokens"])


def worst_of(spec: FineTuneSpec) -> Amount:
    """The maximum cost of a job before it is created."""
    return Amount(spec.worst_tokens * spec.token_pusd, spec.worst_tokens)


def _spending(intent: Entry, over: Entry) -> Spending:
    model, tokens = intent["model"], over["trained_tokens"]
    if tokens:
        return Spending.of_job(model, tokens, tokens * intent["token_pusd"])
    if over["status"] == "succeeded":
        return Spending({model: ModelSpending()}, jobs=1, uncertain=worst(intent))
    free = over["status"] == "failed" or (over["status"] == "cancelled" and not over.get("ran", True))
    return Spending(uncertain=NOTHING if free else worst(intent))
