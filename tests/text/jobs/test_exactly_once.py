"""Exactly-once creation: rules on a strict in-memory backend, then kills and faults over real HTTP."""

import asyncio
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, JobStatus, Method
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.costs.prices import NOTHING, Amount, sum_of
from nip_ray.text.jobs import Busy, Journal, await_job, bills, ensure_job, job_key, next_attempt, under_way, worst_of
from nip_ray.text.providers.interface import InDoubt, encode, supervised_line
from nip_ray.text.providers.openai import OpenAIJobs
from tests.text.provider import API_KEY, ROOT, ProviderProcess, provider_process, provider_thread

DATA = b'{"messages": []}\n'
SPEC = FineTuneSpec(
    job_key("run", 3, "provers", DATA, "supervised", "base"), "supervised", "base", "p-3", 1, 9, token_pusd=3
)


class Backend:
    """Keeps jobs in memory and counts what is asked. answers: for each creation in turn, an exception to raise instead
    of an answer, and whether a job is made for all that, at once (0) or after so many seconds.
    """

    methods = frozenset({"supervised"})
    poll_interval_s = 0.01

    def __init__(self, doubt_s: float = 0.2, answers: Sequence[tuple[Any, float | None]] = ()) -> None:
        self.doubt_s, self.answers = doubt_s, answers
        self.made: list[tuple[float, FineTuneJob]] = []
        self.calls: Counter[str] = Counter()
        self.ends: JobStatus = "succeeded"
        self.named_from = 0
        """Polls before the model has a name."""
        self.unknown: str | None = None

    async def check(self, model: str, method: Method) -> None:
        self.calls["check"] += 1

    async def upload(self, name: str, data: bytes) -> str:
        self.calls["upload"] += 1
        return "file-0"

    def add(
        self,
        key: str = SPEC.key,
        status: JobStatus = "running",
        after_s: float = 0.0,
        trained_tokens: int | None = None,
    ) -> FineTuneJob:
        job = FineTuneJob(f"job-{len(self.made)}", key, status, trained_tokens=trained_tokens)
        self.made.append((time.monotonic() + after_s, job))
        return job

    def seen(self) -> list[FineTuneJob]:
        return [job for since, job in self.made if since <= time.monotonic()]

    async def find(self, key: str) -> list[FineTuneJob]:
        self.calls["find"] += 1
        return [job for job in self.seen() if job.key == key]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        number = self.calls["submit"]
        self.calls["submit"] += 1
        error, after_s = self.answers[number] if number < len(self.answers) else (None, 0.0)
        job = self.add(spec.key, after_s=after_s) if after_s is not None else None
        if error is not None:
            raise error
        return job

    async def poll(self, job_id: str) -> FineTuneJob:
        self.calls["poll"] += 1
        job = next(job for job in self.seen() if job.id == job_id)
        if self.unknown is not None:
            return replace(job, unknown=self.unknown)
        is_over = job.status not in ("pending", "running")
        model = "base-ft" if self.calls["poll"] >= self.named_from else None
        if not is_over and self.calls["poll"] < 3:
            return job
        return job if is_over else replace(job, status=self.ends, model=model, trained_tokens=18, error="said so")

    async def cancel(self, job_id: str) -> FineTuneJob:
        self.calls["cancel"] += 1
        for n, (since, job) in enumerate(self.made):
            if job.id == job_id:
                self.made[n] = (since, replace(job, status="cancelled"))
        return await self.poll(job_id)

    async def close(self) -> None:
        pass

    def alive(self) -> list[str]:
        return [job.id for _, job in self.made if job.status not in ("cancelled", "failed")]


def ensure(backend: Backend, path: Path, spec: FineTuneSpec = SPEC, journal: Journal | None = None) -> FineTuneJob:
    with nullcontext(journal) if journal is not None else Journal(path) as journal:
        return asyncio.run(ensure_job(backend, journal, spec, DATA, "name"))


def kinds(path: Path) -> list[str]:
    with Journal(path) as journal:
        return [entry["kind"] for entry in journal.entries()]


