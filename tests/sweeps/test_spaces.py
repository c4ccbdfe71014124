"""Search spaces: what is one, what is refused, what is drawn, and that Tune's version and ours mean the same."""

import json
import math
from collections.abc import Iterator
from typing import Any, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import branches, keys_of, value_annotation
from nip_ray.errors import UserError
from nip_ray.settings.sweep import SweepSettings
from nip_ray.sweeps.spaces import (
    KINDS,
    Space,
    clipped,
    draw,
    examples,
    from_tune,
    looks_like_space,
    parse_space,
    to_pbt,
    to_tune,
)

SPACES = [
    Space("choice", (1, "a", None, False, 0.5)),
    Space("grid", ({}, {"verifier": {"kind": "constant"}})),
    Space("uniform", (-1.0, 2.0)),
    Space("quniform", (0.1, 0.7, 0.1)),
    Space("loguniform", (1e-4, 1e-2)),
    Space("qloguniform", (0.5, 4.0, 0.5)),
    Space("randint", (2, 5)),
    Space("lograndint", (1, 9)),
    Space("randn", (1.0, 0.25)),
]


def parsed(value: Any) -> Space:
    space = parse_space("algorithm.lr", value)
    assert space is not None
    return space


def in_space(space: Space, value: Any) -> bool:
    """Whether the documentation of the kind allows `value`."""
    if space.listed:
        return any(type(own) is type(value) and own == value for own in space.arguments)
    if space.kind == "randn":
        return isinstance(value, float)
    lowest, highest = space.arguments[:2]
    if space.kind.endswith("randint"):
        return type(value) is int and lowest <= value < highest
    steps = value / space.arguments[2] if space.kind.startswith("q") else 0.0
    return type(value) is float and lowest <= value <= highest and math.isclose(steps, round(steps), abs_tol=1e-9)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_a_space_reads_back_from_what_it_writes(space: Space) -> None:
    assert parsed(space.data()) == space


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "grid",
        [1, 2],
        {},
        {"lr": [1, 2]},
        {"choice": {"provider": "local"}},
        {"grid": {}, "prover": {}},
        {1: 2},
    ],
)
def test_ordinary_values_are_no_spaces(value: Any) -> None:
    assert parse_space("key", value) is None


def classes(kind: type) -> Iterator[type]:
    yield kind
    for key in keys_of(kind).values():
        below = value_annotation(key.annotation)
        for member in branches(key.annotation if below is None else below):
            yield from classes(member)


