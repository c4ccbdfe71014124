"""`run_experiment`: what a run leaves behind, that its numbers are its seed's, and that other protocols train as
well."""

import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import nip_ray
from nip_ray import progress
from nip_ray.config.changes import run_fingerprint
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.config.paths import absolute_paths, with_absolute_paths
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError
from nip_ray.progress import progress_line
from nip_ray.protocols import build
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.identity import ExperimentResult
from tests.docs.metrics import documented_metrics
from tests.runs.small import GRAPHS, MESSAGES, small, untimed

BASES = {"graphs": GRAPHS, "messages": MESSAGES}
ALWAYS = {
    "iteration",
    "time/iteration_s",
    "time/sample_s",
    "time/learn_s",
    "env_steps",
    "env_steps_per_s",
    "train/verifier/accuracy",
}
EVALUATED = {f"eval/verifier/{name}" for name in ("accuracy", "completeness", "soundness", "undecided")}


@pytest.fixture(scope="module", params=BASES)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ExperimentConfig, ExperimentResult]:
    config = small(base=BASES[request.param])
    return config, run_experiment(config, tmp_path_factory.mktemp("finished") / request.param, quiet=True)


def rows_of(result: ExperimentResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_run_folder_is_complete(finished: tuple[ExperimentConfig, ExperimentResult]) -> None:
    config, result = finished
    path = result.run_dir
    assert config_from_dict(parse_yaml((path / "config.yaml").read_text(encoding="utf-8"), "config.yaml")) == config
    assert [row["iteration"] for row in rows_of(result)] == [1, 2, 3, 4]

    assert sorted(entry.name for entry in (path / "checkpoints").iterdir()) == ["000002", "000004"]
    for checkpoint in (path / "checkpoints").iterdir():
        listed = set(json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["files"])
        assert listed | {"manifest.json"} == {entry.name for entry in checkpoint.iterdir()}
    loaded = load_checkpoint(path / "checkpoints", fingerprint=run_fingerprint(config))
    assert (loaded.iteration, loaded.skipped) == (4, [])
    assert set(loaded.tensors["training"]["modules"]) == {"prover", "verifier"}

    transcripts = {
        entry.name: entry.read_text(encoding="utf-8").splitlines() for entry in (path / "transcripts").iterdir()
    }
    assert set(transcripts) == {"000002.jsonl", "000004.jsonl"}
    assert all(len(lines) == 3 and json.loads(lines[0])["rounds"] for lines in transcripts.values())

    evaluation = json.loads((path / "evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["iteration"] == 4
    for mode, prefix in (("greedy", "eval"), ("sampled", "eval_sampled")):
        for name, record in evaluation[mode].items():
            assert record["estimate"] == result.metrics[f"{prefix}/{name}"]

    environment = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    assert (environment["nip_ray"], environment["torch"]) == (nip_ray.__version__, metadata.version("torch"))
    assert "</html>" in (path / "report.html").read_text(encoding="utf-8")
    curves = list((path / "curves").glob("*.pdf"))
    assert {"accuracy", "returns"} <= {curve.stem for curve in curves}
    assert all(curve.read_bytes().startswith(b"%PDF-") for curve in curves)
    assert not [entry for entry in path.rglob(".*") if entry.name != ".lock"], "nothing half written is left"


def test_promised_keys_are_in_every_row(finished: tuple[ExperimentConfig, ExperimentResult]) -> None:
    config, result = finished
    for row in rows_of(result):
        assert row.keys() >= ALWAYS
        evaluated = row["iteration"] % 2 == 0
        assert (row.keys() >= EVALUATED) == evaluated
        assert ({"eval/verifier/wl_bound", "eval/verifier/solo_baseline"} <= row.keys()) == (
            evaluated and config.scenario.name == "graph_isomorphism"
        )
        assert all(isinstance(value, int | float) for value in row.values()), "numbers, and nothing else"
        assert row["env_steps_per_s"] == pytest.approx(row["env_steps"] / row["time/iteration_s"])
        assert row["time/sample_s"] + row["time/learn_s"] <= row["time/iteration_s"]
    rows = rows_of(result)
    assert [row["env_steps_total"] for row in rows] == [
        sum(row["env_steps"] for row in rows[: i + 1]) for i in range(4)
    ]
    assert [row["episodes"] for row in rows] == [config.play.num_copies] * 4


def test_every_key_is_documented(finished: tuple[ExperimentConfig, ExperimentResult]) -> None:
    config, result = finished
    patterns = list(documented(build(config.protocol.name).agents))
    unknown = {key for row in rows_of(result) for key in row if not any(pattern.fullmatch(key) for pattern in patterns)}
    assert not unknown


def documented(agents: tuple[str, ...]) -> Iterator[re.Pattern[str]]:
    """A pattern for each key in the lists of docs/metrics/ that are about rows."""
    text = documented_metrics()
    entries = re.findall(r"^- ((?:`[^`]+`(?:, )?)+)", text, re.MULTILINE)
    keys = [key for entry in entries for key in re.findall(r"`([^`…]+)`", entry)]
    assert len(keys) > 30
    keys += [
        f"eval_sampled/{key.removeprefix('eval/')}"
        for key in keys
        if key.startswith("eval/") and not key.endswith(("wl_bound", "solo_baseline"))
    ]
    words = {"<agent>": f"(?:{'|'.join(agents)})", "<group>=<value>": r"\w+=-?\d+"}
    for key in keys:
        pattern = re.escape(key)
        for word, meaning in words.items():
            pattern = pattern.replace(re.escape(word), meaning)
        yield re.compile(pattern)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_remote_env_runner_gives_the_same_numbers(tmp_path: Path) -> None:
    local, remote = (
        [
            untimed(row)
            for row in rows_of(
                run_experiment(small(f"play.num_env_runners={runners}"), tmp_path / str(runners), quiet=True)
            )
        ]
        for runners in (0, 1)
    )
    assert remote == local


def test_without_a_terminal_there_are_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_experiment(small("iterations=2", base=MESSAGES), tmp_path / "run")
    told = capfd.readouterr()
    first, *iterations, last = told.err.splitlines()
    assert (told.out, first, last) == ("", f"run {tmp_path / 'run'}", "evaluation")
    assert [line.split(" · ")[0] for line in iterations][-1] == "iteration 2/2"
    assert all(" · accuracy 0." in line for line in iterations)


def test_a_line_comes_with_news_and_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress_line("a-run", 0, 100, quiet=False) as report:
        for done in range(1, 100):
            now += 1.0
            report(
                done,
                {
                    "eval/verifier/accuracy": 0.5 if done < 70 else 0.6,
                    "stage": f"sample {done}/100" if done < 50 else "test",
                },
            )
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["1/100", "31/100", "50/100", "70/100"]
    with progress_line("a-run", 0, 100, quiet=False, unit="timestep") as report:
        now += 400.0
        report(0, {"stage": "warm-up 1/2"})
        now += 45.0
        report(10, {"eval/verifier/accuracy": 0.5})
        report(11, {})
    told = capsys.readouterr().err.splitlines()[1:]
    assert told == ["timestep 10/100 · evaluation 0.500 · 7 min left"], (
        "a warm-up is no iteration, an untested iteration no news"
    )


def test_files_of_a_config_mean_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = {"prover": {"pretrained_weights": "w.pth"}, "verifier": {}}
    scenario = {"name": "image_classification", "data": {"train": "a"}, "agents": agents, "embedding_cache": "maps"}
    monkeypatch.chdir(tmp_path)
    found = with_absolute_paths(ExperimentConfig.model_validate({"scenario": scenario})).model_dump()["scenario"]
    assert found["data"]["train"] == str(tmp_path / "a")
    assert found["embedding_cache"] == str(tmp_path / "maps")
    assert [agent["pretrained_weights"] for agent in found["agents"].values()] == [str(tmp_path / "w.pth"), None]
    begun = ExperimentConfig.model_validate({"initial_weights": {"prover": {"run_dir": "a"}}})
    assert with_absolute_paths(begun).initial_weights["prover"].run_dir == str(tmp_path / "a")
    plain = ExperimentConfig()
    assert with_absolute_paths(plain) == plain
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    swept = {  # keys of a sweep file, where a value may be a file under any name of an agent
        "scenario.embedding_cache": "maps",
        "scenario.agents.judge.pretrained_weights": "w.pth",
        "scenario.data": {"train": "a"},
        "plugins": ["own.py", "a.module"],
    }
    found = {key: absolute_paths(value, ExperimentConfig, key) for key, value in swept.items()}
    assert found == {
        "scenario.embedding_cache": str(tmp_path / "maps"),
        "scenario.agents.judge.pretrained_weights": str(tmp_path / "w.pth"),
        "scenario.data": {"train": str(tmp_path / "a")},
        "plugins": [str(tmp_path / "own.py"), "a.module"],
    }
    models = {
        name: absolute_paths(name, TextExperimentConfig, "scenario.agents.prover.model") for name in ("m", "default")
    }
    assert models == {"m": str(tmp_path / "m"), "default": "default"}


def test_a_finished_run_is_not_overwritten(finished: tuple[ExperimentConfig, ExperimentResult]) -> None:
    config, result = finished
    before = (result.run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="holds a run already"):
        run_experiment(config, result.run_dir, quiet=True)
    assert (result.run_dir / "metrics.jsonl").read_bytes() == before


# --------------------------------------------------------------------------------------------------------- other
# protocols
