"""Hostile programs at both levels: each ends in time, harms nothing, leaves nothing; the table of coverage says what is held."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.sandbox import folder
from nip_ray.sandbox.coverage import THREATS, guards_of, holds
from nip_ray.sandbox.result import SandboxResult
from nip_ray.sandbox.run import run_program
from nip_ray.settings.sandbox import SandboxSettings

from .hostile import PROGRAMS, Hostile

SETTINGS = SandboxSettings(wall_s=15.0, cpu_s=15, memory_mb=128, file_mb=4, output_kb=64)
SHORT_S = 0.5
LATE_S = 0.5
BUSY_MACHINE_S = 1.5
"""What a machine that does five other things may add to the promised half second."""
SECRET = "canary-secret-4711"
KEY = 0x6E697021


@dataclass(frozen=True)
class World:
    """What hostile programs may find outside, and what they must leave as it is."""

    outside: Path
    victim: subprocess.Popen[bytes]
    port: int
    service: str
    connections: list[object]

    @property
    def canary(self) -> Path:
        """A file that nobody should touch."""
        return self.outside / "canary"

    def state(self) -> tuple[object, ...]:
        """Everything that has to stay."""
        found = self.canary.stat()
        content = self.canary.read_text()
        names = sorted(os.listdir(self.outside)), sorted(name for name in os.listdir("/dev/shm") if "nip-hostile" in name)
        return content, found.st_mode, found.st_mtime_ns, found.st_uid, found.st_size, found.st_nlink, names, _segments()

    def words(self) -> str:
        """What a program is told."""
        facts = {"canary": str(self.canary), "secret": str(self.outside / "secret"), "outside": str(self.outside), "key": KEY}
        return dumps(facts | {"victim": self.victim.pid, "parent": os.getpid(), "port": self.port, "service": self.service}) + "\n"


def _segments() -> list[str]:
    lists = [Path(f"/proc/sysvipc/{name}").read_text().splitlines() for name in ("shm", "msg", "sem") if Path("/proc/sysvipc").exists()]
    return [line for lines in lists for line in lines[1:] if line.split()[0] == str(KEY)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="nipout") as path, socket.create_server(("127.0.0.1", 0)) as server:
        outside, connections = Path(path), []
        outside.chmod(0o777)
        (outside / "canary").write_text("untouched")
        (outside / "secret").write_text(SECRET)
        service = socket.socket(socket.AF_UNIX)
        service.bind(str(outside / "service"))
        service.listen()
        threading.Thread(target=_accept, args=(server, connections), daemon=True).start()
        victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env={"SECRET": SECRET})
        try:
            yield World(outside, victim, server.getsockname()[1], str(outside / "service"), connections)
        finally:
            victim.kill()
            victim.wait()
            service.close()


def _accept(server: socket.socket, connections: list[object]) -> None:
    while True:
        try:
            connection, address = server.accept()
        except OSError:
            return
        connections.append(address)
        connection.close()


@pytest.fixture(scope="module", autouse=True)
def _orphans_come_to_us() -> Iterator[None]:
    """A process that outlives its supervisor becomes our child, and so shows."""
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)
    yield
    prctl(36, 0, 0, 0, 0)


def _children() -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(os.getpid()):
            found.add(int(name))
    return found


@pytest.fixture(scope="module", params=["process", "namespaces"])
def level(request: pytest.FixtureRequest) -> tuple[str, set[str], float]:
    """A level, what guards there, and the seconds that a program that does nothing takes."""
    try:
        results = [run_program("", settings=replace(SETTINGS, isolation=request.param)) for _ in range(3)]
    except UserError as error:
        pytest.skip(str(error))
    assert [result.status for result in results] == ["ok"] * 3
    return request.param, guards_of(results[0]), sorted(result.wall_s for result in results)[1]


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which folders of programs are made: where they are made by default, but with nothing else in it."""
    with tempfile.TemporaryDirectory(prefix="nipscratch", dir=folder.place()) as path:
        monkeypatch.setattr(folder, "place", lambda: path)
        yield Path(path)


@pytest.mark.parametrize("hostile", PROGRAMS, ids=lambda hostile: hostile.name)
def test_hostile(hostile: Hostile, level: tuple[str, set[str], float], world: World, scratch: Path) -> None:
    isolation, guards, usual_s = level
    if not holds(guards, hostile.threat):
        pytest.skip(f"the table says that nothing here ({', '.join(sorted(guards))}) holds: {hostile.threat}")
    settings = replace(SETTINGS, isolation=isolation, wall_s=SHORT_S + usual_s if hostile.endless else SETTINGS.wall_s)
    before, children, connected = world.state(), _children(), len(world.connections)
    start = time.monotonic()
    result = run_program(hostile.source, world.words(), settings)
    took = time.monotonic() - start
    assert took <= settings.wall_s + LATE_S + BUSY_MACHINE_S + 3 * usual_s, f"ended after {took:.2f} s"
    _check_result(hostile, result, isolation)
    assert world.state() == before
    assert len(world.connections) == connected
    assert world.victim.poll() is None
    assert _children() <= children
    assert os.listdir(scratch) == []


def _check_result(hostile: Hostile, result: SandboxResult, isolation: str) -> None:
    assert result.status in hostile.ends, result
    assert "HARM" not in result.stdout, result.stdout
    mistakes = re.findall(r"(?:refused: )?(?:Name|Type|Attribute|Syntax|Indentation|UnboundLocal)Error.*", result.stdout + result.stderr)
    assert not mistakes, "the hostile program itself is wrong"
    assert SECRET not in result.stdout + result.stderr
    assert result.isolation == isolation
    assert len(result.stdout.encode()) <= 3 * SETTINGS.output_kb * 1000
    if hostile.name == "forge_report":
        assert result.exit_code == 3
    if result.status == "ok":
        assert result.exit_code == 0


def test_there_are_programs_for_every_threat_that_is_held() -> None:
    assert {threat.key for threat in THREATS if threat.held_by} == {hostile.threat for hostile in PROGRAMS}
    assert len(PROGRAMS) >= 40
    assert len({hostile.name for hostile in PROGRAMS}) == len(PROGRAMS)


def test_our_own_death_ends_the_program(level: tuple[str, set[str], float], tmp_path: Path) -> None:
    code = (
        "from nip_ray.sandbox.run import run_program; from nip_ray.settings.sandbox import SandboxSettings as S; "
        f"print(run_program('import time; time.sleep(600)', settings=S(wall_s=900, isolation={level[0]!r})))"
    )
    before = _children()
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)})
    deadline = time.monotonic() + 60
    while not _family(owner.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2 * level[2] + 0.5)
    family = _family(owner.pid)
    assert family, "the program did not start"
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    while (_children() - before) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    assert not [process for process in family if os.path.exists(f"/proc/{process}")]


def _family(root: int) -> list[int]:
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
