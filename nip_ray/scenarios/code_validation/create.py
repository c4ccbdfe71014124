"""Writing a built-in data set to disk: what `nip-ray data code-validation` does."""

import os
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from nip_ray.errors import UserError
from nip_ray.sandbox.batch import run_batch
from nip_ray.scenarios.code_validation.built_in import Progress, Runner, Split, make
from nip_ray.scenarios.code_validation.files import write_items
from nip_ray.settings.code_validation import Difficulty


def write_dataset(
    out: Path,
    items: int,
    seed: int,
    runner: Runner,
    split: Split = "train",
    difficulties: tuple[Difficulty, ...] = get_args(Difficulty),
    progress: Progress | None = None,
    *,
    replace: bool = False,
) -> dict[str, Any]:
    """Makes `items` items and writes them to `out`, a .jsonl or .parquet file. The same arguments give the same bytes of JSONL.

    runner: `nip_ray.sandbox.batch.run_batch`, or what does the same. split: whose families of problems to use.
    replace: a file that is there.
    Returns a summary: `file`, `items`, counts by `labels`, `difficulties` and `operators` (of wrong programs), the number of `families`,
    `seconds` of the making, and the file's `sha256`. Raises UserError for bad numbers or places.
    """
    out = Path(out)
    _check_place(out, replace)
    start = time.perf_counter()
    made = make(items, split, difficulties, seed, runner, progress)
    seconds = time.perf_counter() - start
    write_items([one.item for one in made], out)
    return {
        "file": str(out),
        "items": len(made),
        "labels": _counts(one.item.y for one in made),
        "difficulties": _counts(one.item.difficulty for one in made),
        "families": len({one.item.family for one in made}),
        "operators": _counts(one.operator for one in made if one.operator),
        "seconds": round(seconds, 3),
        "sha256": sha256(out.read_bytes()).hexdigest(),
    }


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
    if split not in get_args(Split):
        raise UserError(f"--split {split}: expected train or test")
    for name in difficulties or ():
        if name not in get_args(Difficulty):
            raise UserError(f"--difficulties {name}: expected {', '.join(get_args(Difficulty))}")
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: expected a .jsonl file")
    chosen = difficulties or get_args(Difficulty)
    return write_dataset(out, items, seed, run_batch, split=split, difficulties=chosen, progress=progress, replace=replace)


def _counts(values: Any) -> dict[Any, int]:
    return dict(sorted(Counter(values).items()))


def _check_place(path: Path, replace: bool) -> None:
    """Fails before the work and not after it."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"{path}: a data set is a .jsonl or a .parquet file; name one of them")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be made ({error.strerror or error}); name a folder that can be written") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: cannot be written; name a file in a folder that can be written")
    if path.exists() and not replace:
        raise UserError(f"{path}: is there already; name another file, or replace it (--force)")
