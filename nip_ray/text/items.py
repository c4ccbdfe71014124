"""The items of a run: made or loaded once, then stored in its folder, so that a resumed run has the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.errors import UserError
from nip_ray.scenarios.language import SPLITS, LanguageScenarioKind, language_kind
from nip_ray.storage.folder import read_lines, write_lines


def stored_items(run_dir: Path, kind: LanguageScenarioKind) -> dict[str, list[Any]] | None:
    """Items stored in a run, None if there are none. kind: of its scenario. Raises UserError for damaged files."""
    files = {split: _file(run_dir, split) for split in SPLITS}
    if not all(file.is_file() for file in files.values()):
        return None
    try:
        return {split: [kind.read_item(record) for record in read_lines(file)] for split, file in files.items()}
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"{run_dir / 'items'}: damaged ({error}); go back to a copy of the run folder") from None


def store_items(run_dir: Path, items: dict[str, list[Any]], kind: LanguageScenarioKind) -> None:
    """Store the items in the run folder."""
    for split, found in items.items():
        write_lines(_file(run_dir, split), map(kind.write_item, found))


def stage_items(config: TextExperimentConfig, test: Sequence[Any]) -> list[Any]:
    """The training items of a stage of a curriculum, without subjects of `test`, the run's held-out items. config: of
    `stage_config`."""
    kind = language_kind(config.scenario)
    held_out = {kind.subject_of(item) for item in test} if kind.held_out else set()
    items = kind.items(config.scenario, config.seed)["train"]
    return [item for item in items if kind.subject_of(item) not in held_out]


def _file(run_dir: Path, split: str) -> Path:
    return run_dir / "items" / f"{split}.jsonl"
