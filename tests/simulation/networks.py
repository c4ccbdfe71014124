"""Runs with networks in simulated worlds: sessions, checkpoints and rows as they are, and files that are damaged
between two processes.

Decisions that matter here:
- in the place of learning stands a sum that depends on all iterations before it: a wrong checkpoint or a lost iteration
  gives other numbers to the end. Evaluation and report are a line of text each;
- damage is any of: a changed byte, zeros, a lost end, a lost file; in up to three files at once;
- the model that watches knows the bytes of every checkpoint from the moment in which it got its name. When a process
  goes on from one, it has to be the newest that has them still; and while there is such a one, none may end because of
  a checkpoint that is damaged.
"""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import nip_ray.evaluation.report
import nip_ray.rllib.cluster
import nip_ray.runs.session
import nip_ray.storage.checkpoint
import nip_ray.storage.identity
from nip_ray.runs.session import Session
from nip_ray.storage.files import write_atomically
from tests.simulation.disk import Disk

CONFIG: dict[str, Any] = {
    "name": "networks",
    "iterations": 7,
    "protocol": {"name": "message_game"},
    "scenario": {"name": "message_game", "num_symbols": 20, "num_secrets": 4},
    "algorithm": {"name": "ppo"},
    "checkpoint": {"interval": 2, "keep": 2},
    "evaluation": {"interval": 3, "num_transcripts": 1},
}
DAMAGE = ("changed", "zeros", "cut", "gone")


class Learning:
    """In the place of an algorithm."""

    def __init__(self) -> None:
        self.done, self.weights, self.durations = 0, torch.arange(64, dtype=torch.float64), None

    def train(self) -> None:
        self.done += 1
        self.weights = self.weights.roll(1) * 0.5 + self.done

    def networks(self) -> dict[str, float]:
        return {"sum": float(self.weights.sum())}

    def training_state(self) -> dict[str, Any]:
        modules = {name: {"w": self.weights + number} for number, name in enumerate(("prover", "verifier"))}
        return {"modules": modules, "counters": {"done": self.done}}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.done, self.weights = state["counters"]["done"], state["modules"]["prover"]["w"]
        _watching[0].loaded(self.done)

    def stop(self) -> None:
        """It has nothing to give back."""


class Witness:
    """See the top of this file; `tests.simulation.witness` has the same of language agents."""

    def __init__(self, run: Path, disk: Disk, violate: Callable[[str], None]) -> None:
        self.run, self.disk, self.violate = run, disk, violate
        self.honest = self.complete = True
        self._saved: dict[int, dict[str, bytes]] = {}
        self._newest: int | None = None
        self._unread = False
        self.chats: dict[str, str] = {}
        self.warned: list[str] = []
        _watching[:] = [self]

    def written(self, path: str, what: str) -> None:
        """A file or folder below the world's root got its name."""
        folder = self.disk.root / Path(path)
        if what == "replace" and folder.parent.name == "checkpoints" and folder.name.isdecimal():
            self._saved[int(folder.name)] = _bytes(folder)

    def begins(self) -> None:
        """A process begins: what it has to go on from is what is whole now."""
        there = {number: self.run / "checkpoints" / f"{number:06d}" for number in self._saved}
        self._unread = False
        self._newest = max(
            (number for number, folder in there.items() if _bytes(folder) == self._saved[number]), default=None
        )

    def loaded(self, iteration: int) -> None:
        """A process goes on from this checkpoint."""
        if iteration != self._newest and not self._unread:
            self.violate(f"it goes on from {iteration}, and the newest whole checkpoint is of {self._newest}")
        self._newest = None

    def trained(self, iteration: int) -> None:
        """A process has done an iteration."""
        if self._newest is not None and not self._unread:
            self.violate(f"iteration {iteration} is done without the checkpoint of {self._newest}, which is whole")

    def unreadable(self, kind: str) -> None:
        """A file of this kind cannot be read: of a checkpoint it is as good as damage."""
        self._unread |= "checkpoints" in kind

    def stopped(self, error: str) -> None:
        """A process ended with this error, for something that is damaged."""
        if (
            "/checkpoints" in error
            and "cannot be written" not in error
            and self._newest is not None
            and not self._unread
        ):
            self.violate(f"the checkpoint of {self._newest} is whole, and this was said: {error}")

    def ended(self, now: float, *, could_write: bool) -> None:
        """A process is no more."""

    def power_failed(self) -> None:
        """What is there is looked at when the next process begins."""

    def aside(self) -> int:
        """It pays nobody."""
        return 0

    def outcome(self) -> dict[str, Any]:
        """What does not depend on who was killed when."""
        rows = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        made: dict[str, Any] = {
            "rows": [{key: row[key] for key in sorted(row) if not key.startswith("time/")} for row in rows]
        }
        for name in ("evaluation.json", *sorted(path.name for path in (self.run / "transcripts").glob("*"))):
            path = self.run / name if name == "evaluation.json" else self.run / "transcripts" / name
            made[name] = path.read_text(errors="replace")
        made["evaluation"] = json.loads(made.pop("evaluation.json"))
        made["weights"] = (
            nip_ray.storage.checkpoint.load_checkpoint(self.run / "checkpoints")
            .tensors["training"]["modules"]["prover"]["w"]
            .tolist()
        )
        hidden = {*self.run.rglob(".*.tmp-*"), *(self.run / "checkpoints").glob(".*")}
        made["left over"] = sorted(path.name for path in hidden)
        return made


