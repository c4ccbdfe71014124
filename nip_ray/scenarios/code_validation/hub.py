"""The published data sets of programs, APPS and buggy-APPS: the meaning of their rows, and reading them from the
Hugging Face hub.

APPS has correct solutions only, so all of its items are right. buggy-APPS has for each problem a list of correct
solutions and a list of solutions that a language model made wrong; each is an item.

Decisions that matter here:
- lists of solutions come as lists or as JSON texts of lists, and an entry is a text or an object that has the text in
  one of `SOLUTION_FIELDS`; anything else is a `UserError` that names the row;
- a row is flagged when a column with "flag" or "moderation" in its name is not empty, false or zero;
- ids are the problems' numbers (APPS), or positions among all items (buggy-APPS). All solutions of a problem have one
  `family`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.item import CodeItem, stance_of
from nip_ray.settings.code_validation import CodeDataSettings

APPS, BUGGY = "codeparrot/apps", "lrhammond/buggy-apps"
REPOSITORIES = {"apps": APPS, "buggy_apps": BUGGY}
"""`source` of the settings -> name on the hub."""
SOLUTION_FIELDS = ("solution", "buggy_solution", "modified_solution", "text", "code")
"""Possible fields of the text in an entry that is an object."""


class Row(NamedTuple):
    """A row of a file. place: for messages, as "line 3". values: by column."""

    place: str
    values: Mapping[str, Any]


def apps_items(rows: Sequence[Row], where: str, settings: CodeDataSettings) -> list[CodeItem]:
    """Solution number `solution_number` of every problem of the wanted difficulties that has it.

    where: the file's name, for messages. Raises UserError for malformed rows and if nothing is left.
    """
    items: dict[int, CodeItem] = {}
    for row in rows:
        if _difficulty(row, where) not in settings.difficulties:
            continue
        solutions = solutions_of(row, "solutions", where)
        if len(solutions) <= settings.solution_number:
            continue
        number = _number(row, "problem_id", where)
        if number in items:
            fail(
                where,
                row,
                "problem_id",
                f"{number} is in an earlier row, too",
                "a number of its own for each problem",
            )
        items[number] = _item(number, row, solutions[settings.solution_number], 1, where)
    if not items:
        wanted = f"of difficulty {' or '.join(settings.difficulties)} with a solution number {settings.solution_number}"
        raise UserError(f"{where}: has no problem {wanted}; expected: at least one")
    return list(items.values())


def buggy_items(rows: Sequence[Row], where: str, settings: CodeDataSettings) -> list[CodeItem]:
    """Every correct and every wrong solution of the wanted difficulties, without flagged rows if `exclude_flagged`;
    right ones first.

    where: the file's name, for messages. Raises UserError for malformed rows and if nothing is left.
    """
    kept = [
        row
        for row in rows
        if _difficulty(row, where) in settings.difficulties and not (settings.exclude_flagged and is_flagged(row))
    ]
    found = [
        _item(0, row, solution, y, where)
        for column, y in (("solutions", 1), ("buggy_solutions", 0))
        for row in kept
        for solution in solutions_of(row, column, where)
    ]
    if not found:
        raise UserError(
            f"{where}: has no solutions of difficulty {' or '.join(settings.difficulties)} left; expected: at least one"
        )
    return [replace(item, id=i) for i, item in enumerate(found)]


def is_flagged(row: Row) -> bool:
    """True if a moderation flag is set; see the module."""
    names = (name for name in row.values if "flag" in name.lower() or "moderation" in name.lower())
    return any(_is_set(row.values[name]) for name in names)


def _is_set(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_set(part) for part in value.values())
    if isinstance(value, list):
        return any(_is_set(part) for part in value)
    return bool(value) and str(value).strip().lower() not in ("false", "0", "none", "no")


def download(repository: str, split: str) -> list[Row]:
    """Rows of a split of a data set on the hub. Raises UserError without the extra `hf` or if it is unreachable."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(f"{repository}: reading from the hub needs datasets: pip install 'nip_ray[hf]'") from None
    try:
        table = load_dataset(repository, split=split)
    except Exception as error:  # network, authorisation, format: the library raises some twenty kinds
        detail = (str(error).splitlines() or [""])[0][:200]
        wrong = f"cannot be read from the hub ({type(error).__name__}: {detail})"
        raise UserError(f"{repository}: {wrong}; name downloaded files as data.train and data.test") from error
    return [Row(f"row {number}", dict(values)) for number, values in enumerate(table, 1)]


def _item(number: int, row: Row, solution: str, y: int, where: str) -> CodeItem:
    question = row.values.get("question")
    if not isinstance(question, str) or not question.strip():
        fail(where, row, "question", "is missing or empty", "a text that is not empty")
    family = f"apps-{row.values.get('problem_id', row.values.get('apps_problem_id', row.place))}"
    return CodeItem(number, question, solution, y, stance_of(solution), str(row.values["difficulty"]), family)


def _difficulty(row: Row, where: str) -> str:
    value = row.values.get("difficulty")
    if not isinstance(value, str):
        fail(
            where,
            row,
            "difficulty",
            "is missing" if value is None else "is not text",
            "introductory, interview or competition",
        )
    return value


def _number(row: Row, column: str, where: str) -> int:
    value = row.values.get(column)
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if type(value) is not int:
        fail(where, row, column, "is missing or no number", "a whole number")
    return value


def solutions_of(row: Row, column: str, where: str) -> list[str]:
    """The texts of a list of solutions without blank ones; [] if the column is empty, as in parts of APPS.

    where: the file's name, for messages. Raises UserError unless it is a list of solutions.
    """
    values = row.values.get(column)
    if values is None and column not in row.values:
        fail(where, row, column, "is missing", "a list of solutions")
    if isinstance(values, str):
        try:
            values = json.loads(values) if values.strip() else []
        except json.JSONDecodeError as error:
            fail(where, row, column, f"is not JSON ({error.msg})", "a list of solutions, or a JSON text of one")
    if not isinstance(values or [], list):
        fail(where, row, column, f"is a {type(values).__name__}", "a list of solutions, or a JSON text of one")
    return list(_texts(values or [], row, column, where))


def _texts(entries: Sequence[Any], row: Row, column: str, where: str) -> Iterator[str]:
    for i, entry in enumerate(entries):
        text = entry
        if isinstance(entry, Mapping):
            text = next((entry[name] for name in SOLUTION_FIELDS if isinstance(entry.get(name), str)), None)
        if not isinstance(text, str):
            fail(
                where,
                row,
                column,
                f"entry {i} has no solution",
                f"a text, or an object with one of {', '.join(SOLUTION_FIELDS)}",
            )
        if text.strip():
            yield text


def fail(where: object, row: Row, column: str, wrong: str, right: str) -> NoReturn:
    """Raise the UserError about a column of a row. where: the file or data set."""
    raise UserError(f"{where}: {row.place}: {column}: {wrong}; expected: {right}")
