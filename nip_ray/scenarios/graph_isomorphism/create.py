"""Write a generated data set to disk (`nip-ray data graph-isomorphism`)."""

import time
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs, load_pairs, save_pairs
from nip_ray.scenarios.graph_isomorphism.generate import (
    GeneratorSettings,
    Progress,
    generate_pairs,
    generate_splits,
    pair_keys,
)
from nip_ray.storage.files import refuse_unwritable


def write_dataset(
    out: Path,
    num_pairs: int,
    seed: int,
    settings: GeneratorSettings = GeneratorSettings(),  # noqa: B008 (frozen)
    test_pairs: int = 0,
    exclude: Path | None = None,
    progress: Progress | None = None,
    *,
    replace: bool = False,
) -> dict[str, Any]:
    """Make `num_pairs` pairs, and `test_pairs` more that share none with them, and write both.

    out: a file `x.npz` (the test pairs go beside it, to `x.test.pairs.npz`), or else a folder (`train.pairs.npz`,
    `test.pairs.npz`). exclude: a data set of any readable kind whose pairs must not occur, not even with other node
    labels. replace: overwrite existing files. Returns a summary: `files`, `seconds` and `pairs_per_s` of generation
    (without the writing), and for each of `train` and `test` its `pairs`, pairs per `scores` and pairs per `sizes`.
    Raises UserError for bad settings or places.
    """
    out = Path(out)
    is_file = out.suffix == ".npz"
    if out.suffix and not is_file and not out.is_dir():
        raise UserError(
            f"{out}: pairs are written to a .npz file or into a folder; name {out.with_suffix('.npz')}, or a folder"
            " that exists"
        )
    train_path = out if is_file else out / "train.pairs.npz"
    test_path = (
        out.with_name(f"{out.name.removesuffix('.npz').removesuffix('.pairs')}.test.pairs.npz")
        if is_file
        else out / "test.pairs.npz"
    )
    refuse_unwritable(train_path)
    taken = [str(path) for path in (train_path, *([test_path] if test_pairs else [])) if path.exists()]
    if taken and not replace:
        raise UserError(f"{' and '.join(taken)}: there already; name another place, or replace what is there (--force)")
    forbid = None if exclude is None else set(pair_keys(load_pairs(exclude)).tolist())

    start = time.perf_counter()
    made: dict[str, GraphPairs] = {}
    if test_pairs:
        made["train"], made["test"] = generate_splits(num_pairs, test_pairs, seed, settings, forbid, progress)
    else:
        made["train"] = generate_pairs(num_pairs, seed, settings, forbid, progress)
    seconds = time.perf_counter() - start

    paths = {"train": train_path, "test": test_path}
    for split, pairs in made.items():
        save_pairs(pairs, paths[split])
    summary: dict[str, Any] = {
        "files": [str(paths[split]) for split in made],
        "seconds": round(seconds, 3),
        "pairs_per_s": round((num_pairs + test_pairs) / seconds, 1),
    }
    return summary | {split: _describe(pairs) for split, pairs in made.items()}


def _describe(pairs: GraphPairs) -> dict[str, Any]:
    def counts(values: list[int]) -> dict[int, int]:
        return {value: values.count(value) for value in sorted(set(values))}

    return {"pairs": len(pairs), "scores": counts(pairs.wl_score_P.tolist()), "sizes": counts(pairs.size_P.tolist())}
