"""`run_program`: what comes back, and how it is cut, timed and cancelled."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.sandbox import folder, plans
from nip_ray.sandbox.coverage import GUARDS, table
from nip_ray.sandbox.run import run_program, run_program_async
from nip_ray.settings.sandbox import SandboxSettings
from tests.tiers import thinned

ROOT = Path(__file__).resolve().parents[2]
LONG = SandboxSettings(wall_s=30.0, cpu_s=20)


@pytest.fixture(params=["process", "namespaces"])
def settings(request: pytest.FixtureRequest) -> SandboxSettings:
    try:
        plans.plan_for(request.param)
    except UserError as error:
        pytest.skip(str(error))
    return SandboxSettings(isolation=request.param, wall_s=30.0, cpu_s=20)


def _with(settings: SandboxSettings, **changes: object) -> SandboxSettings:
    return SandboxSettings(**{**vars(settings), **changes})


def test_a_program_reads_writes_and_ends(settings: SandboxSettings) -> None:
    result = run_program("import sys\nprint(sys.stdin.read().upper(), end='')\nprint('é', file=sys.stderr)", "straße\nzwei", settings)
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("ok", 0, "STRASSE\nZWEI", "é\n")
    assert 0 < result.wall_s < 30
    assert result.isolation == settings.isolation
    assert set(result.guards) <= set(GUARDS)
    assert result.reason == ""


@pytest.mark.parametrize(
    ("program", "status", "code"),
    [
        ("raise SystemExit(7)", "error", 7),
        ("1 / 0", "error", 1),
        ("def", "error", 1),
        ("import os; os.kill(os.getpid(), 15)", "killed", -15),
        ("import os; os._exit(0)", "ok", 0),
    ],
)
def test_endings(settings: SandboxSettings, program: str, status: str, code: int) -> None:
    result = run_program(program, settings=settings)
    assert (result.status, result.exit_code) == (status, code)


def test_files_lie_beside_the_program_and_can_be_written(settings: SandboxSettings) -> None:
    program = """
import os
print(sorted(os.listdir()), open("a b", "rb").read())
open("new", "w").write("x")
print(open("new").read(), os.getcwd() == os.environ["HOME"])
"""
    result = run_program(program, settings=settings, files={"a b": b"\0\xff", "c": b""})
    assert result.stdout == "['a b', 'c', 'program.py'] b'\\x00\\xff'\nx True\n"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "program.py", "a\0b"])
def test_names_of_files_are_plain(name: str) -> None:
    with pytest.raises(UserError, match="plain names"):
        run_program("", files={name: b""})


def test_clock(settings: SandboxSettings) -> None:
    result = run_program("print('before', flush=True)\nwhile True: pass", settings=_with(settings, wall_s=2.0))
    assert (result.status, result.stdout) == ("timeout", "before\n")
    assert 2.0 <= result.wall_s < 4.0


def test_processor_time(settings: SandboxSettings) -> None:
    result = run_program("while True: pass", settings=_with(settings, cpu_s=1, wall_s=60.0))
    assert result.status == "timeout"
    assert result.wall_s < 50


def test_output_is_cut(settings: SandboxSettings) -> None:
    limits = _with(settings, output_kb=2)
    result = run_program("print('x' * 5000)", settings=limits)
    assert (result.status, result.stdout) == ("output_limit", "x" * 2000)
    assert run_program("print('x' * 1999)", settings=limits).status == "ok"
    assert len(run_program("import sys\nsys.stderr.write('y' * 5000)", settings=limits).stderr) == 2000


def test_too_many_processes_are_said(settings: SandboxSettings) -> None:
    program = "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)"
    result = run_program(program, settings=_with(settings, processes=4))
    assert (result.status, result.reason) in {("killed", "processes"), ("error", "")}


def test_the_standard_library_works(settings: SandboxSettings) -> None:
    program = """
