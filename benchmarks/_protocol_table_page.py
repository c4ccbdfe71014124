"""The generated parts of docs/results.md and benchmarks/protocol_runs.md, and its plots, from the recorded trials of
`protocol_table.py`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from _common import ROOT, plot, put_between

from nip_ray.evaluation.aggregates import MIN_SEEDS, stratified_interval
from nip_ray.evaluation.intervals import Mean

PAGES = (ROOT / "docs" / "results.md", ROOT / "benchmarks" / "protocol_runs.md")
"""Pages with generated parts; the text between them is written by hand."""
BEGIN, END = "<!-- {}: written by `python benchmarks/protocol_table.py page` -->", "<!-- end of {} -->"
ORDER = (
    "nip", "zero-knowledge nip", "debate", "debate, rejection first", "debate, acceptance first", "mnip", "consultancy",
    "adp", "merlin_arthur", "helpful_sneaky", "random prover", "solo",
)  # fmt: skip
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "gi": {"nip": 0.945, "debate": 0.641, "adp": 0.614, "mnip": 0.665, "random prover": 0.629},
    "digits": {},
}
"""On the training split, as published (Hammond and Adam-Day, ICLR 2025)."""
BASELINE = (0.640, 0.609, 0.670)
"""Accuracy of a classifier fitted to the input of the verifier of graphs on the test split, with its interval
(n = 1,000)."""

Row = Mapping[str, Any]
Groups = Mapping[str, Sequence[Row]]


def write_page(records: Mapping[str, Mapping[str, Sequence[Row]]]) -> None:
    """Write the tables of each task into the page that has their marks, and draw the plots."""
    texts = {path: path.read_text() for path in PAGES}
    for task, record in records.items():
        groups, alone = _groups(record["train"]), _groups(record["plain"])
        parts = {
            "table": _table(groups, alone, PUBLISHED[task]),
            "seeds": _seeds(groups),
            "plain seeds": _seeds(alone),
            "tuning": _tuning(record["tune"]),
        }
        for part, made in parts.items():
            name = f"{part} of {task}"
            begin, end = BEGIN.format(name), END.format(name)
            page = next((path for path, text in texts.items() if begin in text and end in text), None)
            if page is None:
                raise SystemExit(f"no page has a place for the {name}; write {begin} and {end} into one of PAGES")
            texts[page] = put_between(texts[page], begin, end, made)
        _draw(groups, alone, task)
    for path, text in texts.items():
        path.write_text(text)


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Protocol -> its trials by seed, in the order of the page."""
    found = {case: sorted((row for row in rows if row["case"] == case), key=lambda row: row["seed"]) for case in ORDER}
    return {case: rows for case, rows in found.items() if rows}


def _table(groups: Groups, alone: Groups, published: Mapping[str, float]) -> str:
    titles = [
        "protocol",
        "seeds",
        "accuracy",
        "against provers that search",
        "difference",
        "soundness error, worst case",
        "completeness error, worst case",
        "PPO alone: accuracy",
        "its soundness error, worst case",
        "its completeness error, worst case",
        "minutes, alone",
        *(["published"] if published else []),
    ]
    lines = [_line(titles), "|---" * len(titles) + "|"]
    for case in (each for each in ORDER if each in groups or each in alone):
        rows, beside = groups.get(case, []), alone.get(case, [])
        figures = [_over_seeds([row.get(key) or {} for row in rows]) for key in ("accuracy", "searched")]
        errors = ("soundness_error", "completeness_error")
        worst = [_over_seeds([row.get(key) or {} for row in rows]) for key in errors]
        other = [_over_seeds([row.get(key) or {} for row in beside]) for key in ("accuracy", *errors)]
        minutes = ", ".join(f"{median(row['minutes'] for row in part):.1f}" if part else "-" for part in (rows, beside))
        cells = [case, str(len(rows)), *figures, _difference(rows), *worst, *other, minutes]
        lines.append(_line([*cells, *([_share(published.get(case))] if published else [])]))
    return "\n".join(lines)


def _difference(rows: Sequence[Row]) -> str:
    """The gap of the provers' networks to a search: the median over seeds, the minimum and the maximum."""
    found = [row["searched"]["estimate"] - row["accuracy"]["estimate"] for row in rows if row.get("searched")]
    if not found:
        return "-"
    return f"{median(found):+.3f}" + (f" ({min(found):+.3f} to {max(found):+.3f})" if len(found) > 1 else "")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _over_seeds(figures: Sequence[Row]) -> str:
    found = _spread(figures)
    ends = "" if found.lower is None or found.upper is None else f" ({_share(found.lower)} to {_share(found.upper)})"
    return f"{_share(found.estimate)}{ends}"


