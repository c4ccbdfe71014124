"""The cost of running a program: medians of whole runs.

python benchmarks/sandbox.py --repeat 40
"""

import argparse
import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from _common import machine, show, timed

from nip_ray.errors import UserError
from nip_ray.sandbox.run import run_program
from nip_ray.sandbox.testing import run_tests
from nip_ray.sandbox.workers import executable
from nip_ray.settings.sandbox import SandboxSettings


def main() -> None:
    """Time all of them in turns, so that other load affects all alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=40)
    repeat = parser.parse_args().repeat
    print(machine())
    ways: dict[str, Callable[[], Any]] = {"bare interpreter": _bare}
    for level in ("trusted", "isolated"):
        run = partial(run_program, "pass", settings=SandboxSettings(isolation=level))
        try:
            assert run().status == "ok"
        except UserError as error:
            print(error)
            continue
        ways[level] = run
    times = {name: [] for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            times[name].append(timed(way) * 1e3)
    for name, found in times.items():
        show(
            f"sandbox: {name}",
            {**_figures(found), "over_bare_ms": round(_median(found) - _median(times["bare interpreter"]), 1)},
        )
    for name in ways.keys() - {"bare interpreter"}:
        settings = SandboxSettings(isolation=name)
        seconds = timed(lambda settings=settings: [run_program("pass", settings=settings) for _ in range(100)])
        show(f"sandbox: 100 programs in a row, {name}", {"seconds": round(seconds, 2)})
    _show_rates()


def _bare() -> None:
    subprocess.run([executable(), "-I", "-S", "-c", "pass"], env={}, check=True)


def _median(found: list[float]) -> float:
    return statistics.median(found)


def _figures(found: list[float]) -> dict[str, Any]:
    quarters = statistics.quantiles(found, n=4)
    return {
        "median_ms": round(_median(found), 1),
        "quartiles_ms": [round(quarters[0], 1), round(quarters[2], 1)],
        "min_ms": round(min(found), 1),
    }


def _show_rates() -> None:
    tests = [(str(number), str(number * number)) for number in range(20)]
    seconds = timed(lambda: run_tests("print(int(input()) ** 2)", tests))
    show("sandbox: tests of one solution", {"tests": 20, "seconds": round(seconds, 3)})


if __name__ == "__main__":
    main()
