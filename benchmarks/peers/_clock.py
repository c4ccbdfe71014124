"""The stopwatch of every script of `benchmarks/peers`: it ends training, and prints the one line of JSON.

It runs in the interpreters of the peers, so it needs the standard library alone.
"""

import argparse
import importlib.metadata
import json
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

WINDOW = 512


class Clock:
    """Times learning: its speed without the first iteration, and the seconds until the mean return of the last
    episodes, sampled as in training, reaches --bar.

    packages: those whose versions are reported. window: episodes whose mean counts.
    """

    def __init__(self, *packages: str, window: int = WINDOW) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--seconds", type=float, default=10.0, help="The least time of learning.")
        parser.add_argument("--cap", type=float, default=60.0, help="The time after which the bar is given up.")
        parser.add_argument("--bar", type=float, default=0.99)
        parser.add_argument("--run", default="", help="A folder of a run, where the script needs one.")
        parser.add_argument("--variant", default="")
        arguments = parser.parse_args()
        self.seed, self.run, self.variant = arguments.seed, arguments.run, arguments.variant
        self.least, self.cap, self.bar = arguments.seconds, arguments.cap, arguments.bar
        self.versions = {package: importlib.metadata.version(package) for package in packages}
        self.returns: deque[float] = deque(maxlen=window)
        self.steps = self.iterations = self.steps_before = 0
        self.solved: tuple[float, int] | None = None
        self.begun = self.warm = self.inside = 0.0

    def start(self) -> None:
        """Called when training begins: everything is imported and built."""
        self.begun = self.warm = time.perf_counter()
        self.inside = 0.0

    def door(self, kind: Any, name: str) -> None:
        """Measure the time in a method of an environment, which is ours and not the peer's."""
        method = getattr(kind, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            found = method(*arguments, **options)
            self.inside += time.perf_counter() - start
            return found

        setattr(kind, name, timed)

    def goes_on(self, steps: int, returns: Iterable[float]) -> bool:
        """Called after an iteration. steps: environment steps in it; returns: of the episodes that ended in it. False
        if training should end."""
        now = time.perf_counter()
        self.steps += steps
        self.iterations += 1
        self.returns.extend(float(one) for one in returns)
        if self.iterations == 1:
            self.warm, self.steps_before = now, self.steps
        full = len(self.returns) == self.returns.maxlen
        if self.solved is None and full and sum(self.returns) / len(self.returns) >= self.bar:
            self.solved = now - self.begun, self.steps
        taken = now - self.begun
        self.last = now
        return taken < self.least or (self.solved is None and taken < self.cap)

    def show(self, **more: object) -> None:
        """Print the result."""
        score = sum(self.returns) / len(self.returns) if self.returns else None
        found = {
            "seed": self.seed,
            "steps_per_s": (self.steps - self.steps_before) / (self.last - self.warm) if self.iterations > 1 else None,
            "solved_s": self.solved and self.solved[0],
            "solved_steps": self.solved and self.solved[1],
            "score": score,
            "iterations": self.iterations,
            "seconds": self.last - self.begun,
            "door_share": self.inside / (self.last - self.begun),
            "versions": self.versions,
        }
        print("\n" + json.dumps({**found, **more}), flush=True)
