"""Check whether the working tree is slower than another commit: both are timed side by side, with exit status 1 if it
certainly is.

    make bench-gate BASE=HEAD~3
    python benchmarks/gate.py --base HEAD~3 --cases play chat_calls --record pairs.json
    python benchmarks/gate.py --trials 1000 pairs.json   # how often it is right, from recorded pairs of equal commits

Decisions that matter here:
- a pair is one new process for each commit, on one thread, which take short turns (ours, theirs, theirs, ours), so that
  other load affects both. Addresses are not randomised if `setarch` exists, since a process's random layout is most of
  the noise between pairs. The result is the logarithm of the ratio of medians, and over all pairs the mean without the
  lowest and highest fifth, since occasionally the machine disturbs one of them by a sixth;
- two clocks: wall seconds, which include waiting, and processor seconds, which other programs hardly disturb. A case is
  slower if by one of them this ratio is above 1.03 and the lower end of its bootstrap interval above 1: large, and not
  noise. The error rate is measured by resampling recorded pairs;
- the base is checked out separately and run by the same interpreter and cases; it compiles during the warm-up.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _gate_cases import CASES, ROOT
from scipy.stats import trim_mean

LIMIT, PLANTED = 1.03, 1.05
# wide, since there are six cases and two clocks, and a percentile interval of twelve pairs is too narrow
CONFIDENCE = 0.99
TRIMMED = 0.2
CLOCKS = ("wall", "processor")
TURNS, TURNS_OF_OTHERS = {"first_row": 1, "play": 12, "chat_calls": 12}, 8
SETARCH = shutil.which("setarch")
# a pair before the first one that counts: it has no warm-up, and the base has nothing compiled
COLD = ("first_row",)
RESAMPLES = 2000
Pairs = list[tuple[float, float]]
"""For each pair and clock, the logarithm of our seconds over theirs."""


def main() -> None:
    """Time and judge, or report the error rates of the judgement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="The commit to compare the working tree with.")
    parser.add_argument("--pairs", type=int, default=12, help="Pairs of each case.")
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--record", type=Path, help="Write the pairs here.")
    parser.add_argument("--trials", type=int, help="Do not time: resample the pairs recorded in FILE so often.")
    parser.add_argument("file", type=Path, nargs="?", help="A file by --record, of two equal commits.")
    arguments = parser.parse_args()
    if (arguments.trials is None) != (arguments.file is None):
        parser.error("--trials N takes a FILE that --record wrote, and FILE takes --trials")
    if arguments.pairs < 5:
        parser.error(f"--pairs: got {arguments.pairs}, must be at least 5: fewer say nothing of noise")
    if arguments.trials is not None:
        print(json.dumps(error_rates(json.loads(arguments.file.read_text()), arguments.pairs, arguments.trials)))
        return
    found = measure(commit_of(arguments.base), arguments.cases, arguments.pairs)
    if arguments.record:
        arguments.record.write_text(json.dumps(found))
    sys.exit(any(is_slower(pairs) for pairs in found.values()))


def commit_of(name: str) -> str:
    """The hash of a commit; ends the program if there is none of this name."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"error: --base: no commit {name!r} here; expected a hash, a branch or something like HEAD~3")
    return asked.stdout.strip()


def measure(commit: str, cases: Sequence[str], count: int) -> dict[str, Pairs]:
    """Case -> its pairs, the working tree against the commit; each case is reported when it is done."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(base), commit], check=True)
        try:
            for case in cases:
                if case in COLD:
                    pair(case, base, 0)
                found[case] = [pair(case, base, number) for number in range(count)]
                print(told(case, found[case]), flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True)
    return found


def pair(case: str, base: Path, number: int) -> tuple[float, float]:
    """One pair of a case."""
    ours, theirs = Timed(case, ROOT, number), Timed(case, base, number)
    for timed in (ours, theirs):  # they start side by side
        timed.wait()
    for turn in range(TURNS.get(case, TURNS_OF_OTHERS)):
        for timed in (ours, theirs) if (turn + number) % 2 == 0 else (theirs, ours):
            timed.once()
    wall, processor = np.log(np.median(ours.end(), 0) / np.median(theirs.end(), 0))
    return float(wall), float(processor)


class Timed:
    """One case of one tree, waiting in a process."""

    def __init__(self, case: str, tree: Path, number: int) -> None:
        self.name, self.seconds = f"{case} in {tree}", list[tuple[float, ...]]()
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(number)}
        command = [sys.executable, str(ROOT / "benchmarks" / "_gate_cases.py"), case]
        command = [SETARCH, "--addr-no-randomize", *command] if SETARCH else command
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def wait(self) -> str:
        """Its next line; ends the program if there is none."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            sys.exit(f"error: {self.name} cannot be timed:\n{self.process.communicate()[1][-2000:]}")
        return line

    def once(self) -> None:
        """One unit."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.seconds.append(tuple(map(float, self.wait().split())))

    def end(self) -> list[tuple[float, ...]]:
        """End it; return the seconds of all units, by both clocks."""
        self.process.communicate()
        return self.seconds


def interval(log_K: np.ndarray) -> tuple[float, float, float]:
    """Trimmed mean ratio of K pairs, and the ends of its percentile bootstrap interval (Efron, 1979)."""
    drawn = trim_mean(np.random.default_rng(0).choice(log_K, (RESAMPLES, len(log_K))), TRIMMED, 1)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return math.exp(trim_mean(log_K, TRIMMED)), math.exp(low), math.exp(high)


def is_slower(pairs: Pairs) -> bool:
    """True if there is a slowdown that is both large and not noise, by either clock."""
    found = [interval(log_K) for log_K in np.array(pairs).T]
    return any(ratio > LIMIT and low > 1 for ratio, low, _ in found)


def told(case: str, pairs: Pairs) -> str:
    """One line on a case."""
    parts = [
        "{} {:.3f} ({:.3f} to {:.3f})".format(clock, *interval(log_K))
        for clock, log_K in zip(CLOCKS, np.array(pairs).T)
    ]
    return (
        f"{case:14} seconds over the base's: {', '.join(parts)}, {len(pairs)}"
        f" pairs{'  SLOWER' if is_slower(pairs) else ''}"
    )


def error_rates(found: dict[str, Pairs], count: int, trials: int) -> dict[str, Any]:
    """From pairs of equal commits: the detection rate of a planted slowdown in each case, and the false alarm rate of a
    run of all cases."""
    generator = np.random.default_rng(0)
    caught, wrong_T = dict[str, float](), np.zeros(trials, dtype=bool)
    for case, pairs in found.items():
        centred_KC = np.array(pairs) - trim_mean(np.array(pairs), TRIMMED)
        drawn_TKC = centred_KC[generator.integers(len(centred_KC), size=(trials, count))]
        caught[case] = float(np.mean([is_slower(drawn_KC + math.log(PLANTED)) for drawn_KC in drawn_TKC]))
        wrong_T |= np.array([is_slower(drawn_KC) for drawn_KC in drawn_TKC])
    return {
        "pairs": count,
        "trials": trials,
        "planted": PLANTED,
        "found": caught,
        "false_alarm_of_a_run": float(wrong_T.mean()),
    }


if __name__ == "__main__":
    main()
