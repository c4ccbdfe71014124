"""Temporary folders go away whatever is in them, and nothing outside goes with them."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from nip_ray.sandbox.folder import place, remove, temporary_folder


def test_every_kind_of_entry_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    with temporary_folder() as name:
        top = Path(name)
        assert stat.S_IMODE(top.stat().st_mode) == 0o700
        (top / "link").symlink_to(outside)
        (top / "a").mkdir()
        (top / "a" / "link").symlink_to(outside / "file")
        os.mkfifo(top / "a" / "pipe")
        (top / "a" / "b").mkdir()
        (top / os.fsdecode(b"\xff\n")).touch()
        for path in (top / "a" / "b", top / "a", top):
            path.chmod(0)
    assert not os.path.lexists(name)
    assert (outside / "file").read_text() == "stays"


def test_a_chain_of_folders_of_any_depth() -> None:
    top = Path(tempfile.mkdtemp(dir=place()))
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 100, dir_fd=here)
        deeper = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    remove(str(top))
    assert not top.exists()


def test_it_is_removed_after_an_exception() -> None:
    with pytest.raises(KeyError), temporary_folder() as name:
        raise KeyError
    assert not os.path.exists(name)
