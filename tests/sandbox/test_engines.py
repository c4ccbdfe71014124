"""The level `isolated`: the arguments that bwrap, docker and podman get, and what is made of how they end.

No engine is needed: a strict stand-in takes their place. Where bwrap works, it is used as well.
"""

import os
import shutil
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.sandbox import engines
from nip_ray.sandbox.batch import run_batch
from nip_ray.sandbox.result import SandboxFailure
from nip_ray.sandbox.run import run_program
from nip_ray.sandbox.testing import run_calls, run_tests
from nip_ray.settings.sandbox import SandboxSettings

from .idioms import IDIOMS, WRONG

SETTINGS = SandboxSettings(
    isolation="isolated", wall_s=20.0, memory_mb=300, processes=5, file_mb=2, cpu_s=3, output_kb=10
)
STAND_IN = Path(__file__).with_name("stand_in.py")


def put(folder: Path, name: str, script: str = "") -> Path:
    """An executable of this name: the stand-in, or a shell script."""
    path = folder / name
    if script:
        path.write_text(f"#!/bin/sh\n{script}\n")
    else:
        path.write_text(f"#!{sys.executable} -ISB\n{STAND_IN.read_text(encoding='utf-8')}")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_arguments_of_bwrap() -> None:
    command = engines.bwrap_command("/usr/bin/bwrap", "/tmp/f", ["program.py", "a b"], SETTINGS)
    assert command[0] == "/usr/bin/bwrap"
    assert command[-4:] == ["--", "/env/bin/python", "-B", "program.py"]
    assert {"--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"} <= set(command)
    assert {("--cap-drop", "ALL"), ("--chdir", "/box"), ("--proc", "/proc"), ("--remount-ro", "/dev")} <= set(
        pairwise(command)
    )
    assert not {"--share-net", "--bind", "--dev-bind", "--cap-add"} & set(command), "nothing outside can be written"
    seen = {
        where: source
        for option, source, where in zip(command, command[1:], command[2:], strict=False)
        if option == "--ro-bind"
    }
    assert {where: seen[where] for where in ("/env", "/box/program.py", "/box/a b")} == {
        "/env": "/tmp/f/env",
        "/box/program.py": "/tmp/f/box/program.py",
        "/box/a b": "/tmp/f/box/a b",
    }
    others = {where for where, source in seen.items() if not source.startswith("/tmp/f/")}
    assert others == set(engines.readable())
    assert not {"/", "/home", "/root", "/etc", "/usr", "/var", "/tmp", "/proc", os.path.expanduser("~")} & others
    last = max(i for i, word in enumerate(command) if word == "--ro-bind")
    assert command.index("/", last) > last, "what is mounted last is read-only"
    assert command.count("--tmpfs") == command.count("--size") == 3


