"""The sweep files that ship: each is accepted at every point, says how many trials it has, and really trains."""

import re
from pathlib import Path

import pytest
import yaml

from nip_ray import run_experiment
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import apply_overrides, config_from_dict, config_to_yaml, load_config
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.scenarios.graph_isomorphism.build import graph_data
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.sweeps.spec import SweepSpec, config_of, draw_settings, load_sweep
from tests.tiers import only

CONFIGS = Path(__file__).resolve().parents[2] / "tune_configs"
FILES = ["protocols_gi", *sorted(path.stem for path in CONFIGS.glob("sweep_*.yaml") if path.stem != "sweep_tiny")]
LIKE = {
    "sweep_ppo_gi": "gi_published",
    "sweep_ppo_adp_gi": "gi_adp",
    "sweep_update_windows_gi": "gi_debate",
    "sweep_ei_cv": "ei_cv",
}
"""Sweep -> the config of which its first point is a copy, as far as `COPIED` goes."""
LIKE |= dict.fromkeys(
    ("sweep_update_schedules_gi", "sweep_training_size_gi", "sweep_verifier_depth_gi"), "gi_published"
)
LIKE |= {
    "sweep_solo_gi": "solo_gi",
    "sweep_zk_gi": "zk_nip_gi",
    "sweep_asha_gi": "gi_fast",
    "sweep_pbt_gi": "gi_fast",
    "sweep_optuna_gi": "gi_fast",
    "sweep_depth_gap_gi": "gi_fast",
    "sweep_learning_gi": "gi_fast",
    "protocols_gi": "gi_fast",
}
OTHERWISE = {"sweep_ei_cv": {"algorithm.guess_replacement_annealing"}, "sweep_pbt_gi": {"algorithm.anneal_lr"}}
OTHERWISE["protocols_gi"] = {"algorithm.minibatch_size", "algorithm.minibatch_copies"}
"""A minibatch of as many copies under every protocol, not of as many frames."""
TINY = (
    "scenario.data.num_train=40",
    "scenario.data.num_test=10",
    "scenario.num_normalization_steps=30",
    "play.num_copies=32",
    "algorithm.minibatch_size=32",
    "algorithm.num_epochs=1",
    "evaluation.num_transcripts=1",
    "evaluation.attack.iterations=1",
    "evaluation.attack.copies=16",
    "pretraining.num_epochs=1",
)


def sweep(name: str) -> SweepSpec:
    if name == "sweep_optuna_gi":
        pytest.importorskip("optuna")
    return load_sweep(CONFIGS / f"{name}.yaml")


def points(name: str) -> list[ExperimentConfig | TextExperimentConfig]:
    spec = sweep(name)
    return [config_of(spec, values) for values in draw_settings(spec)]


def graphs(config: ExperimentConfig | TextExperimentConfig) -> GraphIsomorphismSettings:
    assert isinstance(config.scenario, GraphIsomorphismSettings)
    return config.scenario


def test_what_was_asked_for_is_there() -> None:
    assert {"sweep_ppo_gi", "sweep_verifier_depth_gi", "sweep_training_size_gi", "sweep_zk_gi", "sweep_ei_cv"} <= set(
        FILES
    )
    assert set(LIKE) == set(FILES)


