"""The items of a run of code validation: made or loaded once, then kept in its folder, so that a resumed run has the very same."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.sandbox.batch import run_batch
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.settings.code_validation import CodeDataSettings
from nip_ray.storage.folder import read_lines, write_lines

SPLITS = ("train", "test")
DIFFICULTIES = ("introductory", "interview", "competition")


def make_items(settings: CodeDataSettings, seed: int) -> dict[str, list[CodeItem]]:
    """Split -> items, as the settings say. Raises UserError for unusable files, and for solutions that stand in both splits."""
    from nip_ray.scenarios.code_validation.files import load_items

    made = {split: load_items(settings, split, seed, run_batch) for split in SPLITS}
    both = {item.solution for item in made["train"]} & {item.solution for item in made["test"]}
    if both:
        raise UserError(f"scenario.data.test: {len(both)} of its solutions stand in the training items too, hold others out")
    return made


def stored_items(run_dir: Path) -> dict[str, list[CodeItem]] | None:
    """The items that a run keeps, None before it does. Raises UserError when a file is damaged."""
    files = {split: run_dir / "items" / f"{split}.jsonl" for split in SPLITS}
    if not all(file.is_file() for file in files.values()):
        return None
    try:
        return {split: [CodeItem(**record) for record in read_lines(file)] for split, file in files.items()}
    except TypeError as error:
        raise UserError(f"{run_dir / 'items'}: damaged ({error}); go back to a copy of the run folder") from None


def store_items(run_dir: Path, items: dict[str, list[CodeItem]]) -> None:
    """Keep the items with the run."""
    for split, found in items.items():
        write_lines(run_dir / "items" / f"{split}.jsonl", map(asdict, found))


def write_code_items(
    out: Path,
    items: int,
    seed: int,
    split: Any,
    difficulties: tuple[Any, ...] | None,
    progress: Callable[[int, int], None] | None,
    *,
    replace: bool = False,
) -> dict[str, Any]:
    """Make items into the file `out`; returns a summary. Raises UserError for arguments that make no sense."""
    if split not in SPLITS:
        raise UserError(f"--split {split}: expected train or test")
    for name in difficulties or ():
        if name not in DIFFICULTIES:
            raise UserError(f"--difficulties {name}: expected {', '.join(DIFFICULTIES)}")
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: expected a .jsonl file")
    from nip_ray.scenarios.code_validation.create import write_dataset

    chosen = difficulties or DIFFICULTIES
    return write_dataset(out, items, seed, run_batch, split=split, difficulties=chosen, progress=progress, replace=replace)
