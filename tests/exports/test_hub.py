"""The Hub's door: what is exported is loaded again with the figures of the run, by us and by the Hub's own libraries,
offline."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.exports.hub import export_hf
from nip_ray.exports.hub_cards import records
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.runs.initial_weights import initial_weights
from nip_ray.secrets import secret
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.storage.folder import read_lines
from tests.runs.small import MESSAGES, small
from tests.text.provider import ROOT

TOKEN = "hf_StandInTokenOfTests0123456789"
ATTACK = ("iterations=1", "seeds=1", "sizes=[1]", "goals=[soundness]", "copies=16", "continued=false")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of networks, with an attack in its evaluation."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run_experiment(small("tracking.mirror.url=file:///tmp/nowhere-of-mine", base=MESSAGES), folder, quiet=True)
    evaluate_run(folder, attacked=True, settings=[f"evaluation.attack.{one}" for one in ATTACK])
    return folder


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_hf(trained, tmp_path_factory.mktemp("exported") / "out")


def evaluation_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def assert_figures_equal(found: Mapping[str, Any], folder: Path) -> None:
    """Of `evaluate_run`, with the evaluation.json of a folder."""
    stored = {key: value for key, value in evaluation_of(folder).items() if key in found and isinstance(value, dict)}
    assert {"greedy", "sampled"} & set(stored)
    assert {key: found[key] for key in stored} == stored


def test_networks_are_evaluated_again_with_equal_figures(trained: Path, exported: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(exported / "model", tmp_path / "elsewhere")
    assert not list(moved.rglob("*.pt"))
    assert_figures_equal(evaluate_run(moved), trained)
    assert "nowhere-of-mine" not in (moved / "config.yaml").read_text() + (moved / "README.md").read_text()


def test_every_figure_of_the_card_is_that_of_the_evaluation(trained: Path, exported: Path) -> None:
    from huggingface_hub import DatasetCard, ModelCard

    card = (exported / "model" / "README.md").read_text()
    evaluation = evaluation_of(trained)
    rows = re.findall(r"^\| ([\w/=.-]+) \| (\S+) \| (\S*) ?\| (\S*) ?\| (\d*) ?\|$", card, re.M)
    said = {name: tuple(float(part) if part else None for part in parts) for name, *parts in rows}
    there = {
        name: tuple(record.get(part) for part in ("estimate", "lower", "upper", "n"))
        for name, record in records(evaluation)
    }
    assert said == there
    for row in evaluation["attack"]["soundness"]["attackers"]:
        assert f"| soundness | {row['name']} | {row['held_out']['estimate']!r} |" in card
    loaded = ModelCard.load(exported / "model" / "README.md")
    figures = {result.metric_name: result.metric_value for result in loaded.data.eval_results}
    assert figures["greedy/verifier/accuracy"] == evaluation["greedy"]["verifier/accuracy"]["estimate"]
    assert "seed 3" in card
    assert "`message_game`" in card
    assert DatasetCard.load(exported / "dataset" / "README.md").data.configs[0]["config_name"] == "default"


def test_transcripts_are_loaded_by_datasets(
    trained: Path, exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    found = datasets.load_dataset(str(exported / "dataset"), cache_dir=str(tmp_path))["test"]
    lines = [line for path in sorted((trained / "transcripts").glob("*.jsonl")) for line in read_lines(path)]
    assert [(row["instance"], row["verdict"], row["length"]) for row in found] == [
        (r["instance"], r["verdict"], r["length"]) for r in lines
    ]
    said = [[(turn["agent"], turn["symbols"]) for turn in row["turns"]] for row in found]
    assert said == [
        [(turn["agent"], turn["message"]) for played in r["rounds"] for turn in played["turns"]] for r in lines
    ]
    schema = json.loads((exported / "dataset" / "schema.json").read_text())
    assert set(schema["columns"]) == set(found.features)
    assert set(schema["turns"]) == set(found[0]["turns"][0])


def tiny_text(method: str = "full") -> TextExperimentConfig:
    """Models of a few thousand weights that learn from their own tokens."""
    rule = {
        "rollouts_per_iteration": 8,
        "group_size": 4,
        "warmup_steps": 1,
        "warmup_batch_size": 8,
        "evaluate_every": 1,
    }
    made = config_from_dict(
        {
            "name": "tiny",
            "iterations": 1,
            "protocol": {"name": "bisection", "max_rounds": 5},
            "scenario": {
                "name": "state_tracking",
                "length": 4,
                "num_train": 60,
                "num_test": 8,
                "agents": {"_default": {"model": "words", "max_tokens": 2, "max_invalid_replies": 1}},
            },
            "algorithm": {"name": "policy_gradient", **rule},
            "providers": {
                "local": {
                    "name": "local",
                    "method": method,
                    "max_batch_size": 64,
                    "word_model": {"hidden_size": 32, "num_layers": 1},
                }
            },
        }
    )
    assert isinstance(made, TextExperimentConfig)
    return made


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_language_models_play_their_test_again(tmp_path: Path, method: str) -> None:
    run_experiment(tiny_text(method), tmp_path / "run", quiet=True)
    model = shutil.move(export_hf(tmp_path / "run", tmp_path / "out") / "model", tmp_path / "moved")
    shutil.rmtree(tmp_path / "out")
    names = {path.name for path in model.rglob("*.safetensors")}
    assert names == ({"model.safetensors"} if method == "full" else {"model.safetensors", "adapter_model.safetensors"})
    shutil.move(tmp_path / "run", tmp_path / "away")
    assert_figures_equal(evaluate_run(model), tmp_path / "away")
    assert str(tmp_path) not in "".join(path.read_text() for path in model.rglob("*.json"))
    weights = next(model.rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(UserError, match="does not match its checksum"):
        evaluate_run(model)
    (model / "exported.json").write_text('{"format": "nip_ray.exported", "version": 1, "iteration": 1, "models": {}}')
    with pytest.raises(UserError, match="is damaged: it has no elsewhere, files of language models"):
        evaluate_run(model)


@pytest.mark.slow
def test_models_that_a_run_did_not_make_stay_at_home(tmp_path: Path) -> None:
    base = tmp_path / "from-elsewhere"
    run_experiment(tiny_text(), tmp_path / "first", quiet=True)
    shutil.copytree(tmp_path / "first" / "local" / "models" / "words", base)
    config = tiny_text("lora")
    agents = {"_default": replace(config.scenario.agents["_default"], model=str(base))}
    agents["prover1"] = replace(agents["_default"], frozen=True)
    rule = replace(config.algorithm, warmup_steps=0, warmup_batch_size=PolicyGradientSettings().warmup_batch_size)
    scenario = replace(config.scenario, agents=agents)
    run_experiment(config.model_copy(update={"scenario": scenario, "algorithm": rule}), tmp_path / "run", quiet=True)
    model = export_hf(tmp_path / "run", tmp_path / "out") / "model"
    assert {path.name for path in model.rglob("*.safetensors")} == {"adapter_model.safetensors"}
    assert "must be put there before use: `local/models/from-elsewhere`" in (model / "README.md").read_text()
    assert str(tmp_path) not in "".join(
        path.read_text() for path in [*model.rglob("*.json"), *model.glob("*.yaml"), model / "README.md"]
    )
    with pytest.raises(UserError, match="from-elsewhere"):
        evaluate_run(model)
    shutil.copytree(base, model / "local" / "models" / base.name)
    assert_figures_equal(evaluate_run(model), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_fine_tuned_models_play_their_test_again(tmp_path: Path, ray_session: None, method: str) -> None:
    fine_tuning = [
        "algorithm.format_warmup_tuning.num_epochs=1",
        "algorithm.rollouts_per_iteration=8",
        f"providers.local.method={method}",
    ]
    sizes = [
        "iterations=2",
        "algorithm.format_warmup=8",
        "scenario.num_train=8",
        "scenario.num_test=12",
        "providers.local.num_cpus=0.5",
    ]
    run_experiment(
        load_config(ROOT / "tune_configs/ei_offline.yaml", [*fine_tuning, *sizes]), tmp_path / "run", quiet=True
    )
    assert_figures_equal(evaluate_run(export_hf(tmp_path / "run", tmp_path / "out") / "model"), tmp_path / "run")
    inspect_ai = pytest.importorskip("inspect_ai")
    from nip_ray.inspect_ai import protocol

    for source in ("run", "out/model"):
        (log,) = inspect_ai.eval(
            protocol(tmp_path / source, from_run="all"), model="none", log_dir=str(tmp_path), display="none"
        )
        found = next(score.metrics["mean"].value for score in log.results.scores if score.name == "accuracy")
        assert found == pytest.approx(evaluation_of(tmp_path / "run")["sampled"]["verifier/accuracy"]["estimate"])


def test_a_push_arrives_whole_and_needs_its_token(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the signatures of the Hub's own client, without the Hub."""
    import huggingface_hub

    repos: dict[tuple[str, str], dict[str, bytes]] = {}

    def upload(*, repo_id: str, folder_path: Path, repo_type: str, commit_message: str) -> None:
        if secret("HF_TOKEN", "") != TOKEN:
            raise RuntimeError(f"401 Client Error, {secret('HF_TOKEN', '')} is no token\nof ours")
        repos[repo_type, repo_id] = {
            str(path.relative_to(folder_path)): path.read_bytes() for path in folder_path.rglob("*.*")
        }

    api = create_autospec(huggingface_hub.HfApi, instance=True)
    api.create_repo.side_effect = lambda where, *, repo_type, private, exist_ok: f"https://hub/{repo_type}/{where}"
    api.upload_folder.side_effect = upload
    monkeypatch.setattr(huggingface_hub, "HfApi", create_autospec(huggingface_hub.HfApi, return_value=api))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = CliRunner().invoke(app, ["export", "hf", str(trained), "--out", str(tmp_path / "out"), "--push", "me/proof"])
    assert done.exit_code == 0, done.output
    assert done.stdout.split()[2:] == ["https://hub/model/me/proof", "https://hub/dataset/me/proof-transcripts"]
    assert all(call.kwargs["private"] and call.kwargs["exist_ok"] for call in api.create_repo.call_args_list)
    assert {kind for kind, _ in repos} == {"model", "dataset"}
    for (kind, _), files in repos.items():
        there = tmp_path / "out" / kind
        assert files == {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*.*")}
    monkeypatch.setenv("HF_TOKEN", TOKEN[::-1])
    done = CliRunner().invoke(
        app, ["export", "hf", str(trained), "--out", str(tmp_path / "other"), "--push", "me/other"]
    )
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "me/other (model) was not written" in done.stderr
    assert "401" in done.stderr
    assert TOKEN[::-1] not in done.stderr
    (fetched := tmp_path / "fetched").mkdir()
    for name, content in repos["model", "me/proof"].items():
        (fetched / name).write_bytes(content)
    assert_figures_equal(evaluate_run(fetched), trained)


def test_what_cannot_be_exported_or_pushed_is_named(
    trained: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(trained / "config.yaml", empty)
    for words, told in (
        ([trained, "--out", exported], "is not empty, name a new or empty folder"),
        ([empty, "--out", tmp_path / "a"], "no checkpoint to export"),
        ([trained, "--out", tmp_path / "a", "--checkpoint", "9"], "there is no checkpoint of iteration 9"),
        ([exported / "model", "--out", tmp_path / "a"], "is an export itself"),
        ([trained, "--out", tmp_path / "a", "--push", "me/x"], "$HF_TOKEN is not set"),
        ([trained, "--out", tmp_path / "a", "--push", "x"], "--push x: expected OWNER/NAME"),
        ([trained, "--out", "/proc/a"], "cannot be written"),
    ):
        done = CliRunner().invoke(app, ["export", "hf", *map(str, words)])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
        assert told in done.stderr
    assert not list(tmp_path.glob("a/*"))


def test_an_export_is_attacked_and_gives_its_weights(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (exported / "model" / "evaluation.json").read_bytes()
    evaluate_run(exported / "model", attacked=True, settings=[f"evaluation.attack.{one}" for one in ATTACK])
    assert "is an export; what the attack finds is not written there" in capsys.readouterr().err
    assert (exported / "model" / "evaluation.json").read_bytes() == before
    source = {"run_dir": str(exported / "model")}
    weights, _ = initial_weights(small(f"initial_weights={{prover: {source}}}", base=MESSAGES), None)
    there = load_file(exported / "model" / "prover.safetensors")
    assert all(weights["prover"][name].equal(weight) for name, weight in there.items())


def test_an_export_is_evaluated_and_nothing_else(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is an export, which has nothing to learn on from"):
        resume_experiment(exported / "model")
    copy = shutil.copytree(exported / "model", tmp_path / "copy")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("plugins: []", f"plugins: [{tmp_path / 'evil.py'}]"))
    with pytest.raises(UserError, match="asks for plugins"):
        evaluate_run(copy)
    assert not os.path.exists(tmp_path / "ran"), "no code of a stranger's runs"
    (copy / "config.yaml").write_text(config)
    weights = copy / "verifier.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(UserError, match=r"verifier.safetensors does not match its checksum"):
        evaluate_run(copy)
