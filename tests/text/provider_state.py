"""What the test provider knows and has billed.

In memory but for `files/`, the uploaded content, and `ledger.jsonl`, a line per bill, which tests read.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.text.provider_faults import Faults
from tests.text.provider_tables import (
    BadData,
    Examples,
    Rates,
    Role,
    Table,
    digest,
    dpo,
    index_of,
    role_of,
    supervised,
    tokens,
)

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


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log that may be growing."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


@dataclass
class Job:
    """A job. begun: true time. ends: when it is over by itself. fate: how it then ends. status: of those that are
    over."""

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
    """Everything. trained: the tables of fine-tuned models."""

    folder: Path
    roles: Sequence[Role]
    situation: Situation
    rates: Rates
    prices: Prices
    job_s: float
    base_models: Sequence[str]
    faults: Faults
    tables: dict[str, Table] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    trained: dict[str, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "files").mkdir(parents=True, exist_ok=True)
        self._ledger = (self.folder / "ledger.jsonl").open("ab", buffering=0)
        self._billed: set[str] = set()

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def bill(self, kind: str, what: str, amount: int, **rest: Any) -> bool:
        """Charge for a thing, once."""
        if what in self._billed:
            return False
        self._billed.add(what)
        self._ledger.write(json.dumps({"kind": kind, "what": what, "pusd": amount, **rest}).encode() + b"\n")
        return True

    def add_file(self, name: str, content: bytes, again: bool) -> str:
        """again: the same request was done before."""
        file_id = f"file-{len(self.files):06d}"
        (self.folder / "files" / file_id).write_bytes(content)
        self.files[file_id] = {"id": file_id, "name": name, "size": len(content), "at": time.time(), "again": again}
        return file_id

    def add_job(self, body: dict[str, Any]) -> Job:
        mark = json.dumps(body, sort_keys=True)
        fate = next((name for name in ("job_failed", "job_cancelled") if self.faults.of_thing(name, mark)), "succeeded")
        lasts = self.job_s * (self.faults.slow_factor if self.faults.of_thing("job_slow", mark) else 1.0)
        job_id = f"ftjob-{len(self.jobs):06d}"
        job = self.jobs[job_id] = Job(job_id, body, time.time(), time.time() + lasts, fate)
        return job

    def cancel(self, job: Job) -> bool:
        """False when it is over already."""
        self.settle()
        if job.status is not None:
            return False
        job.status = "cancelled"
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
        return self.trained.get(model)

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
        (better,), (worse,) = row["preferred_output"], row["non_preferred_output"]
        found.pairs.append(
            (role.name, self.situation(chat), index_of(role, better["content"]), index_of(role, worse["content"]))
        )

    def _end(self, job: Job) -> None:
        if job.fate != "succeeded":
            job.status = job.fate.removeprefix("job_")
            if job.status == "failed":
                job.error = {"code": "content_policy", "message": "the training file goes against the usage policies"}
            return
        try:
            trained, table = self._train(job)
        except BadData as error:
            job.status, job.error = "failed", {"code": "invalid_training_file", "message": str(error)}
            return
        model = self._name(job)
        self.trained[model] = table
        self.bill("job", job.id, pusd(trained, self.prices.training), tokens=trained, model=model)
        job.status, job.model, job.trained_tokens = "succeeded", model, trained

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
        made = digest(job.body["model"], file, json.dumps(job.body["method"], sort_keys=True))[:8]
        return f"ft:{base}:test:{suffix}:{made}"