@pytest.mark.parametrize("config", [ExperimentConfig, TextExperimentConfig, SweepSettings])
def test_no_setting_can_be_taken_for_a_space(config: type[BaseModel]) -> None:
    found = list(classes(config))
    assert len(found) > 3
    for kind in found:
        for name, key in keys_of(kind).items():
            assert name not in KINDS
            assert parse_space("key", {name: [1, 2]}) is None, "nor for a misspelt one"
            held = value_annotation(key.annotation) if str(key.annotation).startswith("dict") else None
            assert held in (None, float) or get_origin(held) is dict or branches(held), (
                f"{name}: below a free name must be no list"
            )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"loguniforn": [1, 2]}, "algorithm.lr.loguniforn: no kind of search space, did you mean loguniform?"),
        ({"grid": 3}, "algorithm.lr.grid: got 3, expected a list of values"),
        ({"grid": [1], "choice": [2]}, "algorithm.lr: got the keys grid, choice, expected one search space alone"),
        ({"grid": []}, "algorithm.lr.grid: got [], expected one value or more"),
        ({"choice": [1, 2, 1]}, "got 1 twice"),
        ({"grid": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]}, "twice"),
        ({"grid": [1, {"choice": [1, 2]}]}, "another space in one of its values"),
        ({"uniform": [1]}, "got [1], expected [lowest, highest], numbers"),
        ({"uniform": [False, True]}, "numbers"),
        ({"uniform": [2, 1]}, "expected the lowest value before the highest"),
        ({"uniform": [0, math.inf]}, "expected finite numbers"),
        ({"loguniform": [0, 1]}, "got 0 as the lowest value, expected a number > 0"),
        ({"lograndint": [0, 4]}, "expected a number > 0"),
        ({"randint": [1, 4.0]}, "expected [lowest, highest], integers"),
        ({"quniform": [0, 1, 0]}, "got a step of 0, expected a number > 0"),
        ({"quniform": [0, 1, 0.3]}, "got 1 with a step of 0.3, expected a multiple of the step"),
        ({"randn": [0, 0]}, "got a standard deviation of 0, expected a number > 0"),
    ],
)
def test_faulty_spaces_are_refused_with_their_key(value: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_space("algorithm.lr", value)
    message = str(caught.value)
    assert message.startswith("algorithm.lr")
    assert said in message
    assert "\n" not in message


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
NAMES = st.sampled_from([*KINDS, "lr"])


@given(st.recursive(SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(NAMES, below, max_size=2)))
def test_whatever_is_written_is_a_space_or_not_or_refused(value: Any) -> None:
    try:
        space = parse_space("key", value)
    except UserError:
        return
    assert (space is not None) == looks_like_space(value)
    assert space is None or all(in_space(space, example) for example in examples(space))


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_draws_lie_in_the_space_and_reach_all_of_it(space: Space) -> None:
    drawn = [draw(space, np.random.default_rng(seed)) for seed in range(400)]
    assert all(in_space(space, value) for value in drawn)
    distinct = {json.dumps(value) for value in drawn}
    if space.listed or space.kind.endswith("randint"):
        size = len(space.arguments) if space.listed else space.arguments[1] - space.arguments[0]
        assert len(distinct) == size
    elif space.kind == "quniform":
        assert set(drawn) == {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}, "clean numbers"
    elif space.kind == "randn":
        assert abs(np.mean(drawn) - 1) < 0.06
        assert 0.2 < np.std(drawn) < 0.3
    elif space.kind == "loguniform":
        assert abs(np.median(np.log10(drawn)) + 3) < 0.15, "equal ratios are equally likely"
    else:
        low, high = space.arguments[:2]
        assert min(drawn) < low + 0.2 * (high - low)
        assert max(drawn) > high - 0.2 * (high - low)


@settings(max_examples=60)
@given(st.sampled_from([space for space in SPACES if not space.listed and space.kind != "randn"]), st.floats(-100, 100))
def test_what_pbt_multiplied_is_brought_back(space: Space, value: float) -> None:
    inside = clipped(space, value)
    assert in_space(space, inside)
    assert clipped(space, inside) == inside
    if in_space(space, value):
        assert inside == pytest.approx(value)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_tune_draws_from_the_same_space(space: Space) -> None:
    made = to_tune(space, grid=False)
    state = np.random.RandomState(0)
    drawn = [from_tune(space, made.sample(random_state=state)) for _ in range(200)]
    assert all(in_space(space, value) for value in drawn)
    ours = [draw(space, np.random.default_rng(seed)) for seed in range(200)]
    if not space.listed:
        assert np.mean(drawn) == pytest.approx(np.mean(ours), abs=0.15 * (max(ours) - min(ours)))
    else:
        assert {json.dumps(value) for value in drawn} == {json.dumps(value) for value in ours}


def test_grids_are_tried_value_by_value_unless_the_searcher_knows_none() -> None:
    space = Space("grid", (1, 2))
    assert to_tune(space) == {"grid_search": [1, 2]}
    assert to_tune(space, grid=False).categories == [1, 2]
    assert to_pbt(space) == [1, 2]
    assert to_pbt(Space("uniform", (0.0, 1.0))).is_valid(0.5)


def test_mappings_never_reach_tune_as_mappings() -> None:
    """Tune evaluates {eval: ...} as Python."""
    hostile = {"eval": "__import__('os').getpid()"}
    space = Space("choice", (hostile, {"grid_search": [1]}, 3))
    seen = to_tune(space).categories
    assert all(isinstance(value, str) for value in seen)
    assert [from_tune(space, value) for value in seen] == list(space.arguments)
    with pytest.raises(ValueError, match="not a value of choice"):
        from_tune(space, "3 ")


def test_true_and_one_are_told_apart() -> None:
    space = parsed({"choice": [True, 1, 1.0]})
    for value in (True, 1, 1.0):
        back = from_tune(space, value)
        assert type(back) is type(value)
