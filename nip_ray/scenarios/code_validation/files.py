"""Data sets of code validation in files, and `load_items`, for items of any source.

Decisions that matter here:
- a file is JSONL (standard library alone) or parquet (with pyarrow, extra `hf`); the columns of its rows determine
  their form: ours, or the published ones of `nip_ray.scenarios.code_validation.hub`;
- any fault of a file is one `UserError` that names file, line and column, the fault and what would be right;
- from files with more items than requested, a seeded and balanced sample is taken, never the head: published files are
  sorted by label.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, get_args

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.built_in import Split, draw_items
from nip_ray.scenarios.code_validation.hub import (
    APPS,
    BUGGY,
    REPOSITORIES,
    Row,
    apps_items,
    buggy_items,
    download,
    fail,
)
from nip_ray.scenarios.code_validation.item import COLUMNS, CodeItem
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import CodeDataSettings, Difficulty
from nip_ray.storage.files import make_parents, written_aside

_HINT = f"the columns {', '.join(COLUMNS)}, or the published ones of {APPS} or {BUGGY}"


def load_items(settings: CodeDataSettings, split: Split, seed: int) -> list[CodeItem]:
    """The items of a split: from its file if one is named, else built-in ones or from the hub, by `settings.source`.

    At most `num_train` or `num_test` items. Raises UserError for any fault of a file, if no items are left, or if more
    built-in ones are requested than exist.
    """
    num = settings.num_train if split == "train" else settings.num_test
    file = settings.train if split == "train" else settings.test
    if file is None and settings.source == "built_in":
        return [made.item for made in draw_items(num, split, settings.difficulties, seed, f"scenario.data.num_{split}")]
    items = read_items(Path(file), settings) if file is not None else _from_hub(settings, split)
    return truncate(items, num, stable_seed(seed, "code_validation", "truncate", split))


def load_splits(settings: CodeDataSettings, seed: int) -> dict[str, list[CodeItem]]:
    """Split -> items, by the settings. Raises UserError for unusable files, and for solutions in both splits."""
    made = {split: load_items(settings, split, seed) for split in get_args(Split)}
    both = {item.solution for item in made["train"]} & {item.solution for item in made["test"]}
    if both:
        raise UserError(
            f"scenario.data.test: {len(both)} of its solutions are in the training items too, hold others out"
        )
    return made


def _from_hub(settings: CodeDataSettings, split: Split) -> list[CodeItem]:
    repository = REPOSITORIES[settings.source]
    return _PUBLISHED[repository](download(repository, split), f"{repository} ({split})", settings)


_PUBLISHED: dict[str, Callable[[Sequence[Row], str, CodeDataSettings], list[CodeItem]]] = {
    APPS: apps_items,
    BUGGY: buggy_items,
}


def truncate(items: Sequence[CodeItem], num: int, seed: int) -> list[CodeItem]:
    """At most `num` items, as close to half right and half wrong as possible, in random order; their ids stay."""
    rng = Random(seed)
    right, wrong = ([item for item in items if item.y == y] for y in (1, 0))
    rng.shuffle(right)
    rng.shuffle(wrong)
    num_right = max(min(len(right), (num + 1) // 2), num - len(wrong))
    kept = right[:num_right] + wrong[: num - min(num_right, len(right))]
    rng.shuffle(kept)
    return kept


# -------------------------------------------------------------------------------------------------------------- reading


def read_items(
    path: Path,
    settings: CodeDataSettings = CodeDataSettings(difficulties=get_args(Difficulty)),  # noqa: B008
) -> list[CodeItem]:
    """All items of a file, in its order. settings: how to read published columns, and the difficulties to keep.

    Raises UserError for any fault of the file.
    """
    rows = read_rows(path)
    columns = rows[0].values
    if "solution" in columns or "y" in columns:
        items = _own_items(rows, path)
        kept = [item for item in items if item.difficulty in settings.difficulties]
        if not kept:
            found = ", ".join(sorted({item.difficulty for item in items}))
            raise UserError(
                f"{path}: difficulty: has no items of {', '.join(settings.difficulties)}; expected: one of {found}"
            )
        return kept
    if "buggy_solutions" in columns:
        return buggy_items(rows, str(path), settings)
    if "solutions" in columns:
        return apps_items(rows, str(path), settings)
    raise UserError(f"{path}: {rows[0].place}: has the columns {', '.join(columns) or 'none'}; expected: {_HINT}")


def read_rows(path: Path) -> list[Row]:
    """The rows of a .jsonl or .parquet file, at least one, each with its place. Raises UserError."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"{path}: is of an unknown kind; expected: a .jsonl or a .parquet file")
    if not path.is_file():
        raise UserError(f"{path}: no such file; name a data set, or write one with `nip-ray data code-validation`")
    rows = list(_jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path))
    if not rows:
        raise UserError(f"{path}: has no rows; expected: at least one")
    return rows