import asyncio, bisect, collections, concurrent.futures, ctypes, datetime, decimal, fractions, hashlib, heapq, itertools, json, random
import re, sqlite3, statistics, string, tempfile, zlib
async def f(): return await asyncio.to_thread(sum, [1, 2])
print(asyncio.run(f()), datetime.datetime.now().year > 2000, hashlib.sha256(b"").hexdigest()[:4], random.random() < 1)
with tempfile.TemporaryDirectory() as folder, open(folder + "/x", "w") as file: print(file.write("y"))
"""
    result = run_program(program, settings=settings)
    assert result.stdout == "3 True e3b0 True\n1\n", result.stderr


def test_memory_limit(settings: SandboxSettings) -> None:
    result = run_program("x = bytearray(300 << 20)", settings=_with(settings, memory_mb=128))
    assert result.status == "error"
    assert "MemoryError" in result.stderr
    assert run_program("x = bytearray(300 << 20)", settings=_with(settings, memory_mb=512)).status == "ok"


def test_descriptors_and_folders_are_given_back(settings: SandboxSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "place", lambda: str(tmp_path))
    run_program("", settings=settings)
    before = len(os.listdir("/proc/self/fd"))
    for program in ("", "1/0", "import os; os.kill(os.getpid(), 9)", "print('x' * 10**6)"):
        run_program(program, settings=settings)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == []


def test_async_runs_and_cancels(settings: SandboxSettings) -> None:
    async def scenario() -> float:
        results = await asyncio.gather(*(run_program_async(f"print({n})", settings=settings) for n in range(3)))
        assert [result.stdout for result in results] == ["0\n", "1\n", "2\n"]
        tasks = [asyncio.create_task(run_program_async("while True: pass", settings=settings)) for _ in range(8)]
        await asyncio.sleep(0.5)
        start = time.monotonic()
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        return time.monotonic() - start

    assert asyncio.run(scenario()) < 8


def test_auto_takes_namespaces_or_says_once_why_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plans._fallen_back.cache_clear()
    real = plans._best
    monkeypatch.setattr(plans, "_best", lambda level: "refused by the kernel" if level == "namespaces" else real(level))
    assert [run_program("print(1)", settings=LONG).isolation for _ in range(2)] == ["process"] * 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(UserError, match="refused by the kernel"):
        run_program("", settings=_with(LONG, isolation="namespaces"))
    plans._fallen_back.cache_clear()


@pytest.mark.parametrize("missing", thinned([{"landlock": False, "seccomp": False}, {"landlock": False}, {"seccomp": False}], 3))
def test_a_kernel_with_less_still_ends_everything(missing: dict[str, bool]) -> None:
    plan = plans.Plan(namespaces=False, own_user=False, **missing)
    program = """
import os
for _ in range(3):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        while True: pass
while True: pass
"""
    outcome = plans.execute(plans.job(program, "", {}, plan, SandboxSettings(wall_s=1.5)))
    assert outcome.status == "timeout"
    assert outcome.exit_code == -9  # the supervisor said so: everything it had was reaped
    assert not set(missing) & set(outcome.guards)


@pytest.mark.skipif(not Path("/proc/self/ns/user").exists(), reason="a kernel without user namespaces")
def test_namespaces_without_being_root(settings: SandboxSettings) -> None:
    """The way of users who are not root; root can go it, too. The program may signal its supervisor, to no effect."""
    if settings.isolation == "process":
        pytest.skip("another level")
    program = """
import os
for number in (2, 9, 15): os.kill(1, number)
print(os.getuid(), os.getpid(), sorted(os.listdir('/dev')))
open('/box/new', 'w').close()
open('/usr/new', 'w')"""
    outcome = plans.execute(plans.job(program, "", {}, plans.Plan(namespaces=True, own_user=False), settings))
    assert outcome.stdout == b"1000 2 ['full', 'null', 'random', 'urandom', 'zero']\n", outcome.stderr
    assert b"Read-only file system: '/usr/new'" in outcome.stderr or b"No such file" in outcome.stderr


def test_the_document_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")
