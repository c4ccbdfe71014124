"""`run_program` at the level `trusted`: what comes back, how it is cut, timed and cancelled, and what does not get
in."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.sandbox import engines, workers
from nip_ray.sandbox.run import run_program, run_program_async
from nip_ray.sandbox.testing import run_tests
from nip_ray.settings.sandbox import SandboxSettings

SETTINGS = SandboxSettings(wall_s=30.0, cpu_s=20)


def limited(**changes: object) -> SandboxSettings:
    return SandboxSettings(**{**vars(SETTINGS), **changes})  # type: ignore[arg-type]


def test_a_program_reads_writes_and_ends() -> None:
    result = run_program(
        "import sys\nprint(sys.stdin.read().upper(), end='')\nprint('é', file=sys.stderr)", "straße\nzwei", SETTINGS
    )
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("ok", 0, "STRASSE\nZWEI", "é\n")
    assert 0 < result.wall_s < 30
    assert (result.isolation, result.engine, result.reason) == ("trusted", "", "")


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
def test_endings(program: str, status: str, code: int) -> None:
    result = run_program(program, settings=SETTINGS)
    assert (result.status, result.exit_code) == (status, code)


def test_files_lie_beside_the_program_and_can_be_written() -> None:
    program = """
import os
print(sorted(os.listdir()), open("a b", "rb").read())
open("new", "w").write("x")
print(open("new").read(), os.getcwd() == os.environ["HOME"])
"""
    result = run_program(program, settings=SETTINGS, files={"a b": b"\0\xff", "c": b""})
    assert result.stdout == "['a b', 'c', 'program.py'] b'\\x00\\xff'\nx True\n"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "program.py", "a\0b"])
def test_names_of_files_are_plain(name: str) -> None:
    with pytest.raises(UserError, match="plain names"):
        run_program("", files={name: b""})


def test_clock() -> None:
    result = run_program("print('before', flush=True)\nwhile True: pass", settings=limited(wall_s=4.0))
    assert (result.status, result.stdout) == ("timeout", "before\n")
    assert 4.0 <= result.wall_s < 8.0


def test_processor_time() -> None:
    result = run_program("while True: pass", settings=limited(cpu_s=1, wall_s=60.0))
    assert result.status == "timeout"
    assert result.wall_s < 50


def test_output_is_cut() -> None:
    limits = limited(output_kb=2)
    result = run_program("print('x' * 5000)", settings=limits)
    assert (result.status, result.stdout) == ("output_limit", "x" * 2000)
    assert run_program("print('x' * 1999)", settings=limits).status == "ok"
    noisy = run_program("import sys\nsys.stderr.write('y' * 5000)", settings=limits)
    assert (noisy.status, len(noisy.stderr)) == ("ok", 2000)


@pytest.mark.parametrize(
    ("reason", "program", "limits"),
    [
        (
            "processes",
            "import os\nfor _ in range(30):\n    if os.fork() == 0: break\ntime.sleep(60)",
            {"processes": 10},
        ),
        (
            "processes",
            "import threading\nfor _ in range(30): threading.Thread(target=time.sleep, args=(60,)).start()",
            {"processes": 10},
        ),
        (
            "memory",
            (
                "import os\nfor _ in range(6):\n    if os.fork() == 0: break\nx = bytearray(50 << 20)\n"
                "for at in range(0, len(x), 4096): x[at] = 1\ntime.sleep(60)"
            ),
            {"memory_mb": 100},
        ),
        ("disk", "for n in range(9): open(str(n), 'wb').write(b'x' * (1 << 20))\ntime.sleep(60)", {"file_mb": 1}),
    ],
    ids=["processes", "threads", "memory of many", "files"],
)
def test_what_no_limit_of_one_process_bounds(reason: str, program: str, limits: dict[str, int]) -> None:
    result = run_program(f"import time\n{program}", settings=limited(**limits))
    assert (result.status, result.reason, result.exit_code) == ("killed", reason, -9)


def test_a_file_is_bounded() -> None:
    result = run_program("open('x', 'wb').write(b'x' * (2 << 20))", settings=limited(file_mb=1))
    assert "File too large" in result.stderr


def test_memory_limit() -> None:
    result = run_program("x = bytearray(300 << 20)", settings=limited(memory_mb=128))
    assert result.status == "error"
    assert "MemoryError" in result.stderr
    assert run_program("x = bytearray(300 << 20)", settings=limited(memory_mb=512)).status == "ok"


def test_descriptors_and_folders_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "place", lambda: str(tmp_path))
    run_program("", settings=SETTINGS)
    before = len(os.listdir("/proc/self/fd"))
    left = "import os, subprocess, time\nos.mkdir('a', 0)\nos.symlink('/', 'b')\nsubprocess.Popen(['sleep', '60'])"
    for program in ("", "1/0", "import os; os.kill(os.getpid(), 9)", "print('x' * 10**6)", left):
        run_program(program, settings=SETTINGS)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == []


def test_what_a_program_starts_ends_with_it() -> None:
    program = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid)"
    for source, status in ((program, "ok"), (f"{program}\nchild.wait()", "timeout")):
        result = run_program(
            source.replace("print(", "print(flush=True, *[").replace("pid)", "pid])"), settings=limited(wall_s=1.0)
        )
        assert result.status == status
        _wait_for_end(int(result.stdout))


def _wait_for_end(process: int) -> None:
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{process}") and Path(f"/proc/{process}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.02)


def test_nothing_of_ours_is_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "canary-4711")
    kept = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(kept, True)
    program = """
