"""Make problems, each with a right program and a wrong one.

Decisions that matter here:
- a wrong program is a mutant that returns a wrong value in at least one hidden test, and ends in every test. Those that
  fail in less than half of the tests, crashes included, are preferred, and among these every operator has the same
  chance;
- every right program is run on all tests, too, by the same runner;
- families of the two splits are disjoint (`families/__init__.py`), for all seeds;
- a program that timed out is run again, at most twice: processor time also counts while a virtual machine is paused.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from threading import Lock
from typing import Any, Protocol

from nip_ray.errors import TrainingError, UserError
from nip_ray.scenarios.code_validation.built_in import Made, Pair, Split, made_items
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import Difficulty

from .batch import run_batch
from .families import FAMILIES, Family, Problem, split_of
from .mutate import Mutant, mutants, normalise

Progress = Callable[[int, int], None]

NUM_PAIRS: dict[Split, dict[Difficulty, int]] = {
    "train": {"introductory": 84, "interview": 42, "competition": 63},
    "test": {"introductory": 25, "interview": 25, "competition": 34},
}
"""Number of problems of each family in the package."""
PER_CALL_S = 0.01
"""Processor time of a call in seconds: fifty times that of the slowest right program, so that machines agree."""
_MUTANTS = 10  # candidates for each wrong program; more than half of them are wrong
_WORKERS = min(8, len(os.sched_getaffinity(0)))
_SYNTAX = Lock()  # Python 3.11 miscounts its recursion when two threads make syntax trees at once
_ATTEMPTS = 40  # problems drawn for one pair until one is new


class Result(Protocol):
    """The result of a call; `kind` is "value" if it returned `value`, in JSON's form."""

    @property
    def kind(self) -> str:
        """ "value", "error" or "timeout"."""
        ...

    @property
    def value(self) -> Any:
        """The returned value."""
        ...


class Runner(Protocol):
    """Runs programs, like `run_batch`: the results of every program for every call."""

    def __call__(
        self, solutions: Sequence[str], function_name: str, calls: Sequence[list[Any]], per_call_s: float
    ) -> Sequence[Sequence[Result]]:
        """See `run_batch`."""
        ...


def run_patiently(
    solutions: Sequence[str], function_name: str, calls: Sequence[list[Any]], per_call_s: float
) -> list[Sequence[Result]]:
    """`run_batch`, repeated for programs that timed out."""
    rows: list[Sequence[Result]] = list(run_batch(solutions, function_name, calls, per_call_s))
    for _ in range(2):
        late = [i for i, row in enumerate(rows) if any(result.kind == "timeout" for result in row)]
        for i, row in zip(late, run_batch([solutions[i] for i in late], function_name, calls, per_call_s)):
            rows[i] = row
    return rows


