"""Output for people is best effort: a terminal that is gone, a full disk or a closed stream ends nothing that runs."""

import errno
import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nip_ray.cluster.interrupts import Interrupted, finishing, interruptible, safe_point
from nip_ray.errors import TrainingError, UserError
from nip_ray.progress import BestEffort, progress_line, say
from nip_ray.runs.experiment import run_experiment
from tests.runs.small import MESSAGES, small

ROOT = Path(__file__).resolve().parents[1]


class Broken(io.StringIO):
    """Takes nothing. tty: whether it says that it is a terminal."""

    def __init__(self, tty: bool = False) -> None:
        super().__init__()
        self.tty = tty

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def isatty(self) -> bool:
        return self.tty


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    "stderr", [None, Broken(), Broken(tty=True), closed()], ids=["none", "pipe", "terminal", "closed"]
)
def test_what_a_run_says_can_get_lost(monkeypatch: pytest.MonkeyPatch, stderr: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    say("a word")
    with progress_line("run", 0, 3, quiet=False) as report:
        for done in (0, 1, 2, 3):
            report(done, {"stage": "training", "eval/verifier/accuracy": done / 3})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_shows_the_count_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    with progress_line("quickstart", 0, 1000, quiet=False) as report:
        seen = terminal.getvalue()
        report(1000, {"stage": "evaluating"})
    assert "0/1000" in seen
    assert "-:--:-- left" in seen
    last = terminal.getvalue().rpartition("1000/1000")[2]
    assert "evaluating" in last
    assert "left" not in last


def test_a_run_whose_terminal_is_gone_is_trained_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken(tty=True))
    run_experiment(small("iterations=2", base=MESSAGES), tmp_path / "run")
    assert {"evaluation.json", "report.html"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_output_that_is_needed_is_missed_until_it_is_not() -> None:
    stream = BestEffort(Broken(), needed=True)
    assert stream.write("") == 0
    with pytest.raises(UserError, match=r"standard output cannot be written \(Input/output error\)"):
        stream.write("a table")
    assert BestEffort(stream).write("a table") == 7


def verb(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nip_ray.cli", *args], cwd=ROOT, text=True, timeout=120, **options)


def test_a_warning_is_one_line() -> None:
    source = "import warnings; from nip_ray import cli; cli.app = lambda **_: warnings.warn('no price'); cli.main()"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "warning: no price\n")


def test_a_command_whose_output_is_lost_says_so_in_a_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        made = verb("--version", stdout=full, stderr=subprocess.PIPE)
    assert (made.returncode, made.stderr) == (2, "error: standard output cannot be written (No space left on device)\n")
    shell = subprocess.run(["sh", "-c", f"{sys.executable} -m nip_ray.cli list . >&- 2>&-"], cwd=ROOT, timeout=120)
    assert shell.returncode == 0


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    source = (
        "import os; from nip_ray.progress import open_standard_files; open_standard_files(); print(os.open('/dev/zero',"
        " os.O_RDONLY))"
    )
    made = subprocess.run(
        ["sh", "-c", f'{sys.executable} -c "{source}" 2>&-'], cwd=ROOT, capture_output=True, text=True
    )
    assert int(made.stdout) > 2


# ------------------------------------------------------------------------------------------------------------------
# signals


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_sighup_is_sigterm_unless_it_is_ignored(hangup: None) -> None:
    with pytest.raises(Interrupted) as caught, interruptible():
        signal.raise_signal(signal.SIGHUP)
    assert caught.value.signum == signal.SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(signal.SIGHUP)  # as under nohup


def test_a_finishing_block_within_another_ends_nothing_early(hangup: None) -> None:
    done = []

    def work() -> None:
        with interruptible(), finishing():
            with finishing():
                signal.raise_signal(signal.SIGHUP)
                done.append("inner")
            done.append("outer")

    with pytest.raises(Interrupted):
        work()
    assert done == ["inner", "outer"]
    with finishing():  # by a caller of its own, later in this process
        safe_point()


BUSY = """
import sys, time
from nip_ray import cli
from nip_ray.cli import common

def teardown():
    print("ready", flush=True)
    time.sleep(30)

@common.app.command("stand-in")
def stand_in():
    with common.errors(teardown):
        raise KeyboardInterrupt

sys.argv = ["nip-ray", "stand-in"]
cli.main()
"""


def test_further_interrupts_leave_no_traceback() -> None:
    made = subprocess.Popen(
        [sys.executable, "-c", BUSY], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    for _ in range(4):
        made.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, said = made.communicate(timeout=20)
    assert (made.returncode, said) == (130, "")


def _slow() -> None:
    raise Exception("The current node timed out during startup. This could happen because ...")  # as Ray does


@pytest.mark.parametrize("end", [lambda: signal.raise_signal(signal.SIGHUP), _slow])
def test_a_start_of_ray_that_fails_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, hangup: None, end: Callable[[], None]
) -> None:
    ray = pytest.importorskip("ray")
    from nip_ray.cluster import ray_session

    started: list[subprocess.Popen[bytes]] = []

    def init(**options: Any) -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        end()

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises((Interrupted, TrainingError)) as caught, interruptible():
        ray_session.start_local_ray()
    if isinstance(caught.value, Interrupted):
        assert (caught.value.signum, caught.value.safe) == (signal.SIGHUP, False)
    else:
        assert "within 30 seconds" in str(caught.value)
    assert started[0].wait(timeout=10) == -signal.SIGKILL