import os, sys
files = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
print(sorted(os.environ), files)
loaded = [n for n in ("numpy", "torch", "nip_ray") if n in sys.modules]
print("canary" in open(f"/proc/{os.getppid()}/environ").read(), loaded)
for name in ("numpy", "torch", "nip_ray"):
    try: __import__(name)
    except ImportError: continue
    print(name)
"""
    try:
        result = run_program(program, settings=SETTINGS)
    finally:
        os.close(kept)
    assert result.stdout == "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR'] []\nFalse []\n", result


def test_sets_are_printed_alike_each_time() -> None:
    program = "print({str(n) for n in range(50)})"
    assert len({run_program(program, settings=SETTINGS).stdout for _ in range(3)}) == 1


def test_a_worker_that_is_lost_costs_its_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "place", lambda: str(tmp_path))
    lost = run_program("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)", settings=SETTINGS)
    assert (lost.status, lost.exit_code) == ("killed", None)
    stopped = run_program("import os, time\nos.kill(os.getppid(), 19)\ntime.sleep(60)", settings=limited(wall_s=0.5))
    assert stopped.status == "timeout"
    assert run_program("print(1)", settings=SETTINGS).stdout == "1\n"
    assert os.listdir(tmp_path) == []


def test_our_own_death_ends_the_program_and_removes_its_folder(tmp_path: Path) -> None:
    note, folders = tmp_path / "note", tmp_path / "folders"
    folders.mkdir()
    program = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = (
        "from nip_ray.sandbox.run import run_program; from nip_ray.settings.sandbox import SandboxSettings as S; "
        f"run_program({program!r}, settings=S(wall_s=900))"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folders)})
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert os.listdir(folders)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    _wait_for_end(int(note.read_text()))
    while os.listdir(folders) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert os.listdir(folders) == []


def test_workers_are_kept_and_a_fork_leaves_them_alone() -> None:
    run_program("", settings=SETTINGS)
    mine = [worker.process.pid for worker in workers._idle]
    assert run_tests("print(1)", [("", "1")], SETTINGS).all_passed
    child = os.fork()
    if child == 0:
        os._exit(len(workers._idle) + (not run_tests("print(1)", [("", "1")], SETTINGS).all_passed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run_program("import os\nprint(os.getppid())", settings=SETTINGS).stdout.strip() in map(str, mine)


def test_a_sandbox_that_cannot_start() -> None:
    job = engines.job_for("", "", {}, SETTINGS, None)
    job.request["command"] = ["/nowhere/python"]
    with pytest.raises(engines.SandboxFailure, match="could not start a program: FileNotFoundError"):
        workers.run_job(job)


def test_async_runs_and_cancels() -> None:
    async def scenario() -> float:
        results = await asyncio.gather(*(run_program_async(f"print({n})", settings=SETTINGS) for n in range(3)))
        assert [result.stdout for result in results] == ["0\n", "1\n", "2\n"]
        tasks = [asyncio.create_task(run_program_async("while True: pass", settings=SETTINGS)) for _ in range(8)]
        await asyncio.sleep(0.5)
        start = time.monotonic()
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        return time.monotonic() - start

    assert asyncio.run(scenario()) < 8
