"""Detection of processes that hang without dying: limits of silence, signs of life, and watching for them.

Decisions that matter here:
- a process that is stopped or dead-locked looks like a slow one. If an answer is awaited, the limit follows from
  earlier iterations (`hang_limit_s`). If its work may take hours (waiting for a provider, a final evaluation), it gives
  signs of life on a separate thread: an actor by answering in the concurrency group `GROUP`, a trial by touching a file
  in its run folder;
- a process is judged from its first sign on: one that is starting waits for room, and imports libraries, for any time;
- unobserved time does not count: this process may have been stopped together with the other;
- clocks of machines differ, so a sign is compared with the one before, never with the local time.
"""

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from nip_ray.progress import say

REMEMBERED = 101
"""Number of iterations for the median."""
GROUP = "life"
ALIVE = ".alive"
BEAT_S = 2.0
"""Seconds between two signs of a trial."""
_LOOK_S = 1.0  # between two queries of an actor
_TIMES_MEDIAN, _TIMES_AT_FIRST = 5, 10


def hang_limit_s(least_s: float, durations_s: Collection[float]) -> float:
    """Seconds to wait for an answer: `least_s`, or five times the median of the iterations so far if that is longer.
    Before the first iteration is over its duration is unknown (data are read, kernels compiled): then ten times
    `least_s`."""
    return max(least_s, _TIMES_MEDIAN * median(durations_s)) if durations_s else _TIMES_AT_FIRST * least_s


class Silence:
    """The observed silence of each of several processes."""

    def __init__(self, limit_s: float, step_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """limit_s: maximum silence. step_s: maximum counted time between two observations."""
        self.limit_s, self._step_s, self._clock = limit_s, step_s, clock
        # name -> its newest sign, seconds of silence, time of the last observation
        self._seen: dict[str, tuple[Hashable, float, float]] = {}

    def too_long(self, name: str, sign: Hashable) -> bool:
        """Observe the process `name`; return True if silent for too long. sign: its newest, None before its first."""
        if sign is None:
            self.forget(name)
            return False
        now = self._clock()
        before, silent, looked = self._seen.get(name, (None, 0.0, now))
        silent = silent + min(now - looked, self._step_s) if sign == before else 0.0
        self._seen[name] = sign, silent, now
        return silent > self.limit_s

    def forget(self, name: str) -> None:
        """`name` is not running: forget its observations, which do not apply to its next process."""
        self._seen.pop(name, None)


def give_signs(folder: Path) -> Callable[[], None]:
    """Touch the file `ALIVE` in a trial's `folder` every `BEAT_S` seconds, until the returned function is called."""
    file, over = folder / ALIVE, threading.Event()
    file.touch()

    def beat() -> None:
        while not over.wait(BEAT_S):
            with suppress(OSError):  # storage that fails for a moment: the next sign follows
                file.touch()

    threading.Thread(target=beat, name="alive", daemon=True).start()
    return over.set


def trial_silence(limit_s: float) -> Silence:
    """For trials, with `last_sign`; their limit is at least the time of five signs."""
    return Silence(max(limit_s, 5 * BEAT_S), BEAT_S)


def last_sign(folder: Path) -> int | None:
    """The newest sign of the trial in `folder`; None before its first."""
    try:
        return (folder / ALIVE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def watchable(kind: type) -> Any:
    """`ray.remote(kind)`, for actors that can be watched."""
    import ray

    options: dict[str, Any] = {"concurrency_groups": {GROUP: 1}}
    return ray.remote(**options)(kind)


class ActorWatch:
    """Watches actors of a `watchable` kind, in a thread, until `close`: a hanging one is ended, and Ray restarts it."""

    def __init__(self, actors: Mapping[str, Any], limit_s: float) -> None:
        """actors: by their names in messages. limit_s: maximum silence."""
        self._actors, self._silence = dict(actors), Silence(limit_s, 2 * _LOOK_S)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        import ray
        from ray.exceptions import RayError

        def ask(actor: Any) -> Any:
            return actor.__ray_ready__.options(concurrency_group=GROUP, max_task_retries=0).remote()

        asked = {name: ask(actor) for name, actor in self._actors.items()}
        answers: dict[str, int | None] = dict.fromkeys(asked)
        while not self._over.wait(_LOOK_S) and ray.is_initialized():  # else a query would start another Ray
            for name, actor in self._actors.items():
                if ray.wait([asked[name]], timeout=0)[0]:
                    try:
                        ray.get(asked[name])
                        answers[name] = (answers[name] or 0) + 1
                    except RayError:  # it is dead, and restarted by Ray, or no longer needed
                        answers[name] = None
                    asked[name] = ask(actor)
                if self._silence.too_long(name, answers[name]):
                    limit = f"{self._silence.limit_s:g} s (fault_tolerance.hang_timeout_s)"
                    say(f"{name} gave no sign of life for {limit} and is ended")
                    answers[name] = None
                    ray.kill(actor, no_restart=False)