def test_keys() -> None:
    """64 hex digits that depend on every part, and are the same in every process and version."""
    parts: dict[str, Any] = {
        "run_id": "r",
        "iteration": 1,
        "group": "g",
        "data": b"d",
        "method": "supervised",
        "model": "m",
    }
    changed: list[dict[str, Any]] = [
        {"run_id": "s"},
        {"iteration": 2},
        {"group": "h"},
        {"data": b"e"},
        {"method": "dpo"},
        {"model": "n"},
    ]
    keys = {job_key(**parts), job_key(**parts, attempt=1), *(job_key(**{**parts, **change}) for change in changed)}
    assert len(keys) == 8
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in keys)
    assert job_key(**parts) == "924f0adb60607eb7627c958cfbdbb00b18db0aa279647d4e4ad5045bb0092897"


def test_plain_course(tmp_path: Path) -> None:
    backend, path = Backend(), tmp_path / "journal"
    job = ensure(backend, path)
    assert job.key == SPEC.key
    assert kinds(path) == ["intent", "submit", "job"]
    assert ensure(backend, path) == job
    assert (backend.calls["submit"], backend.calls["upload"]) == (1, 1)


def test_a_job_that_is_there_is_adopted(tmp_path: Path) -> None:
    backend = Backend()
    there = backend.add()
    assert ensure(backend, tmp_path / "journal") == there
    assert not backend.calls["submit"]
    assert not backend.calls["upload"]


@pytest.mark.parametrize("after_s", [0.0, 0.12])
def test_in_doubt_the_job_may_yet_appear(tmp_path: Path, after_s: float) -> None:
    backend = Backend(doubt_s=0.5, answers=[(InDoubt("late"), after_s)])
    assert ensure(backend, tmp_path / "journal").id == "job-0"
    assert backend.calls["submit"] == 1
    assert kinds(tmp_path / "journal") == ["intent", "submit", "in_doubt", "job"]


def test_in_doubt_and_nothing_appears(tmp_path: Path) -> None:
    """Only after doubt_s is the job made again."""
    backend = Backend(doubt_s=0.3, answers=[(InDoubt("lost"), None), (InDoubt("lost"), None)])
    begun = time.monotonic()
    assert ensure(backend, tmp_path / "journal").id == "job-0"
    assert time.monotonic() - begun >= 0.6
    assert backend.calls["submit"] == 3
    assert backend.calls["find"] >= 8


def test_a_job_that_appears_after_all_doubt(tmp_path: Path) -> None:
    """It is found at the end, cancelled, told of and counted."""
    backend = Backend(doubt_s=0.1, answers=[(InDoubt("lost"), 0.3)])
    path = tmp_path / "journal"
    job = ensure(backend, path)
    assert job.id == "job-1"
    time.sleep(0.35)
    with Journal(path) as journal:
        with pytest.warns(UserWarning, match="second fine-tuning job"):
            asyncio.run(await_job(backend, journal, job))
        assert len(list(journal.entries("duplicate"))) == 1
    assert backend.alive() == ["job-1"]


