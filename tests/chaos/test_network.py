"""Lost, unanswered and late calls between Ray's processes change no number."""

from pathlib import Path

import pytest

from tests.chaos.network import check

SEEDS = (0, 1, 3)


@pytest.mark.crash
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", SEEDS)
def test_calls_that_fail_change_no_number(tmp_path: Path, seed: int) -> None:
    print(check(seed, tmp_path))
