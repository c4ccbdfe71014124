"""`nip-ray report`, `compare` and `watch` as they are typed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nip_ray.cli import app
from nip_ray.evaluation.report import write_report


def run_folder(path: Path, seed: int = 0) -> Path:
    (path / "transcripts").mkdir(parents=True)
    (path / "config.yaml").write_text(f"name: typed\nseed: {seed}\niterations: 3\n")
    row = {"iteration": 1, "version": 1, "train/verifier/accuracy": 0.5, "train/verifier/return": 0.0}
    (path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    turn = {"agent": "prover", "channel": "main", "message": [1, 2]}
    for iteration in (1, 2):
        record = {"instance": 70 + iteration, "length": 1, "rounds": [{"round": 0, "turns": [turn]}], "version": 1}
        (path / "transcripts" / f"00000{iteration}.jsonl").write_text(json.dumps(record) + "\n")
    return path


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_report_writes_the_page_and_prints_where(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    done = typed("report", folder)
    assert (done.exit_code, done.stdout.strip()) == (0, str(folder / "report.html"))
    assert "instance 72" in (folder / "report.html").read_text()
    assert typed("report", folder, "--transcripts", "000001").exit_code == 0
    assert "instance 71" in (folder / "report.html").read_text()


def test_what_the_page_leaves_out_is_told(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    newest = folder / "transcripts" / "000002.jsonl"
    newest.write_text(newest.read_text() + '{"instance": 1, "rou\n')
    (folder / "transcripts" / "\u202e000003.jsonl").write_text("")
    done = typed("report", folder)
    assert (done.exit_code, done.stdout.strip()) == (0, str(folder / "report.html"))
    assert "warning: transcripts/000002.jsonl: line 2 is damaged; left out.\n" in done.stderr
    assert "warning: evaluation.json is missing.\n" in done.stderr


@pytest.mark.parametrize("older", [True, False])
def test_newest_transcripts_that_cannot_be_read_are_an_error_beside_the_page(tmp_path: Path, older: bool) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "transcripts" / "\u202e000002.jsonl").write_bytes(b"\x00\xff{\nnot json\n")
    (folder / "transcripts" / "000002.jsonl").unlink()
    if not older:
        (folder / "transcripts" / "000001.jsonl").unlink()
    done = typed("report", folder)
    assert done.exit_code == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "<U+202E>000002.jsonl: no record of it can be read" in last
    assert "\u202e" not in done.stderr
    assert ("instance 71" in (folder / "report.html").read_text()) is older
    (folder / "report.html").unlink()
    assert write_report(folder).is_file(), "the end of a run does not fail for it"


def test_compare_writes_one_page_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = typed("compare", run_folder(tmp_path / "a"), run_folder(tmp_path / "b", 1))
    assert (done.exit_code, done.stdout.strip()) == (0, "comparison.html")
    page = (tmp_path / "comparison.html").read_text()
    assert "2 runs compared" in page
    assert "seed 0, 1" in page


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "missing"], "no such folder"),
        (["report", "{run}", "--transcripts", "000009"], "this run has 000001, 000002"),
        (["report", "{run}", "--transcripts", "nonsense"], "--transcripts"),
        (["report", "{damaged}", "--transcripts", "000001"], "000001.jsonl: line 1 of 1 is damaged"),
        (["compare", "{run}"], "at least two different runs"),
        (["compare", "{run}", "{run}"], "at least two different runs"),
        (["compare", "{run}", "missing"], "no such folder"),
        (["compare", "{run}", "{damaged}", "--cross-play", "{run}/config.yaml"], "--cross-play"),
        (["compare", "{run}", "{damaged}", "--out", "{run}"], "--out"),
        (["compare", "{run}", "{no_config}"], "no_config/config.yaml is damaged"),
        (["watch", "missing"], "no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], told: str) -> None:
    places = {name: run_folder(tmp_path / name, 1) for name in ("damaged", "no_config")}
    places["run"] = run_folder(tmp_path / "run")
    (places["no_config"] / "config.yaml").write_text("name: [1\n")
    (places["damaged"] / "transcripts" / "000001.jsonl").write_text('{"instance": 1, "rou\n')
    done = typed(*(word.format(**places) for word in words))
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
