"""Play runs of language agents in simulated worlds, two processes at a time.

    make simulate                               # 10,000 seeds
    make simulate ARGS="--seeds 0-499,1234"     # some
    make simulate ARGS="--seed 42"              # one, with all that happens in it

Prints the seeds in which something was seen that must not be, and what share was reached of the places where something
can go wrong. Exits with 1 where a seed failed, or a place was not reached by 10,000 seeds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

PROCESSES = 2
CHUNK = 1000
ENOUGH = 10_000
OFTEN = 200
"""A place that only disturbed runs come to, and so many of them do, has to be reached too."""
FAILURES = 5
"""After so many the rest is not played."""


def play(seeds: list[int]) -> dict[str, Any]:
    """In a process of its own: what was struck, what happened, and what failed, as JSON has it."""
    from tests.simulation import world

    output = os.dup(1)
    world.install()
    struck: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    failed: dict[int, str] = {}
    late: Counter[str] = Counter()
    for seed in seeds:
        try:
            played = world.simulate(seed)
        except (world.Violation, Exception) as error:
            failed[seed] = f"{type(error).__name__}: {error}"
            continue
        struck.update(f"{played.plan.variant}: {' '.join(place)}: {action}" for place, action in played.struck)
        happened.update(played.happened)
        variant = played.plan.variant
        extra = [place for place in played.places if place not in world.reference(variant).places]
        late.update(f"{variant}: {' '.join(place)}: {action}" for place in extra for action in world.actions(place))
        happened.update(f"provider: {name}" for name in played.provider.seen)
        for job in played.provider.state.jobs.values():
            happened["provider: job fails"] += job.fate == "job_failed"
            happened["provider: job is cancelled"] += job.fate == "job_cancelled"
            happened["provider: job takes long"] += job.ends - job.begun > 2 * played.provider.options.job_s
    points = [
        f"{variant}: {' '.join(place)}: {action}"
        for variant in world.VARIANTS
        for place, action in world.reference(variant).points()
    ]
    faults = [f"provider: {name}" for name in world.FAULTS]
    made = {"points": points, "struck": struck, "happened": happened, "failed": failed, "faults": faults, "late": late}
    os.write(output, json.dumps(made).encode())
    return made


def one(seed: int) -> int:
    """Print all that happens under a seed."""
    from tests.simulation import world

    world.install(quiet=False)
    try:
        world.simulate(seed, print)
    except world.Violation as error:
        print(f"seed {seed}: {error}")
        return 1
    return 0


def many(seeds: list[int]) -> int:
    """Play these seeds; the exit code."""
    began = time.monotonic()
    size = min(CHUNK, -(-len(seeds) // PROCESSES))
    chunks = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    running: dict[subprocess.Popen[bytes], list[int]] = {}
    struck: Counter[str] = Counter()
    late: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    failed: dict[str, str] = {}
    points: list[str] = []
    faults: list[str] = []
    played = 0
    while (chunks and len(failed) < FAILURES) or running:
        while chunks and len(running) < PROCESSES and len(failed) < FAILURES:
            chunk = chunks.pop(0)
            command = [sys.executable, "-m", "tests.simulation", "--play", ",".join(map(str, chunk))]
            running[subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": "0"})] = (
                chunk
            )
        process = next(iter(running))
        told, _ = process.communicate()
        chunk = running.pop(process)
        if process.returncode:
            raise SystemExit(f"the process with the seeds {chunk[0]} to {chunk[-1]} broke down")
        made = json.loads(told)
        points, faults, played = made["points"], made["faults"], played + len(chunk)
        struck.update(made["struck"])
        late.update(made["late"])
        happened.update(made["happened"])
        failed |= made["failed"]
        for seed, what in made["failed"].items():
            print(f'FAILED seed {seed}: {what}\n       make simulate ARGS="--seed {seed}"', flush=True)
    places = [*points, *(point for point, worlds in late.items() if worlds >= OFTEN or struck[point])]
    missing = [*(point for point in places if not struck[point]), *(fault for fault in faults if not happened[fault])]
    total = len(places) + len(faults)
    print(f"{played} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    beside = f"{len(places) - len(points)} of them at places that only disturbed runs come to"
    print(
        f"{total - len(missing)} of {total} places and faults reached ({(total - len(missing)) / max(total, 1):.1%}),"
        f" {beside}"
    )
    print(", ".join(f"{name} {count}" for name, count in sorted(happened.items())))
    if missing and played >= ENOUGH:
        print("not reached: " + "; ".join(missing))
    return 1 if failed or (missing and played >= ENOUGH) else 0


def main() -> int:
    """See the top of this file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Play runs of language agents in simulated worlds."
    )
    parser.add_argument("--seed", type=int, help="play this one, and print all that happens")
    parser.add_argument(
        "--seeds",
        default=f"0-{ENOUGH - 1}",
        metavar="SEEDS",
        help="play these, as in 0-499,1234 (default: %(default)s)",
    )
    parser.add_argument("--play", metavar="SEEDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        if os.environ.get("PYTHONHASHSEED") != "0":  # sets have an order of their own in every process
            os.execve(
                sys.executable,
                [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
                {**os.environ, "PYTHONHASHSEED": "0"},
            )
        return one(arguments.seed)
    bounds = [part.split("-") for part in (arguments.play or arguments.seeds).split(",")]
    seeds = [seed for bound in bounds for seed in range(int(bound[0]), int(bound[-1]) + 1)]
    if arguments.play:
        play(seeds)
        return 0
    return many(seeds)


if __name__ == "__main__":
    sys.exit(main())