def _spread(figures: Sequence[Row]) -> Mean:
    """The interquartile mean of shares over seeds with its interval; none for fewer than five, which are shown one by
    one."""
    known = [figure for figure in figures if figure.get("estimate") is not None]
    if not known:
        return Mean(None, None, None, 0)
    found = stratified_interval([[one["estimate"] for one in known]], 0, n_KL=[[one["n"] for one in known]])
    return found if len(known) >= MIN_SEEDS else Mean(found.estimate, None, None, len(known))


def _seeds(groups: Groups) -> str:
    titles = ["protocol", "seed", "lr", "accuracy (95 % interval over instances)", "against provers that search"]
    lines = [_line([*titles, "soundness error, by", "completeness error, by"]), "|---" * (len(titles) + 2) + "|"]
    for case, rows in groups.items():
        for row in rows:
            searched = _with_ends(row["searched"]) if row.get("searched") else "-"
            cells = [case, str(row["seed"]), f"{row['lr']:g}", _with_ends(row["accuracy"]), searched]
            lines.append(_line([*cells, _error(row["soundness_error"]), _error(row["completeness_error"])]))
    return "\n".join(lines)


def _error(error: Row) -> str:
    return f"{_with_ends(error)}, {str(error['by']).replace('_', ' ')}" if error.get("estimate") is not None else "-"


def _tuning(rows: Sequence[Row]) -> str:
    rates = sorted({row["lr"] for row in rows})
    lines = ["| protocol | " + " | ".join(f"{rate:g}" for rate in rates) + " |", "|---" * (len(rates) + 1) + "|"]
    for case in ORDER:
        mine = {
            rate: [row["accuracy"]["estimate"] for row in rows if (row["case"], row["lr"]) == (case, rate)]
            for rate in rates
        }
        if found := {rate: median(shares) for rate, shares in mine.items() if shares}:
            best = max(found.values())
            cells = (
                f"**{_share(found[rate])}**" if found.get(rate) == best else _share(found.get(rate)) for rate in rates
            )
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _with_ends(figure: Row) -> str:
    return f"{_share(figure['estimate'])} ({_share(figure['lower'])} to {_share(figure['upper'])})"


def _share(value: float | None) -> str:
    """Three decimals without the zero before the point."""
    return "-" if value is None else f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3f}"


def _draw(groups: Groups, alone: Groups, task: str) -> None:
    names = [case for case in ORDER if case in groups or case in alone]
    size = (9, 0.42 * len(names) + 1.4)
    with plot(f"results-{task}", 1, 2, salt="protocols", figsize=size, sharey=True) as (_, (right, wrong)):
        if task == "gi":
            right.axvspan(BASELINE[1], BASELINE[2], color="0.9", label="verifier alone, fitted")
            right.axvline(BASELINE[0], color="0.6", linewidth=0.8)
        for at, case in enumerate(names):
            rows = groups.get(case, ())
            for axes, key in ((right, "accuracy"), (wrong, "soundness_error")):
                _dots(axes, at - 0.12, [row[key] for row in rows if "estimate" in row[key]], "C0", "recipe")
                _dots(
                    axes,
                    at + 0.16,
                    [row[key] for row in alone.get(case, ()) if "estimate" in row[key]],
                    "C1",
                    "PPO alone",
                )
            if case in PUBLISHED[task]:
                label = "published" if case == next(name for name in names if name in PUBLISHED[task]) else None
                right.plot(
                    [PUBLISHED[task][case]], [at], "|", color="C3", markersize=14, markeredgewidth=2, label=label
                )
        right.set(xlabel="held-out accuracy", xlim=(0.45, 1.01))
        wrong.set(xlabel="soundness error in the worst case", xlim=(-0.02, 1.02))
        right.set_yticks(range(len(names)), names)
        right.invert_yaxis()
        named = dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
        right.legend(named.values(), named.keys(), loc="lower left")


def _dots(axes: Any, at: float, figures: Sequence[Row], colour: str, label: str) -> None:
    """Every seed, their interquartile mean and its interval."""
    if not figures:
        return
    found = _spread(figures)
    axes.plot([one["estimate"] for one in figures], [at] * len(figures), "o", color=colour, alpha=0.4, markersize=4)
    axes.plot([found.estimate], [at], "D", color=colour, markersize=5, label=label)
    if found.lower is not None and found.upper is not None:
        axes.plot([found.lower, found.upper], [at, at], color=colour, linewidth=1.5)
