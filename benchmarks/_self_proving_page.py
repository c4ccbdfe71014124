"""The analysis of `self_proving.json` by the plan in plans.md: the generated tables of docs/self-proving.md, and its
plot."""

from collections.abc import Mapping, Sequence
from typing import Any

from _common import ROOT, plot, put_between

from nip_ray.evaluation.intervals import proportion

PAGE = ROOT / "docs" / "self-proving.md"
BEGIN, END = "<!-- {}: written by `python benchmarks/self_proving.py --page` -->", "<!-- end of {} -->"
TESTS = 10_000
"""Held-out inputs, each with one reply."""
BAR = 0.96
JUDGED = ("accuracy", "soundness_error", "mean_error", "completeness")

Row = Mapping[str, Any]


def write_page(rows: Sequence[Row]) -> None:
    """Write the tables of finished runs, and draw the plot."""
    proved = [row for row in rows if "accepted" in row["tests"][0][1]]
    judged = [row for row in rows if "accepted" not in row["tests"][0][1]]
    page = PAGE.read_text()
    for name, made in (("verifiability", _proved(proved)), ("verifier", _judged(judged))):
        page = put_between(page, BEGIN.format(name), END.format(name), made)
    PAGE.write_text(page)
    _draw(proved, judged)


def _proved(rows: Sequence[Row]) -> str:
    lines = ["| arm | seed | after transcripts | after feedback | minutes |", "|---|---|---|---|---|"]
    for row in rows:
        shown = []
        for _, test in row["tests"]:
            found = proportion(round(test["accepted"] * TESTS), TESTS)
            shown.append(f"{found.estimate:.4f} ({found.lower:.4f} to {found.upper:.4f})")
        lines.append(f"| {row['arm']} | {row['seed']} | {' | '.join(shown)} | {row['minutes']:.0f} |")
    return "\n".join(lines)


def _judged(rows: Sequence[Row]) -> str:
    titles = " | ".join(name.replace("_", " ") for name in JUDGED)
    lines = [f"| seed | after | {titles} | minutes |", "|---" * (len(JUDGED) + 3) + "|"]
    for row in rows:
        for stage, at, minutes in (("transcripts", 0, ""), ("feedback", -1, f"{row['minutes']:.0f}")):
            shown = " | ".join(f"{row['tests'][at][1][name]:.4f}" for name in JUDGED)
            lines.append(f"| {row['seed']} | {stage} | {shown} | {minutes} |")
    return "\n".join(lines)


def _draw(proved: Sequence[Row], judged: Sequence[Row]) -> None:
    with plot("self-proving", 1, 2, salt="self-proving", font=8, figsize=(8, 3.2)) as (_, (left, right)):
        arms = list(dict.fromkeys(row["arm"] for row in proved))
        for row in proved:
            at = arms.index(row["arm"])
            left.plot([at - 0.15, at + 0.15], [test["accepted"] for _, test in row["tests"]], "o-", ms=3, lw=0.8)
        left.axhline(BAR, color="0.7", lw=0.6, zorder=0)
        left.set_xticks(range(len(arms)), [arm.replace(", ", "\n") for arm in arms])
        left.set(title="proofs accepted, after transcripts and after feedback", ylim=(0, 1.02))
        for number, row in enumerate(judged):
            for name, style in zip(JUDGED, ("-", "--", "-.", ":"), strict=True):
                points = [(iteration, test[name]) for iteration, test in row["tests"]]
                label = None if number else name.replace("_", " ")
                right.plot(*zip(*points, strict=True), style, color=f"C{number}", lw=0.9, label=label)
        right.set(title="a verifier that learns", xlabel="iteration of feedback", ylim=(0, 1.02))
        if judged:
            right.legend(fontsize=7)
