"""The built-in data set: problems of this package's families, each with a right program and a wrong one.

Decisions that matter here:
- items come in pairs: a right and a wrong program for the same question. So neither question nor family nor difficulty says anything of the
  label, and the labels are balanced exactly (an odd number of items has one right program more);
- a wrong program is a mutant that returns a wrong value in at least one hidden test, and ends in every test. Those that fail in less
  than half of the tests, crashes included, are preferred, and among these every operator has the same chance;
- every right program is run on all tests, too, by the same runner;
- families of the two splits are disjoint (`nip_ray.scenarios.code_validation.families`), whatever the seeds.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from threading import Lock
from typing import Any, Literal, NamedTuple, Protocol, get_args

from nip_ray.errors import TrainingError, UserError
from nip_ray.scenarios.code_validation.families import FAMILIES, Family, Problem, split_of
from nip_ray.scenarios.code_validation.item import CodeItem, stance_of
from nip_ray.scenarios.code_validation.mutate import Mutant, mutants, normalise
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import Difficulty

Split = Literal["train", "test"]
Progress = Callable[[int, int], None]

PER_CALL_S = 0.01
"""Processor time of a call in seconds: fifty times what the slowest right program takes, so that machines agree on what ends."""
_MUTANTS = 10  # looked at for each wrong program; more than half of them are wrong
_WORKERS = min(8, len(os.sched_getaffinity(0)))
_SYNTAX = Lock()  # Python 3.11 loses count of its recursion when two threads make syntax trees at once
_ATTEMPTS = 40  # problems drawn for one pair until one is new


class Result(Protocol):
    """What came of a call; `kind` is "value" where it returned `value`, as JSON carries it."""

    @property
    def kind(self) -> str:
        """ "value", "error" or "timeout"."""
        ...

    @property
    def value(self) -> Any:
        """What the call returned."""
        ...


class Runner(Protocol):
    """Runs programs, as `nip_ray.sandbox.batch.run_batch` does: the results of every program for every call."""

    def __call__(
        self, solutions: Sequence[str], function_name: str, calls: Sequence[list[Any]], per_call_s: float
    ) -> Sequence[Sequence[Result]]:
        """See `run_batch`."""
        ...


class Made(NamedTuple):
    """An item, and the mutation operator that made its program wrong (empty for a right one)."""

    item: CodeItem
    operator: str


class _Draft(NamedTuple):
    family: Family
    question: str
    solution: str
    operator: str


def make_items(num: int, split: Split, difficulties: Sequence[Difficulty], seed: int, runner: Runner) -> list[CodeItem]:
    """`num` items with ids 0 to num - 1, half of them right, in random order.

    split: whose families to use. difficulties: of the families, at least one. runner: `nip_ray.sandbox.batch.run_batch`, or what does the
    same. Raises UserError where there are not so many different items.
    """
    return [made.item for made in make(num, split, difficulties, seed, runner)]


def make(
    num: int, split: Split, difficulties: Sequence[Difficulty], seed: int, runner: Runner, progress: Progress | None = None
) -> list[Made]:
    """Like `make_items`, with the operators. progress: is told the number of items that are there, and `num`."""
    _check(num, split, difficulties)
    rng = Random(stable_seed(seed, "code_validation", "order", split))
    families = [family for family in FAMILIES if split_of(family.name) == split and family.difficulty in difficulties]
    rng.shuffle(families)
    places = [(families[pair % len(families)], pair // len(families)) for pair in range((num + 1) // 2)]
    drafts: list[_Draft] = []
    seen: set[tuple[str, str]] = set()
    with ThreadPoolExecutor(_WORKERS) as pool:  # programs run in processes of their own, so threads are enough to use all cores
        first_tries = pool.map(lambda place: _pair(place[0], place[1], 0, split, seed, runner), places)
        for (family, number), first in zip(places, first_tries):
            drafts += _new_pair(family, number, first, split, seed, seen, runner)
            if progress is not None:
                progress(min(len(drafts), num), num)
    drafts = drafts[:num]  # the right program of a pair is its first
    rng.shuffle(drafts)
    return [_made(i, draft) for i, draft in enumerate(drafts)]


def _check(num: int, split: str, difficulties: Sequence[str]) -> None:
    if num < 2:
        raise UserError(f"a data set of {num} items cannot be made; ask for at least 2, a right and a wrong program")
    if split not in get_args(Split):
        raise UserError(f"split: {split!r}; expected: train or test")
    unknown = set(difficulties) - set(get_args(Difficulty))
    if unknown or not difficulties:
        raise UserError(f"difficulties: {', '.join(sorted(unknown)) or 'none'}; expected: some of {', '.join(get_args(Difficulty))}")


def _made(i: int, draft: _Draft) -> Made:
    y = int(not draft.operator)
    item = CodeItem(i, draft.question, draft.solution, y, stance_of(draft.solution), draft.family.difficulty, draft.family.name)
    return Made(item, draft.operator)


def _new_pair(
    family: Family, number: int, first: list[_Draft] | None, split: Split, seed: int, seen: set[tuple[str, str]], runner: Runner
) -> list[_Draft]:
    """A right and a wrong program that are not in `seen` yet, where they are put. first: the first try."""
    for attempt in range(_ATTEMPTS):
        pair = _pair(family, number, attempt, split, seed, runner) if attempt else first
        if pair is None or {(draft.question, draft.solution) for draft in pair} & seen:
            continue
        seen |= {(draft.question, draft.solution) for draft in pair}
        return pair
    raise UserError(f"the family {family.name} has no {number + 1} different problems; ask for fewer items, or for more difficulties")


def _pair(family: Family, number: int, attempt: int, split: Split, seed: int, runner: Runner) -> list[_Draft] | None:
    """A right and a wrong program, None where no good wrong one was found. Depends on the arguments alone."""
    rng = Random(stable_seed(seed, "code_validation", "pair", split, family.name, number, attempt))
    with _SYNTAX:
        problem = family.make(rng)
        right = normalise(rng.choice(problem.solutions))
        candidates = list(islice(mutants(rng.choice(problem.solutions), rng), _MUTANTS))
    wrong = _wrong_program(problem, right, candidates, rng, runner)
    if wrong is None:
        return None
    return [_Draft(family, problem.question, right, ""), _Draft(family, problem.question, wrong.text, wrong.operator)]


def _wrong_program(problem: Problem, right: str, candidates: Sequence[Mutant], rng: Random, runner: Runner) -> Mutant | None:
    """One of the mutants, None where no good one is among them. Runs `right` on the way, which must be right."""
    rows = runner([right, *(mutant.text for mutant in candidates)], problem.function_name, problem.calls, PER_CALL_S)
    if wrong_results(rows[0], problem.results) or any(result.kind != "value" for result in rows[0]):
        raise TrainingError(f"a right program for `{problem.function_name}` failed its tests: the runner is broken or far too slow")
    return choose(list(zip(candidates, rows[1:])), problem.results, rng)


def wrong_results(row: Sequence[Result], expected: Sequence[Any]) -> int:
    """In how many tests a program returned a wrong value."""
    return sum(result.kind == "value" and result.value != right for result, right in zip(row, expected))


def choose(candidates: Sequence[tuple[Mutant, Sequence[Result]]], expected: Sequence[Any], rng: Random) -> Mutant | None:
    """One of the mutants that are wrong, given their results; see the module for which. None where none is."""
    accepted = list(_accepted(candidates, expected))
    subtle = [mutant for mutant, failures in accepted if 2 * failures < len(expected)]
    kinds: dict[str, list[Mutant]] = {}
    for mutant in subtle or [mutant for mutant, _ in accepted]:
        kinds.setdefault(mutant.operator, []).append(mutant)
    return rng.choice(kinds[rng.choice(sorted(kinds))]) if kinds else None


def _accepted(candidates: Sequence[tuple[Mutant, Sequence[Result]]], expected: Sequence[Any]) -> Iterator[tuple[Mutant, int]]:
    """Mutants that are wrong by a value and always end, with the number of tests that they fail."""
    for mutant, row in candidates:
        wrong = wrong_results(row, expected)
        if wrong and all(result.kind != "timeout" for result in row):
            yield mutant, wrong + sum(result.kind == "error" for result in row)
