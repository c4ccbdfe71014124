"""Write items of the built-in set to disk (`nip-ray data code-validation`)."""

import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.built_in import Made, Split, draw_items
from nip_ray.scenarios.code_validation.files import write_items
from nip_ray.settings.code_validation import Difficulty
from nip_ray.storage.files import refuse_unwritable


def write_code_items(
    out: Path,
    items: int,
    seed: int,
    split: Any = "train",
    difficulties: tuple[Any, ...] | None = None,
    *,
    replace: bool = False,
) -> dict[str, Any]:
    """Draw items into the .jsonl file `out`, the same bytes for the same arguments; returns a summary (`write_made`).

    difficulties: None for all. replace: overwrite an existing file. Raises UserError for invalid arguments, and for
    more items than exist.
    """
    if split not in get_args(Split):
        raise UserError(f"--split {split}: expected train or test")
    for name in difficulties or ():
        if name not in get_args(Difficulty):
            raise UserError(f"--difficulties {name}: expected {', '.join(get_args(Difficulty))}")
    check_place(out, replace)
    start = time.perf_counter()
    made = draw_items(items, split, difficulties or get_args(Difficulty), seed, "--items")
    return write_made(made, out, time.perf_counter() - start)


def check_place(path: Path, replace: bool) -> None:
    """Raise UserError, before any work, if `path` is not a .jsonl file, is not writable, or must not be replaced."""
    if path.suffix != ".jsonl":
        raise UserError(f"--out {path}: expected a .jsonl file")
    refuse_unwritable(path)
    if path.exists() and not replace:
        raise UserError(f"{path}: is there already; name another file, or replace it (--force)")


def write_made(made: Sequence[Made], out: Path, seconds: float) -> dict[str, Any]:
    """Write the items to `out`. seconds: the time to make them.

    Returns `file`, `items`, counts by `labels`, `difficulties` and `operators` (of wrong programs), the number of
    `families`, `seconds`, and the file's `sha256`.
    """
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


def _counts(values: Any) -> dict[Any, int]:
    return dict(sorted(Counter(values).items()))
