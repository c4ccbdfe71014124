"""The report, from synthetic run folders: what it says, what it survives, and that nothing in a run can reach out of
the page."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import numpy as np
import pytest
import yaml

from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.report import report_page, write_report
from nip_ray.evaluation.report.curves import Drawing, draw
from nip_ray.evaluation.report.panels import Panel, Series, panels, wrong_side

HOSTILE = "<script>alert('x')</script>\"><img src=https://evil.example/x onerror=alert(1)> $\\frac{ {{ 7 * 7 }}"


def metric_rows(iterations: int, agent: str = "prover", every: int = 10, final: float = 0.72) -> list[dict[str, float]]:
    """A run that starts at chance and comes to `final`."""
    random, rows = Random(0), []
    for i in range(1, iterations + 1):
        level = 0.5 + (final - 0.5) / (1 + math.exp(6 - 12 * i / iterations))
        shares = {
            "verifier/accuracy": level + random.gauss(0, 0.02),
            "verifier/completeness": level + random.gauss(0, 0.05),
            "verifier/soundness": level - random.gauss(0, 0.05),
            "verifier/undecided": 0.2 / (1 + 0.1 * i),
            "verifier/accuracy/wl_score=-1": level,
            "verifier/accuracy/wl_score=1": level + 0.1,
            "verifier/accuracy/wl_score=2": level - 0.05,
            "episode_length": 8 - 4 * level,
            "verifier/return": 2 * level - 1,
            f"{agent}/return": level - 0.2,
        }
        row: dict[str, float] = {"iteration": i, "time/iteration_s": 0.3, "time/sample_s": 0.1, "time/learn_s": 0.18}
        row |= {"env_steps": 1600, "env_steps_total": 1600 * i, "env_steps_per_s": 5700, "episodes": 256}
        row |= {f"train/{name}": value for name, value in shares.items()}
        for name in ("verifier", agent):
            row |= {
                f"learn/{name}/entropy": 2.5 - level,
                f"learn/{name}/kl": 0.01,
                f"learn/{name}/decision_entropy": 0.0,
            }
        row["learn/verifier/decision_entropy"] = 1.1 - level
        if i % every == 0 or i == iterations:
            row |= {f"eval/{name}": value for name, value in shares.items()} | {"eval/verifier/solo_baseline": 0.65}
            row |= {f"eval_sampled/{name}": value - 0.01 for name, value in shares.items()} | {"time/evaluate_s": 0.5}
        rows.append(row)
    return rows


def evaluation(right: int = 720, baseline: int | None = 650, agent: str = "prover") -> dict[str, Any]:
    table = {
        "verifier/accuracy": proportion(right, 1000).record(),
        "verifier/completeness": proportion(right // 2, 500).record(),
        "verifier/soundness": proportion(right - right // 2, 500).record(),
        "verifier/undecided": proportion(3, 1000).record(),
        "verifier/accuracy/wl_score=-1": proportion(right // 2, 500).record(),
        "verifier/accuracy/wl_score=10": proportion(1, 2).record(),
        "verifier/accuracy/wl_score=2": proportion(60, 98).record(),
        "episode_length": mean([3.0, 5.0, 4.0]).record(),
        f"{agent}/return": mean([1.0, 0.0, 1.0]).record(),
    }
    head = {"format": "nip_ray.evaluation", "version": 1, "iteration": 100, "split": "test", "num_instances": 1000}
    alone = None if baseline is None else proportion(baseline, 1000).record()
    return {**head, "greedy": table, "sampled": table, "wl_bound": 0.7, "solo_baseline": alone}


def transcript(instance: int, label: int, verdict: int, message: object = 7, agent: str = "prover") -> dict[str, Any]:
    turn = {"agent": agent, "channel": "main", "message": [message, 3]}
    decided = {"agent": "verifier", "channel": "main", "message": [1, 2], "decision": verdict}
    rounds = [{"round": 0, "turns": [turn]}, {"round": 1, "turns": [decided]}]
    right = label == verdict
    rewards = {"verifier": 1.0 if right else -1.0, agent: float(verdict == 1)}
    played = {"seed": 5, "length": 2, "reward": rewards, "rounds": rounds}
    return {"instance": instance, "label": label, "verdict": verdict, "correct": right, **played}


def run_folder(path: Path, rows: list[dict[str, float]] | None = None, **files: str | None) -> Path:
    """A complete run folder. files: contents to put in place of the usual ones (None: leave the file out)."""
    config = {
        "name": "quickstart",
        "iterations": 100,
        "seed": 3,
        "protocol": {"name": "nip"},
        "scenario": {"name": "graph_isomorphism"},
    }
    contents: dict[str, str | None] = {
        "config": yaml.safe_dump(config),
        "metrics": "".join(json.dumps(row) + "\n" for row in rows or metric_rows(100)),
        "evaluation": json.dumps(evaluation()),
        "environment": json.dumps({"python": "3.11", "packages": {"torch": "2.6"}}),
        "transcripts": "".join(json.dumps(transcript(i, i % 2, 1)) + "\n" for i in range(20)),
    }
    names = {"config": "config.yaml", "metrics": "metrics.jsonl", "evaluation": "evaluation.json"}
    names |= {"environment": "environment.json", "transcripts": "transcripts/000100.jsonl"}
    (path / "transcripts").mkdir(parents=True)
    for key, content in (contents | files).items():
        if content is not None:
            (path / names[key]).write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty pictures, for tests of words: drawing is what takes the time."""
    monkeypatch.setattr("nip_ray.evaluation.report.curves.draw", lambda panel: Drawing("<svg></svg>", b""))