def test_a_provider_that_lies(tmp_path: Path) -> None:
    """Three jobs for one request: the oldest stays. Who comes again finds nothing left to do."""
    backend, path = Backend(), tmp_path / "journal"
    for _ in range(3):
        backend.add()
    with pytest.warns(UserWarning, match="second fine-tuning job"):
        assert ensure(backend, path).id == "job-0"
    assert backend.alive() == ["job-0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ensure(backend, path).id == "job-0"
    with Journal(path) as journal:
        assert len(list(journal.entries("duplicate"))) == 2
    assert backend.calls["cancel"] == 2


@pytest.mark.parametrize("dead", ["cancelled", "failed"])
def test_the_oldest_that_is_alive_stays(tmp_path: Path, dead: JobStatus) -> None:
    """Not one that is over, nor a younger one."""
    backend, path = Backend(), tmp_path / "journal"
    for status in (dead, "running", "running"):
        backend.add(status=status)
    with pytest.warns(UserWarning, match="job-1 stays"):
        assert ensure(backend, path).id == "job-1"
    assert [job.status for _, job in backend.made] == [dead, "running", "cancelled"]


def test_the_journal_decides_which_of_several_stays(tmp_path: Path) -> None:
    backend, path = Backend(), tmp_path / "journal"
    backend.add(status="cancelled")
    assert ensure(backend, path, replace(SPEC, key="other")).id == "job-1"
    backend.made.insert(0, (0.0, FineTuneJob("job-9", "other", "running")))  # an older one, by the provider's clock
    with pytest.warns(UserWarning, match="job-9 is cancelled"):
        assert ensure(backend, path, replace(SPEC, key="other")).id == "job-1"


def test_busy_is_no_doubt(tmp_path: Path) -> None:
    backend = Backend(doubt_s=60.0, answers=[(Busy("limit", 0.05), None), (Busy("limit", 0.05), None)])
    assert ensure(backend, tmp_path / "journal").id == "job-0"
    assert kinds(tmp_path / "journal") == ["intent", "submit", "refused", "submit", "refused", "submit", "job"]


def test_a_refusal_is_passed_on_and_leaves_no_doubt(tmp_path: Path) -> None:
    backend = Backend(doubt_s=60.0, answers=[(UserError("no such method"), None)])
    with pytest.raises(UserError, match="no such method"):
        ensure(backend, tmp_path / "journal")
    assert ensure(backend, tmp_path / "journal").id == "job-0"


def test_a_provider_that_never_says(tmp_path: Path) -> None:
    backend = Backend(doubt_s=0.01, answers=[(InDoubt("lost"), None)] * 50)
    with pytest.raises(TrainingError, match=r"made no fine-tuning job in 10 requests \(last: lost\)"):
        ensure(backend, tmp_path / "journal")


class Killed(BaseException):
    """Stands for the end of the process, in tests that need no real one."""


@pytest.mark.parametrize("began_s_ago", [0.0, -7200.0, 7200.0])
def test_after_a_kill_in_the_middle_of_a_request(tmp_path: Path, began_s_ago: float) -> None:
    """The request may be on its way for a while. A clock that is set by hours makes the wait neither longer nor
    shorter."""
    backend, path = Backend(doubt_s=0.4), tmp_path / "journal"
    with Journal(path) as journal:
        journal.append("intent", key=SPEC.key)
        journal.append("submit", key=SPEC.key, at=time.time() - began_s_ago)
    backend.add(after_s=0.15)
    begun = time.monotonic()
    job = ensure(backend, path)
    assert time.monotonic() - begun < 5
    assert job.id == "job-0"


def test_a_cancelled_task_leaves_the_request_open(tmp_path: Path) -> None:
    backend, path = Backend(doubt_s=0.4, answers=[(Killed(), 0.1)]), tmp_path / "journal"
    with pytest.raises(Killed):
        ensure(backend, path)
    assert kinds(path) == ["intent", "submit"]
    assert ensure(backend, path).id == "job-0"
    assert backend.calls["submit"] == 1


def test_waiting_to_the_end(tmp_path: Path) -> None:
    backend, path = Backend(), tmp_path / "journal"
    job = ensure(backend, path)
    with Journal(path) as journal:
        done = asyncio.run(await_job(backend, journal, job))
    assert (done.model, done.trained_tokens, done.key) == ("base-ft", 18, SPEC.key)
    before = dict(backend.calls)
    assert ensure(backend, path) == done
    with Journal(path) as journal:
        assert asyncio.run(await_job(backend, journal, job)) == done
    assert backend.calls == before  # what is over is read from the journal


def test_a_model_without_a_name_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a stated time, and by who resumes; also where an earlier version took it for the end."""
    backend, path = Backend(), tmp_path / "journal"
    backend.named_from = 5
    job = ensure(backend, path)
    monkeypatch.setattr("nip_ray.text.jobs.NAMELESS_S", 0.0)
    with Journal(path) as journal:
        with pytest.raises(TrainingError, match=r"named no model for 0 s; resume"):
            asyncio.run(await_job(backend, journal, job))
        assert journal.last("final") is None
        assert under_way(journal.entries()) == worst_of(SPEC)
        journal.append("final", key=SPEC.key, id=job.id, status="succeeded", model=None, trained_tokens=18, error=None)
    monkeypatch.setattr("nip_ray.text.jobs.NAMELESS_S", 60.0)
    with Journal(path) as journal:
        assert asyncio.run(await_job(backend, journal, ensure(backend, path, journal=journal))).model == "base-ft"
        (bill,) = bills(journal.entries())
    assert bill.spending.amount == Amount(18 * SPEC.token_pusd, 18)


def test_an_unknown_status_is_waited_for_a_stated_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who resumes as well, who finds the job once it is known again how it stands."""
    backend, path = Backend(), tmp_path / "journal"
    backend.unknown = "stalled"
    monkeypatch.setattr("nip_ray.text.jobs.UNKNOWN_S", 0.05)
    with Journal(path) as journal:
        for _ in range(2):
            with pytest.raises(
                TrainingError, match=r"job-0 has been 'stalled', which is an unknown status, for 0\.05 s; resume"
            ):
                asyncio.run(await_job(backend, journal, ensure(backend, path, journal=journal)))
        backend.unknown = None
        assert asyncio.run(await_job(backend, journal, ensure(backend, path, journal=journal))).model == "base-ft"
    assert len(backend.made) == 1


def test_what_jobs_cost(tmp_path: Path) -> None:
    """A duplicate that is over is booked and told of; tokens that nobody counts may be as many as the worst case
    says."""
    backend, path, price = Backend(), tmp_path / "journal", SPEC.token_pusd
    backend.add()
    backend.add(status="succeeded", trained_tokens=7)
    backend.add(status="succeeded")
    backend.add(status="pending")
    with pytest.warns(UserWarning, match="second fine-tuning job") as told:
        job = ensure(backend, path)
    assert [str(one.message).partition("request: ")[2] for one in told] == [
        "job-1 had succeeded before it could be cancelled, and is booked; job-0 stays",
        "job-2 had succeeded before it could be cancelled, and is booked; job-0 stays",
        "job-3 is cancelled; job-0 stays",
    ]
    with Journal(path) as journal:
        assert under_way(journal.entries()) == worst_of(SPEC)
        asyncio.run(await_job(backend, journal, job))
        total = sum_of(bill.spending for bill in bills(journal.entries()))
        assert under_way(journal.entries()) == NOTHING
    assert (total.jobs, total.amount, total.uncertain) == (3, Amount((18 + 7) * price, 18 + 7), worst_of(SPEC))


@pytest.mark.parametrize("ends", ["succeeded", "running"])
def test_a_duplicate_that_takes_its_time_to_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: JobStatus
) -> None:
    """It is booked when it has ended, and after `CANCEL_S` at its worst case."""
    monkeypatch.setattr("nip_ray.text.jobs.CANCEL_S", 0.2)
    backend, path, tries = Backend(), tmp_path / "journal", []
    for _ in range(2):
        backend.add()

    async def cancel(job_id: str) -> FineTuneJob:
        tries.append(job_id)
        if len(tries) == 4:
            backend.made[1] = (
                0.0,
                replace(backend.made[1][1], status=ends, trained_tokens=7 if ends == "succeeded" else None),
            )
        return backend.made[1][1]

    monkeypatch.setattr(backend, "cancel", cancel)
    job = ensure(backend, path)
    with Journal(path) as journal:
        assert under_way(journal.entries()) == worst_of(SPEC) + worst_of(SPEC)
        with pytest.warns(UserWarning, match="job-1 had succeeded" if ends == "succeeded" else "job-1 keeps running"):
            asyncio.run(await_job(backend, journal, job))
        total = sum_of(bill.spending for bill in bills(journal.entries()))
        assert under_way(journal.entries()) == NOTHING
    counted = 18 + 7 if ends == "succeeded" else 18
    assert (total.amount.tokens, total.uncertain) == (counted, NOTHING if ends == "succeeded" else worst_of(SPEC))


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_failed_and_cancelled_are_the_end_and_another_attempt_is_another_job(tmp_path: Path, how: JobStatus) -> None:
    backend, path = Backend(), tmp_path / "journal"
    backend.ends = how

    def key_of(attempt: int) -> str:
        return job_key("run", 3, "provers", DATA, "supervised", "base", attempt)

    with Journal(path) as journal:
        assert next_attempt(journal, key_of) == 0
    job = ensure(backend, path)
    for _ in range(2):  # now, and when asked again
        with Journal(path) as journal, pytest.raises(TrainingError, match=r"said so\. Mend the cause and resume"):
            asyncio.run(await_job(backend, journal, job))
    with Journal(path) as journal:
        assert next_attempt(journal, key_of) == 1
    backend.ends = "succeeded"
    again = ensure(backend, path, replace(SPEC, key=key_of(1)))
    assert again.id == "job-1"
    with Journal(path) as journal:
        assert asyncio.run(await_job(backend, journal, again)).status == "succeeded"
        assert next_attempt(journal, key_of) == 1


