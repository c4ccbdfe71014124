"""Signs of life of a trial's process: a file in its run folder that a thread touches. A process that is stopped touches nothing.

Reports to Tune are no such sign: a last examination, or a stage of language models, may take hours. Clocks of machines differ, so who looks
compares what it saw with what it sees.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ALIVE = ".alive"
BEAT_S = 2.0


def give_signs(folder: Path) -> Callable[[], None]:
    """Touch the file in `folder` every `BEAT_S` seconds, until what this returns is called."""
    file, over = folder / ALIVE, threading.Event()
    file.touch()

    def beat() -> None:
        while not over.wait(BEAT_S):
            with suppress(OSError):  # storage that fails for a moment: the next sign comes
                file.touch()

    threading.Thread(target=beat, name="alive", daemon=True).start()
    return over.set


class SignsOfLife:
    """What a sweep's driver has seen of its trials."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """limit_s: how long a trial may be silent; never less than five signs take."""
        self.limit_s, self._clock = max(limit_s, 5 * BEAT_S), clock
        self._seen: dict[str, tuple[int, float, float]] = {}  # by trial: the file's time, seconds of silence, and when it was looked at

    def hangs(self, trial: str, folder: Path) -> bool:
        """Whether the running trial in `folder` has given no sign for `limit_s` seconds. One that has not given its first is not judged.

        Time in which nobody looked counts as one sign's at most: this process may have been stopped together with the trial.
        """
        try:
            sign = (folder / ALIVE).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        now = self._clock()
        before, silent, looked = self._seen.get(trial, (None, 0.0, now))
        silent = silent + min(now - looked, BEAT_S) if sign == before else 0.0
        self._seen[trial] = sign, silent, now
        return silent > self.limit_s

    def forget(self, trial: str) -> None:
        """It does not run now: what was seen of it says nothing of its next process."""
        self._seen.pop(trial, None)
