"""Verifiers of language models against provers of other runs."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import config_from_dict, config_to_yaml, load_config
from nip_ray.config.policy_gradient_rules import stage_config
from nip_ray.config.text_rules import language_agents
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.cross_play import cross_play
from nip_ray.evaluation.verbs.language_meetings import common_items, language_play, language_run
from nip_ray.evaluation.verbs.over_time import cross_play_checkpoints
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.language import language_kind
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.token_bills import Allowance
from nip_ray.text.dialogues.runner import test_tasks as tasks_of
from nip_ray.text.items import stage_items, store_items
from nip_ray.text.training.model_play import ModelPlay
from tests.runs.small import small

RULE = {
    "name": "policy_gradient",
    "rollouts_per_iteration": 16,
    "group_size": 4,
    "format_warmup": 20,
    "learning_rate": 0.03,
    "checkpoint_every": 1,
    "keep_checkpoints": None,
}


def config(
    seed: int = 0,
    hidden_size: int = 32,
    protocol: str = "bisection",
    max_rounds: int = 5,
    algorithm: dict[str, Any] | None = None,
    lora_rank: int | None = None,
    **scenario: Any,
) -> Any:
    return config_from_dict(
        {
            "name": "tiny",
            "seed": seed,
            "iterations": 2,
            "protocol": {"name": protocol} | ({"max_rounds": max_rounds} if protocol == "bisection" else {}),
            "scenario": {
                "name": "state_tracking",
                "length": 4,
                "num_train": 60,
                "num_test": 12,
                "agents": {"_default": {"model": "words", "max_tokens": 2, "max_invalid_replies": 1}},
                **scenario,
            },
            "algorithm": algorithm or RULE,
            "providers": {
                "local": {
                    "name": "local",
                    **({"method": "full"} if lora_rank is None else {"lora_rank": lora_rank}),
                    "max_batch_size": 64,
                    "word_model": {"hidden_size": hidden_size, "num_layers": 1},
                }
            },
        }
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, one that differs in all that runs may differ in, and the first run as it was before its last iteration."""
    folder = tmp_path_factory.mktemp("cross play")
    agents = {
        "_default": {"model": "words", "max_tokens": 3, "max_invalid_replies": 1, "temperature": 0.5},
        "prover1": {"model": "words", "max_tokens": 4, "frozen": True},
    }
    found = {"first": folder / "first", "other": folder / "other", "earlier": folder / "earlier"}
    other = config(seed=3, hidden_size=48, agents=agents, algorithm={**RULE, "average_weights": 0.9}, lora_rank=2)
    run_experiment(config(), found["first"], quiet=True)
    run_experiment(other, found["other"], quiet=True)
    shutil.copytree(found["first"], found["earlier"])
    shutil.rmtree(found["earlier"] / "checkpoints" / "000002")
    return found


def cells(found: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(cell["verifier"], cell["prover"]): (cell["accuracy"], cell["undecided"]) for cell in found["matrix"]}


@pytest.mark.parametrize("greedy", [True, False])
def test_runs_meet_as_checkpoints_of_one_run_do(runs: dict[str, Path], greedy: bool) -> None:
    over_time = cells(cross_play_checkpoints(runs["first"], greedy=greedy))
    found = cross_play([runs["earlier"], runs["first"]], greedy=greedy)
    names = {"earlier": "000001", "first": "000002"}
    assert cells(found) == {(v, p): over_time[names[v], names[p]] for v in names for p in names}
    assert len({str(cell) for cell in over_time.values()}) > 1
    assert [run["iteration"] for run in found["runs"]] == [1, 2]
    assert (found["groups"], found["num_instances"]) == (["earlier"], 12)


