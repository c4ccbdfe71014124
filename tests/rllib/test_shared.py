"""What a process keeps of an experiment is what it would build now: files and registered parts may change in
between."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from nip_ray.plugins import register_scenario
from nip_ray.rllib.shared import scenario_of
from nip_ray.scenarios.message_game.scenario import build_message_game
from nip_ray.settings.message_game import MessageAgentSettings, MessageGameSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option
from tests.scenarios.image_classification.files import TINY, random_pixels, write


def dumped(**scenario: Any) -> dict[str, Any]:
    from nip_ray.config.experiment import ExperimentConfig

    return ExperimentConfig.model_validate({"protocol": {"name": "nip"}, "scenario": scenario}).model_dump(mode="json")


@pytest.mark.parametrize("inside", [False, True])
def test_a_scenario_is_built_anew_when_a_file_of_it_was_changed(inside: bool, tmp_path: Path) -> None:
    """Two runs of one process, as in a notebook, with the data written again between them."""
    file = tmp_path / "images.parquet"
    data = {"source": "files", "train": str(tmp_path if inside else file), "test_share": 0.5}
    experiment = dumped(name="image_classification", data=data, agents={"_default": TINY})
    for seed in range(2):
        pixels = random_pixels(8, (1, 5, 5), seed)
        write(file, pixels, [0, 1] * 4)
        scenario: Any = scenario_of(experiment)
        assert sorted(image.tobytes() for image in scenario.pixels_ICHW.numpy()) == sorted(
            image.tobytes() for image in pixels
        )
        assert scenario_of({**experiment, "seed": 7}) is scenario


@dataclass(frozen=True)
class Cell:
    """A scenario's settings as a cell of a notebook has them."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["cell"] = option("cell", "The task.")
    agents: dict[str, MessageAgentSettings] = option(dict, "Agents.")


@pytest.mark.usefixtures("no_plugins")
def test_a_scenario_is_built_anew_when_it_was_registered_again() -> None:
    def builder(size: int) -> Any:
        return lambda protocol, settings: build_message_game(protocol, MessageGameSettings(num_symbols=size))

    experiment = None
    for size in (4, 6):
        register_scenario(Cell, builder(size))
        experiment = experiment or {**dumped(name="cell"), "protocol": {"name": "message_game"}}
        scenario = scenario_of(experiment)
        assert scenario.num_symbols == size
        assert scenario_of(experiment) is scenario
