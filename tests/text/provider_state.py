"""What the test provider knows and has billed, kept on disk so that it can be killed and started again.

`state.jsonl` has an event per line (file, job, cancel, end), `files/` the uploaded content, `models/` a table per fine-tuned model,
`ledger.jsonl` a line per bill. Every line is fsynced before it is acted upon; a torn last line is as good as none.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.text.provider_faults import Faults
from tests.text.provider_tables import BadData, Examples, Rates, Role, Table, digest, dpo, index_of, role_of, supervised, tokens

Situation = Callable[[Sequence[dict[str, Any]]], str]


@dataclass(frozen=True)
class Prices:
    """US dollars per million tokens; a price of p makes p * 10^6 picodollars a token."""

    input: float = 0.15
    output: float = 0.6
    training: float = 3.0


def pusd(count: int, price: float) -> int:
    """Picodollars for so many tokens."""
    return count * round(price * 1e6)


class Log:
    """Lines of JSON, each on disk when `add` returns. fsync: whether a power failure counts too, or only kills."""

    def __init__(self, path: Path, fsync: bool) -> None:
        self._path, self._fsync = path, fsync
        rows = read_log(path)
        with path.open("wb") as file:  # without a torn last line
            file.write(b"".join(_line(row) for row in rows))
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def add(self, **row: Any) -> None:
        self._file.write(_line(row))
        if self._fsync:
            os.fsync(self._file.fileno())


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log that may be growing."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


@dataclass
class Job:
    """A job. begun: true time. ends: when it is over by itself. fate: how it then ends. status: of those that are over."""

    id: str
    body: dict[str, Any]
    begun: float
    ends: float
    fate: str
    status: str | None = None
    model: str | None = None
    trained_tokens: int | None = None
    error: dict[str, Any] | None = None

    def now(self) -> str:
        """The status that is told."""
        if self.status is not None:
            return self.status
        share = (time.time() - self.begun) / max(self.ends - self.begun, 1e-9)
        return "validating_files" if share < 0.1 else "queued" if share < 0.3 else "running"


@dataclass
class State:
    """Everything, read from `folder` at the start."""

    folder: Path
    roles: Sequence[Role]
    situation: Situation
    rates: Rates
    prices: Prices
    job_s: float
    base_models: Sequence[str]
    faults: Faults
    fsync: bool = True
    tables: dict[str, Table] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("files", "models"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._log = Log(self.folder / "state.jsonl", self.fsync)
        self._ledger = Log(self.folder / "ledger.jsonl", self.fsync)
        self._billed = {row["what"] for row in read_log(self.folder / "ledger.jsonl")}
        for row in read_log(self.folder / "state.jsonl"):
            self._apply(row)

    def close(self) -> None:
        """Close the logs."""
        self._log.close()
        self._ledger.close()

    def bill(self, kind: str, what: str, amount: int, **rest: Any) -> bool:
        """Charge for a thing, once."""
        if what in self._billed:
            return False
        self._billed.add(what)
        self._ledger.add(kind=kind, what=what, pusd=amount, **rest)
        return True

    def add_file(self, name: str, content: bytes, again: bool) -> str:
        """again: the same request was done before."""
        file_id = f"file-{len(self.files):06d}"
        path = self.folder / "files" / file_id
        path.write_bytes(content)
        self._record(event="file", id=file_id, name=name, size=len(content), at=time.time(), again=again)
        return file_id

    def add_job(self, body: dict[str, Any]) -> Job:
        mark = json.dumps(body, sort_keys=True)
        fate = next((name for name in ("job_failed", "job_cancelled") if self.faults.of_thing(name, mark)), "succeeded")
        lasts = self.job_s * (self.faults.slow_factor if self.faults.of_thing("job_slow", mark) else 1.0)
        job_id = f"ftjob-{len(self.jobs):06d}"
        self._record(event="job", id=job_id, body=body, begun=time.time(), ends=time.time() + lasts, fate=fate)
        return self.jobs[job_id]

    def cancel(self, job: Job) -> bool:
        """False when it is over already."""
        self.settle()
        if job.status is not None:
            return False
        self._record(event="end", id=job.id, status="cancelled")
        return True

    def settle(self) -> None:
        """End, train and bill the jobs whose time is over."""
        for job in self.jobs.values():
            if job.status is None and time.time() >= job.ends:
                self._end(job)

    def table(self, model: str) -> Table | None:
        """The table of a model, None when there is no such model."""
        if model in self.base_models:
            return self.tables.get(model, {})
        path = self.folder / "models" / digest(model)
        if not any(job.model == model for job in self.jobs.values()):
            return None
        return json.loads(path.read_text())

    def examples(self, content: bytes, method: str) -> Examples:
        """What a file asks for. Raises BadData that names the line."""
        found = Examples()
        for number, line in enumerate(content.splitlines(), 1):
            try:
                self._read_line(json.loads(line), method, found)
            except (BadData, ValueError, KeyError, TypeError, IndexError) as error:
                raise BadData(f"line {number}: {type(error).__name__}: {error}") from None
        return found

    def _read_line(self, row: dict[str, Any], method: str, found: Examples) -> None:
        if method == "supervised":
            *chat, last = row["messages"]
            if last["role"] != "assistant":
                raise BadData("the last message is not the assistant's")
            role = role_of(self.roles, chat)
            found.chosen[role.name, self.situation(chat)][index_of(role, last["content"])] += 1
            return
        chat = row["input"]["messages"]
        role = role_of(self.roles, chat)
        ((better,), (worse,)) = row["preferred_output"], row["non_preferred_output"]
        found.pairs.append((role.name, self.situation(chat), index_of(role, better["content"]), index_of(role, worse["content"])))

    def _end(self, job: Job) -> None:
        if job.fate != "succeeded":
            error = {"code": "content_policy", "message": "the training file goes against the usage policies"}
            status = job.fate.removeprefix("job_")
            self._record(event="end", id=job.id, status=status, error=error if status == "failed" else None)
            return
        try:
            trained, table = self._train(job)
        except BadData as error:
            self._record(event="end", id=job.id, status="failed", error={"code": "invalid_training_file", "message": str(error)})
            return
        model = self._name(job)
        path = self.folder / "models" / digest(model)
        path.with_suffix(".new").write_text(json.dumps(table))
        path.with_suffix(".new").replace(path)
        self.bill("job", job.id, pusd(trained, self.prices.training), tokens=trained, model=model)
        self._record(event="end", id=job.id, status="succeeded", model=model, trained_tokens=trained)

    def _train(self, job: Job) -> tuple[int, Table]:
        content = (self.folder / "files" / job.body["training_file"]).read_bytes()
        method = job.body["method"]["type"]
        chosen = job.body["method"].get(method, {}).get("hyperparameters", {})
        rates, start = self.rates, self.table(job.body["model"]) or {}
        examples = self.examples(content, method)
        epochs, factor = chosen.get("n_epochs", rates.epochs), chosen.get("learning_rate_multiplier", 1.0)
        trained = epochs * tokens(content.decode())
        if method == "supervised":
            return trained, supervised(start, self.roles, examples, epochs, min(rates.supervised * factor, 1.0))
        beta = chosen.get("beta", rates.beta)
        return trained, dpo(start, self.roles, examples, epochs, rates.dpo * factor, rates.steps, beta)

    def _name(self, job: Job) -> str:
        """The same for the same job, whenever and however often it is made."""
        base = job.body["model"].split(":")[1] if job.body["model"].startswith("ft:") else job.body["model"]
        suffix = job.body.get("suffix") or ""
        file = self.files[job.body["training_file"]]["name"]
        return f"ft:{base}:test:{suffix}:{digest(job.body['model'], file, json.dumps(job.body['method'], sort_keys=True))[:8]}"

    def _record(self, **row: Any) -> None:
        self._log.add(**row)
        self._apply(row)

    def _apply(self, row: dict[str, Any]) -> None:
        row = dict(row)
        event = row.pop("event")
        if event == "file":
            self.files[row["id"]] = row
        elif event == "job":
            self.jobs[row["id"]] = Job(**row)
        else:
            job = self.jobs[row.pop("id")]
            for name, value in row.items():
                setattr(job, name, value)
