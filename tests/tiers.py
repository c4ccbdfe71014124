"""Families of cases of which some are fast tests and the others slow ones."""

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], step: int = 2, first: int = 0) -> list[Any]:
    """`cases` with all but every `step`-th from number `first` on in the slow tier. A case is a value, a tuple of
    several, or a `param`."""
    return [case if number % step == first else _slow(case) for number, case in enumerate(cases)]


def only(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """`cases` with all but those in `fast` in the slow tier."""
    return [case if case in fast else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    made = case if hasattr(case, "marks") else pytest.param(*(case if isinstance(case, tuple) else (case,)))
    return pytest.param(*made.values, id=made.id, marks=[*made.marks, pytest.mark.slow])
