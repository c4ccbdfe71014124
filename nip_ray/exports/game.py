"""The parts of other tools' tasks: the config, protocol and items of a run of language models, or of a config alone;
its models."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.protocols import NUM_SEEDS, from_settings
from nip_ray.scenarios.language import LanguageScenarioKind, language_kind
from nip_ray.seeding import stable_seed
from nip_ray.storage.folder import CONFIG, EXPORTED, RunFolder, read_export
from nip_ray.text.dialogues.runner import Task, rollout_file
from nip_ray.text.items import stored_items
from nip_ray.text.parts import load_state

Source = TextExperimentConfig | Mapping[str, Any] | Path | str
"""A run folder, a YAML file, a config, or its keys."""


@dataclass(frozen=True)
class Game:
    """A game to play. run_dir: the folder with its config, and with its items if stored; None for a config alone."""

    config: TextExperimentConfig
    kind: LanguageScenarioKind
    scenario: LanguageScenario
    run_dir: Path | None

    @cached_property
    def items(self) -> dict[str, list[Any]]:
        """By split: those stored in the run, else those made from the config."""
        kept = None if self.run_dir is None else stored_items(self.run_dir, self.kind)
        return self.kind.items(self.config.scenario, self.config.seed) if kept is None else kept

    def chosen(self, split: str) -> list[Any]:
        """The items of a split: of the test as many as the run tests."""
        return self.items[split][: self.config.algorithm.num_test_items if split == "test" else None]

    def task(self, item: Any, number: int, epoch: int) -> Task:
        """The dialogue about an item in an epoch (from 1); number: its place in its split. For the test: the run's."""
        place = (epoch - 1) * len(self.chosen("test")) + number
        return Task(place, item, stable_seed(self.config.seed, "episode", "test", epoch - 1, number) % NUM_SEEDS)


def game_of(source: Source) -> Game:
    """The game of `source`. Raises UserError if it cannot be played."""
    config: Any = source
    if isinstance(source, str | Path):
        config = load_config(source, checked=False)
    elif isinstance(source, Mapping):
        config = config_from_dict(source)
    if not isinstance(config, TextExperimentConfig):
        raise UserError(
            f"source: {source!s:.60} has agents with networks, and only language models can speak here; name a run or"
            " config of those"
        )
    import_plugins(config.plugins)
    kind = language_kind(config.scenario)
    run_dir = Path(source) if isinstance(source, str | Path) and (Path(source) / CONFIG).is_file() else None
    return Game(config, kind, kind.build(from_settings(config.protocol), config.scenario), run_dir)


def tested_iteration(run_dir: Path, config: TextExperimentConfig, iteration: int | None) -> int:
    """`iteration`, or the last one that was tested. Raises UserError if there is no such test."""
    if (run_dir / EXPORTED).is_file():
        return read_export(RunFolder.open(run_dir))["iteration"]
    tested = [
        number for number in range(1, config.iterations + 1) if rollout_file(run_dir, "test", number - 1).is_file()
    ]
    if not tested:
        raise UserError(f"{run_dir}: this run has no test dialogues; set algorithm.test_scheme or evaluate_every")
    if iteration is not None and iteration not in tested:
        raise UserError(f"--iteration {iteration}: was not tested, expected one of {', '.join(map(str, tested))}")
    return tested[-1] if iteration is None else iteration


def models_at(folder: RunFolder, iteration: int) -> dict[str, str]:
    """Group -> its model in an export, or at test `iteration` (from 1); for runs that learn from tokens, at the end."""
    if (folder.path / EXPORTED).is_file():
        return dict(read_export(folder)["models"])
    state = load_state(folder)
    return dict(state.history[iteration - 1]) if iteration <= len(state.history) else state.models()


def shown(model: str) -> str:
    """A model's name for readers: the last part of a local folder."""
    return Path(model).name if Path(model).is_absolute() else model
