"""A provider for tests, over real HTTP on the loopback interface: chats, files, fine-tuning jobs, models, bills, and
faults.

    with provider_process(tmp_path, roles=[...], faults={"late": 0.1}) as provider:
        client = AsyncOpenAI(base_url=provider.base_url, api_key=API_KEY)

Decisions that matter here:
- what it answers for are small tables that really learn (`provider_tables`), so that training can be followed to known
  numbers;
- it is strict: unknown fields, models, files and methods, a wrong key, are refused as the real service does it, so that
  a sloppy client fails;
- a call with an `Idempotency-Key` is billed once and has one reply, drawn from the seeds (else the key), however often
  it comes. Creations ignore the header, as the service that matters most does, unless `honours_job_keys`;
- faults (`provider_faults`) are switched on and off while it runs, by `set_faults`.
"""

import json
import logging
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.text.loopback import serving
from tests.text.provider_service import API_KEY, Options, Service
from tests.text.provider_state import read_log

ROOT = Path(__file__).resolve().parents[2]


class Provider:
    """A running provider, as tests see it. folder: where it keeps everything."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.base_url, self.api_key = f"http://127.0.0.1:{port}/v1", API_KEY

    def set_faults(self, **chances: float) -> None:
        """These faults from now on, and no others."""
        self._ask("/test/faults", json.dumps(chances).encode())

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs as they stand, in the order of creation: id, body, status, model, trained_tokens, ..."""
        return self._ask("/test/state")["jobs"]

    def files(self) -> list[dict[str, Any]]:
        """All files: id, name, size, and whether it is there only because a request was done twice ("again")."""
        return self._ask("/test/state")["files"]

    def requests(self) -> dict[str, int]:
        """How many requests came, by method and path; and under "429" how many were put off."""
        return self._ask("/test/state")["requests"]

    def num_registered_late(self) -> int:
        """How many creations have been cut off and will yet be done."""
        return self._ask("/test/state")["later"]

    def ledger(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The bills: kind (chat or job), what, pusd, ..."""
        return [row for row in read_log(self.folder / "ledger.jsonl") if kind in (None, row["kind"])]

    def content(self, file_id: str) -> bytes:
        """What was uploaded."""
        return (self.folder / "files" / file_id).read_bytes()

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=60) as answer:
            return json.load(answer)


class ProviderProcess(Provider):
    """A provider in a process of its own, which outlives who talks to it."""

    def __init__(self, folder: Path, options: Options) -> None:
        """Start it; returns when it answers."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "options.json").write_text(json.dumps(asdict(options)))
        command = [sys.executable, "-m", "tests.text.provider", str(folder)]
        with (folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        line = self.process.stdout.readline()
        if not line.strip():
            raise RuntimeError(f"the provider did not start:\n{(folder / 'log.txt').read_text()[-2000:]}")
        super().__init__(folder, int(line))

    def kill(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def provider_process(folder: Path, **options: Any) -> Iterator[ProviderProcess]:
    """A provider in a process of its own, that keeps everything below `folder`. options: fields of `Options`."""
    provider = ProviderProcess(folder / "provider", Options(**options))
    try:
        yield provider
    finally:
        provider.kill()


@contextmanager
def provider_thread(folder: Path, **options: Any) -> Iterator[Provider]:
    """The same in a thread of this process: quicker to start, and dies with it."""
    place = folder / "provider"
    place.mkdir(parents=True, exist_ok=True)
    with serving(Service(place, Options(**options)).app()) as port:
        yield Provider(place, port)


def _main(folder: Path) -> None:
    with serving(Service(folder, Options(**json.loads((folder / "options.json").read_text()))).app()) as port:
        print(port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    logging.getLogger("aiohttp").setLevel(logging.ERROR)
    _main(Path(sys.argv[1]))