def test_arguments_of_a_container() -> None:
    command = engines.container_command("docker", "name", "/tmp/f", ["program.py", "data"], SETTINGS)
    assert command[:2] == ["docker", "run"]
    assert command[-4:] == [SETTINGS.container_image, "python", "-B", "program.py"]
    options = command[2:-4]
    assert {"--rm", "--interactive", "--read-only"} <= set(options)
    assert not {"--privileged", "--volume", "-v", "--cap-add", "--device", "--pid"} & set(options)
    assert set(pairwise(options)) >= {
        ("--name", "name"),
        ("--network", "none"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--user", "65534:65534"),
        ("--memory", "300m"),
        ("--memory-swap", "300m"),
        ("--pids-limit", "5"),
        ("--ulimit", "cpu=3:4"),
        ("--ulimit", f"fsize={2 << 20}"),
        ("--ulimit", "core=0"),
        ("--pull", "never"),
        ("--mount", "type=bind,source=/tmp/f/box/program.py,target=/box/program.py,readonly"),
        ("--mount", "type=bind,source=/tmp/f/box/data,target=/box/data,readonly"),
    }


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_programs_and_their_ends(path: Path, engine: str) -> None:
    put(path, engine)
    source = (
        "import os\nopen('new', 'w').close()\nprint(input() * 2, sorted(os.listdir()), 'SECRET' in os.environ)\nexit(3)"
    )
    result = run_program(source, "ab\n", SETTINGS, {'da,t"a': b"1"})
    assert result.stdout == """abab ['da,t"a', 'new', 'program.py'] False\n""", result.stderr
    assert (result.status, result.exit_code, result.isolation, result.engine) == ("error", 3, "isolated", engine)
    assert run_program("print('x' * 20_000)", settings=SETTINGS).status == "output_limit"
    killed = run_program("import os\nos.kill(os.getpid(), 9)", settings=SETTINGS)
    assert (killed.status, killed.exit_code) == ("killed", -9)
    late = run_program("while True: pass", settings=SandboxSettings(isolation="isolated", wall_s=0.7))
    assert late.status == "timeout"
    deadline = time.monotonic() + (0 if engine == "bwrap" else 20)
    while not (told := "kill" in (path / "log").read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert told == (engine != "bwrap"), "a container is killed by its name, where it has not ended"
    assert run_tests("print(2 * int(input()))", [("1", "2"), ("2", "5")], SETTINGS).statuses == ("passed", "failed")
    assert run_calls("def f(x): return [x]", "f", [[1]], SETTINGS) == [("value", [1])]


def test_bwrap_comes_first_and_what_does_not_work_is_passed_over(path: Path) -> None:
    put(path, "podman")
    put(path, "docker")
    assert run_program("", settings=SETTINGS).engine == "docker"
    put(path, "docker", "echo 'docker: Cannot connect to the Docker daemon' >&2; exit 125")
    engines._working.cache_clear()
    assert run_program("", settings=SETTINGS).engine == "podman"
    put(path, "bwrap")
    engines._working.cache_clear()
    assert run_program("", settings=SETTINGS).engine == "bwrap"


def test_the_error_where_none_works(path: Path) -> None:
    put(path, "bwrap", "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1")
    for run in (
        lambda: run_program("", settings=SETTINGS),
        lambda: run_tests("print(1)", [("", "1")] * 3, SETTINGS),
        lambda: run_calls("def f(): return 1", "f", [[]], SETTINGS),
    ):
        with pytest.raises(
            UserError,
            match=r"isolation: isolated needs bwrap.*No permissions.*docker is not on the PATH.*podman is not",
        ):
            run()


def test_levels_that_are_not_there() -> None:
    with pytest.raises(UserError, match="isolation: namespaces is not a level; expected: trusted or isolated"):
        run_program("", settings=SandboxSettings(isolation="namespaces"))  # type: ignore[arg-type]
    with (
        pytest.warns(DeprecationWarning, match="take run_calls"),
        pytest.raises(UserError, match="run_batch runs trusted programs; take run_calls"),
    ):
        run_batch(["def f(): return 1"], "f", [[]], settings=SETTINGS)


def test_batches_as_they_were_run_before() -> None:
    with pytest.warns(DeprecationWarning, match="take run_calls"):
        found = run_batch(["def f(x): return x + 1", "def f(x): return 1 // 0"], "f", [[1], [2]])
    assert found == [[("value", 2), ("value", 3)], [("error", "ZeroDivisionError")] * 2]


def test_an_engine_that_fails_later_is_told_from_a_program_that_imitates_it(path: Path) -> None:
    put(path, "bwrap")
    imitation = "import sys\nsys.stderr.write('bwrap: no')\nsys.exit(1)"
    result = run_program(imitation, settings=SETTINGS)
    assert (result.status, result.exit_code) == ("error", 1)
    put(path, "bwrap", "echo 'bwrap: out of namespaces' >&2; exit 1")
    with pytest.raises(SandboxFailure, match=r"bwrap did not start a program .*out of namespaces"):
        run_program("print(1)", settings=SETTINGS)


def test_the_real_bwrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every idiom, and what an isolated program cannot reach."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("bwrap is not installed")
    (tmp_path / "bwrap").symlink_to(bwrap)
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        engines.engine_for(SETTINGS)
    except UserError as error:
        pytest.skip(str(error))
    settings = SandboxSettings(isolation="isolated", wall_s=20.0, cpu_s=20)
    for name, source in IDIOMS.items():
        assert run_tests(source, [("21\n", "42")], settings).statuses == ("passed",), name
    for name, (source, status) in WRONG.items():
        assert run_tests(source, [("21\n", "42")], settings).statuses == (status,), name
    (tmp_path / "secret").write_text("canary")
    attempts = f"""
import os, socket
for attempt in (
    lambda: open({str(tmp_path / "secret")!r}).read(), lambda: open("/etc/passwd").read(),
    lambda: os.kill({os.getpid()}, 0),
    lambda: open("/proc/{os.getpid()}/environ").read(), lambda: open("/new", "w"), lambda: open("/env/new", "w"),
    lambda: open(os.__file__, "a"), lambda: open("program.py", "a"),
    lambda: socket.create_connection(("1.1.1.1", 53), 1),
    lambda: os.setuid(0), lambda: os.mount,
):
    try: print("HARM", attempt())
    except (OSError, AttributeError): pass
print(os.listdir("/proc/1") != [], sum(name.isdigit() for name in os.listdir("/proc")))
"""
    result = run_program(attempts, settings=settings)
    assert result.stdout == "True 2\n", result
    assert run_program("bytearray(2 << 30)", settings=settings).status == "error"
    spread = "import time\nfor n in range(100):\n    open(str(n), 'wb').write(b'x' * (1 << 20))"
    assert "No space left" in run_program(spread, settings=SandboxSettings(isolation="isolated", file_mb=1)).stderr
