"""Experiments in Python: a config in any form, errors as those of YAML, and definitions that a notebook runs again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nip_ray
from nip_ray.config.load import config_from_dict, config_of, config_to_yaml, load_config
from nip_ray.config.rules import warnings_of
from nip_ray.errors import UserError
from nip_ray.protocols import Protocol, build, register
from nip_ray.protocols.spec import ProtocolParams
from nip_ray.protocols.tables import PROTOCOLS, same_definition


def test_a_config_is_an_object_its_keys_or_a_file(tmp_path: Path) -> None:
    made = nip_ray.ExperimentConfig(scenario={"name": "message_game"}, protocol={"name": "message_game"}, iterations=2)  # type: ignore[arg-type]
    (tmp_path / "own.yaml").write_text(config_to_yaml(made))
    keys = {"scenario": {"name": "message_game"}, "protocol": {"name": "message_game"}, "iterations": 2}
    assert config_of(made) == config_of(keys) == config_of(str(tmp_path / "own.yaml")) == made
    with pytest.raises(UserError, match="expected an ExperimentConfig"):
        config_of(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="did you mean iterations"):
        nip_ray.run_experiment({"iteration": 1}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_language_models_have_a_class_of_their_own() -> None:
    made = nip_ray.TextExperimentConfig(scenario={"name": "code_validation"}, algorithm={"name": "malt"})  # type: ignore[arg-type]
    assert made.algorithm.name == "malt"
    with pytest.raises(UserError, match=r"use nip_ray\.TextExperimentConfig"):
        nip_ray.ExperimentConfig(scenario={"name": "code_validation"})  # type: ignore[arg-type]


def test_errors_are_those_of_yaml() -> None:
    with pytest.raises(UserError, match="iteration: unknown key, did you mean iterations"):
        nip_ray.ExperimentConfig(iteration=2)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"algorithm\.lrr: unknown key"):
        nip_ray.ExperimentConfig(algorithm={"name": "ppo", "lrr": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        {
            "scenario": {"name": "graph_isomorphism"},
            "algorithm": {"name": "expert_iteration"},
            "evaluation": {},
            "play": {},
        },
        {"scenario": {"name": "code_validation"}, "algorithm": {"name": "ppo"}, "providers": {}},
    ],
)
def test_networks_and_language_models_are_not_mixed_in_one_line(data: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        config_from_dict(data)
    assert len(str(caught.value)) < 300
    assert "language models" in str(caught.value)
    assert "agents with networks" in str(caught.value)


def _again(module: str) -> object:
    def builder(params: ProtocolParams) -> Protocol:
        return PROTOCOLS["nip"](params)

    builder.__module__ = module
    return builder


def test_a_cell_that_is_run_again_takes_the_place_of_the_former() -> None:
    try:
        register("audited", _again("__main__"))  # type: ignore[arg-type]
        second = _again("__main__")
        register("audited", second)  # type: ignore[arg-type]
        assert PROTOCOLS["audited"] is second
        with pytest.raises(UserError, match="registered already"):
            register("audited", _again("another"))  # type: ignore[arg-type]
        config = nip_ray.ExperimentConfig(protocol={"name": "audited"})  # type: ignore[arg-type]
        assert any("`plugins` does not name" in text for text in warnings_of(config))
    finally:
        PROTOCOLS.pop("audited", None)
    with pytest.raises(UserError, match="one of your own needs `plugins`"):
        build("audited")


def test_a_file_that_is_imported_and_named_is_one_definition() -> None:
    assert not same_definition(load_config, config_of)
    assert same_definition(load_config, load_config)


def test_a_plugin_that_is_missing_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(Path("nowhere.py").resolve())):
        nip_ray.run_experiment({"plugins": ["nowhere.py"]}, tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_do_not_spin_unless_the_environment_says_so(given: dict[str, str], spins: str | None) -> None:
    plain = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    source = "import os, nip_ray; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", source], env=plain | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(spins)
