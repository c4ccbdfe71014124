"""Files of items: what is written is read again, published columns become items, and what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.files import load_items, read_items, truncate, write_items, write_rows
from nip_ray.scenarios.code_validation.hub import Row, is_flagged
from nip_ray.scenarios.code_validation.item import CodeItem, stance_of
from nip_ray.settings.code_validation import CodeDataSettings


def item(i: int, y: int = 1, **more: Any) -> CodeItem:
    return CodeItem(i, f"question {i} é\n", f"print({i})", y, i % 2, **more)


ROW = {"id": 0, "question": "q", "solution": "s", "y": 1, "prover_stance": 0}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_items_come_back(tmp_path: Path, suffix: str) -> None:
    items = [item(3, 0, difficulty="competition", family="x"), item(1), item(2, 0, family="ü")]
    write_items(items, tmp_path / f"new/items{suffix}")
    assert read_items(tmp_path / f"new/items{suffix}") == items
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"items{suffix}"], "something was left behind"


def test_five_columns_are_enough(tmp_path: Path) -> None:
    write_rows([ROW, {**ROW, "id": 7, "difficulty": None, "anything": [1]}], tmp_path / "x.jsonl")
    assert read_items(tmp_path / "x.jsonl") == [CodeItem(0, "q", "s", 1, 0), CodeItem(7, "q", "s", 1, 0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x.jsonl: has no rows"),
        (json.dumps(ROW).encode() + b"\n{oops\n", r"line 2: is not JSON \(.*\); expected: one JSON object"),
        (json.dumps(ROW).encode() + b"\n\n\xff\xfe\n", r"line 3: is not UTF-8"),
        (b"[" * 100_000, r"line 1: is not JSON \(nested too deeply\)"),
        (
            json.dumps(ROW).encode() + b'\n{"question": "a \\uD83d"}',
            r"line 2: question: holds \\ud83d, half of a surrogate pair; expected",
        ),
        (b"[1]\n", r"line 1: is a JSON list; expected: an object"),
        (b'{"a": 1}\n', r"line 1: has the columns a; expected: the columns id, question"),
        *(
            (
                json.dumps({key: value for key, value in ROW.items() if key != name}).encode(),
                rf"line 1: {name}: is missing \(found: ",
            )
            for name in ROW
        ),
        *(
            (json.dumps({**ROW, name: value}).encode(), f"line 1: {name}: {wrong}; expected: ")
            for name, value, wrong in [
                ("id", "0", 'is "0"'),
                ("solution", " \n", "is empty"),
                ("solution", None, "is null"),
                ("y", 2, "is 2"),
                ("y", True, "is true"),
                ("prover_stance", -1, "is -1"),
                ("difficulty", "easy", 'is "easy"'),
                ("family", 3, "is 3"),
            ]
        ),
        (2 * (json.dumps(ROW).encode() + b"\n"), r"line 2: id: 0 is in line 1 too"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        read_items(tmp_path / "x.jsonl")
    assert str(tmp_path / "x.jsonl") in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"a", "unknown kind"),
        ("x.parquet", b"PAR1 damaged PAR1", "cannot be read"),
        ("x.parquet", b"", "cannot be read"),
        ("missing.jsonl", None, "no such file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_items(tmp_path / name)


@pytest.mark.parametrize(
    ("right", "wrong", "num", "expected"),
    [(3, 50, 20, 3), (50, 3, 20, 17), (50, 0, 20, 20), (0, 9, 4, 0), (9, 9, 5, 3)],
)
def test_truncation_of_what_is_not_balanced(right: int, wrong: int, num: int, expected: int) -> None:
    kept = truncate([item(i, int(i < right)) for i in range(right + wrong)], num, 0)
    assert (len(kept), sum(one.y for one in kept)) == (num, expected)


def test_loading_from_files_takes_no_head(tmp_path: Path) -> None:
    write_items([item(i, int(i < 10), difficulty="introductory") for i in range(20)], tmp_path / "x.jsonl")
    settings = CodeDataSettings(train=str(tmp_path / "x.jsonl"), num_train=8)
    loaded = load_items(settings, "train", 0)
    assert sum(one.y for one in loaded) == 4
    assert loaded == load_items(settings, "train", 0) != load_items(settings, "train", 1)


def test_difficulties_of_files(tmp_path: Path) -> None:
    write_items([item(0, difficulty="interview"), item(1, difficulty="competition")], tmp_path / "x.jsonl")
    settings = CodeDataSettings(test=str(tmp_path / "x.jsonl"), difficulties=("competition",))
    assert [one.id for one in load_items(settings, "test", 0)] == [1]
    with pytest.raises(UserError, match="no items of introductory; expected: one of competition, interview"):
        load_items(CodeDataSettings(test=str(tmp_path / "x.jsonl")), "test", 0)


def apps_row(number: int, solutions: list[str] | str, difficulty: str = "interview") -> dict[str, Any]:
    text = json.dumps(solutions) if isinstance(solutions, list) else solutions
    return {
        "problem_id": number,
        "question": f"q{number}",
        "solutions": text,
        "difficulty": difficulty,
        "url": "u",
        "starter_code": "",
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_apps(tmp_path: Path, suffix: str) -> None:
    rows = [
        apps_row(4, ["a = 'x\\n'\nprint(a)", "second"]),
        apps_row(5, ["only one"]),
        apps_row(6, ""),
        apps_row(7, ["a", "easy"], "introductory"),
        apps_row(9, ["a", "b", "c"]),
    ]
    write_rows(rows, tmp_path / f"apps{suffix}")
    settings = CodeDataSettings(
        source="apps", train=str(tmp_path / f"apps{suffix}"), difficulties=("interview",), solution_number=1
    )
    found = sorted(load_items(settings, "train", 0), key=lambda one: one.id)
    assert found == [
        CodeItem(4, "q4", "second", 1, stance_of("second"), "interview", "apps-4"),
        CodeItem(9, "q9", "b", 1, stance_of("b"), "interview", "apps-9"),
    ]
    first = read_items(tmp_path / f"apps{suffix}", CodeDataSettings(difficulties=("interview",)))
    assert first[0].solution == "a = 'x\\n'\nprint(a)", "solutions are un-escaped once"
    with pytest.raises(UserError, match="no problem of difficulty competition with a solution number 0"):
        read_items(tmp_path / f"apps{suffix}", CodeDataSettings(difficulties=("competition",)))


def buggy_row(number: int, solutions: Any, buggy: Any, difficulty: str = "interview", **more: Any) -> dict[str, Any]:
    about = {"apps_split": "train", "apps_problem_id": number, "difficulty": difficulty, "question": f"q{number}"}
    return {**about, "solutions": solutions, "buggy_solutions": buggy, **more}


def test_buggy_apps(tmp_path: Path) -> None:
    """Lists of different lengths: each is gone through by its own length."""
    rows = [
        buggy_row(1, ["r1"], [{"solution": "w1", "levenshtein_distance": 3}, {"solution": "w2"}, {"solution": "w3"}]),
        buggy_row(2, ["r2", "r3", "r4"], ["w4"]),
        buggy_row(3, json.dumps(["r5"]), json.dumps([{"modified_solution": "w5"}])),
        buggy_row(4, ["r6"], []),
        buggy_row(5, ["r7"], ["w7"], "competition"),
        buggy_row(6, ["r8"], ["w8"], is_flagged=True),
        buggy_row(7, ["r9"], ["w9", " "], is_flagged=False),
    ]
    write_rows(rows, tmp_path / "buggy.jsonl")
    settings = CodeDataSettings(source="buggy_apps", difficulties=("interview",))
    items = read_items(tmp_path / "buggy.jsonl", settings)
    assert [(one.solution, one.y) for one in items] == [
        *((f"r{i}", 1) for i in (1, 2, 3, 4, 5, 6, 9)),
        *((f"w{i}", 0) for i in (1, 2, 3, 4, 5, 9)),
    ]
    assert [one.id for one in items] == list(range(13))
    assert {one.family for one in items if one.question == "q1"} == {"apps-1"}
    assert all(one.prover_stance == stance_of(one.solution) for one in items)
    flagged = read_items(tmp_path / "buggy.jsonl", CodeDataSettings(difficulties=("interview",), exclude_flagged=False))
    assert len(flagged) == 15
    some = CodeDataSettings(test=str(tmp_path / "buggy.jsonl"), difficulties=("interview",), num_test=6)
    assert len(load_items(some, "test", 0)) == 6


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"flagged": False}, False),
        ({"flagged": True}, True),
        ({"moderation": {"hate": False, "violence": True}}, True),
        ({"moderation_flags": ["violence"]}, True),
        ({"flagged": "False"}, False),
        ({"question": "True"}, False),
    ],
)
def test_flags(values: dict[str, Any], expected: bool) -> None:
    assert is_flagged(Row("row 1", values)) is expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (apps_row(1, "[1"), r"line 1: solutions: is not JSON"),
        (apps_row(1, '{"a": 1}'), r"line 1: solutions: is a dict"),
        (apps_row(1, "[7]"), r"line 1: solutions: entry 0 has no solution"),
        ({**apps_row(1, ["a"]), "question": ""}, r"line 1: question: is missing or empty"),
        ({**apps_row(1, ["a"]), "problem_id": "x"}, r"line 1: problem_id: is missing or no number"),
        (buggy_row(1, ["r"], [{"nothing": 1}]), r"line 1: buggy_solutions: entry 0 has no solution"),
    ],
)
def test_malformed_published_rows(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    write_rows([row], tmp_path / "x.jsonl")
    with pytest.raises(UserError, match=message):
        read_items(tmp_path / "x.jsonl")


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        return datasets.Dataset.from_list([buggy_row(1, ["r"], ["w", "v"])])

    monkeypatch.setattr(datasets, "load_dataset", load)
    settings = CodeDataSettings(source="buggy_apps", difficulties=("interview",))
    assert sorted(one.y for one in load_items(settings, "test", 0)) == [0, 0, 1]
    assert asked == [(("lrhammond/buggy-apps",), {"split": "test"})]
