"""The journal: what was appended is there after any kill; damage that no kill explains is told."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.errors import UserError
from nip_ray.text.jobs import Journal, read_journal
from tests.text.provider import ROOT


def filled(path: Path, count: int = 3) -> Path:
    with Journal(path) as journal:
        for number in range(count):
            journal.append("step", number=number, text="ü\n\0")
    return path


def numbers(path: Path) -> list[int]:
    return [entry["number"] for entry in read_journal(path)]


def test_entries(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        assert journal.append("a", key="x", n=1) == {"kind": "a", "key": "x", "n": 1}
        journal.append("b", key="x", n=2)
        journal.append("a", key="y", n=3)
        assert [entry["n"] for entry in journal.entries("a")] == [1, 3]
        assert [entry["n"] for entry in journal.entries(key="x")] == [1, 2]
        assert journal.last("a") == {"kind": "a", "key": "y", "n": 3}
        assert journal.last("a", key="z") is None
        before = list(journal.entries())
    with Journal(path) as journal:
        assert list(journal.entries()) == before == read_journal(path)
    assert path.read_bytes().count(b"\n") == 3
    assert read_journal(tmp_path / "none") == []


def test_one_writer(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(UserError, match="written by another process"):
        Journal(tmp_path / "j")
    Journal(tmp_path / "j").close()


def test_every_cut_is_survived(tmp_path: Path) -> None:
    """A file cut at any byte opens, has the whole lines before the cut, and takes new ones."""
    whole = filled(tmp_path / "whole").read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "cut"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        left = sum(end <= length for end in ends)
        with Journal(path) as journal:
            assert len(list(journal.entries())) == left
            journal.append("step", number=9)
        assert numbers(path) == [*range(left), 9]


def test_blocks_that_never_reached_the_disk(tmp_path: Path) -> None:
    path = filled(tmp_path / "j")
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + b"\0" * (len(third) - 1) + b"\n")
    with Journal(path) as journal:
        journal.append("step", number=9)
    assert numbers(path) == [0, 1, 9]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_told_with_its_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any changed byte, but for a lost last line break, is noticed, never passed over."""
    path = filled(tmp_path_factory.mktemp("journal") / "j")
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 2))
    path.write_bytes(
        whole[:at] + bytes([whole[at] ^ data.draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64]))]) + whole[at + 1 :]
    )
    if b"\0" in path.read_bytes().splitlines(keepends=True)[-1]:
        return
    line = whole[:at].count(b"\n") + 1
    for read in (Journal, read_journal):
        with pytest.raises(UserError, match=rf"line {line} (is damaged|has the format version)"):
            read(path)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "journal", tmp_path):
        with pytest.raises(UserError, match="cannot be written"):
            Journal(path)


def test_a_full_disk_stops_it_and_keeps_what_was_written(tmp_path: Path) -> None:
    """In a process whose files may not grow: the entry is refused, nothing follows it, and the file opens again."""
    path = filled(tmp_path / "j")
    source = f"""
import resource, signal
from nip_ray.errors import UserError
from nip_ray.text.jobs import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal({str(path)!r})
size = {path.stat().st_size}
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))
for number in (7, 8):
    try:
        journal.append("step", number=number)
    except UserError as error:
        print("refused" if "cannot be written" in str(error) else error)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["refused", "refused"]
    assert numbers(path) == [0, 1, 2]
    with Journal(path) as journal:
        journal.append("step", number=8)
    assert numbers(path) == [0, 1, 2, 8]


def test_kills_at_random_moments(tmp_path: Path) -> None:
    """A writer says what it appended only after `append` returned: after SIGKILL all of that is there, in order."""
    path = tmp_path / "j"
    source = f"""
from nip_ray.text.jobs import Journal
journal = Journal({str(path)!r})
number = len(list(journal.entries()))
while True:
    journal.append("step", number=number, filler="x" * (number * 37 % 9000))
    print(number, flush=True)
    number += 1
"""
    said, kept = -1, list[int]()
    for round_ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        said = int(writer.stdout.readline())
        time.sleep(0.01 * round_)
        os.kill(writer.pid, signal.SIGKILL)
        said = max([said, *(int(line) for line in writer.stdout.read().splitlines())])
        writer.wait()
        writer.stdout.close()
        kept = numbers(path)
        assert kept == list(range(len(kept)))
        assert len(kept) > said
    with Journal(path) as journal:
        assert len(list(journal.entries())) == len(kept)
