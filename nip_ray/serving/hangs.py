"""Actors that hang without dying: who gives no sign of life is ended, and Ray makes it again.

Decisions that matter here:
- what is asked for is a sign of the process, not an answer of its work, which may take hours: so it is given on a thread of its own
  (`GROUP`), and somebody who waits for a provider, or is at a long step, gives it all the same;
- an actor is judged from its first sign on: one that is being made waits for room, and imports libraries, as long as that takes;
- time in which nobody looked does not count: this process may have been stopped together with the actor.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from nip_ray.progress import say

GROUP = "life"
_INTERVAL_S = 1.0


def watchable(kind: type) -> Any:
    """`ray.remote(kind)`, of which actors are made that can be watched."""
    options: dict[str, Any] = {"concurrency_groups": {GROUP: 1}}
    return ray.remote(**options)(kind)


class ActorWatch:
    """Watches actors, which are of a `watchable` kind, in a thread, until `close`."""

    def __init__(self, actors: Mapping[str, Any], limit_s: float) -> None:
        """actors: by what they are called in messages. limit_s: how long one may be silent."""
        self._watched = [_Watched(name, actor, limit_s) for name, actor in actors.items()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(_INTERVAL_S) and ray.is_initialized():  # else a look would start another Ray
            for one in self._watched:
                one.look()


class _Watched:
    def __init__(self, name: str, actor: Any, limit_s: float) -> None:
        self._name, self._actor, self._limit_s = name, actor, limit_s
        self._alive, self._asked = False, self._ask()

    def look(self) -> None:
        now = time.monotonic()
        self._silent_s, self._looked = self._silent_s + min(now - self._looked, 2 * _INTERVAL_S), now
        if ray.wait([self._asked], timeout=0)[0]:
            try:
                ray.get(self._asked)
                self._alive = True
            except RayError:  # it is dead, and made again by Ray, or nobody wants it any more
                self._alive = False
            self._asked = self._ask()
        elif self._alive and self._silent_s > self._limit_s:
            say(f"{self._name} gave no sign of life for {self._limit_s:g} s (fault_tolerance.hang_timeout_s) and is ended")
            self._alive = False
            ray.kill(self._actor, no_restart=False)

    def _ask(self) -> Any:
        self._silent_s, self._looked = 0.0, time.monotonic()
        return self._actor.__ray_ready__.options(concurrency_group=GROUP, max_task_retries=0).remote()