def run_trials(provider: ProviderProcess, folder: Path, first: int, count: int) -> list[dict[str, Any]]:
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.text.provider_trials",
        str(folder),
        provider.base_url,
        str(first),
        str(count),
    ]
    environment = {**os.environ, "TEST_KEY": API_KEY}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_trials(provider: ProviderProcess, results: list[dict[str, Any]], count: int) -> None:
    """One job alive for each key, the one that the trial ended with. One file for each content, but for requests
    delivered twice."""
    while provider.num_registered_late():
        time.sleep(0.05)
    assert len(results) == count
    alive = {(job["body"]["metadata"]["nip_key"], job["id"]) for job in provider.jobs() if job["status"] != "cancelled"}
    assert alive == {(result["key"], result["id"]) for result in results}
    names = Counter(file["name"] for file in provider.files() if not file["again"])
    assert len(names) == names.total() == count


EVERY = dict.fromkeys(("late", "drop_before", "drop_after", "server_error"), 0.06)
EVERY |= {"duplicate": 0.1, "storm": 0.1, "unsure": 0.1, "registered_late": 0.2}
DETAILS = {"late_s": 1.0, "registered_after_s": 0.2, "limit": 3}


@pytest.mark.crash
def test_no_duplicates_under_kills_and_faults(tmp_path: Path) -> None:
    """Trials killed up to 4 times each, with all kinds of faults at once and a clock that is hours wrong."""
    with provider_process(tmp_path, job_s=3600, faults=EVERY, fault_details=DETAILS, skew_s=-9000.0) as provider:
        results = run_trials(provider, tmp_path / "trials", 0, 24)
        check_trials(provider, results, 24)
        assert sum(result["kills"] for result in results) > 45
        assert len(provider.jobs()) > 24  # there was something to cancel


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", [*EVERY, "none", "every"])
def test_no_duplicates_under_kills_and_each_fault(tmp_path: Path, fault: str) -> None:
    """The same, 200 trials, for each kind alone at half of all requests, for none, and for all kinds."""
    chances = {"none": {}, "every": EVERY}.get(fault, {fault: 0.5})
    with provider_process(tmp_path, job_s=3600, faults=chances, fault_details=DETAILS) as provider:
        check_trials(provider, run_trials(provider, tmp_path / "trials", 1000, 200), 200)


