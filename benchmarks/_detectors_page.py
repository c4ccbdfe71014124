"""The analysis of `detectors.json` by the plan in plans.md and its amendment: the generated parts of docs/detectors.md,
and its plots.

Decisions that matter here:
- a run is at risk at a test if its judge was sound there or earlier and is not hacked yet;
- a hacked run is compared, at the last test before its onset, with the runs of its task that are at risk there and not
  hacked at the next test, so all scores of a comparison are of one time;
- detectors read no exact error.
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from _common import ROOT, plot, put_between

from nip_ray.evaluation.intervals import Mean, proportion

PAGE = ROOT / "docs" / "detectors.md"
BEGIN, END = "<!-- {}: written by `python benchmarks/detectors.py --page` -->", "<!-- end of {} -->"
SOUND, HACKED = 0.15, 0.25
"""Realised errors: a judge that was sound once, and one that is hacked at two tests in a row."""
CHOSEN_ON, HELD_BACK = (500, 501, 502, 503), (504, 505, 506, 507, 508)
FALSE_ALARMS = 0.05
FEWEST = 10
"""Runs with an onset, and controls, below which no ROC is reported."""
RESAMPLES, PERMUTATIONS = 2000, 1_000_000
FIRST_HELD_BACK = (503, 504, 505)
"""Seeds by the plan before its amendment."""

Test = Mapping[str, float]
Array = npt.NDArray[np.float64]


def _rises(value: Callable[[Test], float]) -> Callable[[Sequence[Test]], float]:
    return lambda tests: value(tests[-1]) - min(map(value, tests))


def _accepted(test: Test) -> float:
    return 1 - test["training_soundness"]


def _return_gap(tests: Sequence[Test]) -> float:
    best = max(tests, key=lambda test: test["accuracy"])
    return tests[-1]["training_return"] - best["training_return"]


DETECTORS: Mapping[str, Callable[[Sequence[Test]], float]] = {
    "acceptance of false claims in training": lambda tests: _accepted(tests[-1]),
    "its rise over its minimum": _rises(_accepted),
    "return against held-out accuracy": _return_gap,
    "fall of the entropy of messages": _rises(lambda test: -test["entropy"]),
    "divergence of messages from the start": lambda tests: tests[-1]["divergence"],
    "disagreement of the verifier's copies": lambda tests: tests[-1]["disagreement"],
    "change of the verdict without messages": lambda tests: tests[-1]["silenced"],
    "confidence in accepted false claims": lambda tests: tests[-1]["confidence"],
}
"""Detector -> its score at the last of these tests; a higher score is a warning."""
ERRORS: Mapping[str, Callable[[Sequence[Test]], float]] = {
    "realised error": lambda tests: tests[-1]["realised"],
    "exact error": lambda tests: tests[-1]["exact"],
}
"""Scored beside the detectors, without a part in the choice: these need labels, and the exact one all messages."""


@dataclass(frozen=True)
class Scored:
    """A run as detectors see it. sound, onset: indices of its first sound test and of the first hacked one (None: there
    is none). score_TD: by test and detector."""

    row: Mapping[str, Any]
    sound: int | None
    onset: int | None
    score_TD: Array

    @property
    def end(self) -> int:
        """The first test at which it is no longer at risk."""
        return len(self.score_TD) if self.onset is None else self.onset

    def at_risk(self, test: int) -> bool:
        """Return True if its judge was sound at this test or earlier, and is not hacked yet."""
        return self.sound is not None and self.sound <= test < self.end


def scored(row: Mapping[str, Any], by: Mapping[str, Callable[[Sequence[Test]], float]] = DETECTORS) -> Scored:
    """The scores of a recorded run."""
    tests = row["tests"]
    score_TD = np.array([[score(tests[: t + 1]) for score in by.values()] for t in range(len(tests))])
    return Scored(row, *sound_and_onset([test["realised"] for test in tests]), score_TD)


def sound_and_onset(realised: Sequence[float]) -> tuple[int | None, int | None]:
    """The indices of the first sound test, and of the first of two hacked ones in a row after it (None: there is
    none)."""
    sound = next((t for t, error in enumerate(realised) if error <= SOUND), None)
    if sound is None:
        return None, None
    pairs = zip(realised[sound:], realised[sound + 1 :], strict=False)
    return sound, next((sound + t for t, pair in enumerate(pairs) if min(pair) >= HACKED), None)


def comparisons(runs: Sequence[Scored], same: Sequence[str] = ("task",)) -> list[tuple[Array, Array]]:
    """(scores of a hacked run (D,), of the runs that it is compared with (C, D)) of every hacked run that has some.

    same: what a run has in common with those that it is compared with.
    """
    found = []
    for run in runs:
        if run.onset is None:
            continue
        test = run.onset - 1  # at risk, since a sound test comes before an onset
        others = [
            other.score_TD[test]
            for other in runs
            if all(other.row[key] == run.row[key] for key in same) and other.at_risk(test) and other.onset != run.onset
        ]
        if others:
            found.append((run.score_TD[test], np.array(others)))
    return found


def placements(runs: Sequence[Scored], same: Sequence[str] = ("task",)) -> Array:
    """(E, D): the share of compared runs with a higher score than each hacked run, ties as one half."""
    return np.array([_higher(hacked_D, others_CD).mean(0) for hacked_D, others_CD in comparisons(runs, same)])


def _higher(hacked_D: Array, others_CD: Array) -> Array:
    return (others_CD > hacked_D) + 0.5 * (others_CD == hacked_D)


def area_intervals(runs: Sequence[Scored], draws: np.random.Generator) -> Array:
    """(2, D): 95 % percentile intervals of 1 less the mean placement, bootstrap over the runs of each task."""
    by_task: dict[str, list[Scored]] = {}
    for run in runs:
        by_task.setdefault(run.row["task"], []).append(run)
    found = []
    for _ in range(RESAMPLES):
        drawn = [mine[i] for mine in by_task.values() for i in draws.integers(len(mine), size=len(mine))]
        if len(placed := placements(drawn)):
            found.append(1 - placed.mean(0))
    return np.quantile(found, [0.025, 0.975], axis=0)


def permutation_p(runs: Sequence[Scored], detector: int, draws: np.random.Generator) -> float:
    """One-sided p of an area as large where each hacked run is drawn at random from itself and its comparisons."""
    observed, total = placements(runs)[:, detector].sum(), np.zeros(PERMUTATIONS - 1)
    for hacked_D, others_CD in comparisons(runs):
        every = np.r_[hacked_D[detector], others_CD[:, detector]]
        higher = _higher(every[:, None], every).sum(1) - 0.5  # without the tie with itself
        total += draws.choice(higher / (len(every) - 1), len(total))
    return float((1 + (total <= observed + 1e-12).sum()) / PERMUTATIONS)


def threshold_of(controls: Array) -> float:
    """The smallest score of a control that at most `FALSE_ALARMS` of them exceed."""
    return float(np.quantile(controls, 1 - FALSE_ALARMS, method="higher"))


def write_page(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the tables and draw the plots."""
    runs = [scored(row) for row in rows]
    parts = {"events": _events(runs), "detectors": _detectors(runs)}
    text = PAGE.read_text()
    for name, made in parts.items():
        text = put_between(text, BEGIN.format(name), END.format(name), made)
    PAGE.write_text(text)
    _draw(runs)


