"""The comparison with peers: recorded pairs are not run again, a peer that fails is a row, the page says who wins."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, sys
number = int(sys.argv[sys.argv.index("--seed") + 1])
open({log!r}, "a").write(f"{side} {{number}}\\n")
if number >= {fails}:
    sys.exit("no such luck")
print(json.dumps({{"steps_per_s": {speed} + number, "solved_s": {solved}, "score": 1.0, "door_share": 0.5,
    "final": 0.1, "to_0.05": None, "to_0.02": None, "versions": {{"peer": "1.0"}}}}))
"""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("peers")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "yardstick_ms", lambda: 14.0)
    monkeypatch.setattr(module, "machine", lambda: "a machine, yardstick 14.0 ms")
    monkeypatch.setattr(module, "environment", lambda name: Path(sys.executable))
    yield module
    for name in ("peers", "_peers_page", "gate", "_gate_cases", "_common", "ppo_loop"):
        sys.modules.pop(name, None)


def written(folder: Path, side: str, speed: float, solved: float | None, fails: int = 99) -> None:
    text = SCRIPT.format(log=str(folder / "log"), side=side, speed=speed, solved=solved, fails=fails)
    (folder / f"{side}.py").write_text(text)


def cell(peers: Any, **changes: Any) -> Any:
    parts = {"bench": "B1", "peer": "Other", "environment": "skrl", "script": ("theirs.py",), "ours": ("ours.py",)}
    return peers.Cell(**{**parts, "pairs": 3, **changes})


def test_recorded_pairs_are_not_run_again_and_a_failure_is_a_row(peers: Any, tmp_path: Path) -> None:
    record = tmp_path / "peers.json"
    written(tmp_path, "ours", 200.0, 1.0)
    written(tmp_path, "theirs", 100.0, 2.0, fails=2)
    peers.run([cell(peers)], record, 1.0)
    (row,) = json.loads(record.read_text()).values()
    assert len(row["pairs"]) == 2
    assert "no such luck" in row["error"]
    assert [pair["ours"]["steps_per_s"] for pair in row["pairs"]] == [200.0, 201.0]

    written(tmp_path, "theirs", 100.0, 2.0)
    before = len((tmp_path / "log").read_text().splitlines())
    peers.run([cell(peers)], record, 1.0)
    (row,) = json.loads(record.read_text()).values()
    assert len(row["pairs"]) == 3
    assert row["error"] is None
    assert (tmp_path / "log").read_text().splitlines()[before:] == ["theirs 2", "ours 2"], "the missing pair alone"
    peers.run([cell(peers)], record, 1.0)
    assert len((tmp_path / "log").read_text().splitlines()) == before + 2

    peers.run([cell(peers, script=("theirs.py", "--more"))], record, 1.0)
    (row,) = json.loads(record.read_text()).values()
    assert len((tmp_path / "log").read_text().splitlines()) == before + 8, "other work is measured anew"


def test_no_cell_begins_when_the_time_is_over(peers: Any, tmp_path: Path) -> None:
    written(tmp_path, "ours", 200.0, 1.0)
    written(tmp_path, "theirs", 100.0, 2.0)
    peers.run([cell(peers)], tmp_path / "peers.json", -1.0)
    assert not (tmp_path / "log").exists()


def test_the_page_says_who_wins(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = importlib.import_module("_peers_page")
    record, page = tmp_path / "peers.json", tmp_path / "peers.md"
    page.write_text((ROOT / "docs" / "peers.md").read_text())
    monkeypatch.setattr(made, "PAGE", page)
    written(tmp_path, "ours", 200.0, 1.0)
    written(tmp_path, "theirs", 100.0, 2.0)
    written(tmp_path, "faster", 1000.0, None)
    cells = [cell(peers), cell(peers, peer="JaxMARL", bench="B4", script=("faster.py",))]
    peers.run(cells, record, 1.0)
    made.write_page(peers.recorded(record), [*(one.name for one in cells), "B6 Absent"])
    text = page.read_text()
    verdict = " ".join(text.split("<!-- end of verdict")[0].split())
    assert "**A peer wins:** B4 JaxMARL: speed 4.98 times (4.96 to 5; 3 pairs) (XLA" in verdict
    assert "B1 Other 1.99 (1.98 to 2; 3 pairs) (50% of the peer's time is in our environment)." in verdict
    assert "**nip_ray wins**, time to the bar, times: B1 Other 2 (2 to 2; 3 pairs)." in verdict
    assert "B6 Absent" in verdict
    assert "| Other (peer 1.0) | 101 | 201 | 1.99 (1.98 to 2.00) | 2 (2 to 2) | 1 (1 to 1) |" in text
    assert "| JaxMARL (peer 1.0) | 1,000 | 201 |" in text
    assert "none of 3" in text
    made.write_page(peers.recorded(record), [one.name for one in cells])
    assert page.read_text().count("| Other (peer 1.0)") == 1, "written anew, not added"


def test_lines_of_code_leave_docstrings_and_the_stopwatch_out(peers: Any, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        '"""Of\nit."""\n\nfrom _clock import Clock\n\n# none\n\n\ndef f():\n    """It."""\n    return """a\nb"""\n'
    )
    assert peers.lines_of_code(path) == 3


def test_every_cell_has_its_scripts_and_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    try:
        peers = importlib.import_module("peers")
        monkeypatch.setattr(peers, "machine", lambda: "")
        assert len({cell.name for cell in peers.CELLS}) == len(peers.CELLS)
        for cell in peers.CELLS:
            assert cell.environment in peers.ENVIRONMENTS
            assert (peers.HERE / cell.script[0]).is_file()
            assert (peers.HERE / cell.ours[0]).is_file()
            assert not cell.config or (ROOT / "tune_configs" / cell.config).is_file()
            assert peers.new_row(cell).lines["peer"] > 10
    finally:
        for name in ("peers", "_common", "ppo_loop"):
            sys.modules.pop(name, None)
