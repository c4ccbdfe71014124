"""Kill at a random moment, resume as its documentation recommends, and compare with an undisturbed run: ours, and its
peers.

    python benchmarks/resume_table.py                                        # all that this environment has
    python -m venv /tmp/skrl && /tmp/skrl/bin/pip install torch==2.13.0 skrl==2.1.1 gymnasium
    python benchmarks/resume_table.py --peer skrl --python /tmp/skrl/bin/python

Each peer needs an interpreter that has it, `--python`, and is reported if it is missing. `NEEDS` has the packages to
install.

Decisions that matter here:
- a part, `_resume_NAME.py`, trains in its own process, saves after each iteration, and writes its state after each
  iteration and at the point of resuming. So lost state is distinguished from later differences caused by it;
- SIGKILL goes to all of its processes, at a moment drawn from the seed: after an iteration, and a share of an
  iteration's time later;
- the undisturbed run is made twice: if these two differ, the curve is inconclusive;
- the curve's metrics are compared one by one, by their difference over max(1, size). Times are not compared.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from _common import machine, show

HERE = Path(__file__).resolve().parent
Row = Mapping[str, Any]
PARTS = {
    "nip_ray": ("nip_ray", "ppo"),
    "nip_ray, DQN": ("nip_ray", "dqn"),
    "rllib": ("rllib", "save"),
    "rllib, Tune": ("rllib", "tune"),
    "trl": ("trl", ""),
    "skrl": ("skrl", ""),
    "benchmarl": ("benchmarl", "mappo"),
    "benchmarl, IQL": ("benchmarl", "iql"),
}
"""Peer: the file, and the variant of it."""
NEEDS = {
    "nip_ray": (),
    "rllib": ("ray[rllib]==2.60.0", "torch==2.13.0"),
    "trl": ("trl==1.16.0", "torch==2.13.0"),
    "skrl": ("skrl==2.1.1", "torch==2.13.0", "gymnasium"),
    "benchmarl": ("benchmarl==1.5.2", "vmas==1.5.2", "torch==2.13.0"),
}
"""File: its requirements for pip."""
PACKAGES = {"nip_ray": "nip_ray", "rllib": "ray", "trl": "trl", "skrl": "skrl", "benchmarl": "benchmarl"}
ITERATIONS, LIMIT_S = 10, 600.0


def rows_of(folder: Path) -> list[Row]:
    """All complete lines that a part has written so far."""
    path = folder / "rows.jsonl"
    return [json.loads(line) for line in path.read_bytes().rpartition(b"\n")[0].splitlines()] if path.exists() else []


def drift(before: Row, after: Row) -> float:
    """The largest difference of two rows' metrics, each over max(1, size); NaN equals NaN; infinite if one lacks a
    metric."""
    if before.keys() != after.keys():
        return math.inf
    return max((_apart(before[key], after[key]) for key in before), default=0.0)


def _apart(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    apart = abs(a - b) / max(1.0, abs(a), abs(b))
    return apart if math.isfinite(apart) else math.inf


def curve(whole: Sequence[Row], other: Sequence[Row]) -> str:
    """The agreement of rows of the same iterations: "to the last bit", "within 1e-6", or the largest difference."""
    expected = {row["iteration"]: row["figures"] for row in whole}
    missing = [row["iteration"] for row in other if row["iteration"] not in expected]
    if missing or not other:
        return "no row" if not other else f"iteration {missing[0]} too many"
    largest = max(drift(expected[row["iteration"]], row["figures"]) for row in other)
    if math.isinf(largest):
        return "differs, also in which figures there are"
    return "to the last bit" if largest == 0 else "within 1e-6" if largest <= 1e-6 else f"differs by {largest:.2g}"


def compare(whole: Sequence[Row], restored: Row, after: Sequence[Row]) -> dict[str, str]:
    """One line of the table. whole: rows of an undisturbed run. restored: the state at the point of resuming. after:
    the rows from there on.

    State is compared at the resume, counters and learning rates also in the rows after it; "-" if there is nothing to
    compare.
    """
    expected = {row["iteration"]: row for row in whole}
    saved = expected[restored["iteration"]]
    shared = [(expected[row["iteration"]], row) for row in after if row["iteration"] in expected]
    found = {name: _same(saved.get(name), restored.get(name)) for name in ("optimizer", "generators", "replay")}
    ends = {row["iteration"] for row in after} == {
        row["iteration"] for row in whole if row["iteration"] > restored["iteration"]
    }
    return {
        "counters": _course("counter", saved, restored, shared),
        "learning rate": _course("lr", saved, restored, shared),
        **found,
        "curve": curve(whole, after) if ends else "other iterations",
    }


def _course(name: str, saved: Row, restored: Row, shared: Sequence[tuple[Row, Row]]) -> str:
    """A description of the restored state, and the last of the later rows in which it differs, be it only because the
    curve does."""
    if restored[name] != saved[name]:
        return f"{_shown(restored[name])} for {_shown(saved[name])}"
    later = [(a[name], b[name]) for a, b in shared if a[name] != b[name]]
    return f"kept; later {_shown(later[-1][1])} for {_shown(later[-1][0])}" if later else "kept"


def _shown(value: Any) -> str:
    return ", ".join(
        f"{one:.3g}" if isinstance(one, float) else str(one) for one in (value if isinstance(value, list) else [value])
    )


def _same(before: Any, after: Any) -> str:
    return "-" if before is None and after is None else "kept" if before == after else "lost"


def start(python: str, name: str, folder: Path, iterations: int, *more: str) -> psutil.Popen:
    """A part in a process of its own; its output is in `log` of the folder."""
    file, variant = PARTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    command = [python, str(HERE / f"_resume_{file}.py"), str(folder), str(iterations), "--variant", variant, *more]
    with (folder / "log").open("ab") as log:
        return psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(process: psutil.Popen, folder: Path) -> list[Row]:
    """Its rows when it has ended. Raises RuntimeError with the end of its log if it failed."""
    try:
        code = process.wait(LIMIT_S)
    except psutil.TimeoutExpired:
        kill(process)
        code = f"none in {LIMIT_S:.0f} s"
    if code:
        raise RuntimeError(f"exit code {code}; {(folder / 'log').read_text(errors='replace')[-1500:]}")
    return rows_of(folder)


def kill(process: psutil.Popen) -> None:
    """Send SIGKILL to it and to all processes it started, until none is left."""
    tree = [process, *process.children(recursive=True)]
    for one in tree:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(tree, timeout=30)


def kill_after(process: psutil.Popen, folder: Path, iteration: int, share: float) -> None:
    """Kill after the row of that iteration, by that share of an iteration's time."""
    seen: dict[int, float] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(rows_of(folder)) < iteration:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"ended before iteration {iteration}; {(folder / 'log').read_text(errors='replace')[-1500:]}"
            )
        seen.setdefault(len(rows_of(folder)), time.monotonic())
        time.sleep(0.002)
    times = sorted(seen[count] for count in seen if count)
    usual = (time.monotonic() - times[0]) / len(times) if times else 0.05
    time.sleep(share * usual)
    kill(process)


