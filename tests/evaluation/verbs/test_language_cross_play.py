"""Verifiers of language models against provers of other runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.cross_play import cross_play
from nip_ray.evaluation.verbs.over_time import cross_play_checkpoints
from nip_ray.runs.experiment import run_experiment
from tests.runs.small import small


def config(
    seed: int = 0,
    hidden_size: int = 32,
    protocol: str = "bisection",
    max_rounds: int = 5,
    algorithm: dict[str, Any] | None = None,
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
            "algorithm": algorithm
            or {
                "name": "policy_gradient",
                "rollouts_per_iteration": 16,
                "group_size": 4,
                "format_warmup": 20,
                "learning_rate": 0.03,
                "checkpoint_every": 1,
                "keep_checkpoints": None,
            },
            "providers": {
                "local": {
                    "name": "local",
                    "method": "full",
                    "max_batch_size": 64,
                    "word_model": {"hidden_size": hidden_size, "num_layers": 1},
                }
            },
        }
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, one of another seed and size of models whose prover1 is frozen, and the first run as it was before its
    last iteration."""
    folder = tmp_path_factory.mktemp("cross play")
    agents = {
        "_default": {"model": "words", "max_tokens": 2, "max_invalid_replies": 1},
        "prover1": {"model": "words", "max_tokens": 2, "frozen": True},
    }
    found = {"first": folder / "first", "other": folder / "other", "earlier": folder / "earlier"}
    run_experiment(config(), found["first"], quiet=True)
    run_experiment(config(seed=3, hidden_size=48, agents=agents), found["other"], quiet=True)
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


def test_models_of_other_sizes_meet_on_items_that_none_has_trained_with(runs: dict[str, Path], tmp_path: Path) -> None:
    def contents(run: Path, split: str) -> list[dict[str, Any]]:
        lines = (run / "items" / f"{split}.jsonl").read_text().splitlines()
        return [{**json.loads(line), "id": None} for line in lines]

    run = tmp_path / "first"  # like "other" it has trained with one of the items that it holds out
    shutil.copytree(runs["first"], run)
    of_other = (runs["other"] / "items" / "train.jsonl").read_text().splitlines()
    with (run / "items" / "test.jsonl").open("a") as held_out:
        held_out.write(json.dumps({**json.loads(of_other[0]), "id": 999}) + "\n")
    trained = contents(run, "train") + contents(runs["other"], "train")
    left = [item for item in contents(run, "test") if item not in trained]
    found = cross_play([run, runs["other"]])
    assert found["num_instances"] == len(left) < len(contents(run, "test"))
    assert found["groups"] == ["first", "other"]
    assert {cell["accuracy"]["n"] for cell in found["matrix"]} == {len(left)}
    found = cross_play([runs["other"], run])  # on items of "other", none of which "first" has trained with
    newest = cross_play_checkpoints(runs["other"])["matrix"][-1]
    assert cells(found)["other", "other"] == (newest["accuracy"], newest["undecided"])
    (run / "items" / "test.jsonl").write_text(of_other[0] + "\n")
    with pytest.raises(UserError, match="have trained with all held-out items of"):
        cross_play([run, runs["other"]])


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


def test_language_models_play_items_of_their_runs(runs: dict[str, Path], tmp_path: Path) -> None:
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
