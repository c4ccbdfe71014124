"""Which copies belong to which learner."""

import re

import pytest

from nip_ray.drivers.contract import resolve_scopes
from nip_ray.errors import UserError


@pytest.mark.parametrize(
    ("copies", "learners", "sizes", "expected"),
    [
        (5, 1, None, ((0, 5),)),
        (10, 3, None, ((0, 3), (3, 6), (6, 10))),
        (3, 3, None, ((0, 1), (1, 2), (2, 3))),
        (10, 3, [1, 7, 2], ((0, 1), (1, 8), (8, 10))),
    ],
)
def test_scopes_are_ranges_in_order(
    copies: int, learners: int, sizes: list[int] | None, expected: tuple[tuple[int, int], ...]
) -> None:
    assert resolve_scopes(copies, learners, sizes) == expected


@pytest.mark.parametrize(
    ("copies", "learners", "sizes", "words"),
    [
        (4, 0, None, "empty list"),
        (4, 5, None, "got 5 for 4 copies, expected at most one learner a copy"),
        (4, 2, [4], "got 1 for 2 learners, expected one for each"),
        (4, 2, [2, 3], "got [2, 3], which is 5 copies, expected a sum of 4"),
        (4, 2, [4, 0], "expected integers >= 1"),
        (4, 2, [2, True], "expected integers >= 1"),
    ],
)
def test_scopes_that_do_not_fit_are_refused(copies: int, learners: int, sizes: list[int] | None, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        resolve_scopes(copies, learners, sizes)
