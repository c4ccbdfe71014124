"""The run folder: made once, locked, appended to, rewound; and what it says about damage."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.storage.files import write_atomically
from nip_ray.storage.folder import RunFolder, environment

CONFIG = "name: é\nseed: 3\n"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "a" / "run", CONFIG) as made:
        yield made


def rows(*iterations: int) -> list[dict]:
    return [{"iteration": i, "loss": i / 4} for i in iterations]


def fill(run: RunFolder, *iterations: int) -> None:
    for row in rows(*iterations):
        run.append_metrics(row)


def child(source: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process of its own that prints a line when it is ready."""
    made = subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_run_is_not_made_twice(run: RunFolder) -> None:
    """One that has done something, that is: one that failed while it was built leaves room for another."""
    run.close()
    (run.path / "warnings.log").write_text("of the first\n")
    with RunFolder.create(run.path, CONFIG) as run:
        assert not (run.path / "warnings.log").exists()
        run.append_metrics({"iteration": 1})
    with pytest.raises(UserError, match=f"nip-ray resume {run.path}"):
        RunFolder.create(run.path, "other")
    assert RunFolder.open(run.path).config_yaml() == CONFIG


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"holds no run.*thesis\.tex"):
        RunFolder.create(tmp_path, CONFIG)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_create_leaves_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("process 1 on x\n")
    (tmp_path / ".config.yaml.tmp-999999999").write_text("na")
    RunFolder.create(tmp_path, CONFIG).close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "config.yaml"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "file", CONFIG)
    with pytest.raises(UserError, match="can be written"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG)
    with pytest.raises(UserError, match="not a folder"):
        RunFolder.open(tmp_path / "file")


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"config\.yaml is missing"):
        RunFolder.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_is_not_text(run: RunFolder) -> None:
    (run.path / "config.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UserError, match=r"config\.yaml is damaged.*byte 3"):
        run.config_yaml()


HOLD = """
import sys, time
from nip_ray.storage.folder import RunFolder
run = RunFolder.open(sys.argv[1], write=True)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_second_writer_in_this_process_is_refused(run: RunFolder) -> None:
    with pytest.raises(UserError, match=f"process {os.getpid()} on"):
        RunFolder.open(run.path, write=True)
    with pytest.raises(UserError, match=f"process {os.getpid()} on"):
        RunFolder.create(run.path, CONFIG)
    run.close()
    run.close()
    RunFolder.open(run.path, write=True).close()


def test_a_writer_elsewhere_is_named_and_its_death_frees_the_run(run: RunFolder) -> None:
    run.close()
    holder = child(HOLD, str(run.path))
    try:
        with pytest.raises(UserError, match=f"process {holder.pid} on"):
            RunFolder.open(run.path, write=True)
        assert RunFolder.open(run.path).config_yaml() == CONFIG, "readers need no lock"
    finally:
        kill(holder)
    with RunFolder.open(run.path, write=True) as after:
        assert str(os.getpid()) in (after.path / ".lock").read_text()


def test_a_lock_that_was_removed_is_taken_again_or_missed(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        (run.path / ".lock").unlink()
        run.append_metrics({"iteration": 1})
        with pytest.raises(UserError, match="is being written by"):
            RunFolder.open(run.path, write=True)
        (run.path / ".lock").unlink()
        with RunFolder.open(run.path, write=True), pytest.raises(UserError, match="is being written by"):
            run.append_metrics({"iteration": 2})


def test_rows_come_back(run: RunFolder) -> None:
    run.append_metrics(
        {
            "iteration": 1,
            "a/b": np.float32(0.5),
            "n": np.int64(3),
            "t": torch.tensor(2.5),
            "ok": True,
            "b": np.bool_(False),
            "s": "x\r\né",
        }
    )
    run.append_metrics(
        {"iteration": np.int64(2), "nan": math.nan, "inf": -math.inf, "t": torch.tensor(math.nan), "none": None}
    )
    expected = [
        {"iteration": 1, "a/b": 0.5, "n": 3, "t": 2.5, "ok": True, "b": False, "s": "x\r\né"},
        {"iteration": 2, "nan": None, "inf": None, "t": None, "none": None},
    ]
    assert RunFolder.open(run.path).metrics() == expected, "visible at once, without a close"
    text = (run.path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert [json.loads(line)["version"] for line in text.splitlines()] == [1, 1]


def test_every_way_to_tear_the_last_line(run: RunFolder) -> None:
    fill(run, 1, 2, 3)
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    run.close()
    third = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for size in range(third, len(whole)):
        path.write_bytes(whole[:size])
        assert RunFolder.open(run.path).metrics() == rows(1, 2)
        with RunFolder.open(run.path, write=True) as writer:
            fill(writer, 3)
        assert path.read_bytes() == whole
    path.write_bytes(whole + b"\0" * 100)  # what a power cut may leave
    assert RunFolder.open(run.path).metrics() == rows(1, 2, 3)


@pytest.mark.parametrize(
    "damage",
    [b'{"iteration": 2, "lo\n', b"\n", b"[1]\n", b'{"iteration": 2}\n', b'{"loss": 2, "version": 1}\n', b"\xff\n"],
)
def test_a_damaged_line_before_the_last_is_named(run: RunFolder, damage: bytes) -> None:
    fill(run, 1, 2, 3)
    path = run.path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], damage, lines[2]])
    path.write_bytes(damaged)
    for use in (run.metrics, lambda: run.rewind_metrics(1)):
        with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 of 3 is damaged"):
            use()
    assert path.read_bytes() == damaged


def test_rewind(run: RunFolder) -> None:
    run.rewind_metrics(5)
    assert run.metrics() == []
    fill(run, 1, 2, 3)
    run.sync()
    before = (run.path / "metrics.jsonl").read_bytes()
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"iteration": 4, "lo')
    run.rewind_metrics(3)
    assert (run.path / "metrics.jsonl").read_bytes() == before
    run.rewind_metrics(1)
    fill(run, 2)
    assert run.metrics() == rows(1, 2)
    run.rewind_metrics(-1)
    assert run.metrics() == []


def test_transcripts(run: RunFolder) -> None:
    records = [
        {"instance": 1, "rounds": [{"round": 0, "reward": math.nan}]},
        {"instance": 2, "tokens": torch.tensor([1, 2])},
    ]
    for name in ("000010", "greedy-000009", "sampled-000011", "1000000"):
        run.write_transcripts(name, iter(records))
    expected = [{"instance": 1, "rounds": [{"round": 0, "reward": None}]}, {"instance": 2, "tokens": [1, 2]}]
    reader = RunFolder.open(run.path)
    assert reader.read_transcripts("000010") == expected
    assert reader.transcript_names() == ["greedy-000009", "000010", "sampled-000011", "1000000"]
    run.rewind_transcripts(10)
    assert reader.transcript_names() == ["greedy-000009", "000010"]
    with pytest.raises(UserError, match=r"000011\.jsonl is missing; this run has greedy-000009, 000010"):
        reader.read_transcripts("000011")
    path = run.transcripts / "000010.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"000010\.jsonl: line 2 of 2 is damaged"):
        reader.read_transcripts("000010")


def test_documents(run: RunFolder) -> None:
    content = {"accuracy": 0.75, "by_score": {"1": [0.5, None]}}
    path = RunFolder.open(run.path).write_json(
        "evaluation.json", {**content, "by_score": {"1": (np.float64(0.5), math.inf)}}
    )
    assert run.read_json("evaluation.json") == content
    document = json.loads(path.read_text())
    assert (document["format"], document["version"]) == ("nip_ray.evaluation", 1)
    path.write_text(json.dumps({**document, "version": 9}))
    with pytest.raises(UserError, match="format version 9"):
        run.read_json("evaluation.json")
    for damaged in ('{"format"', "[]", '{"format": "x", "version": 1}', "[" * 100_000):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"evaluation\.json is damaged"):
            run.read_json("evaluation.json")
    with pytest.raises(UserError, match=r"environment\.json is missing"):
        run.read_json("environment.json")


def test_a_failed_write_keeps_the_old_content(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.path / "report.html"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"report\.html cannot be written \(No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert not list(run.path.glob(".*tmp*"))


def test_leftovers_of_killed_writers_are_removed(run: RunFolder) -> None:
    run.write_transcripts("000001", [])
    run.close()
    dead = [run.path / ".report.html.tmp-999999999", run.transcripts / ".000001.jsonl.tmp-999999999"]
    alive = run.path / f".evaluation.json.tmp-{os.getpid()}"
    for path in (*dead, alive):
        path.write_text("x")
    RunFolder.open(run.path)
    assert all(path.exists() for path in dead)
    RunFolder.open(run.path, write=True).close()
    assert not any(path.exists() for path in dead)
    assert alive.exists()


def test_environment(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "do-not-tell")
    found = environment({"device": "cpu"})
    assert found["python"].startswith("3.")
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"].partition("-")[0]) == 40
    assert {"ray", "numpy", "nip_ray", "processors", "platform", "started"} <= set(found)
    assert "do-not-tell" not in json.dumps(found)
    run.write_json("environment.json", found)
    assert run.read_json("environment.json") == found
