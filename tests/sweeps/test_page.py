"""The page of a sweep: what it says, that nothing in a trial can reach out of it, and that it is small and quick."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nip_ray.evaluation.report import curves as drawings
from nip_ray.evaluation.report.curves import Drawing
from nip_ray.sweeps import page as page_module
from nip_ray.sweeps.page import write_sweep_page
from nip_ray.sweeps.spec import SweepSpec, draw_settings, parse_sweep
from nip_ray.sweeps.summary import Status, TrialRecord, summarise

METRIC = "eval/verifier/accuracy"
HOSTILE = "<script>alert('x')</script>\"><img src=https://evil.example/x onerror=alert(1)> $\\frac{ {{ 7 * 7 }}"
GAME: dict[str, Any] = {
    "name": "tiny-sweep",
    "protocol": {"name": "message_game"},
    "scenario": {"name": "message_game"},
}


def trials_of(spec: SweepSpec, iterations: int = 50, every: int = 5, **more: Any) -> list[TrialRecord]:
    """Synthetic trials: each setting rises to a level of its own."""
    random, made = Random(0), []
    for n, values in enumerate(draw_settings(spec)):
        for seed in spec.settings.seeds or (0,):
            level = 0.6 + 0.3 * random.random()
            curve = [
                (i, 0.5 + (level - 0.5) * (1 - math.exp(-4 * i / iterations)))
                for i in range(every, iterations + 1, every)
            ]
            record = TrialRecord(
                f"{n:05d}_{seed}", values, seed, "done", None, iterations, {METRIC: curve[-1][1]}, curve, 12.0, **more
            )
            made.append(record)
    return made


def spec_of(*, seeds: tuple[int, ...] = (0, 1, 2), samples: int = 1, **algorithm: Any) -> SweepSpec:
    return parse_sweep({**GAME, "algorithm": algorithm, "sweep": {"num_samples": samples, "seeds": list(seeds)}})


def written(folder: Path, spec: SweepSpec, trials: list[TrialRecord]) -> str:
    path = write_sweep_page(folder, spec, summarise(spec.settings, trials), trials)
    assert path == folder / "sweep.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty pictures, for tests of words: drawing is what takes the time."""
    monkeypatch.setattr(drawings, "draw", lambda panel: Drawing("<svg></svg>", b""))


