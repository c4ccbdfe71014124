"""Making problems: labels that are true, balanced and told by nothing else, and the file that the package ships made
again."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, get_args

import pytest

from nip_ray.errors import TrainingError, UserError
from nip_ray.scenarios.code_validation.built_in import Made, built_in_pairs
from nip_ray.scenarios.code_validation.item import CodeItem, stance_of
from nip_ray.settings.code_validation import Difficulty
from scripts.code_validation.batch import run_batch
from scripts.code_validation.families import FAMILIES, split_of
from scripts.code_validation.make import NUM_PAIRS, built_in_places, choose, make, make_pairs
from scripts.code_validation.mutate import OPERATORS, Mutant

ALL = get_args(Difficulty)
NUM = 61


@pytest.fixture(scope="module")
def made() -> list[Made]:
    return make(NUM, "train", ALL, 3)


def pairs_of(items: Sequence[CodeItem]) -> dict[str, list[CodeItem]]:
    """Question -> its items."""
    found: dict[str, list[CodeItem]] = {}
    for item in items:
        found.setdefault(item.question, []).append(item)
    return found


def test_numbers_labels_and_stances(made: list[Made]) -> None:
    items = [one.item for one in made]
    assert [item.id for item in items] == list(range(NUM))
    assert Counter(item.y for item in items) == {1: (NUM + 1) // 2, 0: NUM // 2}
    assert all(item.prover_stance == stance_of(item.solution) for item in items)
    assert len({(item.question, item.solution) for item in items}) == NUM
    assert {item.difficulty for item in items} == set(ALL)
    labels = "".join(str(item.y) for item in items)
    assert "1" * 15 not in labels, "in order of labels"


def test_questions_tell_nothing_of_labels(made: list[Made]) -> None:
    """Every question has one right and one wrong program (but the last of an odd number)."""
    labels = Counter(tuple(sorted(item.y for item in items)) for items in pairs_of([one.item for one in made]).values())
    assert labels == {(0, 1): NUM // 2, (1,): NUM % 2}


def test_families_are_of_the_split(made: list[Made]) -> None:
    by_name = {family.name: family for family in FAMILIES}
    assert {split_of(one.item.family) for one in made} == {"train"}
    assert all(by_name[one.item.family].difficulty == one.item.difficulty for one in made)
    assert {split_of(one.item.family) for one in make(12, "test", ALL, 3)} == {"test"}


def test_wrong_programs_have_an_operator_and_differ_from_right_ones(made: list[Made]) -> None:
    assert all((one.operator in OPERATORS) == (one.item.y == 0) for one in made)
    assert len({one.operator for one in made if one.operator}) >= 8, "one kind of mistake only"


def test_labels_are_true_on_fresh_inputs(made: list[Made]) -> None:
    """On inputs that they were not chosen by, right and wrong programs for one question differ, too, nearly always."""
    by_name = {family.name: family for family in FAMILIES}
    told = total = 0
    for items in list(pairs_of([one.item for one in made]).values())[:15]:
        if len(items) < 2:
            continue
        calls = [call for seed in range(12) for call in by_name[items[0].family].make(Random(seed)).calls]
        name = next(line for line in items[0].solution.splitlines() if line.startswith("def "))[4:].split("(")[0]
        first, second = run_batch([item.solution for item in items], name, calls, 0.05)
        total += 1
        told += any(a.value != b.value for a, b in zip(first, second) if a.kind == b.kind == "value")
    assert told >= total - 1 > 10


class Outcome(NamedTuple):
    """A result of the tests' own."""

    kind: str
    value: Any = None


def values(*numbers: Any) -> list[Outcome]:
    return [
        Outcome("error", "ValueError") if n == "!" else Outcome("timeout") if n == "?" else Outcome("value", n)
        for n in numbers
    ]


def chosen(*rows: tuple[str, list[Outcome]], seeds: range = range(40)) -> set[str]:
    """The texts of the mutants that may be chosen for tests whose right results are 1, 2, 3 and 4."""
    candidates = [(Mutant(text, text[0], 1), row) for text, row in rows]
    return {mutant.text if (mutant := choose(candidates, [1, 2, 3, 4], Random(seed))) else "none" for seed in seeds}


def test_what_makes_a_mutant_wrong() -> None:
    assert chosen(("a", values(1, 2, 3, 4))) == {"none"}, "right after all"
    assert chosen(("a", values(1, 2, 3, "!"))) == {"none"}, "it crashes, but returns nothing wrong"
    assert chosen(("a", values("!", "!", "!", "!"))) == {"none"}
    assert chosen(("a", values(9, 2, 3, "?"))) == {"none"}, "it may not end"
    assert chosen(("a", values(9, 2, 3, "!"))) == {"a"}
    assert chosen(("a", values(9, 9, 9, 9))) == {"a"}


def test_subtle_mutants_are_preferred() -> None:
    assert chosen(("a", values(9, 9, 9, 9)), ("b", values(1, 2, 3, 9))) == {"b"}
    assert chosen(("a", values(9, 2, 3, "!")), ("b", values(1, 2, 3, 9))) == {"b"}, "crashes count as failures"
    assert chosen(("a", values(9, 9, 9, 9)), ("b", values(1, 2, 9, 9))) == {"a", "b"}


def test_a_runner_that_fails_right_programs_is_found_out() -> None:
    def broken(
        solutions: Sequence[str], function_name: str, calls: Sequence[list[Any]], per_call_s: float
    ) -> list[list[Outcome]]:
        return [[Outcome("timeout")] * len(calls) for _ in solutions]

    with pytest.raises(TrainingError, match="runner is broken"):
        make(4, "train", ALL, 0, broken)


def test_progress_and_numbers_that_make_no_sense() -> None:
    seen: list[tuple[int, int]] = []
    first = make(9, "train", ALL, 5, progress=lambda done, total: seen.append((done, total)))
    assert first == make(9, "train", ALL, 5)
    assert seen[-1] == (9, 9)
    with pytest.raises(UserError, match="--items 1: expected at least 2"):
        make(1, "train", ALL, 5)


def test_the_package_ships_what_is_made_here() -> None:
    """Its first problem of some families and the second of another, byte for byte; the whole is `create_cv_dataset.py
    --built-in`."""
    places = built_in_places()
    shipped = built_in_pairs()
    assert [pair.family for pair in shipped] == [family.name for family, _ in places]
    assert {(pair.split, pair.difficulty) for pair in shipped} == {
        (split, name) for split, sizes in NUM_PAIRS.items() for name in sizes
    }
    chosen = [i for i, (_, number) in enumerate(places) if number == 0][::9]
    chosen.insert(1, chosen[0] + 1)
    assert list(make_pairs([places[i] for i in chosen], 0)) == [shipped[i] for i in chosen]