def make(
    num: int,
    split: Split,
    difficulties: Sequence[Difficulty],
    seed: int,
    runner: Runner = run_patiently,
    progress: Progress | None = None,
) -> list[Made]:
    """`num` items with ids 0 to num - 1, half of them right, in random order, each with its operator.

    split: of the families. difficulties: of the families. progress: called with the number of finished items and `num`.
    Raises UserError if there are not enough different items.
    """
    if num < 2:
        raise UserError(f"--items {num}: expected at least 2, a right and a wrong program")
    rng = Random(stable_seed(seed, "code_validation", "order", split))
    families = [family for family in FAMILIES if split_of(family.name) == split and family.difficulty in difficulties]
    rng.shuffle(families)
    places = [(families[pair % len(families)], pair // len(families)) for pair in range((num + 1) // 2)]
    pairs = []
    for pair in make_pairs(places, seed, runner):
        pairs.append(pair)
        if progress is not None:
            progress(min(2 * len(pairs), num), num)
    return made_items(pairs, num, rng)


def built_in_places() -> list[tuple[Family, int]]:
    """(family, number) of every problem in the package, in the order of its file; all are made with seed 0."""
    return [
        (family, number) for family in FAMILIES for number in range(NUM_PAIRS[split_of(family.name)][family.difficulty])
    ]


def make_pairs(places: Sequence[tuple[Family, int]], seed: int, runner: Runner = run_patiently) -> Iterator[Pair]:
    """Different problems at these places, in their order. Each depends on its place, the seed, and those before it in
    its family."""
    seen: set[tuple[str, str]] = set()
    # programs run in processes of their own, so threads are enough to use all cores
    with ThreadPoolExecutor(_WORKERS) as pool:
        first_tries = pool.map(lambda place: _pair(place[0], place[1], 0, seed, runner), places)
        for (family, number), first in zip(places, first_tries):
            yield _new_pair(family, number, first, seed, seen, runner)


def _new_pair(
    family: Family, number: int, first: Pair | None, seed: int, seen: set[tuple[str, str]], runner: Runner
) -> Pair:
    """One whose programs are not in `seen` yet, to which they are added. first: the first try."""
    for attempt in range(_ATTEMPTS):
        pair = _pair(family, number, attempt, seed, runner) if attempt else first
        if pair is None or {(pair.question, pair.right), (pair.question, pair.wrong)} & seen:
            continue
        seen |= {(pair.question, pair.right), (pair.question, pair.wrong)}
        return pair
    raise UserError(
        f"the family {family.name} has no {number + 1} different problems; ask for fewer items, or for more"
        " difficulties"
    )


def _pair(family: Family, number: int, attempt: int, seed: int, runner: Runner) -> Pair | None:
    """A right and a wrong program, None if no good wrong one was found. A function of the arguments."""
    split: Split = split_of(family.name)
    rng = Random(stable_seed(seed, "code_validation", "pair", split, family.name, number, attempt))
    with _SYNTAX:
        problem = family.make(rng)
        right = normalise(rng.choice(problem.solutions))
        candidates = list(islice(mutants(rng.choice(problem.solutions), rng), _MUTANTS))
    wrong = _wrong_program(problem, right, candidates, rng, runner)
    if wrong is None:
        return None
    return Pair(split, family.difficulty, family.name, problem.question, right, wrong.text, wrong.operator)


def _wrong_program(
    problem: Problem, right: str, candidates: Sequence[Mutant], rng: Random, runner: Runner
) -> Mutant | None:
    """One of the mutants, None if none is good. Also runs `right`, which must be right."""
    rows = runner([right, *(mutant.text for mutant in candidates)], problem.function_name, problem.calls, PER_CALL_S)
    if wrong_results(rows[0], problem.results) or any(result.kind != "value" for result in rows[0]):
        raise TrainingError(
            f"a right program for `{problem.function_name}` failed its tests: the runner is broken or far too slow"
        )
    return choose(list(zip(candidates, rows[1:])), problem.results, rng)


def wrong_results(row: Sequence[Result], expected: Sequence[Any]) -> int:
    """The number of tests in which a program returned a wrong value."""
    return sum(result.kind == "value" and result.value != right for result, right in zip(row, expected))


def choose(
    candidates: Sequence[tuple[Mutant, Sequence[Result]]], expected: Sequence[Any], rng: Random
) -> Mutant | None:
    """One of the wrong mutants, given their results; see the module for the choice. None if there is none."""
    accepted = list(_accepted(candidates, expected))
    subtle = [mutant for mutant, failures in accepted if 2 * failures < len(expected)]
    kinds: dict[str, list[Mutant]] = {}
    for mutant in subtle or [mutant for mutant, _ in accepted]:
        kinds.setdefault(mutant.operator, []).append(mutant)
    return rng.choice(kinds[rng.choice(sorted(kinds))]) if kinds else None


def _accepted(
    candidates: Sequence[tuple[Mutant, Sequence[Result]]], expected: Sequence[Any]
) -> Iterator[tuple[Mutant, int]]:
    """Mutants that return a wrong value and always end, with the number of failed tests."""
    for mutant, row in candidates:
        wrong = wrong_results(row, expected)
        if wrong and all(result.kind != "timeout" for result in row):
            yield mutant, wrong + sum(result.kind == "error" for result in row)
