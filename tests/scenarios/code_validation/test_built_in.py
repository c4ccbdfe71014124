"""The built-in data set as it is drawn: balanced, told by nothing but the programs, splits that share nothing, as many
as shipped configs want."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.built_in import built_in_pairs, draw_items
from nip_ray.scenarios.code_validation.create import write_code_items
from nip_ray.scenarios.code_validation.files import load_items, load_splits, read_items
from nip_ray.scenarios.code_validation.item import stance_of
from nip_ray.settings.code_validation import CodeDataSettings, Difficulty

ALL = get_args(Difficulty)
CONFIGS = Path(__file__).parents[3] / "tune_configs"


@pytest.mark.parametrize("num", [2, 61, 400])
def test_numbers_labels_and_stances(num: int) -> None:
    items = [one.item for one in draw_items(num, "train", ALL, 3, "num")]
    assert [item.id for item in items] == list(range(num))
    labels = Counter(tuple(sorted(one.y for one in items if one.question == item.question)) for item in items)
    assert labels == Counter({(0, 1): num - num % 2, (1,): num % 2}), "every question has a right and a wrong program"
    assert all(item.prover_stance == stance_of(item.solution) for item in items)
    assert "1" * 20 not in "".join(str(item.y) for item in items), "in order of labels"
    assert len({item.family for item in items}) == min(32, (num + 1) // 2), "families take turns"


def test_the_seed_draws() -> None:
    first = draw_items(20, "train", ("interview",), 0, "num")
    assert first == draw_items(20, "train", ("interview",), 0, "num")
    assert first != draw_items(20, "train", ("interview",), 1, "num")
    assert {one.item.difficulty for one in first} == {"interview"}
    assert all(bool(one.operator) == (one.item.y == 0) for one in first)


def test_what_is_shipped() -> None:
    pairs = built_in_pairs()
    families = {split: {pair.family for pair in pairs if pair.split == split} for split in ("train", "test")}
    assert not families["train"] & families["test"]
    assert len({(pair.question, text) for pair in pairs for text in (pair.right, pair.wrong)}) == 2 * len(pairs)
    assert len({pair.operator for pair in pairs}) == 14
    for text in (text for pair in pairs for text in (pair.right, pair.wrong)):
        compile(text, "program", "exec")


@pytest.mark.parametrize("difficulty", ALL)
def test_every_difficulty_has_as_many_as_a_config_asks_for_by_itself(difficulty: Any) -> None:
    settings = CodeDataSettings(difficulties=(difficulty,))
    found = load_splits(settings, 0)
    assert {split: len(items) for split, items in found.items()} == {
        "train": settings.num_train,
        "test": settings.num_test,
    }


def test_shipped_configs_get_what_they_want() -> None:
    wanted = [
        load_config(path).scenario.data for path in sorted(CONFIGS.glob("*_cv_*.yaml")) if "sweep" not in path.name
    ]
    wanted = [settings for settings in wanted if settings.source == "built_in"]
    assert len(wanted) == 3
    for settings in wanted:
        assert len(load_items(settings, "train", 0)) == settings.num_train


def test_more_than_there_are() -> None:
    there = 2 * sum(pair.split == "test" and pair.difficulty == "interview" for pair in built_in_pairs())
    settings = CodeDataSettings(difficulties=("interview",), num_test=there + 1)
    expected = (
        rf"scenario.data.num_test: got {there + 1}, but there are {there} built-in test items of interview;"
        r" .*create_cv_dataset.py"
    )
    with pytest.raises(UserError, match=expected):
        load_items(settings, "test", 0)


def test_writing(tmp_path: Path) -> None:
    first, second = (write_code_items(tmp_path / name, 9, 5) for name in ("a/x.jsonl", "y.jsonl"))
    assert (tmp_path / "a" / "x.jsonl").read_bytes() == (tmp_path / "y.jsonl").read_bytes()
    assert first["sha256"] == second["sha256"]
    assert first["labels"] == {0: 4, 1: 5}
    assert sum(first["operators"].values()) == 4
    assert sum(first["difficulties"].values()) == first["items"] == 9
    assert read_items(tmp_path / "y.jsonl") == [one.item for one in draw_items(9, "train", ALL, 5, "num")]
    for arguments, message in [
        ((tmp_path / "y.jsonl", 9, 5), "is there already"),
        ((tmp_path / "z.csv", 9, 5), "expected a .jsonl file"),
        ((tmp_path / "z.jsonl", 9, 5, "val"), "--split val: expected train or test"),
        ((tmp_path / "z.jsonl", 9, 5, "test", ("easy",)), "--difficulties easy: expected introductory"),
        ((tmp_path / "z.jsonl", 100_000, 5), "--items: got 100000, but there are"),
    ]:
        with pytest.raises(UserError, match=message):
            write_code_items(*arguments)


def test_the_file_is_read_when_it_is_asked_for() -> None:
    code = (
        "import nip_ray.scenarios.language, sys; from nip_ray.scenarios.code_validation import built_in; "
        "sys.exit(built_in.built_in_pairs.cache_info().currsize)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
