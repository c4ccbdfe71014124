"""The page over many runs in a real headless browser: filters, curves, transcripts side by side, live runs, hostile
texts, access."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_ray.runs.pages import PageServer
from nip_ray.runs.view import RunsPage
from tests.browser.test_report import HOSTILE, graph_episode, graph_run, rows, words_episode

pytestmark = pytest.mark.browser


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and a folder with three runs: on instance 1 their verdicts differ, and the third has none of their
    instances."""
    folder = tmp_path / "runs"
    for seed, verdict in enumerate(("accept", "reject")):
        graph_run(folder / f"seed{seed}", [graph_episode(0, 0, "reject"), graph_episode(1, 1, verdict)], seed)
    graph_run(folder / "sweep/words", [words_episode("one", ("Is it so?", "It is."))], 2)
    with PageServer(RunsPage(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server.url, folder
        server.shutdown()
        thread.join()


def test_runs_are_filtered_picked_and_drawn(opened: Callable[..., Any], served: tuple[str, Path]) -> None:
    page = opened(served[0])
    page.locator(".plot path.line").first.wait_for()
    assert (page.locator("#rows tr").count(), page.locator("#legend li").count()) == (3, 3)
    assert [
        page.locator(f".plot[data-metric='eval/verifier/accuracy'] {part}").count()
        for part in ("path.line", "text.axis")
    ] == [3, 2]
    for words, count in (("seed=1", 1), ("seed=", 3), ("WORDS", 1), ("words seed=1", 0)):
        page.fill("#text", words)
        assert page.locator("#rows tr input").count() == count
    page.fill("#text", "")
    page.select_option("#key", "seed")
    page.select_option("#value", "2")
    assert page.locator("#rows tr").inner_text().split("\t")[1:4] == ["sweep/words", "nip", "2"]
    page.select_option("#key", "")
    page.click("[data-state=interrupted]")
    assert page.locator("#rows tr").count() == 3
    page.locator("#rows tr", has_text="sweep/words").locator("input").uncheck()
    page.locator("#legend li").nth(2).wait_for(state="detached")
    page.fill("#add", "train/prover/return")
    page.locator(".plot[data-metric='train/prover/return'] path.line").nth(1).wait_for(state="attached")
    page.select_option("#x", "minutes")
    page.locator(".plot text.axis", has_text="minutes of training").first.wait_for()
    page.locator(".plot svg.chart").first.hover()
    assert page.locator(".plot .tip:visible b").count() == 2
    address = page.evaluate("location.href")
    page.reload()
    page.locator(".plot[data-metric='train/prover/return'] path.line").first.wait_for(state="attached")
    assert page.evaluate("location.href") == address


def test_transcripts_stand_side_by_side(opened: Callable[..., Any], served: tuple[str, Path]) -> None:
    page = opened(served[0])
    page.locator(".beside article").first.wait_for()
    for name in page.locator("#beside [aria-pressed=true]").all_inner_texts():
        if "seed" not in name:
            page.locator("#beside button", has_text=name).click()
    for name in ("seed0", "seed1"):
        if page.locator("#beside button", has_text=name).get_attribute("aria-pressed") == "false":
            page.locator("#beside button", has_text=name).click()
            page.locator(f".beside article[aria-label='Run {name}']").wait_for()
    assert "on 1 the verdicts differ" in page.locator("#episodes").inner_text()
    assert sorted(page.locator(".beside article p:first-of-type").all_inner_texts()) == [
        "right verdict accept, 3 rounds",
        "wrong verdict reject, 3 rounds",
    ]
    assert page.locator(".beside .halo").count() > 0
    page.locator("[data-instance='0']").click()
    page.locator("h3", has_text="Instance 0").wait_for()
    assert page.locator(".beside .tag.good").count() == 2


def test_a_run_that_trains_is_followed(opened: Callable[..., Any], served: tuple[str, Path]) -> None:
    address, folder = served
    page = opened(address)
    page.locator("#rows tr", has_text="12 of 12").first.wait_for()
    with (folder / "seed0/metrics.jsonl").open("a") as file:
        file.write(json.dumps({**rows(1)[0], "iteration": 977}) + "\n")
    page.locator("#rows tr", has_text="977 of 12").wait_for()
    page.locator(".plot text", has_text="800").first.wait_for()
    graph_run(folder / "later", seed=3)
    page.locator("#rows tr", has_text="later").wait_for()


def test_hostile_texts_do_nothing(opened: Callable[..., Any], served: tuple[str, Path]) -> None:
    """What is on the console, asked of others or shown as a dialog fails the test as well: `opened` looks."""
    address, folder = served
    for text in (HOSTILE[1], HOSTILE[2], HOSTILE[3]):
        hostile = graph_run(folder / text.replace("/", "|"), [words_episode(one, HOSTILE) for one in HOSTILE])
        keys = {
            "name": HOSTILE[0],
            "protocol": {"name": HOSTILE[1]},
            "seed": HOSTILE[4],
            HOSTILE[6]: {HOSTILE[2]: HOSTILE[3]},
        }
        (hostile / "config.yaml").write_text(yaml.safe_dump({**keys, "iterations": 3}))
        with (hostile / "metrics.jsonl").open("a") as file:
            file.write(
                json.dumps(
                    {"iteration": 13, "version": 1, **dict.fromkeys(HOSTILE, 1.0), "eval/verifier/accuracy": 0.5}
                )
                + "\n"
            )
    page = opened(address)
    page.locator("#rows tr").nth(5).wait_for()
    page.click("#pick")
    page.locator(".plot[data-metric='eval/verifier/accuracy'] path.line").nth(5).wait_for()
    page.fill("#add", "no/such")
    page.press("#add", "Enter")
    assert page.locator("#no-curves").inner_text() == "None of the picked runs has the metric no/such."
    page.fill("#add", HOSTILE[1])
    page.locator(".plot", has_text="onerror").wait_for()
    page.locator("#beside button", has_text="onerror").first.click()
    page.locator(".beside article", has_text="onerror").first.wait_for()
    page.select_option("#key", index=1)
    page.wait_for_timeout(300)
    assert page.title() == "runs · nip_ray runs"
    assert page.locator("script").count() == 1
    assert page.locator("iframe, img, [onload], [onerror], [onmouseover], main [style]:not(.tip)").count() == 0
    assert HOSTILE[1] in page.locator("#episodes").inner_text()


@pytest.mark.parametrize("dark", [False, True])
def test_it_passes_the_accessibility_checker(
    opened: Callable[..., Any], axe: str, served: tuple[str, Path], dark: bool
) -> None:
    page = opened(served[0], dark=dark)
    page.locator(".beside article").first.wait_for()
    page.locator(".plot path.line").first.wait_for()
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0]['failureSummary'][:300]}" for one in found
    ] == []


def test_on_a_phone_nothing_sticks_out(opened: Callable[..., Any], served: tuple[str, Path]) -> None:
    page = opened(served[0], width=360)
    page.locator(".beside article").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
