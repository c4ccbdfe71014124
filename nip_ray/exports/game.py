"""What other tools' tasks are made of: the config, protocol and items of a run of language models, or of a config alone."""

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
from nip_ray.storage.folder import CONFIG
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.items import stored_items

Source = TextExperimentConfig | Mapping[str, Any] | Path | str
"""A run folder, a YAML file, a config, or its keys."""


@dataclass(frozen=True)
class Game:
    """What is played. run_dir: the folder with its config, and with its items where they are kept; None for a config alone."""

    config: TextExperimentConfig
    kind: LanguageScenarioKind
    scenario: LanguageScenario
    run_dir: Path | None

    @cached_property
    def items(self) -> dict[str, list[Any]]:
        """By split: those that the run keeps, else those that the config makes."""
        kept = None if self.run_dir is None else stored_items(self.run_dir, self.kind)
        return self.kind.items(self.config.scenario, self.config.seed) if kept is None else kept

    def chosen(self, split: str) -> list[Any]:
        """The items of a split: of the test as many as the run tests."""
        return self.items[split][: self.config.algorithm.num_test_items if split == "test" else None]

    def task(self, item: Any, number: int, epoch: int) -> Task:
        """The dialogue about an item in an epoch (from 1); number: its place in its split. Of the test it is the run's."""
        place = (epoch - 1) * len(self.chosen("test")) + number
        return Task(place, item, stable_seed(self.config.seed, "episode", "test", epoch - 1, number) % NUM_SEEDS)


def game_of(source: Source) -> Game:
    """Raises UserError for what cannot be played."""
    config: Any = source
    if isinstance(source, str | Path):
        config = load_config(source, checked=False)
    elif isinstance(source, Mapping):
        config = config_from_dict(source)
    if not isinstance(config, TextExperimentConfig):
        raise UserError(
            f"source: {source!s:.60} has agents with networks, and only language models can speak here; name a run or config of those"
        )
    import_plugins(config.plugins)
    kind = language_kind(config.scenario)
    run_dir = Path(source) if isinstance(source, str | Path) and (Path(source) / CONFIG).is_file() else None
    return Game(config, kind, kind.build(from_settings(config.protocol), config.scenario), run_dir)
