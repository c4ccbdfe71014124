"""The report and its relatives in a real headless browser: nothing on the console, keyboard and mouse, hostile texts,
accessibility."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.report import write_report
from nip_ray.evaluation.report.compare import write_comparison
from nip_ray.runs.pages import PageServer
from nip_ray.runs.view import LivePage

pytestmark = pytest.mark.browser

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"><svg onload=document.title='owned'>",
    "' onmouseover='document.title=1' style='position:fixed;inset:0;background:red' x='",
    "</style><style>*{display:none!important}</style>",
    "<a href=\"javascript:document.title='owned'\">click</a><iframe src=https://evil.example></iframe>",
    "{{ 7 * 7 }}{% raw %}<!--",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
)


def rows(count: int = 12) -> list[dict[str, float]]:
    made = []
    for i in range(1, count + 1):
        row = {"iteration": i, "version": 1, "time/iteration_s": 0.3, "time/sample_s": 0.1, "time/learn_s": 0.15}
        row |= {"train/verifier/accuracy": 0.5 + 0.02 * i, "train/verifier/return": 0.1, "train/prover/return": 0.2}
        row |= {"eval/verifier/accuracy": 0.5 + 0.02 * i, "eval/verifier/accuracy/wl_score=-1": 0.6}
        made.append(row)
    return made


def record(right: int, n: int) -> dict[str, Any]:
    return proportion(right, n).record()


def evaluation() -> dict[str, Any]:
    table = {
        "verifier/accuracy": record(70, 100),
        "verifier/completeness": record(40, 50),
        "verifier/soundness": record(30, 50),
    }
    liar = {
        "name": "fresh/size=2/seed=0",
        "kind": "fresh",
        "held_out": record(30, 50),
        "fooled": record(20, 50),
        "chosen": True,
    }
    own = {"name": "own", "kind": "own", "held_out": record(40, 50), "fooled": record(10, 50), "chosen": False}
    bins = [{"confidence": 0.1 * i, "positive": record(i, 10)} for i in range(10)]
    return {
        "format": "nip_ray.evaluation",
        "version": 1,
        "iteration": 12,
        "split": "test",
        "greedy": table,
        "sampled": table,
        "solo_baseline": record(60, 100),
        "soundness_under_attack": {**record(30, 50), "attacker": "fresh/size=2/seed=0"},
        "attack": {"soundness": {"attackers": [liar, own], "any_attacker": record(28, 50), "every_message": None}},
        "worst_case": {"episodes": 5, "verifier/soundness": record(20, 50)},
        "calibration": {"brier": record(1, 10), "ece": record(1, 10), "bins": bins},
        "message_value": {"heard": record(70, 100), "silenced": {"accuracy": record(50, 100), "lost": record(20, 100)}},
    }


def graph_episode(instance: int, label: int, verdict: str) -> dict[str, Any]:
    asks = {"agent": "verifier", "channel": "main", "message": [1], "decision": "continue"}
    answers = {"agent": "prover", "channel": "main", "message": [5]}
    chances = {"reject": 0.2, "accept": 0.75, "continue": 0.05}
    decides = {"agent": "verifier", "channel": "main", "message": [2], "decision": verdict, "probabilities": chances}
    rounds = [{"round": r, "turns": [turn]} for r, turn in enumerate((asks, answers, decides))]
    right = verdict == ("reject", "accept")[label]
    return {
        "instance": instance,
        "label": label,
        "length": 3,
        "verdict": verdict,
        "correct": right,
        "version": 1,
        "rounds": rounds,
    }


def graph_run(path: Path, episodes: list[dict[str, Any]] | None = None, seed: int = 0) -> Path:
    (path / "transcripts").mkdir(parents=True)
    graph = {"nodes": [0, 1, 2, 3], "edges": [[0, 1], [1, 2], [2, 3], [0, 3]]}
    picture = {"kind": "graphs", "size": 4, "graphs": [graph, graph]}
    found = episodes or [graph_episode(i, i % 2, ("accept", "accept", "reject", "undecided")[i % 4]) for i in range(8)]
    contents = {
        "config.yaml": yaml.safe_dump({"name": "drawn", "seed": seed, "iterations": 12, "protocol": {"name": "nip"}}),
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows()),
        "evaluation.json": json.dumps(evaluation()),
        "environment.json": json.dumps({"python": "3.11", "torch": "2.13", "platform": "Linux"}),
        "instances.json": json.dumps({"version": 1, "pictures": {str(i): picture for i in range(8)}}),
        "transcripts/000012.jsonl": "".join(json.dumps(episode) + "\n" for episode in found),
        "cross_play.json": json.dumps(
            {"matrix": [{"verifier": v, "prover": p, "accuracy": record(6, 9)} for v in "ab" for p in "ab"]}
        ),
    }
    for name, content in contents.items():
        (path / name).write_text(content, encoding="utf-8")
    return path


def words_episode(instance: str, texts: tuple[str, ...]) -> dict[str, Any]:
    rounds = []
    for r, text in enumerate(texts):
        turns: list[dict[str, Any]] = [
            {"agent": agent, "channel": channel, "message": text}
            for agent, channel in (("verifier", "open"), ("prover", "secret"))
        ]
        turns[0] |= {"decision": "accept" if r + 1 == len(texts) else "continue", "confidence": 0.8}
        rounds.append({"round": r, "turns": turns})
    return {
        "instance": instance,
        "label": 0,
        "length": len(texts),
        "verdict": "accept",
        "correct": False,
        "version": 1,
        "rounds": rounds,
    }


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(graph_run(tmp_path_factory.mktemp("pages") / "run"))


def in_sight(page: Any) -> list[str]:
    """The episodes that are shown."""
    return [article.get_attribute("id") for article in page.locator(".episode:visible").all()]


def test_the_mouse_chooses_episodes_rounds_and_filters(opened: Callable[..., Any], drawn: Path) -> None:
    page = opened(drawn)
    page.click("#episodes li:nth-child(3) a")
    assert in_sight(page) == ["episode-3"]
    page.click("[data-filter=undecided]")
    assert page.locator("#episodes li:visible").count() == 2
    assert "undecided" in page.locator("#episodes a[aria-current]").inner_text()
    assert page.locator("#told").inner_text() == "2 of 8 episodes"
    page.click("[data-filter='']")
    episode = page.locator(".episode:visible")
    episode.locator("[data-step='1']").click()
    assert episode.locator(".where").inner_text() == "round 1 · 1 of 3"
    assert (episode.locator("tbody tr:visible").count(), episode.locator(".halo:visible").count()) == (1, 1)
    episode.locator("[data-step='1']").click()
    assert (episode.locator("tbody tr:visible").count(), episode.locator(".halo.now:visible").count()) == (2, 1)
    assert episode.locator(".halo.past:visible").count() == 1
    episode.locator("[data-step=all]").click()
    assert episode.locator("tbody tr:visible").count() == 3


def test_on_a_phone_nothing_sticks_out(opened: Callable[..., Any], drawn: Path) -> None:
    page = opened(drawn, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_dialogue_can_be_read_channel_by_channel(opened: Callable[..., Any], tmp_path: Path) -> None:
    page = opened(write_report(graph_run(tmp_path / "run", [words_episode("one", ("Is it so?\nReally?", "It is."))])))
    assert page.locator("#episode-1 tbody tr:visible").count() == 4
    page.click("#episode-1 button[data-channel=secret]")
    assert page.locator("#episode-1 tbody tr:visible").count() == 2
    page.click("#episode-1 button[data-channel=secret]")
    assert page.locator("#episode-1 tbody tr:visible").count() == 4
    assert "reject 20 % · accept 80 %" in page.locator("#episode-1").inner_text()


def test_hostile_texts_do_nothing(opened: Callable[..., Any], tmp_path: Path) -> None:
    """What is on the console, asked of others or shown as a dialog fails the test as well: `opened` looks."""
    hostile = [words_episode(text, HOSTILE) for text in HOSTILE]
    for episode in hostile:
        for turn in (turn for one in episode["rounds"] for turn in one["turns"]):
            turn |= {"agent": HOSTILE[0], "channel": turn["channel"] + HOSTILE[3]}
    folder = graph_run(tmp_path / "run", hostile)
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"name": HOSTILE[0], "protocol": {"name": HOSTILE[1]}, "seed": HOSTILE[4]})
    )
    pictures = {text: {"kind": HOSTILE[1], "size": HOSTILE[2], "graphs": [{"nodes": [HOSTILE[0]]}]} for text in HOSTILE}
    (folder / "instances.json").write_text(json.dumps({"version": 1, "pictures": pictures}))
    page = opened(write_report(folder))
    page.wait_for_timeout(300)
    assert page.title() == f"{HOSTILE[0]} · nip_ray report"
    assert page.locator("script").count() == 1
    assert (
        page.locator("iframe, .episode img, .episode a, [onload], [onerror], [onmouseover], .episode [style]").count()
        == 0
    )
    page.locator("#episode-1 button[data-channel]").first.click()
    assert page.locator("#episode-1 tbody tr:visible").count() == len(HOSTILE)
    assert HOSTILE[1] in page.locator("#episode-1").inner_text()


def test_even_an_unescaped_script_would_not_run(browser: Any, drawn: Path, tmp_path: Path) -> None:
    """The second line of defence: the policy lets nothing run but our own script."""
    planted = (
        "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\"><p style='color: red'"
        " id=p>x</p>"
    )
    page_file = tmp_path / "page.html"
    page_file.write_text(drawn.read_text(encoding="utf-8").replace("<footer>", planted + "<footer>"), encoding="utf-8")
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.wait_for_timeout(200)
    assert page.title() == "drawn · nip_ray report"
    assert page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    page.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["graphs", "words", "compared"])
def test_it_passes_the_accessibility_checker(
    opened: Callable[..., Any], axe: str, drawn: Path, tmp_path: Path, kind: str, dark: bool
) -> None:
    address = drawn
    if kind == "words":
        address = write_report(graph_run(tmp_path / "run", [words_episode("one", ("a question", "an answer"))]))
    elif kind == "compared":
        runs = [graph_run(tmp_path / name, seed=seed) for seed, name in enumerate(("first", "second"))]
        address = write_comparison(runs, tmp_path / "comparison.html", runs[0] / "cross_play.json")
    page = opened(address, dark=dark)
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    told = [f"{one['id']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0]['failureSummary'][:300]}" for one in found]
    assert told == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[PageServer, Path]]:
    folder = graph_run(tmp_path / "run")
    with PageServer(LivePage(folder, every_s=0.0)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server, folder
        server.shutdown()
        thread.join()


def test_a_watched_run_is_shown_anew_where_the_reader_was(
    opened: Callable[..., Any], served: tuple[PageServer, Path]
) -> None:
    server, folder = served
    page = opened(server.url)
    page.click("#episodes li:nth-child(4) a")
    assert "12" in page.locator("dl").first.inner_text()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**rows(1)[0], "iteration": 977}) + "\n")
    page.locator("dl", has_text="977").first.wait_for()
    assert in_sight(page) == ["episode-4"]
