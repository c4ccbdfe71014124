"""Temporary folders go away whatever is in them, and nothing outside goes with them."""

import os
from pathlib import Path

import pytest

from nip_ray.sandbox.inside.folder import remove


def test_every_kind_of_entry_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / "a").mkdir()
    (top / "a" / "link").symlink_to(outside / "file")
    os.mkfifo(top / "a" / "pipe")
    (top / "a" / "b").mkdir()
    (top / os.fsdecode(b"\xff\n")).touch()
    monkeypatch.chdir(top)
    for _ in range(1100):  # deeper than a path can be long, and than functions can call themselves
        os.mkdir("deep")
        os.chdir("deep")
    os.chdir(tmp_path)
    for path in (top / "a" / "b", top / "a", top):
        path.chmod(0)
    remove(str(top))
    assert not os.path.lexists(top)
    assert (outside / "file").read_text() == "stays"