def _jsonl_rows(path: Path) -> Iterator[Row]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); name a file that can be") from error
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise UserError(f"{path}: line {number}: is not UTF-8; expected: a JSON object in UTF-8") from None
        except (json.JSONDecodeError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise UserError(
                f"{path}: line {number}: is not JSON ({what}); expected: one JSON object on each line"
            ) from None
        if not isinstance(values, dict):
            raise UserError(
                f"{path}: line {number}: is a JSON {type(values).__name__}; expected: an object with {_HINT}"
            )
        if b"\\ud" in line.lower():
            _refuse_half_characters(values, f"{path}: line {number}")
        yield Row(f"line {number}", values)


def _refuse_half_characters(values: Mapping[str, Any], place: str) -> None:
    """Raise UserError for a text with half of a surrogate pair, which no request, file or tokenizer can hold."""
    for column, value in values.items():
        try:
            json.dumps([column, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start]).strip("'")
            raise UserError(
                f"{place}: {ascii(column)[1:-1]}: holds {half}, half of a surrogate pair; expected: whole characters"
            ) from None


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path}: reading parquet needs pyarrow: pip install 'nip_ray[hf]'") from None
    try:
        table = parquet.read_table(path)
        rows = table.to_pylist()
    except Exception as error:  # damaged bytes make the reader raise nearly anything
        raise UserError(
            f"{path}: cannot be read ({type(error).__name__}); expected: a parquet file with {_HINT}"
        ) from error
    yield from (Row(f"row {number}", values) for number, values in enumerate(rows, 1))


def _own_items(rows: Sequence[Row], path: Path) -> list[CodeItem]:
    items: list[CodeItem] = []
    places: dict[int, str] = {}
    for row in rows:
        item = _own_item(row, path)
        if item.id in places:
            fail(path, row, "id", f"{item.id} is in {places[item.id]} too", "a number of its own for each row")
        places[item.id] = row.place
        items.append(item)
    return items


def _own_item(row: Row, path: Path) -> CodeItem:
    values = {name: row.values.get(name) for name in COLUMNS}
    for name in COLUMNS:
        if name not in row.values:
            fail(
                path,
                row,
                name,
                f"is missing (found: {', '.join(row.values) or 'none'})",
                f"the columns {', '.join(COLUMNS)}",
            )
    for name in ("question", "solution"):
        text = values[name]
        if not isinstance(text, str) or not text.strip():
            fail(
                path,
                row,
                name,
                "is empty" if isinstance(text, str) else f"is {_shown(text)}",
                "a text that is not empty",
            )
    if type(values["id"]) is not int:
        fail(path, row, "id", f"is {_shown(values['id'])}", "a whole number")
    for name in ("y", "prover_stance"):
        if type(values[name]) is not int or values[name] not in (0, 1):
            fail(path, row, name, f"is {_shown(values[name])}", "0 or 1")
    more = {name: row.values[name] for name in ("difficulty", "family") if row.values.get(name) is not None}
    if "difficulty" in more and more["difficulty"] not in get_args(Difficulty):
        fail(path, row, "difficulty", f"is {_shown(more['difficulty'])}", " or ".join(get_args(Difficulty)))
    if not isinstance(more.get("family", ""), str):
        fail(path, row, "family", f"is {_shown(more['family'])}", "a text")
    return CodeItem(**values, **more)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


# -------------------------------------------------------------------------------------------------------------- writing


def write_items(items: Sequence[CodeItem], path: Path) -> None:
    """Write a .jsonl or .parquet file, atomically: a crash leaves the old file or the new one. The same items give the
    same JSONL bytes.

    Raises UserError when the place cannot be written.
    """
    write_rows([asdict(item) for item in items], path)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Like `write_items`, for any rows."""
    make_parents(path)
    with written_aside(path) as aside:
        if path.suffix == ".parquet":
            _write_parquet(rows, aside)
        else:
            aside.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))


def _write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path}: writing parquet needs pyarrow: pip install 'nip_ray[hf]'") from None
    parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