def measured(name: str, python: str, seeds: Sequence[int], iterations: int, folder: Path) -> list[dict[str, str]]:
    """A line of the table for each kill."""
    whole, again = (
        wait_for(start(python, name, folder / part, iterations), folder / part) for part in ("whole", "again")
    )
    repeatable, found = curve(whole, again), []
    for seed in seeds:
        dice, where = random.Random(f"{name} {seed}"), folder / f"killed{seed}"
        first = start(python, name, where, iterations)
        kill_after(first, where, dice.randint(2, iterations - 3), dice.random())
        before = len(rows_of(where))
        rows = wait_for(start(python, name, where, iterations, "--resume"), where)[before:]
        restored = next((row for row in rows if row["event"] == "restored"), None)
        after = [row for row in rows if row["event"] == "row"]
        line = {"from": "0", "curve": curve(whole, after)}  # if it found nothing to restore, and restarted
        if restored is not None:
            line = {"from": str(restored["iteration"]), **compare(whole, restored, after)}
        found.append({"killed after": str(before), **line, "two undisturbed": repeatable})
    return found


def version(python: str, package: str) -> str | None:
    """The version of an installed package, None if that interpreter cannot find it."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def main() -> None:
    """Measure and print, a line for each kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the peer")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0], help="of the moments: one kill for each")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--folder", type=Path, help="keep runs and logs here; it must not have runs yet")
    arguments = parser.parse_args()
    if arguments.iterations < 5:
        parser.error(f"--iterations: got {arguments.iterations}, 5 are the least that have a middle to be killed in")
    print(machine())
    failed = False
    for name in arguments.peer:
        file = PARTS[name][0]
        found = version(arguments.python, PACKAGES[file])
        if found is None:
            print(f"{name}: left out, {arguments.python} has no {PACKAGES[file]} (pip install {' '.join(NEEDS[file])})")
            continue
        with tempfile.TemporaryDirectory() as aside:
            folder = Path(arguments.folder or aside).resolve() / name.replace(", ", "-").replace(" ", "-")
            try:
                for line in measured(name, arguments.python, arguments.seeds, arguments.iterations, folder):
                    show(f"resume of {name}", {"version": found, **line})
            except RuntimeError as error:
                failed = True
                print(f"{name}: failed, {error}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
