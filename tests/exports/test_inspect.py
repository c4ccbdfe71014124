"""Inspect's door, both ways: the log of a run has the figures of its evaluation.json, and Inspect plays the protocol as
the run did."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.runs.experiment import run_experiment
from tests.runs.small import MESSAGES, write_small
from tests.text.cooperation import dummy, write_config

inspect_ai = pytest.importorskip("inspect_ai")

from inspect_ai.log import read_eval_log  # noqa: E402
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model  # noqa: E402

from nip_ray.inspect_ai import instances, pay, play, protocol, verdict  # noqa: E402

NAMES = {**{name: f"verifier/{name}" for name in ("accuracy", "completeness", "soundness", "undecided")}}
NAMES |= {agent: f"{agent}/return" for agent in ("prover", "verifier")}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody speaks in, with its last test of 12 items, each twice."""
    folder = tmp_path_factory.mktemp("inspect")
    data = dummy(folder)
    data["algorithm"] |= {"num_test_items": 12, "num_test_repeats": 2}
    run_experiment(load_config(write_config(folder, data)), folder / "run", quiet=True)
    return folder / "run"


def means(log: Any) -> dict[str, float]:
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


def recorded(run_dir: Path) -> dict[str, Any]:
    evaluation = json.loads((run_dir / "evaluation.json").read_text())["sampled"]
    return {name: evaluation[key] for name, key in NAMES.items()}


def test_the_log_of_a_run_has_its_figures_and_every_dialogue(run_dir: Path) -> None:
    done = CliRunner().invoke(app, ["export", "inspect", str(run_dir)])
    assert done.exit_code == 0, done.output
    log = read_eval_log(done.stdout.strip(), resolve_attachments=True)
    assert means(log) == {name: record["estimate"] for name, record in recorded(run_dir).items()}
    for score in log.results.scores:  # of the samples alone, as Inspect's readers compute it
        values = [sample.scores[score.scorer].value[score.name] for sample in log.samples]
        known = [value for value in values if not math.isnan(value)]
        assert sum(known) / len(known) == pytest.approx(score.metrics["mean"].value, abs=1e-12)
        assert score.metrics["mean"].metadata["n"] == recorded(run_dir)[score.name]["n"]
    lines = (run_dir / "rollouts" / "test-000002.jsonl").read_text().splitlines()
    said = [[turn["raw"] for turns in json.loads(line)["dialogue"]["rounds"] for turn in turns] for line in lines]
    found = sorted([message.text.partition(": ")[2] for message in sample.messages] for sample in log.samples)
    assert found == sorted(said), "messages of all agents"
    assert {sample.epoch for sample in log.samples} == {1, 2}
    shown = [event for event in log.samples[0].events if event.event == "model"]
    assert [event.role for event in shown][:2] == ["verifier", "prover"]
    assert "programming problem" in shown[0].input[0].text


def test_inspect_plays_what_the_run_played(run_dir: Path, tmp_path: Path) -> None:
    (log,) = inspect_ai.eval(
        protocol(str(run_dir), from_run="all"), model="none", epochs=2, log_dir=str(tmp_path), display="none"
    )
    assert log.status == "success", log.error
    assert means(log) == pytest.approx(
        {name: record["estimate"] for name, record in recorded(run_dir).items()}, abs=1e-12
    )


def model(text: str) -> Model:
    """One of Inspect's that says the same thing always."""

    def answer(*_: Any) -> ModelOutput:
        made = ModelOutput.from_content("mockllm/model", text)
        made.usage = ModelUsage()
        return made

    return get_model("mockllm/model", custom_outputs=answer, memoize=False)


def test_agents_speak_by_roles_and_others_by_the_evaluated_model(run_dir: Path, tmp_path: Path) -> None:
    """In a task of the user's own, of a part of the items."""
    some = instances(run_dir)[:6]
    task = inspect_ai.Task(dataset=some, solver=play(run_dir, from_run=["prover"]), scorer=[verdict(), pay()])
    (log,) = inspect_ai.eval(task, model=model("Decision: accept"), log_dir=str(tmp_path), display="none")
    found = means(log)
    assert (found["completeness"], found["soundness"], found["undecided"]) == (1, 0, 0)
    assert found["accuracy"] == sum(sample.target == "accept" for sample in some) / 6
    roles = {"verifier": model("Question for Expert: why?"), "prover": model("Answer: so.")}
    (log,) = inspect_ai.eval(
        protocol(run_dir), model="none", model_roles=roles, limit=2, log_dir=str(tmp_path), display="none"
    )
    assert means(log)["undecided"] == 1
    assert [message.text for message in log.samples[0].messages[:2]] == [
        "verifier: Question for Expert: why?",
        "prover: Answer: so.",
    ]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda run: play(run, from_run="judge"),
            "there is no agent 'judge', expected all, or some of prover, verifier",
        ),
        (lambda run: play(run / "config.yaml", from_run="all"), "a config has no models yet"),
        (lambda run: instances(run, "held-out"), "split: got 'held-out', expected train or test"),
        (
            lambda run: protocol({"scenario": {"name": "message_game"}, "protocol": {"name": "message_game"}}),
            "language models can speak",
        ),
    ],
)
def test_what_cannot_be_played_is_named(run_dir: Path, call: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        call(run_dir)


def test_what_cannot_be_exported_is_named(run_dir: Path, tmp_path: Path) -> None:
    networks = tmp_path / "networks"
    networks.mkdir()
    write_small(networks / "config.yaml", base=MESSAGES)
    for words, told in (
        ([str(networks)], "its agents are networks"),
        ([str(run_dir), "--iteration", "9"], "--iteration 9: was not tested, expected one of 1, 2"),
        ([str(run_dir), "--out", "log.txt"], "name a file that ends in .eval or .json"),
        ([str(run_dir), "--out", "/proc/log.eval"], "cannot be written"),
    ):
        done = CliRunner().invoke(app, ["export", "inspect", *words])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
        assert told in done.stderr


def test_inspect_finds_the_task_by_name() -> None:
    points = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"][
        "inspect_ai"
    ]
    assert points == {"nip_ray": "nip_ray.inspect_ai"}
