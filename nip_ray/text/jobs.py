"""Fine-tuning jobs, each made exactly once: their journal, what is done with it, and what it says that they have cost.

Decisions that matter here (of the journal):
- one entry is one line of JSON, put at the end by a single write and fsynced before `append` returns: once an entry is
  acted upon, it is on disk;
- a kill or a power failure can spoil the last line only. Such a line has no line break at its end, or zeros in it where
  blocks never reached the disk; it was never acted upon, and is as good as none. Any other damage is told, never
  guessed at;
- every line carries the format version and a CRC-32 of its entry;
- one writer at a time; readers need no lock (`read_journal`);
- after a write that failed nothing more is written: what the disk then holds is known only to who opens the file again.
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
"""What was appended: "kind" and the fields given with it."""


class Journal:
    """The journal at `path`, opened for writing and made when missing. Safe to use from several threads.

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

        Raises UserError when it cannot be written, and for every later call on this object; RuntimeError when it is
        closed.
        """
        line = sealed({"kind": kind, **fields}, VERSION)
        with self._guard:
            if self._failed is not None:  # whoever shares it learns the reason, not that it is closed
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
        """The entries of this kind (none: of any) whose fields have these values, the oldest first."""
        for entry in tuple(self._entries):
            if kind in (None, entry["kind"]) and all(entry.get(name) == value for name, value in fields.items()):
                yield entry

    def last(self, kind: str | None = None, /, **fields: Any) -> Entry | None:
        """The newest such entry."""
        found = list(self.entries(kind, **fields))
        return found[-1] if found else None

    def close(self) -> None:
        """Close the file and give the lock back. May be called again."""
        with self._guard:
            self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path | str) -> list[Entry]:
    """All entries of a journal that another process may be writing, none when it is missing. Raises UserError when it
    is damaged."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[list[Entry], int]:
    """The entries, and the length in bytes of the whole lines that hold them."""
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
        f"{where} is damaged; restore the file from a copy, or look through it by hand: it says which jobs were"
        " paid for"
    )


# ----------------------------------------------------------------------------------------------------------------------
# `ensure_job`: a fine-tuning job made exactly once, whatever is killed, lost or late in between.
#
# - a job has a key that depends on what it is for alone (`job_key`). The provider keeps the key with the job, and the
#   journal says what we were about to do with it: so who comes after a crash can ask whether it was done;
# - look first, create later. A job that has the key is adopted. A request to create that got no clear answer leaves us
#   in doubt: the provider is asked for the key until `backend.doubt_s` have passed, and only then the job is made
#   again;
# - who comes after a kill cannot know when the connection was cut, nor by a clock that may have been set since when the
#   request began: it counts that time from its own start;
# - no provider can be trusted to create once what was asked once (a proxy may deliver twice). So the key is looked up
#   once more after the answer and once more at the end; of several jobs the oldest stays, the others are cancelled,
#   told of and billed. A provider may take its time to cancel: it is asked for `CANCEL_S`, and a job that has not ended
#   by then counts at its worst case;
# - a provider may say "succeeded" before it can name the model. It is asked again for `NAMELESS_S`, and by whoever
#   resumes; until then the job does not count as over. So it is with a status that is not known here, for `UNKNOWN_S`;
# - failed and cancelled jobs are over. Within a process they stop the training; a retry is another attempt, hence
#   another key, and is made by who resumes (`next_attempt`).
#
# The journal's entries, all with "key": intent (what for, and what it can cost), submit (about to ask for creation),
# refused (it was not created), in_doubt, job (the id; adopted or not), duplicate (another job with the key),
# duplicate_over (how that ended), final (how the job ended). Times are seconds since 1970, by our clock.

_MAX_DOUBTS = 10  # requests without a clear answer in one process, after which the provider counts as broken
_PATIENCE_S = 26 * 3600.0  # for a provider that is busy: a daily limit is over after a day
NAMELESS_S = 300.0
"""For so long a provider is asked for the model of a job that succeeded."""
UNKNOWN_S = 3600.0
"""For so long a job is waited for whose status is not known here."""
CANCEL_S = 300.0
"""For so long a job that was cancelled may keep running."""


class Busy(InDoubt):
    """The provider said clearly that it created nothing, and to come back: a rate or daily limit. wait_s: its own
    proposal, or none."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def job_key(run_id: str, iteration: int, group: str, data: bytes, method: Method, model: str, attempt: int = 0) -> str:
    """64 hex digits that name a job by what it is for. attempt: 0, and one more for each time that it failed
    (`next_attempt`)."""
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
    """The first attempt, from 0, whose job has not failed or been cancelled by the journal; `key_of` gives an attempt's
    key.

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
    """The one job with `spec.key`: found, or made. It may be over already; `await_job` judges that.

    data: JSON lines to learn from. name: of the file. Call it for one key at a time, with `worst_of(spec)` set aside.
    Raises what the backend raises, TrainingError when creating stays unclear.
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
    """The job once it has succeeded, with the model and, where the provider tells them, the tokens that are billed.

    Polls every `backend.poll_interval_s`. Raises TrainingError with the provider's reason when it failed or was
    cancelled, when it succeeded and the provider names no model for `NAMELESS_S`, and when its status is not known here
    for `UNKNOWN_S`.
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
    """The job once it is over and, where it succeeded, its model is known."""
    doubt, ends = None, 0.0
    while job.status not in FINAL or (job.status == "succeeded" and job.model is None):
        before, doubt = doubt, None
        if job.status in FINAL:
            doubt = (NAMELESS_S, "succeeded, but the provider has named no model")
        elif job.unknown is not None:
            doubt = (UNKNOWN_S, f"has been {job.unknown!r}, which is no status that is known here,")
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
    """The job as the journal has it, once it was over."""
    final = journal.last("final", key=key)
    if final is None or (final["status"] == "succeeded" and final["model"] is None):
        return None
    return FineTuneJob(final["id"], key, final["status"], final["model"], final["trained_tokens"], final["error"])