class Page(HTMLParser):
    """The tags, the addresses and the visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.usefixtures("no_pictures")
def test_the_page_says_what_came_of_the_sweep(tmp_path: Path) -> None:
    spec = spec_of(lr={"grid": [1e-3, 1e-2]})
    trials = trials_of(spec)
    summary = summarise(spec.settings, trials)
    assert summary.best is not None
    assert summary.best_trial is not None
    report = tmp_path / "trials" / trials[0].trial_id / "report.html"
    report.parent.mkdir(parents=True)
    report.touch()
    text = written(tmp_path, spec, trials)
    page = Page(text)
    assert f"Best of 2 settings: lr = {summary.best.values['algorithm.lr']:.4g}, {METRIC}" in page.text
    assert "chosen by the metrics shown here" in page.text
    assert f"Its best trial is {summary.best_trial.trial_id}" in page.text
    for said in ("0, 1, 2", "6 done", "72 s in all trials together", "grid: [0.001, 0.01]", '"python"', "fifo"):
        assert said in page.text, said
    assert page.tags.count("tr") == 3
    assert page.tags.count("svg") == 2, "curves, and the figure over the learning rate"
    assert "<dt>search</dt><dd>grid</dd>" in text
    assert page.addresses == [f"trials/{trials[0].trial_id}/report.html"] * page.addresses.count(page.addresses[0])


@pytest.mark.usefixtures("no_pictures")
def test_failed_trials_stand_with_their_reason(tmp_path: Path) -> None:
    spec = spec_of(lr={"grid": [1e-3, 1e-2]}, seeds=())
    good, bad = trials_of(spec)
    bad = TrialRecord(bad.trial_id, bad.values, 0, "failed", error="a learner was lost")
    page = Page(written(tmp_path, spec, [good, bad]))
    assert "Trials that failed" in page.text
    assert "a learner was lost" in page.text
    assert "lr = 0.01, seed 0" in page.text
    assert "Trials that failed" not in Page(written(tmp_path, spec, [good])).text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("status", ["failed", "unfinished"])
def test_a_sweep_without_a_single_figure_has_a_page_too(tmp_path: Path, status: Status) -> None:
    spec = spec_of(lr={"grid": [1e-3]}, seeds=())
    for trials in ([], [TrialRecord("a", {"algorithm.lr": 1e-3}, 0, status)]):
        assert f"No trial has the metric {METRIC}." in Page(written(tmp_path, spec, trials)).text


def test_nothing_in_a_trial_reaches_out_of_the_page(tmp_path: Path) -> None:
    spec = parse_sweep({**GAME, "tracking": {"wandb": {"tags": {"grid": [[HOSTILE], ["_b"]]}}}})
    first, second = trials_of(spec)
    trials = [first, TrialRecord(HOSTILE, second.values, 0, "failed", curve=second.curve, error=HOSTILE)]
    text = written(tmp_path, spec, trials)
    page = Page(text)
    assert "script" not in page.tags
    assert page.handlers == []
    assert all(address.startswith("#") for address in page.addresses), "identifiers within drawings"
    assert HOSTILE in page.text, "it is shown as is"
    assert "default-src 'none'" in text


SWEEPS = [
    spec_of(),
    spec_of(lr={"loguniform": [1e-4, 1e-2]}, samples=5),
    spec_of(lr={"grid": [1e-4, 1e-3, 1e-2]}, gamma={"grid": [0.5, 0.9]}),
    spec_of(lr={"loguniform": [1e-4, 1e-2]}, gamma={"uniform": [0.1, 0.9]}, samples=12, seeds=()),
    spec_of(loss={"grid": ["clip", "kl_penalty"]}, max_grad_norm={"choice": [None, 1.0]}, samples=2),
    spec_of(lr={"randn": [0.1, 0.001]}, gamma={"uniform": [0.1, 0.9]}, lam={"uniform": [0.1, 0.9]}, samples=3),
]
PICTURES = [1, 2, 3, 3, 3, 1]


@pytest.mark.parametrize(
    "spec, pictures",
    list(zip(SWEEPS, PICTURES)),
    ids=lambda value: "-".join(value.spaces) if isinstance(value, SweepSpec) else "",
)
def test_one_or_two_settings_have_pictures_of_their_own(tmp_path: Path, spec: SweepSpec, pictures: int) -> None:
    text = written(tmp_path, spec, trials_of(spec))
    assert text.count('<svg class="curve"') == pictures
    assert not re.search(r'(style|fill|stroke)="[^"]*#[0-9a-f]{6}', text), "colours are those of the style sheet"


def test_a_mean_is_drawn_only_where_all_seeds_have_a_value() -> None:
    """Where one of two has been stopped, the other alone is no mean."""
    spec = spec_of(seeds=(0, 1))
    whole, cut = trials_of(spec)
    cut = TrialRecord(
        cut.trial_id, cut.values, cut.seed, "stopped", None, 20, {}, [pair for pair in cut.curve if pair[0] <= 20]
    )
    none = TrialRecord(cut.trial_id, cut.values, cut.seed, "failed", None, 0, {}, [])
    assert [one.style for one in page_module._curves(summarise(spec.settings, [whole, none]))] == ["faint"]
    mean, *seeds = page_module._curves(summarise(spec.settings, [whole, cut]))
    assert mean.x_N.tolist() == [5, 10, 15, 20]
    assert [len(seed.x_N) for seed in seeds] == [10, 4]
    assert mean.spread is not None
    for (_, x), (_, y), *drawn in zip(whole.curve, cut.curve, mean.y_N, *mean.spread):
        assert drawn == [pytest.approx((x + y) / 2), min(x, y), max(x, y)]