class Page(HTMLParser):
    """The tags, the attributes and the visible text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text, self.style, self.script, self._within = "", "", "", ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("style", "script"):
            setattr(self, self._within, getattr(self, self._within) + data)
        else:
            self.text += f" {data}"


def assert_self_contained(page: Page) -> None:
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert page.tags.count("script") == page.tags.count("style") == 1
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        assert name != "style", value
        if name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster", "background"):
            assert value.startswith(("data:image/png;base64,", "#")), (name, value[:60])
    assert not re.search(r"url\(|@import|https?:", page.style + page.script)
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert "unsafe" not in policy
    own = [f"style-src '{digest(page.style)}'", f"script-src '{digest(page.script)}'"]
    assert policy.split("; ") == ["default-src 'none'", "img-src data:", *own, "base-uri 'none'", "form-action 'none'"]


def digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_a_complete_run(tmp_path: Path) -> None:
    start = process_time()
    path = write_report(run_folder(tmp_path / "run"))
    assert process_time() - start < 10  # about 3 s; of the processor, since others may be at work on the machine
    assert path == tmp_path / "run" / "report.html"
    assert path.stat().st_size < 3_000_000
    page = Page(path)
    assert_self_contained(page)
    low, high = (f"{100 * bound:.1f}" for bound in (proportion(720, 1000).lower, proportion(720, 1000).upper))
    assert (
        f"On 1,000 held-out instances the verifier decided 72.0 % correctly (95 % interval {low} to {high}, greedy"
        " play): above chance (50.0 %) and above the 65.0 % measured without a prover (fitted classifier)." in page.text
    )
    assert "incomplete" not in page.text
    for words in (
        "Soundness: rejected, of those to reject",
        "Return of prover",
        "Accuracy by wl_score",
        "seed 3",
        "torch",
    ):
        assert words in page.text
    assert page.text.index("instance 0: not isomorphic, verdict accept") < page.text.index(
        "instance 1: isomorphic, verdict accept"
    )
    group = page.text[page.text.index("Accuracy by wl_score") :]
    assert group.index("-1") < group.index(" 2 ") < group.index(" 10 ")
    names = {picture.name for picture in (path.parent / "curves").iterdir()}
    expected = (
        "accuracy",
        "completeness_soundness",
        "judge_hacking",
        "accuracy_by_wl_score",
        "episode_length",
        "returns",
        "entropies",
    )
    assert names == {f"{name}.pdf" for name in expected}, "time never changes"
    assert all(picture.read_bytes().startswith(b"%PDF-") for picture in (path.parent / "curves").iterdir())
    assert path.read_text().count('<svg class="curve"') == len(names)
    assert "share of episodes" in page.text, "texts of drawings are texts"


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    ("right", "baseline", "verdict"),
    [
        (720, 650, "above chance (50.0 %) and above the 65.0 %"),
        (640, 650, "above chance (50.0 %) but not distinguishable from the 65.0 %"),
        (560, 650, "above chance (50.0 %) but below the 65.0 %"),
        (505, 500, "not distinguishable from chance (50.0 %)."),
        (400, None, "below chance (50.0 %)."),
    ],
)
def test_the_headline_follows_the_interval(tmp_path: Path, right: int, baseline: int | None, verdict: str) -> None:
    page = Page(
        write_report(run_folder(tmp_path / "run", metric_rows(3), evaluation=json.dumps(evaluation(right, baseline))))
    )
    assert verdict in page.text
    shown, _, rest = page.text.partition("Not shown")
    claim = "decides better than chance"
    assert (claim in shown) == (right > 540)
    assert (claim in rest) == (right <= 540)


@pytest.mark.usefixtures("no_curves")
def test_the_wrong_side_wins_what_is_neither_right_nor_undecided(tmp_path: Path) -> None:
    """A trend of 0.2 points an iteration, while accuracy falls by less."""
    rows = metric_rows(60)
    for place, row in enumerate(row for row in rows if "eval/verifier/accuracy" in row):
        row["eval/verifier/accuracy"] = 0.8 - 0.001 * row["iteration"] + 0.004 * (place % 2)
        row["eval/verifier/undecided"] = 0.1 - 0.001 * row["iteration"]
    x_N, wrong_N, right_N = wrong_side(rows)
    assert x_N.tolist() == [10, 20, 30, 40, 50, 60]
    assert wrong_N == pytest.approx([0.12, 0.136, 0.16, 0.176, 0.2, 0.216], abs=1e-9)
    assert right_N == pytest.approx([0.79, 0.784, 0.77, 0.764, 0.75, 0.744], abs=1e-9)
    page = Page(write_report(run_folder(tmp_path / "run", rows)))
    assert re.search(r"21\.6 %, \+19\.\d points / 100 iterations \(1\d[.\d]* to 2\d[.\d]*\)", page.text)
    assert "Wins of the wrong side, and their trend" in page.text
    few = Page(write_report(run_folder(tmp_path / "few", [row for row in rows if row["iteration"] <= 20])))
    assert "points / 100 iterations" not in few.text, "a line through two points has no interval"
    assert "13.6 %" in few.text
    alone = [{key: value for key, value in row.items() if "prover" not in key} for row in rows]
    assert len(wrong_side(alone)[0]) == 0, "nobody argues for the wrong side"


def test_groups_that_are_not_drawn_are_counted() -> None:
    rows = metric_rows(20)
    assert "Accuracy by wl_score" in {panel.title for panel in panels(rows, 0.5, None)}
    rows = [
        {**row, **{f"train/verifier/accuracy/wl_score={n}": 0.01 * i for n in range(9)}} for i, row in enumerate(rows)
    ]
    assert "Accuracy by wl_score, 8 of 10 groups" in {panel.title for panel in panels(rows, 0.5, None)}


def test_a_curve_of_one_iteration_names_no_other() -> None:
    svg = draw(Panel("one", "One", "share", [Series("a", np.array([20.0]), np.array([0.5]), 0)])).svg
    assert ">20<" in svg
    assert ">19<" not in svg


@pytest.mark.usefixtures("no_curves")
def test_chance_is_the_share_of_the_more_frequent_label(tmp_path: Path) -> None:
    document = evaluation(720, None)
    document["greedy"] |= {
        "verifier/completeness": proportion(500, 600).record(),
        "verifier/soundness": proportion(220, 400).record(),
    }
    page = Page(write_report(run_folder(tmp_path / "run", metric_rows(3), evaluation=json.dumps(document))))
    assert "above chance (60.0 %)" in page.text


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    agent = HOSTILE.replace("/", "|")
    folder = run_folder(
        tmp_path / "run",
        [row | {f"eval/verifier/accuracy/{HOSTILE}={HOSTILE}": 0.5} for row in metric_rows(12, agent)],
        config=yaml.safe_dump(
            {"name": HOSTILE, "iterations": HOSTILE, "protocol": {"name": HOSTILE}, "scenario": HOSTILE}
        ),
        evaluation=json.dumps(evaluation(agent=agent) | {"split": HOSTILE, "iteration": HOSTILE}),
        environment=json.dumps({HOSTILE: HOSTILE}),
        transcripts=json.dumps(transcript(1, 0, 1, HOSTILE, agent) | {"instance": HOSTILE, "length": HOSTILE}) + "\n",
    )
    path = write_report(folder)
    page = Page(path)
    assert_self_contained(page)
    assert "<script>alert('x')</script>" in page.text
    assert path.read_text(encoding="utf-8").count("<script") == 1  # our own
    assert "{{ 7 * 7 }}" in page.text  # never taken for a template
    assert {file.parent for file in folder.rglob("*.pdf")} == {folder / "curves"}


@pytest.mark.usefixtures("no_curves")
def test_nothing_that_a_stranger_wrote_turns_the_direction_of_writing(tmp_path: Path) -> None:
    turning = "".join(f"a{sign}b" for sign in "\u202e\u2066\u2069\u200f\x00\x1b\u200b")
    cell = {"verifier": turning, "prover": turning, "accuracy": proportion(3, 4).record()}
    episode = transcript(1, 0, 1, turning, turning)
    episode["rounds"][0]["turns"][0] |= {"channel": turning, "message": turning, "decision": turning}
    episode |= {"label": turning, "verdict": turning, "instance": turning}
    folder = run_folder(
        tmp_path / "run",
        metric_rows(12, turning),
        config=f"name: a title \u202e of a stranger\n# {turning}\n".replace("\x00", "").replace("\x1b", ""),
        evaluation=json.dumps(evaluation(agent=turning) | {"split": turning}),
        environment=json.dumps({turning: turning}),
        transcripts=json.dumps(episode) + "\n",
    )
    (folder / "cross_play.json").write_text(json.dumps({"matrix": [cell]}))
    page = write_report(folder).read_text(encoding="utf-8")
    assert not set(page) & set("\u202e\u2066\u2069\u200f\x00\x1b\u200b")
    assert "a title &lt;U+202E&gt; of a stranger" in page
    assert "a&lt;U+0000&gt;b" in page


def test_metrics_alone_are_enough(tmp_path: Path) -> None:
    """A run that was killed in its first iterations."""
    row = {"iteration": 1, "train/verifier/accuracy": 0.5, "time/iteration_s": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n" + '{"iteration": 2, "train/ver')
    page = Page(write_report(tmp_path))
    assert_self_contained(page)
    assert (
        "No evaluation was made. In training the verifier decided 50.0 % correctly in the last iteration" in page.text
    )
    assert "1 unreadable line of metrics.jsonl was left out." in page.text


@pytest.mark.usefixtures("no_curves")
def test_damaged_files_are_named(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in metric_rows(5)]
    lines[2] = (
        '{"iteration": 3, "train/verifier/accuracy": NaN, "train/episode_length": "x", "time/learn_s": null,'
        ' "env_steps": 1e999}'
    )
    folder = run_folder(
        tmp_path / "run",
        metrics="\n".join([*lines, "[1, 2]", '{"no": 1}', lines[4][:40]]),
        config="name: [unclosed",
        evaluation='{"format": "nip_ray.evaluation", "version": 1, "greedy": {',
        environment="[]",
        transcripts='{"instance": 1, "rounds": [{"turns": [4]}, 3], "reward": 5}\n{"rounds": "x"}\nnot json\n',
    )
    page = Page(write_report(folder))
    assert "3 unreadable lines" in page.text
    for damaged in (
        "config.yaml is",
        "evaluation.json is",
        "environment.json is",
        "transcripts/000100.jsonl: line 3 is",
    ):
        assert f"{damaged} damaged" in page.text
    for strange in (
        {"greedy": 5},
        {"greedy": {"verifier/accuracy": {"estimate": "high"}}, "solo_baseline": "x"},
        {"version": 9},
    ):
        (folder / "evaluation.json").write_text(json.dumps(evaluation() | strange))
        assert_self_contained(Page(write_report(folder)))


@pytest.mark.usefixtures("no_curves")
def test_a_resumed_run_counts_each_iteration_once(tmp_path: Path) -> None:
    rows = metric_rows(10)
    page = Page(write_report(run_folder(tmp_path / "run", [*rows, *rows[5:]])))
    assert "10 of 100 (unfinished)" in page.text
    assert "3.5 s: playing 29%, learning 51%, evaluation 14%" in page.text


@pytest.mark.usefixtures("no_curves")
def test_a_dialogue_comes_with_its_problem_and_its_program(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", metric_rows(3))
    (folder / "transcripts" / "test-000100.jsonl").write_text(json.dumps(transcript(7, 0, 1, "hello")) + "\n")
    (folder / "items").mkdir()
    for split, id in (("train", 7), ("test", 6), ("test", 7)):
        item = {
            "id": id,
            "question": f"Add {split} {id} & {HOSTILE}",
            "solution": f"def f():\n    return '{split} {id}'\n",
        }
        with (folder / "items" / f"{split}.jsonl").open("a") as file:
            file.write(json.dumps(item) + "\n{torn\n")
    page = Page(write_report(folder))
    assert_self_contained(page)
    assert f"Problem of instance 7 Add test 7 & {HOSTILE}" in page.text
    assert "Program of instance 7 def f(): return 'test 7'" in page.text
    assert "train 7" not in page.text
    assert "test 6" not in page.text


@pytest.mark.usefixtures("no_curves")
def test_a_run_that_goes_on_says_how_far_it_is(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", metric_rows(40), evaluation=None)
    page = report_page(folder, running=True)[0]
    assert re.search(r"Running: iteration 40 of 100, about 21 s left; last update \d\d:\d\d:\d\d \(UTC", page)
    assert "Metrics so far" in page
    assert "evaluation.json is missing" not in page
    ended = report_page(folder)[0]
    assert "Running:" not in ended
    assert "evaluation.json is missing" in ended