def _rest_of_doubt(journal: Journal, key: str, doubt_s: float) -> float:
    """For how many seconds more a job may appear that was asked for before this process began."""
    last = None
    for entry in journal.entries(key=key):
        last = entry if entry["kind"] in ("submit", "refused", "in_doubt") else last
    return 0.0 if last is None or last["kind"] == "refused" else doubt_s


async def _ask(backend: FineTuneBackend, journal: Journal, key: str, wait_s: float) -> FineTuneJob | None:
    """Adopt a job with this key, asking again and again until `wait_s` have passed; the last look comes after that."""
    ends, pause = time.monotonic() + wait_s, min(0.25, wait_s / 8)
    while True:
        is_last = time.monotonic() >= ends
        job = await _adopt(backend, journal, key, adopted=True)
        if job is not None or is_last:
            return job
        await asyncio.sleep(max(min(pause, ends - time.monotonic()), 0.0))
        pause = min(2 * pause, 5.0)


async def _adopt(backend: FineTuneBackend, journal: Journal, key: str, adopted: bool) -> FineTuneJob | None:
    """The job with this key: the one in the journal, else the oldest that is alive, else the oldest. Others are
    cancelled."""
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
    """Cancel the other jobs with this key; whether some keep running. found: all that there are. last: nobody will look
    again."""
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
            continue  # it is looked at again at the end
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
    """Ask for creation until it is clear that there is a job."""
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
    """One request. (job, None), or (None, None) in doubt, or (None, seconds to wait) when it is clear that none was
    made."""
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
    # of any other exception nobody knows what it means: the request stays open, as after a kill
    except UserError as error:
        journal.append("refused", key=key, at=time.time(), reason=str(error))
        raise
    journal.append("job", key=key, id=job.id, adopted=False)
    await _cancel_others(backend, journal, key, job.id)
    return replace(job, key=key), None


# ----------------------------------------------------------------------------------------------------------------------
# What fine-tuning jobs have cost: a function of their journal, as `nip_ray.text.dialogues.records.total` is of the
# records of calls.
#
# - a job costs the tokens that the provider says it trained on, at the price that its intent states. A job that
#   succeeded and whose provider does not say may have cost its worst case, which is booked as uncertain;
# - a failed job is free unless the provider counts tokens for it; so is one that was cancelled before it ran. One that
#   was cancelled later may have cost its worst case;
# - a duplicate (see `nip_ray.text.jobs`) that was over before it could be cancelled is billed like any other job;
# - a job that was asked for and is not known to be over may cost its worst case (`under_way`).


@dataclass(frozen=True)
class Bill:
    """What one job cost. key: what it was made for. id: the provider's."""

    key: str
    id: str
    spending: Spending


def bills(entries: Iterable[Entry]) -> list[Bill]:
    """Of every job that is over, by the journal."""
    intents: dict[str, Entry] = {}
    found: dict[str, Bill] = {}
    for entry in entries:
        if entry["kind"] == "intent":
            intents[entry["key"]] = entry
        elif entry["kind"] in ("final", "duplicate_over"):
            found[entry["id"]] = Bill(entry["key"], entry["id"], _spending(intents[entry["key"]], entry))
    return list(found.values())


def under_way(entries: Iterable[Entry]) -> Amount:
    """What jobs that were asked for (or made besides), and are not known to be over or refused, can cost at most."""
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
    """What the job of this intent can cost at most."""
    return Amount(intent["worst_tokens"] * intent["token_pusd"], intent["worst_tokens"])


def worst_of(spec: FineTuneSpec) -> Amount:
    """What a job that is to be made can cost at most."""
    return Amount(spec.worst_tokens * spec.token_pusd, spec.worst_tokens)


def _spending(intent: Entry, over: Entry) -> Spending:
    model, tokens = intent["model"], over["trained_tokens"]
    if tokens:
        return Spending.of_job(model, tokens, tokens * intent["token_pusd"])
    if over["status"] == "succeeded":
        return Spending({model: ModelSpending()}, jobs=1, uncertain=worst(intent))
    free = over["status"] == "failed" or (over["status"] == "cancelled" and not over.get("ran", True))
    return Spending(uncertain=NOTHING if free else worst(intent))
