"""The items of a run: made or loaded once, then stored in its folder, so that a resumed run has the same."""

from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.scenarios.language import SPLITS, LanguageScenarioKind
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


def item_content(item: Any, kind: LanguageScenarioKind) -> str:
    """An item without its number, as text: the same for equal items of different splits and runs."""
    return str({**kind.write_item(item), "id": None})


def _file(run_dir: Path, split: str) -> Path:
    return run_dir / "items" / f"{split}.jsonl"
