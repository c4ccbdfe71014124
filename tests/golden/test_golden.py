"""Training gives the numbers that it gave before, to the last bit."""

from pathlib import Path

import pytest

from tests.golden.rows import NAMES, differences, how_compared, produce, recorded


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_as_recorded(name: str, tmp_path: Path) -> None:
    expected, found = recorded(name), produce(name, tmp_path)
    lines = differences(expected, found)
    rest = f"\n  and {len(lines) - 12} more" if len(lines) > 12 else ""
    shown = "\n  ".join(lines[:12])
    assert not lines, (
        f"{name}, {how_compared(expected, found)}:\n  {shown}{rest}\nIf this change was meant: make golden ARGS=--write"
    )