@pytest.mark.parametrize("name", [*FILES, "protocols_digits"])
def test_every_point_is_an_experiment_and_the_comment_counts_them(name: str) -> None:
    spec = sweep(name)
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    said = re.search(r"^# (\d+) settings x (\d+) seeds? = (\d+) trials$", text, re.MULTILINE)
    assert said is not None
    assert tuple(map(int, said.groups())) == (spec.num_settings, max(1, len(spec.settings.seeds)), spec.num_trials)
    assert len({config_to_yaml(config) for config in points(name)}) == spec.num_settings, "no setting twice"
    assert f"nip-ray sweep tune_configs/{name}.yaml" in text
    assert re.search(r"^# Cost: .", text, re.MULTILINE)


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_swept_is_as_in_the_config_it_comes_from(name: str) -> None:
    """But for what is a sweep's own: names, seeds, how long, how often it is examined, threads."""
    ours, theirs = (
        points(name)[0].model_dump(mode="json"),
        load_config(CONFIGS / f"{LIKE[name]}.yaml").model_dump(mode="json"),
    )
    free = ("name", "seed", "iterations", "evaluation", "checkpoint", "runtime", "scenario.agents", *sweep(name).spaces)
    keys = {key for key in _flat(ours) if not any(key == at or key.startswith(f"{at}.") for at in free)}
    assert {key for key in keys if _flat(ours)[key] != _flat(theirs).get(key)} == OTHERWISE.get(name, set())
    if name != "sweep_ei_cv":
        assert _agents(ours) == _agents(theirs)


def _flat(value: object, key: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {
            name: item
            for part, below in value.items()
            for name, item in _flat(below, f"{key}.{part}".lstrip(".")).items()
        }
    return {key: value}


def _agents(dumped: dict) -> dict:
    """The settings of everyone who plays, but for the width and depth that a sweep may vary, and for how channels are
    read."""
    named, protocol = dumped["scenario"]["agents"], dumped["protocol"]["name"]
    playing = {"debate": ["prover0", "prover1", "verifier"]}.get(protocol, ["prover", "verifier"])
    found = {agent: dict(named.get(agent, named.get("_default"))) for agent in playing}
    for key in ("num_gnn_layers", "d_gnn"):
        del found["verifier"][key]
    for settings in found.values():
        del settings["channels"]  # one and the same where there is one
    return found


def test_training_sets_of_all_sizes_are_balanced_and_share_their_held_out_pairs() -> None:
    """The published figures come from training sets of one class; these must not."""
    made = [graph_data(graphs(config).data) for config in points("sweep_training_size_gi")[:2]]
    assert [len(train) for train, _ in made] == [100, 178]
    for train, test in made:
        assert abs(train.y_P.float().mean().item() - 0.5) < 0.01
        assert (test.wl_score_P == made[0][1].wl_score_P).all()
        assert (test.adjacency_P2nn == made[0][1].adjacency_P2nn).all()


def test_agents_learn_in_turns_that_fill_the_period() -> None:
    from nip_ray.settings.schedule import is_updated

    for name in ("sweep_update_schedules_gi", "sweep_update_windows_gi"):
        first, *others = points(name)
        assert isinstance(first, ExperimentConfig)
        assert not first.schedules
        for config in others:
            assert isinstance(config, ExperimentConfig)
            learning = [[agent for agent, one in config.schedules.items() if is_updated(one, i)] for i in range(30)]
            assert all(len(agents) == 1 for agents in learning), "one at a time"
            assert learning[0] == ["verifier"]
            assert {agent for agents in learning for agent in agents} == set(config.schedules)


TRAINED = [name for name in FILES if name != "sweep_ei_cv"]


@pytest.mark.parametrize("name", only(TRAINED, "protocols_gi", "sweep_update_windows_gi", "sweep_solo_gi"))
def test_a_point_trains(name: str, tmp_path: Path) -> None:
    """The last setting, the one least like the config it comes from, at a tiny size; of schedules the shortest, for a
    whole period."""
    config = points(name)[1 if "update" in name else -1]
    rounds = max(1, len(getattr(config, "schedules", {})))
    # there the verifier rests for longer than this
    rested = ["schedules={}"] if name in ("sweep_depth_gap_gi", "protocols_gi") else []
    written = apply_overrides(parse_yaml(config_to_yaml(config), name), [*TINY, *rested, f"iterations={rounds}"])
    result = run_experiment(config_from_dict(written), tmp_path / "run", quiet=True)
    assert result.iterations == rounds
    assert result.metrics[sweep(name).settings.metric] is not None, "the figure that decides is there"
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["name"] == name.replace("_", "-")
