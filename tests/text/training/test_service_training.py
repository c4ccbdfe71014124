"""Policy gradient at a training service from end to end: it is the run of models here, also when killed at any
request."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.protocols import from_settings
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.scenarios.language import language_kind
from nip_ray.serving.word_model import save_word_model
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.prices import BudgetExhausted
from nip_ray.text.parts import load_state
from tests.text.training_service import KEY, MODEL, Killed, Service

PRICES = {"input": 1.0, "output": 2.0, "training": 4.0}


def config_of(hosted: bool, folder: Path | None = None, **changes: Any) -> TextExperimentConfig:
    local = {
        "name": "local",
        "method": "full",
        "word_model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context": 64},
    }
    config = config_from_dict(
        {
            "name": "tiny",
            "iterations": 2,
            "protocol": {"name": "nip", "max_rounds": 3},
            "scenario": {
                "name": "state_tracking",
                "length": 2,
                "num_train": 30,
                "num_test": 2,
                "agents": {
                    "_default": {
                        "provider": "here",
                        "model": MODEL if hosted else "words" if folder is None else str(folder),
                        "max_tokens": 2,
                        "max_invalid_replies": 1,
                    }
                },
            },
            "algorithm": {
                "name": "policy_gradient",
                "rollouts_per_iteration": 4,
                "group_size": 2,
                "warmup_steps": 1,
                "warmup_batch_size": 4,
                "checkpoint_every": 1,
                "learning_rate": 1e-2,
                "num_epochs": 2,
                "evaluate_every": 0,
                "advantage": "role",
                "kl_coefficient": 0.1,
            },
            "providers": {"here": {"name": "training_service", "prices": {"_default": PRICES}} if hosted else local},
            **changes,
        }
    )
    assert isinstance(config, TextExperimentConfig)
    return config


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    config = config_of(hosted=False)
    words = language_kind(config.scenario).build(from_settings(config.protocol), config.scenario).words
    made = Service(save_word_model(tmp_path / "words", words, config.providers["here"].word_model), context=64)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tinker", made)  # type: ignore[arg-type]
    return made


def weights(service: Service, path: Path) -> dict[str, dict[str, torch.Tensor]]:
    with RunFolder.open(path) as folder:
        return {group: service.kept[address]["weights"] for group, address in load_state(folder).models().items()}


def equal(ours: dict[str, dict[str, torch.Tensor]], theirs: dict[str, dict[str, torch.Tensor]]) -> bool:
    return all(torch.equal(value, ours[group][name]) for group, own in theirs.items() for name, value in own.items())


def cost(path: Path) -> dict[str, Any]:
    return json.loads((path / "cost.json").read_bytes())


def test_a_run_there_is_the_run_here_and_is_billed(service: Service, tmp_path: Path) -> None:
    run_experiment(config_of(hosted=True), tmp_path / "there", quiet=True)
    run_experiment(config_of(hosted=False, folder=service.folder), tmp_path / "here", quiet=True)
    with RunFolder.open(tmp_path / "here") as here, RunFolder.open(tmp_path / "there") as there:
        for one, other in zip(here.metrics(), there.metrics(), strict=True):
            shown = {key: value for key, value in other.items() if not key.startswith(("time/", "cost/"))}
            assert shown == pytest.approx({key: one[key] for key in shown}, rel=1e-3, abs=1e-4)
            assert not {key for key in one if key not in other and not key.endswith("/entropy")}
            billed = other["cost/usd"]
    spent = cost(tmp_path / "there")
    rows = spent["detail"].values()
    tokens = {name: sum(row[f"{name}_tokens"] for row in rows) for name in ("prompt", "completion", "training")}
    usd = (
        PRICES["input"] * tokens["prompt"]
        + PRICES["output"] * tokens["completion"]
        + PRICES["training"] * tokens["training"]
    )
    assert spent["usd"] == billed == pytest.approx(usd / 1e6)
    assert (spent["uncertain_usd"], billed > 0) == (0, True)


def points(*found: tuple[str, int]) -> list[tuple[str, int, bool]]:
    return [(kind, number, done) for kind, number in found for done in (False, True)]


@pytest.mark.parametrize(
    ("chosen", "staleness"),
    [
        ([("forward_backward", 4, True), ("optim_step", 5, False)], 0),
        pytest.param(
            points(
                *(
                    ("create", 0),
                    ("create", 1),
                    ("create_sampler", 0),
                    ("create_sampler", 5),
                    ("compute_logprobs", 2),
                    ("sample", 0),
                ),
                *(
                    ("sample", 9),
                    ("forward_backward", 0),
                    ("optim_step", 0),
                    ("optim_step", 9),
                    ("save_state", 0),
                    ("save_state", 3),
                ),
                *(("save_weights_for_sampler", 0), ("save_weights_for_sampler", 3), ("save_weights_for_sampler", 8)),
            ),
            0,
            marks=pytest.mark.crash,
        ),
        pytest.param(
            points(("forward_backward", 6), ("optim_step", 7), ("save_weights_for_sampler", 5)),
            1,
            marks=pytest.mark.crash,
        ),
    ],
    ids=["steps", "all", "played_ahead"],
)
def test_killed_at_any_request_it_is_the_undisturbed_run(
    service: Service, tmp_path: Path, chosen: list[tuple[str, int, bool]], staleness: int
) -> None:
    """Before it reaches the service, and after it was done there; what may have been billed before counts after."""
    config = config_of(hosted=True)
    config = config.model_copy(
        update={"iterations": 2 + staleness, "algorithm": replace(config.algorithm, max_staleness=staleness)}
    )
    run_experiment(config, tmp_path / "straight", quiet=True)
    expected = weights(service, tmp_path / "straight")
    for number, point in enumerate(chosen):
        service.requests.clear()
        service.killed_at = point
        with pytest.raises(Killed):
            run_experiment(config, tmp_path / str(number), quiet=True)
        service.killed_at = None
        resume_experiment(tmp_path / str(number), quiet=True)
        assert equal(weights(service, tmp_path / str(number)), expected), point
        spent = cost(tmp_path / str(number))
        assert spent["usd"] >= cost(tmp_path / "straight")["usd"]
        assert spent["uncertain_usd"] > 0 or point[0] not in ("sample", "forward_backward", "optim_step")


def test_a_budget_in_dollars_ends_it_before_the_request(service: Service, tmp_path: Path) -> None:
    run_experiment(config_of(hosted=True), tmp_path / "whole", quiet=True)
    whole = cost(tmp_path / "whole")["usd"]
    with pytest.raises(BudgetExhausted, match=r"budget\.usd"):
        run_experiment(config_of(hosted=True, budget={"usd": whole / 2}), tmp_path / "run", quiet=True)
    resume_experiment(tmp_path / "run", settings=[f"budget.usd={3 * whole}"], quiet=True)
    assert equal(weights(service, tmp_path / "run"), weights(service, tmp_path / "whole"))
