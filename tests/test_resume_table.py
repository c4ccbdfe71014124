"""The table of resumes tells drift from none, and ours has none in its own terms."""

import copy
import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("resume_table")
    for module in ("resume_table", "_resume_row", "_common", "ppo_loop"):
        sys.modules.pop(module, None)


def rows(*losses: float) -> list[dict[str, Any]]:
    state = [
        {"counter": 10 * n, "lr": [1 / n], "optimizer": f"o{n}", "generators": f"g{n}"}
        for n in range(1, len(losses) + 1)
    ]
    return [
        {"event": "row", "iteration": n, **state[n - 1], "figures": {"loss": loss, "return": math.nan}}
        for n, loss in enumerate(losses, 1)
    ]


CHANGES = {
    "counters": (("counter", 7), "kept; later 7 for 30"),
    "learning rate": (("lr", [0.5]), "kept; later 0.5 for 0.333"),
    "curve": (("figures", {"loss": 3.5, "return": math.nan}), "differs by 0.14"),
}


@pytest.mark.parametrize("column", CHANGES)
def test_each_kind_of_drift_is_told_and_no_other(table: Any, column: str) -> None:
    whole = rows(1.0, 2.0, 3.0, 4.0)
    restored, after = {**whole[1], "event": "restored", "figures": {}}, copy.deepcopy(whole[2:])
    none = {
        "counters": "kept",
        "learning rate": "kept",
        "optimizer": "kept",
        "generators": "kept",
        "replay": "-",
        "curve": "to the last bit",
    }
    assert table.compare(whole, restored, after) == none
    (key, value), told = CHANGES[column]
    after[0][key] = value
    assert table.compare(whole, restored, after) == {**none, column: told}


@pytest.mark.parametrize("name", ["optimizer", "generators"])
def test_state_that_did_not_come_back_is_told(table: Any, name: str) -> None:
    whole = rows(1.0, 2.0, 3.0)
    assert table.compare(whole, {**whole[1], name: "fresh"}, whole[2:])[name] == "lost"
    moved = {**whole[1], "counter": 0, "lr": [1.0]}
    line = table.compare(whole, moved, whole[2:])
    assert (line["counters"], line["learning rate"]) == ("0 for 20", "1 for 0.5")
    with_replay = [{**row, "replay": "r"} for row in whole]
    assert table.compare(with_replay, {**whole[1]}, with_replay[2:])["replay"] == "lost"


def test_the_curve_has_three_grades_and_knows_missing_rows(table: Any) -> None:
    whole = rows(1.0, 2.0, 3000.0, 4.0)
    assert table.curve(whole, whole[2:]) == "to the last bit"
    assert table.curve(whole, rows(1.0, 2.0, 3000.001, 4.0)) == "within 1e-6"
    assert table.curve(whole, rows(1.0, 2.00001, 3000.0, 4.0)) == "differs by 5e-06"
    assert table.curve(whole, rows(1.0, math.nan)) == "differs, also in which figures there are"
    assert table.curve(whole, []) == "no row"
    assert table.curve(whole, rows(1, 2, 3000, 4, 5)) == "iteration 5 too many"
    assert table.compare(whole, whole[1], whole[2:3])["curve"] == "other iterations"
    assert table.drift({"loss": 1.0}, {}) == math.inf


def test_a_digest_sees_the_last_bit_and_not_the_order_of_keys(table: Any) -> None:
    digest = importlib.import_module("_resume_row").digest
    weights = torch.ones(3)
    changed = weights.clone()
    changed[2] = torch.nextafter(changed[2], torch.tensor(2.0))
    assert digest({"a": weights, "b": [1, (2.0,)]}) == digest({"b": [1, (2.0,)], "a": weights.clone()})
    assert (
        len({digest({"a": weights}), digest({"a": changed}), digest({"b": weights}), digest({"a": weights.double()})})
        == 4
    )


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["nip_ray", "nip_ray, DQN"])
def test_ours_is_killed_and_continues_with_the_same_rows(table: Any, name: str, tmp_path: Path) -> None:
    (line,) = table.measured(name, sys.executable, [1], 6, tmp_path)
    assert int(line["from"]) >= int(line["killed after"]) - 1 > 0
    assert line["two undisturbed"] == line["curve"] == "to the last bit"
    assert line["counters"] == line["learning rate"] == line["optimizer"] == "kept"
    assert line["replay"] == ("kept" if "DQN" in name else "-")