_watching: list[Witness] = []


def damage(run: Path, dice: random.Random, files: int) -> list[str]:
    """Damage so many files of a run; returns what was done to which."""
    there = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    told = []
    for path in dice.sample(there, min(files, len(there))):
        data = path.read_bytes()
        how = dice.choice(DAMAGE)
        at = dice.randrange(len(data)) if data else 0
        made = {
            "changed": data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :] if data else b"",
            "zeros": data[:at] + b"\0" * min(len(data) - at, dice.randint(1, 4096)) + data[at + 4096 :],
            "cut": data[:at],
        }
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(made[how])
        told.append(f"{how}: {path.relative_to(run)}")
    return told


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


class _Examination:
    def document(self, networks: dict[str, float], *rest: Any) -> dict[str, Any]:
        return {"figures": networks}


class _InTurn:
    """A pool of threads that does everything in order, in the thread of who asks."""

    def __init__(self, workers: int) -> None:
        del workers

    def __enter__(self) -> "_InTurn":
        return self

    def __exit__(self, *error: object) -> None:
        """There is nobody to wait for."""

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> list[Any]:
        return [work(part) for part in parts]


def install() -> None:
    """Put the stand-ins in place, for good."""

    def trained(self: Any, iteration: int) -> dict[str, Any]:
        _watching[0].trained(iteration)
        self.algorithm.train()
        return {"iteration": iteration, "learn/sum": self.algorithm.networks()["sum"], "time/iteration_s": 0.0}

    def evaluate(self: Any, iteration: int) -> dict[str, float]:
        figures = {"eval/sum": self.algorithm.networks()["sum"]}
        self.folder.write_transcripts(f"{iteration:06d}", [figures])
        self.last_evaluation = figures
        return figures

    warn = Session.warn

    def warned(self: Any, text: str) -> None:
        _watching[0].warned.append(text)
        warn(self, text)

    Session._trained, Session._evaluate, Session.warn = trained, evaluate, warned
    Session._examination = lambda self: _Examination()
    nip_ray.runs.session.players = lambda config, networks: networks
    nip_ray.rllib.cluster.build_algorithm = lambda config: Learning()
    nip_ray.evaluation.report.write_report = lambda run: write_atomically(
        Path(run) / "report.html", b"drawn from what is there"
    )
    nip_ray.storage.checkpoint.ThreadPoolExecutor = _InTurn
    nip_ray.storage.identity.secrets.token_hex = lambda size=None: "0" * 8
