"""The families of problems: their solutions are right, their problems differ, and their texts are whole."""

import ast
import json
from random import Random

import pytest

from scripts.code_validation.families import FAMILIES, Family, split_of
from scripts.code_validation.families.base import run

BY_NAME = {family.name: family for family in FAMILIES}
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@families
def test_problems_are_right_and_whole(family: Family) -> None:
    """Two programs that were written differently give the same results: neither has a slip, and the tests fit the
    statement's limits."""
    for seed in range(6):
        problem = family.make(Random(seed))
        assert problem == family.make(Random(seed))
        for solution in problem.solutions:
            assert run(solution, problem.function_name, problem.calls) == list(problem.results), solution
            function = next(node for node in ast.parse(solution).body if isinstance(node, ast.FunctionDef))
            arguments = [argument.arg for argument in function.args.args]
            assert function.name == problem.function_name
            assert len(set(arguments)) == len(arguments), "one name for two things"
            assert f"`{function.name}({', '.join(arguments)})`" in problem.question
        assert len(problem.calls) >= 12
        assert len({json.dumps(call) for call in problem.calls}) == len(problem.calls), "a test twice"
        assert len({json.dumps(result) for result in problem.results}) > 1, (
            "every program that returns a constant would do"
        )
        assert not set("$|") & set(problem.question), "a fact or a choice of words is left over"
        assert "  " not in problem.question.split("\n\n")[0]
        assert "solve" not in problem.question


def test_problems_differ() -> None:
    """Enough for a data set: with 40 seeds nearly 40 different questions, and programs that differ in more than one
    way."""
    for family in FAMILIES[::3]:
        problems = [family.make(Random(seed)) for seed in range(40)]
        assert len({problem.question for problem in problems}) >= 38, family.name
        assert len({problem.solutions[0] for problem in problems}) >= 30, family.name


def test_enough_families_of_every_difficulty() -> None:
    assert len(BY_NAME) == len(FAMILIES) >= 40
    for difficulty in ("introductory", "interview", "competition"):
        splits = [split_of(family.name) for family in FAMILIES if family.difficulty == difficulty]
        assert 0.2 < splits.count("test") / len(splits) < 0.4
        assert len(splits) >= 10


def test_the_split_of_a_family_is_for_ever() -> None:
    """A change of the rule would put problems of the one split into the other, between versions of the package."""
    held_out = (
        "best_stretch editor fewest_jumps ledger longest_rising regions rotate_list run_lengths running_values"
        " shift_letters steps_to_one"
    )
    assert sorted(name for name in BY_NAME if split_of(name) == "test") == held_out.split()


def test_statements_by_hand() -> None:
    """Some references against answers worked out by hand, so that not all rests on programs agreeing with each
    other."""
    spans = map(BY_NAME["merge_spans"].make, map(Random, range(20)))
    merged = next(p for p in spans if "overlap or touch" in p.question and "ascending" in p.question)
    assert run(merged.solutions[0], merged.function_name, [[[[1, 2], [2, 3], [5, 6]]]]) == [[[1, 3], [5, 6]]]
    maze = BY_NAME["maze"].make(Random(0))
    assert run(maze.solutions[1], maze.function_name, [[["..", ".."]]])[0] == (2 if "up, down" in maze.question else 1)
    rooms = next(
        p
        for p in map(BY_NAME["rooms"].make, map(Random, range(20)))
        if "the moment in which it becomes free" in p.question
    )
    assert run(rooms.solutions[0], rooms.function_name, [[[[0, 5], [5, 9], [4, 6]]]]) == [2]
