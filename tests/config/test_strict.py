"""Strict configs: every key written out, each missing one named, and a way to make such a file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import walk
from nip_ray.config.load import config_from_dict, config_to_yaml, load_config
from nip_ray.config.missing import missing_keys
from nip_ray.config.strict import full_yaml
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError

SHORT: dict[str, Any] = dict(
    name="strict",
    protocol=dict(name="kuhn_poker"),
    scenario=dict(name="matrix_game", game="kuhn_poker"),
    algorithm=dict(name="dqn", warm_up=100),
    evaluation=dict(sampled=False),
)


def full() -> dict[str, Any]:
    return parse_yaml(full_yaml(config_from_dict(SHORT)), "full")


def write(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_full_file_says_the_same_as_the_short_one(tmp_path: Path) -> None:
    made = load_config(write(tmp_path, full()))
    assert isinstance(made, ExperimentConfig)
    assert made.strict
    short = config_from_dict(SHORT)
    assert isinstance(short, ExperimentConfig)
    same = {"strict": False, "scenario": short.scenario, "algorithm": short.algorithm}
    assert made.model_copy(update=same) == short
    assert made.algorithm.roles["_default"] == type(made.algorithm.roles["_default"])()  # type: ignore[union-attr]


def test_every_key_is_asked_for() -> None:
    """Taking any one key away is noticed, at every depth."""
    data = full()
    checked = 0
    for path in paths(data):
        *above, last = path
        part = data
        for name in above:
            part = part[name]
        value = part.pop(last)
        found = list(missing_keys(data, ExperimentConfig))
        if above and above[-1] in ("agents", "roles"):
            assert not found  # a name of an agent is no key
        elif path != ["strict"]:
            assert found == [".".join(map(str, path))]
            checked += 1
        items = list(part.items())
        part.clear()
        part.update([*items, (last, value)])
    known = {name for name, _ in walk(ExperimentConfig)}
    assert checked > 100
    assert {"algorithm.roles.<agent>.lr.initial", "evaluation.message_regression.lr"} <= known


def paths(data: Any, above: tuple[str, ...] = ()) -> list[list[str]]:
    if not isinstance(data, dict):
        return []
    return [path for name in list(data) for path in ([*above, name], *paths(data[name], (*above, name)))]


def test_missing_keys_are_named_and_counted_in_one_error(tmp_path: Path) -> None:
    data = full()
    for key in ("gamma", "batch_size"):
        del data["algorithm"]["roles"]["_default"][key]
    del data["play"]
    with pytest.raises(UserError, match=r"strict: 3 keys are missing") as error:
        load_config(write(tmp_path, data))
    for key in ("algorithm.roles._default.gamma", "algorithm.roles._default.batch_size", "play"):
        assert key in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"strict: \d\d keys are missing: .* and \d+ more"):
        config_from_dict({**SHORT, "strict": True})


def test_agents_left_to_defaults_are_refused(tmp_path: Path) -> None:
    data = full()
    data["algorithm"]["roles"] = {}
    data["scenario"]["agents"] = {"player0": data["scenario"]["agents"]["_default"]}
    with pytest.raises(UserError, match=r"algorithm\.roles: strict, and player0, player1") as error:
        load_config(write(tmp_path, data))
    assert "scenario.agents: strict, and player1" in str(error.value)


def test_a_stored_config_is_complete_and_one_of_an_earlier_version_is_still_read(tmp_path: Path) -> None:
    """What a run keeps has every key; a key that came later is no reason to refuse it."""
    config = load_config(write(tmp_path, full()))
    stored = parse_yaml(config_to_yaml(config), "stored")
    assert config_from_dict(stored) == config
    del stored["algorithm"]["n_step"]
    path = write(tmp_path, stored)
    assert load_config(path, checked=False).strict
    with pytest.raises(UserError, match=r"algorithm\.n_step"):
        load_config(path)
