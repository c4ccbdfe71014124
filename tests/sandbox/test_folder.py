"""Temporary folders go away whatever is in them, and nothing outside goes with them."""

import os
import stat
from pathlib import Path

from nip_ray.sandbox.folder import temporary_folder


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
