"""Trials of `ensure_job` under kills: a process that forks a child per attempt, kills it, and forks again until a child
gets through.

    python -m tests.text.provider_trials FOLDER BASE_URL FIRST COUNT

A child dies where its steps say: before and after every entry of the journal, in the middle of writing one, before
every request, after every answer; or whenever the parent's SIGKILL arrives. After `MAX_KILLS` deaths the next child is
left alone. Which and when depends on the number of the trial alone. Results are printed as JSON lines: trial, key, id,
kills. Forked children need no new imports, so that hundreds of trials take seconds.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from nip_ray.errors import TrainingError
from nip_ray.seeding import stable_seed
from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.jobs import Journal, ensure_job, job_key
from nip_ray.text.providers.interface import encode, supervised_line
from nip_ray.text.providers.openai import OpenAIJobs

MAX_KILLS = 4
WORKERS = 24
STEPS = 26  # an attempt without faults has about as many


class Doom:
    """Counts steps and dies at one of them."""

    def __init__(self, at: int | None) -> None:
        self.left = at

    def step(self) -> bool:
        """Whether this is the one."""
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0

    def die_here(self) -> None:
        if self.step():
            os._exit(9)

    async def hook(self, _: Any) -> None:
        self.die_here()


class DoomedJournal(Journal):
    """A journal whose process may die before, in, or after a write."""

    def __init__(self, path: Path, doom: Doom) -> None:
        super().__init__(path)
        self._doom = doom

    def append(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        self._doom.die_here()
        if self._doom.step():
            with self.path.open("ab") as file:
                file.write(b'{"crc":12,"entry":{"kin')
            os._exit(9)
        entry = super().append(kind, **fields)
        self._doom.die_here()
        return entry


def data_of(trial: int) -> bytes:
    """Every trial has data of its own."""
    return encode([supervised_line([{"role": "user", "content": f"question {trial}"}], "yes")])


def key_of(trial: int) -> str:
    return job_key("trials", trial, "group", data_of(trial), "supervised", "base")


async def attempt(folder: Path, base_url: str, trial: int, doom: Doom) -> str:
    """The id of the trial's job."""
    provider = OpenAIProvider(
        base_url=base_url, api_key_variable="TEST_KEY", timeout_s=0.6, max_retries=12, poll_interval_s=0.05, doubt_s=1.5
    )
    backend = OpenAIJobs(provider, first_wait_s=0.02)
    backend._service.sdk._client.event_hooks = {"request": [doom.hook], "response": [doom.hook]}
    spec = FineTuneSpec(key_of(trial), "supervised", "base", "t", 1, 10)
    with DoomedJournal(folder / f"{trial}.jsonl", doom) as journal:
        return (await ensure_job(backend, journal, spec, data_of(trial), f"trial {trial}")).id


class Trial:
    """One trial: the child that runs now, and when it will be killed, if so."""

    def __init__(self, folder: Path, base_url: str, number: int) -> None:
        self.folder, self.base_url, self.number = folder, base_url, number
        self.kills = 0
        self._fork()

    def _draw(self, what: str, below: int) -> int:
        return stable_seed(self.number, what, self.kills) % below

    def _fork(self) -> None:
        is_last = self.kills >= MAX_KILLS
        by_signal = not is_last and self._draw("how", 3) == 0
        self.deadline = time.monotonic() + self._draw("when", 400) / 1000 if by_signal else None
        doom = Doom(None if is_last or by_signal else self._draw("where", STEPS))
        self.pid = os.fork()
        if self.pid == 0:
            self._child(doom)

    def _child(self, doom: Doom) -> None:
        code = 1
        try:
            warnings.simplefilter("ignore")
            job_id = asyncio.run(attempt(self.folder, self.base_url, self.number, doom))
            (self.folder / f"{self.number}.done").write_text(job_id)
            code = 0
        finally:
            os._exit(code)

    def step(self) -> dict[str, Any] | None:
        """The result once there is one. Raises RuntimeError when a child fails by itself."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            os.kill(self.pid, signal.SIGKILL)
            self.deadline = None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            job_id = (self.folder / f"{self.number}.done").read_text()
            return {"trial": self.number, "key": key_of(self.number), "id": job_id, "kills": self.kills}
        if code not in (9, -signal.SIGKILL):
            raise RuntimeError(f"trial {self.number} failed")
        self.kills += 1
        self._fork()
        return None


def warm_up() -> None:
    """Everything that is imported at a first call is imported here, before the first fork."""

    async def call() -> None:
        backend = OpenAIJobs(
            OpenAIProvider(base_url="http://127.0.0.1:9/v1", api_key_variable="TEST_KEY", max_retries=0)
        )
        with contextlib.suppress(TrainingError):
            await backend.find("none")
        await backend.close()

    asyncio.run(call())
    gc.collect()
    gc.freeze()


def main(folder: Path, base_url: str, first: int, count: int) -> None:
    """Run the trials, `WORKERS` at a time."""
    warm_up()
    waiting, running = list(range(first, first + count)), []
    while waiting or running:
        while waiting and len(running) < WORKERS:
            running.append(Trial(folder, base_url, waiting.pop(0)))
        for trial in tuple(running):
            result = trial.step()
            if result is not None:
                running.remove(trial)
                print(json.dumps(result), flush=True)
        time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
