"""The scenarios of language models: built-in ones, and those of plugins (`nip_ray.plugins`)."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.protocols import Protocol
from nip_ray.scenarios.code_validation.files import load_splits
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.scenarios.matrix_games.language import ITEMS, Deal, build_language_game
from nip_ray.scenarios.state_tracking.items import chain_items, read_chain_item
from nip_ray.scenarios.state_tracking.language import build_language_state_tracking
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.matrix_games import LanguageMatrixGameSettings
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings

SPLITS = ("train", "test")


@dataclass(frozen=True)
class LanguageScenarioKind:
    """The definition of a scenario.

    settings: a frozen settings dataclass with `name` and `agents: dict[str, LanguageAgentSettings]`. build: (protocol,
    settings) -> the scenario. items: (settings, seed) -> split ("train" and "test") -> items, each with `id` (unique
    within its split) and `y` (the code of the right verdict); the same arguments give the same items. read_item: an
    item from the plain JSON mapping of write_item. groups: name -> value of an item; accuracy is also reported by
    these. held_out: True if no item of "test" is one of "train". subject: item -> a value that items of "train" and of
    "test" never share, also those of other seeds (None: all of the item but its id).
    """

    settings: type
    build: Callable[[Protocol, Any], LanguageScenario]
    items: Callable[[Any, int], dict[str, list[Any]]]
    read_item: Callable[[Mapping[str, Any]], Any]
    write_item: Callable[[Any], dict[str, Any]] = asdict
    groups: Mapping[str, Callable[[Any], str | int]] = field(default_factory=dict)
    held_out: bool = True
    subject: Callable[[Any], Hashable] | None = None

    def subject_of(self, item: Any) -> Hashable:
        """The value of `subject`."""
        return str({**self.write_item(item), "id": None}) if self.subject is None else self.subject(item)


LANGUAGE_SCENARIOS: dict[str, LanguageScenarioKind] = {
    "code_validation": LanguageScenarioKind(
        CodeValidationSettings,
        build_text_scenario,
        lambda settings, seed: load_splits(settings.data, seed),
        lambda record: CodeItem(**record),
        groups={"difficulty": lambda item: item.difficulty},
        subject=lambda item: item.family or item.solution,
    ),
    "matrix_game": LanguageScenarioKind(
        LanguageMatrixGameSettings,
        build_language_game,
        lambda settings, seed: {split: list(ITEMS) for split in SPLITS},
        lambda record: Deal(**record),
        held_out=False,
    ),
    "state_tracking": LanguageScenarioKind(
        LanguageStateTrackingSettings,
        build_language_state_tracking,
        chain_items,
        read_chain_item,
        subject=lambda item: (item.states[0], item.moves),
    ),
}
"""By name."""


def language_kind(settings: Any) -> LanguageScenarioKind:
    """The definition of the scenario of `settings` (a dataclass with a `name`). Raises UserError if unknown."""
    if settings.name not in LANGUAGE_SCENARIOS:
        known = ", ".join(LANGUAGE_SCENARIOS)
        raise UserError(
            f"scenario.name: {settings.name!r} is not a scenario of language models, expected one of {known}"
        )
    return LANGUAGE_SCENARIOS[settings.name]