def test_agents_keep_the_weights_and_settings_of_their_runs(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In all pairs; and scenarios are built for the settings of a pair, not copied with prompts made before."""
    folders = [runs["first"], runs["other"]]
    configs: list[Any] = [load_config(run / "config.yaml", checked=False) for run in folders]
    made = [language_run(RunFolder.open(run), own) for run, own in zip(folders, configs, strict=True)]
    seen: list[Any] = []
    built: list[Any] = []
    for run in made:
        kind = run.prepared.kind
        build = lambda *given, build=kind.build: built.append(given[1]) or build(*given)  # noqa: E731
        monkeypatch.setitem(vars(run.prepared), "kind", replace(kind, build=build))
    tasks = tasks_of(common_items(made), 0, None, 1)
    play = language_play([(run, run.weights()[1]) for run in made], tasks, Allowance(None), False, 0)
    replies, forget, forgotten = ModelPlay._replies, PolicyModel.forget, []

    def spied(self: Any, group: str, model: Any, scenario: Any, asked: Any, *rest: Any) -> Any:
        for agent in {one.agent for one in asked}:
            seen.append((agent, model, self.agents[agent], scenario))
        return replies(self, group, model, scenario, asked, *rest)

    monkeypatch.setattr(ModelPlay, "_replies", spied)
    monkeypatch.setattr(PolicyModel, "forget", lambda model: forgotten.append(model) or forget(model))
    for row, column in product(range(2), repeat=2):
        for kept in (seen, built, forgotten):
            kept.clear()
        play(row, column)
        assert {agent for agent, *_ in seen} == {"prover0", "prover1", "verifier"}
        for agent, model, settings, scenario in seen:
            number = row if agent == "verifier" else column
            assert settings == language_agents(made[number].config)[agent]
            assert scenario.max_invalid_replies(agent) == settings.max_invalid_replies
            assert built == [scenario.settings]
            if settings.frozen:
                assert model in forgotten  # others forget as they take weights
                assert model.folder.is_relative_to(folders[number])
                continue
            stored = load_checkpoint(folders[number] / "checkpoints").tensors[agent]
            expected = stored["averages"] if number else stored["weights"]
            assert all(bool((value == expected[name]).all()) for name, value in model.weights().items())
    assert "warning" not in capsys.readouterr().err
    cut = ModelPlay._replies

    def cutting(self: Any, group: str, model: Any, *rest: Any) -> Any:
        model.chat.prompts_cut += 1
        return cut(self, group, model, *rest)

    monkeypatch.setattr(ModelPlay, "_replies", cutting)
    play(0, 1)
    assert re.search(r"warning: \d+ prompts of .*first with .*other lost their middle", capsys.readouterr().err)


def test_models_of_other_sizes_meet_on_items_that_none_has_trained_with(runs: dict[str, Path], tmp_path: Path) -> None:
    def contents(run: Path, split: str) -> list[Any]:
        lines = map(json.loads, (run / "items" / f"{split}.jsonl").read_text().splitlines())
        return [(line["states"][0], line["moves"]) for line in lines]

    run = tmp_path / "first"  # like "other" it has trained with one of the items that it holds out
    shutil.copytree(runs["first"], run)
    of_other = (runs["other"] / "items" / "train.jsonl").read_text().splitlines()
    with (run / "items" / "test.jsonl").open("a") as held_out:
        item = json.loads(of_other[0])
        claim = (item["claim"] + 1) % 5  # another claim about the same chain
        y = int(claim == item["states"][-1])
        held_out.write(json.dumps({**item, "id": 999, "claim": claim, "y": y}) + "\n")
    trained = contents(run, "train") + contents(runs["other"], "train")
    left = [item for item in contents(run, "test") if item not in trained]
    found = cross_play([run, runs["other"]])
    assert found["num_instances"] == len(left) < len(contents(run, "test"))
    assert found["groups"] == ["first", "other"]
    assert {cell["accuracy"]["n"] for cell in found["matrix"]} == {len(left)}
    found = cross_play([runs["other"], run])  # on items of "other", none of which "first" has trained with
    newest = cross_play_checkpoints(runs["other"])["matrix"][-1]
    assert cells(found)["other", "other"] == (newest["accuracy"], newest["undecided"])
    easier = {"until_iteration": 1, "changes": ["scenario.num_generators=3"]}
    taught = config(seed=3, algorithm={**RULE, "curriculum": [easier]})
    items = stage_items(stage_config(taught, taught.algorithm.curriculum[0]), [])
    shutil.copytree(runs["first"], tmp_path / "taught")
    (tmp_path / "taught" / "config.yaml").write_text(config_to_yaml(taught))
    store_items(run, {"train": items[-1:], "test": items[:1]}, language_kind(taught.scenario))
    with pytest.raises(UserError, match="have trained with all held-out items of"):
        cross_play([run, tmp_path / "taught"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"length": 16, "max_rounds": 9}, "has the protocol max_rounds=5 and .*other max_rounds=9"),
        ({"num_generators": 3}, r"scenario\.num_generators=4 and .*other 3"),
        ({"algorithm": {"name": "expert_iteration"}}, "other learned by expert_iteration, in jobs"),
        (None, "are language models and those of .*other networks; name runs of one kind"),
    ],
)
def test_runs_that_cannot_meet_are_refused(
    runs: dict[str, Path], tmp_path: Path, changed: dict[str, Any] | None, words: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs["first"], other)
    (other / "config.yaml").write_text(config_to_yaml(small() if changed is None else config(**changed)))
    with pytest.raises(UserError, match=words):
        cross_play([runs["first"], other])
    result = CliRunner().invoke(app, ["cross-play", str(runs["first"]), str(other)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_what_is_missing_or_damaged_is_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="--dataset: language models play items that"):
        cross_play([runs["first"], runs["other"]], dataset=tmp_path / "pairs.npz")
    for run in ("first", "other"):
        shutil.copytree(runs["first"], tmp_path / run)
        (tmp_path / run / "config.yaml").write_text(config_to_yaml(config(protocol="solo_verifier")))
    with pytest.raises(UserError, match="plays solo_verifier, which has no verifier and prover"):
        cross_play([tmp_path / "first", tmp_path / "other"])
    shutil.rmtree(tmp_path / "other")
    shutil.copytree(runs["first"], tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "checkpoints")
    with pytest.raises(UserError, match="there is no checkpoint"):
        cross_play([runs["first"], tmp_path / "other"])
    shutil.copytree(runs["other"] / "checkpoints", tmp_path / "other" / "checkpoints")
    with pytest.raises(UserError, match="other: its checkpoint has no weights of prover1"):
        cross_play([runs["first"], tmp_path / "other"])
    shutil.rmtree(tmp_path / "other")
    shutil.copytree(runs["first"], tmp_path / "other")
    shutil.copytree(runs["other"] / "local", tmp_path / "other" / "local", dirs_exist_ok=True)
    with pytest.raises(UserError, match="other: its checkpoint is not of its model"):
        cross_play([runs["first"], tmp_path / "other"])
    shutil.rmtree(tmp_path / "other" / "local")
    with pytest.raises(UserError, match=r"cross-play: .*other: there is no local model"):
        cross_play([runs["first"], tmp_path / "other"])
    shutil.copytree(runs["first"], tmp_path / "damaged")
    (next((tmp_path / "damaged" / "checkpoints" / "000002").glob("*.pt"))).write_bytes(b"")
    found = cross_play([runs["first"], tmp_path / "damaged"], max_instances=2)
    assert [run["iteration"] for run in found["runs"]] == [2, 1]
    assert re.search("warning: .*000002 is damaged.*; iteration 1 plays", capsys.readouterr().err)