def test_every_job_is_billed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many jobs at once over HTTP with faults, to the end, and again with the same journal: nothing new, one bill for
    each."""
    monkeypatch.setenv("TEST_KEY", API_KEY)
    chances = {**EVERY, "duplicate": 0.0, "job_slow": 0.3}
    sets = [encode([supervised_line([{"role": "user", "content": f"q{n}"}], "yes")]) for n in range(10)]
    with provider_thread(tmp_path, faults=chances, fault_details=DETAILS, job_s=0.2) as provider:
        settings = OpenAIProvider(
            base_url=provider.base_url,
            api_key_variable="TEST_KEY",
            timeout_s=0.6,
            max_retries=12,
            poll_interval_s=0.1,
            doubt_s=1.5,
        )

        async def one(backend: OpenAIJobs, journal: Journal, n: int) -> FineTuneJob:
            key = job_key("run", n, "g", sets[n], "supervised", "base")
            spec = FineTuneSpec(key, "supervised", "base", f"s{n}", 1, 5, num_epochs=2)
            return await await_job(backend, journal, await ensure_job(backend, journal, spec, sets[n], "x"))

        async def all_of_them() -> list[FineTuneJob]:
            backend = OpenAIJobs(settings, first_wait_s=0.02)
            with Journal(tmp_path / "journal") as journal:
                done = await asyncio.gather(*(one(backend, journal, n) for n in range(10)))
            await backend.close()
            return done

        first, second = asyncio.run(all_of_them()), asyncio.run(all_of_them())
        assert first == second
        bills = provider.ledger("job")
        assert {(bill["what"], bill["tokens"]) for bill in bills} == {(job.id, job.trained_tokens) for job in first}
        assert len(bills) == 10
