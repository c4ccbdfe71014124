"""SIGTERM, SIGHUP and Ctrl-C: work is brought to a resumable point, and ends within seconds.

Decisions that matter here:
- schedulers (Ray jobs, Kubernetes, Slurm) send SIGTERM and kill soon after. So work in a `finishing` block gets
  `GRACE_S` seconds to reach a safe point, where a checkpoint is complete; after that it is interrupted at once;
- Ray installs its own handlers whenever a process joins it, the Python ones seconds before that: while `kept` holds
  they are not installed. The one in C++ prints a stack and aborts; the end of `kept` restores ours. An existing one of
  Ray's is replaced. A handler set by the calling program is left alone;
- a blocking call of Ray's raises a plain KeyboardInterrupt in place of ours: the last signal tells which it was;
- a second signal interrupts at once;
- a closed terminal sends SIGHUP. If it is ignored (`nohup`) it stays ignored, and the run continues.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

GRACE_S = 8.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_installed: set[int] = set()
_finishing = False
_noted: int | None = None  # received while work was finishing
_last: int | None = None


class Interrupted(KeyboardInterrupt):
    """signum: the signal that ended the work. safe: True if it ended at a safe point, so its state can be saved."""

    def __init__(self, signum: int, safe: bool = False) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum, self.safe = signum, safe


@contextmanager
def interruptible() -> Iterator[None]:
    """While this holds, all three signals raise `Interrupted` in the main thread. No effect within another such block,
    or in another thread."""
    global _noted, _last
    if _installed or threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    _noted = _last = None
    _installed.update(
        number
        for number, handler in before.items()
        if handler in (signal.default_int_handler, signal.SIG_DFL)
        or str(getattr(handler, "__module__", "")).startswith("ray.")
    )
    _install()
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Interrupted) or _last is None:
            raise
        raise Interrupted(_last) from interrupt
    finally:
        for number in _installed:
            signal.signal(number, before[number])
        _installed.clear()
        _noted = _last = None  # a driver that is called directly later also checks for a signal


def _install() -> None:
    for number in _installed:
        signal.signal(number, _handle)


@contextmanager
def kept() -> Iterator[None]:
    """While this holds our handlers, if installed, are not replaced; at its end they are restored, whatever was set
    outside Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    set_handler = signal.signal
    signal.signal = lambda number, handler: (
        signal.getsignal(number) if number in _installed else set_handler(number, handler)
    )
    try:
        yield
    finally:
        signal.signal = set_handler
        _install()


@contextmanager
def finishing() -> Iterator[None]:
    """A signal in this block is raised at its end, or at a `safe_point` in it; after `GRACE_S` seconds anywhere. Within
    another such block it has no effect: the outer one's end counts."""
    global _finishing
    if _finishing:
        yield
        return
    _finishing = True
    try:
        yield
        safe_point()
    except Exception as error:
        if _noted is not None:  # a failure now may have the same cause, and is not retried
            raise Interrupted(_noted) from error
        raise
    finally:
        _finishing = False
        if _noted is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


def safe_point() -> None:
    """Raise Interrupted if a signal has arrived."""
    if _noted is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Interrupted(_noted, safe=True)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _noted, _last
    _last = signum
    if _finishing and _noted is None:
        _noted = signum
        signal.signal(signal.SIGALRM, _cut_off)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        return
    raise Interrupted(signum)


def _cut_off(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(_noted or signal.SIGTERM)
