"""What must hold in a simulated world at every step, kept by a model that shares no code with what it watches.

- a job is asked for once for each key, besides what the network doubles; when a creation arrives, the platter has its
  `submit`;
- no chat is sent without a key, or again under one whose reply is recorded, or came while the process had time to
  record it; what is asked has one key in all lives, and nothing is asked that the undisturbed run does not ask;
- the provider's bill never exceeds the budget, unless a disk that lied lost power, nor, where no power failure took
  records away, what the run has booked; what is booked as certain never exceeds the bill;
- a budget is said to be used up only where a life in which nothing went wrong could have used it up;
- when all is over no job runs, and as many models were made as there had to be;
- stages follow each other in their order, none is skipped, and only a job that has to be made again leads back;
- a state that waits for jobs stands on a platter that has them in the journal, with their ids;
- the run that comes out of it all is the undisturbed one: rows, dialogues, evaluation.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation.disk import Disk

PICO = 10**12
_LEFT_OUT = re.compile(r"time/|cost/")


class Witness:
    """violate: told of what was seen. orders: of an iteration that is not the last, and of the last: the stages in
    order.

    honest: whether the disk has never lied. complete: whether no power failure has taken records away. billed: gives
    the provider's bill.
    """

    def __init__(
        self,
        run: Path,
        disk: Disk,
        violate: Callable[[str], None],
        orders: tuple[list[str], list[str]],
        iterations: int,
        billed: Callable[[], int],
    ) -> None:
        self.run, self.disk, self.violate, self.orders, self.iterations, self.billed = (
            run,
            disk,
            violate,
            orders,
            iterations,
            billed,
        )
        self.honest = self.complete = True
        self.chats: dict[str, str] = {}
        self._asked: Counter[str] = Counter()
        self._replied: set[str] = set()
        self._delivered: dict[str, float] = {}
        self._tested: set[int] = set()
        self._stage: tuple[int, str] | None = None

    # --------------------------------------------------------------------------------------------------------- requests

    def creation(self, key: str, doubled: int) -> None:
        """A request to create a job arrives to be done. doubled: how many of its arrivals are the network's doing, so
        far."""
        self._asked[key] += 1
        if self.honest and self._asked[key] - doubled > 1:
            self.violate(f"job {key[:8]} was asked for {self._asked[key]} times")
        journal = self.disk.synced("run/jobs.jsonl") or b""
        if self.honest and not any(
            f'"key":"{key}"'.encode() in line and b'"kind":"submit"' in line for line in journal.splitlines()
        ):
            self.violate(f"job {key[:8]} was asked for before the journal had it")

    def chat(self, key: str, body: bytes, undisturbed: dict[str, str] | None) -> None:
        """A chat is sent. undisturbed: `chats` of the undisturbed run, None of that run itself."""
        if not key:
            self.violate("a chat was sent without a key")
        # models have names of their own in each world
        asked = {name: value for name, value in json.loads(body).items() if name != "model"}
        if asked["messages"] == [{"role": "user", "content": "Hello"}]:
            return  # of no dialogue: is there a model that the lists, which could not be read, do not name?
        what = json.dumps(asked, sort_keys=True)
        if undisturbed is not None and what not in undisturbed:
            self.violate(f"the chat {key[:8]} asks what the undisturbed run does not ask")
        if self.honest and self.chats.get(what, key) != key:
            self.violate(f"the chat {self.chats[what][:8]} was sent again as {key[:8]}")
        self.chats[what] = key
        if key in self._replied:
            self.violate(f"the chat {key[:8]} was sent again after its reply was recorded")

    def delivered(self, key: str, now: float) -> None:
        """The reply to a chat is there, whole, and can be read."""
        self._delivered.setdefault(key, now)

    def begins(self) -> None:
        """A process begins."""

    def stopped(self, error: str) -> None:
        """A process ended with this error, for something that is damaged."""

    def unreadable(self, kind: str) -> None:
        """A file of this kind cannot be read."""

    def ended(self, now: float, *, could_write: bool) -> None:
        """The process is no more. could_write: the disk took all that it wrote."""
        if could_write:
            self._replied |= {key for key, at in self._delivered.items() if at < now}
        self._delivered.clear()

    # ------------------------------------------------------------------------------------------------------------ files

    def written(self, path: str, what: str) -> None:
        """A file below the world's root was written to."""
        if path.startswith("run/calls/"):
            self.reread()
        elif path == "run/state.json" and what == "replace":
            self._state(json.loads((self.run / "state.json").read_text())["state"])
        elif path == "run/cost.json" and what == "replace":
            self._booked(json.loads((self.run / "cost.json").read_text()))

    def reread(self, *, forgetful: bool = False) -> None:
        """Learn which replies are recorded. forgetful: only those that still are count as known."""
        found = set()
        for path in sorted((self.run / "calls").glob("*.jsonl")):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n") and b'"event":"reply"' in line:
                    try:
                        found.add(json.loads(line)["key"])
                    except ValueError:
                        self.violate(f"a line of {path.name} is damaged")
        self._replied = found if forgetful else self._replied | found

    def _state(self, state: dict[str, Any]) -> None:
        at = (self.iterations, "") if state["over"] else (state["iteration"], state["stage"])
        before, self._stage = self._stage, at
        if before is not None and before != at:
            if before[1] == "test":
                self._tested.add(before[0])
            again = [(before[0], "create_jobs")] if before[1] == "await_jobs" else []
            late = [(before[0], "await_jobs")] if before[1] == "create_jobs" and before[0] in self._tested else []
            if at not in (self._next(*before), *again, *late):
                self.violate(f"after {before} came {at}")
        journal = (self.disk.synced("run/jobs.jsonl") or b"").decode("utf-8", "replace")
        for group in state["groups"].values():
            key = group["job_key"]
            if (
                self.honest
                and key is not None
                and not re.search(rf'"key":"{key}","kind":"job"|"kind":"job","key":"{key}"', journal)
            ):
                self.violate(f"the state waits for job {key[:8]}, of which the journal knows nothing")

    def _next(self, iteration: int, stage: str) -> tuple[int, str]:
        if stage == "format_warmup":
            return iteration, "sample"
        if iteration >= self.iterations:
            return iteration, stage
        order = self.orders[iteration + 1 == self.iterations]
        if stage != order[-1]:
            return iteration, order[order.index(stage) + 1]
        return (iteration + 1, "sample") if iteration + 1 < self.iterations else (self.iterations, "")

    def power_failed(self) -> None:
        """What is known is what the platter has."""
        self.reread(forgetful=True)
        path = self.run / "state.json"
        if self.honest and path.is_file():
            try:
                state = json.loads(path.read_text())["state"]
            except ValueError:
                self.violate("a power failure left half a state")
                return
            at = (self.iterations, "") if state["over"] else (state["iteration"], state["stage"])
            if self._stage is not None and at != self._stage and self._next(*at) != self._stage:
                allowed = at[1] == "await_jobs" and self._stage == (at[0], "create_jobs")
                if not allowed:
                    self.violate(f"a power failure led back from {self._stage} to {at}")
            self._stage = at
        else:
            self._stage = None

    # ------------------------------------------------------------------------------------------------------------ money

    def bill(self, billed: int, budget_usd: float | None) -> None:
        """billed: all that the provider has charged so far, in picodollars."""
        if budget_usd is not None and billed > budget_usd * PICO and (self.honest or self.complete):
            self.violate(f"billed {billed / PICO} of a budget of {budget_usd}")

    def _booked(self, cost: dict[str, Any]) -> None:
        """A stage came to its end: what the run says that it cost is at least what was billed, and what is certain of
        it at most that."""
        if self.complete and round((cost["usd"] + cost["uncertain_usd"]) * PICO) < self.billed():
            self.violate(f"booked {cost['usd']} and perhaps {cost['uncertain_usd']}, billed {self.billed() / PICO}")
        if round(cost["usd"] * PICO) > self.billed():
            self.violate(f"booked {cost['usd']} as certain, billed {self.billed() / PICO}")

    def spent(self) -> int:
        """What may have been spent by the records, in picodollars: not less than what a process that begins now
        counts."""
        made = 0
        for path in (self.run / "calls").glob("*.jsonl"):
            worst: dict[str, int] = {}
            for entry in _entries(path):
                if entry["event"] == "begin":
                    worst[entry["key"]] = entry["worst_pusd"]
                    made += entry["worst_pusd"]
                else:
                    made += entry.get("cost_pusd", 0) + entry["uncertain_pusd"] - worst.get(entry["key"], 0)
        intents = self._intents()
        return made + sum(
            intents[entry["key"]]
            for entry in _entries(self.run / "jobs.jsonl")
            if entry["kind"] in ("submit", "duplicate")
        )

    def aside(self) -> int:
        """What a run like this one may have set aside at once, those calls apart that are waited for: all its jobs and
        a call."""
        begun = (
            entry["worst_pusd"]
            for path in (self.run / "calls").glob("*.jsonl")
            for entry in _entries(path)
            if "worst_pusd" in entry
        )
        return sum(self._intents().values()) + max(begun, default=0)

    def _intents(self) -> dict[str, int]:
        """Key -> what the job can cost at most."""
        found = [entry for entry in _entries(self.run / "jobs.jsonl") if entry["kind"] == "intent"]
        return {entry["key"]: entry["worst_tokens"] * entry["token_pusd"] for entry in found}

    # ---------------------------------------------------------------------------------------------------------- the end

    def outcome(self) -> dict[str, Any]:
        """What does not depend on who was killed when."""
        rows = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        made: dict[str, Any] = {
            "rows": [{key: row[key] for key in sorted(row) if not _LEFT_OUT.match(key)} for row in rows]
        }
        for path in self._whole("rollouts"):
            made[str(path.relative_to(self.run))] = path.read_text()
        made["evaluation"] = json.loads((self.run / "evaluation.json").read_text())
        made["transcripts"] = {path.name: path.read_text() for path in self._whole("transcripts")}
        made["left over"] = sorted(path.name for path in self.run.rglob(".*.tmp-*"))
        made["report"] = (self.run / "report.html").is_file()
        return made

    def _whole(self, folder: str) -> list[Path]:
        """The files in a folder of the run but what a dead writer left half written."""
        return sorted(
            path for path in (self.run / folder).rglob("*") if path.is_file() and not path.name.startswith(".")
        )


def _entries(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of records."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith(b"\n") and b"\0" not in line]
    return [row.get("entry", row) for row in rows]
