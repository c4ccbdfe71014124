"""A run folder as tables of pandas."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nip_ray
from nip_ray.errors import UserError
from nip_ray.storage.folder import RunFolder
from tests.runs.small import MESSAGES, ROOT, small

pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load") / "run"
    nip_ray.run_experiment(small(base=MESSAGES), folder, quiet=True)
    return folder


def test_the_tables_have_what_the_files_have(run: Path) -> None:
    found, folder = nip_ray.load_run(run), RunFolder.open(run)
    rows = folder.metrics()
    assert found.config["name"] == "small-messages"
    assert found.evaluation == folder.read_json("evaluation.json")
    assert list(found.metrics.index) == [row["iteration"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        there = found.metrics.loc[row["iteration"]].dropna().to_dict()
        assert there == {key: value for key, value in row.items() if value is not None and key != "iteration"}
    records = [(name, record) for name in folder.transcript_names() for record in folder.read_transcripts(name)]
    assert len(records) == len(found.instances) > 0
    for (name, record), (_, row) in zip(records, found.instances.iterrows(), strict=True):
        assert (row["transcript"], row["instance"], row["verdict"]) == (name, record["instance"], record["verdict"])
        assert row["iteration"] == int(name.rpartition("-")[2])
        assert row["reward/verifier"] == record["reward"]["verifier"]
    said = [turn["message"] for _, record in records for part in record["rounds"] for turn in part["turns"]]
    assert list(found.dialogues["message"]) == said
    keys = ["transcript", "episode"]
    lengths = found.dialogues.groupby(keys)["round"].max() + 1
    assert (found.instances.set_index(keys)["length"] == lengths).all()


def test_a_run_that_has_just_begun_has_empty_tables(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", "name: begun\n").close()
    found = nip_ray.load_run(tmp_path / "run")
    assert (len(found.metrics), len(found.instances), len(found.dialogues)) == (0, 0, 0)
    assert found.evaluation == {}


def test_a_repeated_iteration_counts_once(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", "name: begun\n").close()
    rows = [{"iteration": 1, "a": 1.0}, {"iteration": 2, "a": 2.0}, {"iteration": 2, "a": 3.0}]
    lines = (json.dumps({**row, "version": 1}) + "\n" for row in rows)
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines))
    assert nip_ray.load_run(tmp_path / "run").metrics["a"].to_dict() == {1: 1.0, 2: 3.0}


def test_bad_input_is_named(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        nip_ray.load_run(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install 'nip_ray\[pandas\]'"):
        nip_ray.load_run(run)


def test_neither_ray_nor_torch_is_imported(run: Path) -> None:
    code = f"import sys, nip_ray; nip_ray.load_run({str(run)!r}); print({{'ray', 'torch'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
