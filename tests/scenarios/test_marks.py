"""Marks tell when a file was changed, in a folder too."""

import os
from pathlib import Path

from nip_ray.scenarios.marks import marks


def test_a_file_that_was_changed_has_another_mark(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    file = tmp_path / "below" / "data"
    file.write_text("one")
    os.utime(file, ns=(5, 5))
    first = marks(file)
    assert first == marks(tmp_path) == ((str(file), 3, 5),)
    file.write_text("three")
    os.utime(file, ns=(5, 5))
    second = marks(file)
    os.utime(file, ns=(5, 6))
    assert len({first, second, marks(file)}) == 3
    (tmp_path / "more").write_text("")
    assert len(marks(tmp_path)) == 2
