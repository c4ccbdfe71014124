"""The stopwatch of poker: policies as tables at growing times, and their exploitability by OpenSpiel's C++.

A table has, for "player|card|public card|moves of betting rounds", the probability of each legal move; cards are ranks,
moves 0 (pass, fold), 1 (bet in Kuhn's, check or call in Leduc) and 2 (raise). Measuring is not counted.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

Table = Mapping[str, Mapping[int, float]]
BARS = (0.05, 0.02)


class Watch:
    """Times learning: `due` when the next table should be kept. game: "kuhn_poker" or "leduc_poker"."""

    def __init__(self, *packages: str) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--game", default="kuhn_poker")
        parser.add_argument("--seconds", type=float, default=30.0)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--variant", default="")
        arguments = parser.parse_args()
        self.game, self.seconds, self.variant = arguments.game, arguments.seconds, arguments.variant
        self.seed = arguments.seed
        self.versions = {package: importlib.metadata.version(package) for package in packages}
        self.tables: list[tuple[float, Table]] = []
        self.spent = 0.0
        self.begun = 0.0

    def start(self) -> None:
        """Called when learning begins."""
        self.begun = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds of learning."""
        return time.perf_counter() - self.begun - self.spent

    @property
    def over(self) -> bool:
        """True when the time is up."""
        return self.now >= self.seconds

    @property
    def due(self) -> bool:
        """True a twentieth of the last time after it, and at the end."""
        return not self.tables or self.over or self.now >= max(self.tables[-1][0] * 1.05, self.tables[-1][0] + 0.002)

    def keep(self, table: Table) -> None:
        """Keep a table; `leave` and `back` around its making leave that out of the time."""
        self.tables.append((self.left, table))
        self.spent += time.perf_counter() - self.stopped

    def stop(self) -> None:
        """Stop the watch, until `keep`."""
        self.left, self.stopped = self.now, time.perf_counter()

    def show(self, **more: object) -> None:
        """Print the result."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tables.json"
            path.write_text(json.dumps([table for _, table in self.tables]))
            referee = [
                os.environ.get("PEERS_REFEREE", sys.executable),
                str(Path(__file__).with_name("poker_referee.py")),
            ]
            made = subprocess.run([*referee, self.game, str(path)], capture_output=True, text=True, check=True)
        found = json.loads(made.stdout.splitlines()[-1])
        curve = [(round(at, 4), value) for (at, _), value in zip(self.tables, found)]
        reached = {f"to_{bar:g}": next((at for at, value in curve if value <= bar), None) for bar in BARS}
        last = {"final": curve[-1][1], "seconds": curve[-1][0], "curve": curve[:: max(1, len(curve) // 20)]}
        print("\n" + json.dumps({"seed": self.seed, **reached, **last, "versions": self.versions, **more}), flush=True)