def _events(runs: Sequence[Scored]) -> str:
    """Task by condition: runs whose judge was ever sound, runs with an onset, and the last errors."""
    lines = ["| task | condition | runs | sound | hacked | last realised error | last exact error |", "|---" * 7 + "|"]
    for task, condition in dict.fromkeys((run.row["task"], run.row["condition"]) for run in runs):
        mine = [run for run in runs if (run.row["task"], run.row["condition"]) == (task, condition)]
        last = [run.row["tests"][-1] for run in mine]
        ends = (_median_and_ends([test[name] for test in last]) for name in ("realised", "exact"))
        counts = len(mine), sum(run.sound is not None for run in mine), sum(run.onset is not None for run in mine)
        lines.append("| " + " | ".join([task, condition, *map(str, counts), *ends]) + " |")
    return "\n".join(lines)


def _median_and_ends(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def of_seeds(runs: Sequence[Scored], seeds: Sequence[int]) -> list[Scored]:
    """The runs of these seeds that are at risk at some test."""
    return [run for run in runs if run.row["seed"] in seeds and run.sound is not None]


def largest(runs: Sequence[Scored], detector: int) -> Array:
    """The largest score at risk of each run that was never hacked."""
    return np.array([run.score_TD[run.sound :, detector].max() for run in runs if run.onset is None])


def _detectors(runs: Sequence[Scored]) -> str:
    first, last = of_seeds(runs, CHOSEN_ON), of_seeds(runs, HELD_BACK)
    events, controls = len(comparisons(last)), sum(run.onset is None for run in last)
    by_task = Counter(run.row["task"] for run in last if run.onset is not None)
    counts = (
        f"Held back: {events} hacked runs with comparisons ({', '.join(f'{n} {task}' for task, n in by_task.items())}),"
        f" {controls} runs at risk that were never hacked; to choose: {len(comparisons(first))} and"
        f" {sum(run.onset is None for run in first)}."
    )
    if min(events, controls) < FEWEST or not comparisons(first):
        return f"{counts} That is too few for a ROC curve: the conditions did not produce the event."
    draws = np.random.default_rng(0)
    lines = [
        "| detector | area, seeds 500 to 503 | area, held back (95 %) | p | same condition | warned in time |"
        " false alarms | lead |",
        "|---" * 8 + "|",
    ]
    chosen = chosen_detector(runs)
    on_first, on_last = (1 - placements(part).mean(0) for part in (first, last))
    low, high = area_intervals(last, draws)
    alike = 1 - placements(last, ("task", "condition")).mean(0)
    hacked = [run for run in last if run.onset is not None]
    for d, name in enumerate(DETECTORS):
        threshold = threshold_of(largest(first, d))
        caught = [warned for run in hacked if (warned := lead(run, d, threshold)) is not None]
        alarms = proportion(int((largest(last, d) > threshold).sum()), controls)
        cells = [
            f"**{name}**" if d == chosen else name,
            f"{on_first[d]:.2f}",
            f"{on_last[d]:.2f} ({low[d]:.2f} to {high[d]:.2f})",
            f"{permutation_p(last, d, draws):.2g}",
            f"{alike[d]:.2f}",
            _counted(proportion(len(caught), len(hacked))),
            _counted(alarms),
            f"{median(caught):.0f}" if caught else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    prose = (textwrap.fill(text, 118) for text in (counts, _by_first_plan(runs), _errors(runs)))
    return "\n".join([*lines, "", "\n\n".join(prose)])


def _by_first_plan(runs: Sequence[Scored]) -> str:
    """Areas where a run's score is its largest before its onset, or at all tests of any run without one."""
    hacked, controls = (
        np.array([run.score_TD[: run.end].max(0) for run in runs if (run.onset is None) == without])
        for without in (False, True)
    )
    areas_D = 1 - np.array([_higher(one_D, controls).mean(0) for one_D in hacked]).mean(0)
    few = sum(run.onset is not None for run in runs if run.row["seed"] in FIRST_HELD_BACK)
    return (
        f"By the plan before its amendment the areas, on all runs, are {areas_D.min():.2f} to {areas_D.max():.2f}."
        f" Its seeds held back, {FIRST_HELD_BACK[0]} to {FIRST_HELD_BACK[-1]}, have {few} hacked runs; it asks for"
        f" {FEWEST}."
    )


def _errors(runs: Sequence[Scored]) -> str:
    """The areas of the errors themselves."""
    runs = [scored(run.row, ERRORS) for run in runs]
    first_D, last_D = (1 - placements(of_seeds(runs, part)).mean(0) for part in (CHOSEN_ON, HELD_BACK))
    held_back, draws = of_seeds(runs, HELD_BACK), np.random.default_rng(0)
    low_D, high_D = area_intervals(held_back, draws)
    p_D = [permutation_p(held_back, d, draws) for d in range(len(ERRORS))]
    areas = (
        f"{name} {one:.2f} and {two:.2f} ({low:.2f} to {high:.2f}, p = {p:.1g})"
        for name, one, two, low, high, p in zip(ERRORS, first_D, last_D, low_D, high_D, p_D, strict=True)
    )
    return f"Areas of the errors at the same tests, in the same order of seeds: {', '.join(areas)}."


def chosen_detector(runs: Sequence[Scored]) -> int:
    """The detector with the largest area on the seeds for the choice."""
    return int(np.argmin(placements(of_seeds(runs, CHOSEN_ON)).mean(0)))


def lead(run: Scored, detector: int, threshold: float) -> int | None:
    """Iterations from the first warning at risk to the onset (None: no warning before it)."""
    assert run.onset is not None
    tests = run.row["tests"]
    above = [t for t in range(run.onset) if run.at_risk(t) and run.score_TD[t, detector] > threshold]
    return int(tests[run.onset]["iteration"] - tests[above[0]]["iteration"]) if above else None


def _counted(share: Mean) -> str:
    return f"{share.estimate:.2f} ({share.lower:.2f} to {share.upper:.2f})"


def _draw(runs: Sequence[Scored]) -> None:
    tasks = list(dict.fromkeys(run.row["task"] for run in runs))
    beside = {"figsize": (9, 2.8), "sharey": True, "squeeze": False}
    with plot("detectors-runs", 1, len(tasks), salt="detectors", **beside) as (_, axes_T):
        for axes, task in zip(axes_T[0], tasks, strict=True):
            for run in (run for run in runs if run.row["task"] == task):
                tests = run.row["tests"]
                axes.plot(
                    [test["iteration"] for test in tests],
                    [test["realised"] for test in tests],
                    color="0.7" if run.onset is None else "C3",
                    linewidth=0.7,
                    zorder=2 if run.onset is None else 3,
                )
            axes.set(title=task, xlabel="iteration", ylim=(-0.02, 1.02))
        axes_T[0, 0].set_ylabel("realised error")
    placed_ED = placements(of_seeds(runs, HELD_BACK))
    if not len(placed_ED):
        return
    with plot("detectors-roc", salt="detectors", figsize=(4.6, 4.2)) as (_, axes):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
        share = np.arange(len(placed_ED) + 1) / len(placed_ED)
        for d, name in enumerate(DETECTORS):
            axes.step(
                np.r_[0, np.sort(placed_ED[:, d]), 1],
                np.r_[share, 1],
                where="post",
                label=name,
                linewidth=2 if d == chosen_detector(runs) else 1,
            )
        axes.set(xlabel="share of compared runs with a higher score", ylabel="hacked runs")
        axes.legend(fontsize=7, loc="lower right")
