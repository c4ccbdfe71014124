"""Plant each bug of `mutants.yaml` in a copy of this checkout, run its tests, and tell which are found.

    make mutants                                # all of them: minutes
    make mutants ARGS="a-job-made-twice ..."    # some
    make mutants ARGS=--list

First the tests run in the copy as it is, and must pass. Exits with 1 where a bug is not found, and with 2 where the
tests fail without one.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).parent / "mutants.yaml"
ROOT = FILE.parents[2]
LIMIT_S = 300.0
"""A bug that makes its tests hang for so long is found."""

_COPIED = (
    "nip_ray",
    "tests",
    "tune_configs",
    "examples",
    "benchmarks",
    "scripts",
    "docs",
    "pyproject.toml",
    "README.md",
    "Makefile",
)


class Mutant(NamedTuple):
    """One entry. tests: arguments of pytest, or "simulate SEED": a world of `tests.simulation` in which it is seen."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def arguments(self) -> list[str]:
        """`tests` in words; what follows ``-k`` is one."""
        if self.seed is not None:
            return [self.tests]
        paths, found, words = self.tests.partition(" -k ")
        return [*shlex.split(paths), *(["-k", words] if found else [])]

    @property
    def seed(self) -> str | None:
        """Of a simulated world."""
        word, _, seed = self.tests.partition(" ")
        return seed if word == "simulate" else None


def mutants() -> list[Mutant]:
    """All entries."""
    return [Mutant(**entry) for entry in yaml.safe_load(FILE.read_text(encoding="utf-8"))]


def copy(source: Path, target: Path) -> None:
    """What tests read of a checkout, with its compiled files."""
    target.mkdir()
    for name in _COPIED:
        (shutil.copytree if (source / name).is_dir() else shutil.copy2)(source / name, target / name)


def pytest(root: Path, arguments: list[str], *more: str, limit_s: float | None = LIMIT_S) -> tuple[int | None, str]:
    """(exit code, None for too long; the first failed test, or the last line) of pytest in `root`."""
    words = ["pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", *more, *arguments]
    return _run(root, words, limit_s)


def simulate(root: Path, seeds: str, limit_s: float | None = LIMIT_S) -> tuple[int | None, str]:
    """The same of simulated worlds."""
    return _run(root, ["tests.simulation", "--seeds", seeds], limit_s)


def _run(root: Path, module: list[str], limit_s: float | None) -> tuple[int | None, str]:
    command = [sys.executable, "-m", *module]
    there = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=root, env=there, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"no end in {limit_s:g} s"
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, (failed or lines[-1:])[0].partition(" - ")[0][:200]


def planted(root: Path, mutant: Mutant) -> tuple[bool, str]:
    """Whether the bug is found in the copy `root`, which is left as it was; by what."""
    path = root / mutant.file
    before, stat = path.read_text(encoding="utf-8"), path.stat()
    if before.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.name}: its old text stands {before.count(mutant.old)} times in {mutant.file}, expected once"
        )
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, told = pytest(root, mutant.arguments()) if mutant.seed is None else simulate(root, mutant.seed)
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return code in (1, 2, None), told


def unplanted(chosen: list[Mutant]) -> list[list[str]]:
    """All tests of these entries, in as few calls of pytest as may be: those with a ``-k`` stand alone."""
    each = list(dict.fromkeys(tuple(mutant.arguments()) for mutant in chosen if mutant.seed is None))
    plain = list(dict.fromkeys(part for arguments in each if "-k" not in arguments for part in arguments))
    return [*([plain] if plain else []), *(list(arguments) for arguments in each if "-k" in arguments)]


def main() -> int:
    """See the top of this file."""
    parser = argparse.ArgumentParser(
        description="Plant bugs in a copy of this checkout and see whether its tests find them."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="of an entry of tests/mutants/mutants.yaml (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout to copy (default: this one)")
    arguments = parser.parse_args()
    known = {mutant.name: mutant for mutant in mutants()}
    if unknown := sorted(set(arguments.names) - set(known)):
        parser.error(f"no such entry: {', '.join(unknown)}; --list prints them")
    chosen = [known[name] for name in arguments.names] or list(known.values())
    if arguments.list:
        print("\n".join(known))
        return 0
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        copy(arguments.root, root)
        for together in unplanted(chosen):
            code, told = pytest(root, together, limit_s=None)
            if code != 0:
                print(f"without a bug, {shlex.join(together)}: {told}")
                return 2
        seeds = sorted({mutant.seed for mutant in chosen if mutant.seed is not None})
        if seeds and (told := simulate(root, ",".join(seeds), None))[0] != 0:
            print(f"without a bug, simulated worlds: {told[1]}")
            return 2
        for mutant in chosen:
            began = time.monotonic()
            found, told = planted(root, mutant)
            missed += not found
            print(
                f"{'found    ' if found else 'NOT FOUND'}  {mutant.name:44}  {time.monotonic() - began:4.0f} s  {told}",
                flush=True,
            )
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs are found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
