"""The generated parts of docs/results.md, and its figures, from the recorded trials of `protocol_table.py`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from _common import ROOT

from nip_ray.evaluation.aggregates import MIN_SEEDS, stratified_interval
from nip_ray.evaluation.intervals import Mean

PAGE = ROOT / "docs" / "results.md"
"""What stands between its generated parts is written by hand."""
BEGIN, END = "<!-- {}: written by `python benchmarks/protocol_table.py page` -->", "<!-- end of {} -->"
ORDER = (
    "nip", "zero-knowledge nip", "debate", "debate, rejection first", "debate, acceptance first", "consultancy", "adp", "merlin_arthur",
    "mnip", "random prover", "solo",
)  # fmt: skip
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "gi": {"nip": 0.9453, "debate": 0.6409, "adp": 0.6138, "mnip": 0.6646, "random prover": 0.6285},
    "digits": {},
}
"""On the training split, as published (Hammond and Adam-Day, ICLR 2025)."""
BASELINE = (0.640, 0.609, 0.670)
"""What a classifier fitted to what the verifier of graphs sees alone reaches on their test split, with its interval (n = 1,000)."""

Row = Mapping[str, Any]
Groups = Mapping[str, Sequence[Row]]


def write_page(records: Mapping[str, Mapping[str, Sequence[Row]]]) -> None:
    """Put the tables of each task into the page, between the marks that stand there, and draw the figures."""
    text = PAGE.read_text()
    for task, record in records.items():
        groups = {case: [row for row in record["train"] if row["case"] == case] for case in ORDER}
        groups = {case: rows for case, rows in groups.items() if rows}
        parts = {"table": _table(groups, PUBLISHED[task]), "seeds": _seeds(groups), "tuning": _tuning(record["tune"])}
        if record["seats"]:
            parts["seats"] = _seats(record["seats"], groups)
        for part, made in parts.items():
            name = f"{part} of {task}"
            begin, end = BEGIN.format(name), END.format(name)
            if begin not in text or end not in text:
                raise SystemExit(f"{PAGE}: has no place for the {name}; write {begin} and {end} where it is to stand")
            before, rest = text.split(begin, 1)
            text = f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end, 1)[1]}"
        _draw(groups, task)
    PAGE.write_text(text)


def _table(groups: Groups, published: Mapping[str, float]) -> str:
    titles = [
        "protocol",
        "seeds",
        "accuracy: median",
        "interquartile mean (95 % interval over seeds)",
        "completeness",
        "soundness error, worst case",
    ]
    keys = ["accuracy", "completeness", "soundness_error"]
    if any(row.get("completeness_error") for rows in groups.values() for row in rows):
        titles.append("completeness error, worst case")
        keys.append("completeness_error")
    lines = [_line([*titles, *(["published"] if published else [])]), "|---" * (len(titles) + bool(published)) + "|"]
    for case, rows in groups.items():
        figures = [_over_seeds([row.get(key) or {} for row in rows]) for key in keys]
        middle = _share(median(row["accuracy"]["estimate"] for row in rows))
        lines.append(_line([case, str(len(rows)), middle, *figures, *([_share(published.get(case))] if published else [])]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _over_seeds(figures: Sequence[Row]) -> str:
    found = _spread(figures)
    ends = "" if found.lower is None or found.upper is None else f" ({_share(found.lower)} to {_share(found.upper)})"
    return f"{_share(found.estimate)}{ends}"


def _spread(figures: Sequence[Row]) -> Mean:
    """The interquartile mean of shares over seeds with its interval; none of fewer than five, which stand for themselves."""
    known = [figure for figure in figures if figure.get("estimate") is not None]
    if not known:
        return Mean(None, None, None, 0)
    found = stratified_interval([[one["estimate"] for one in known]], 0, n_KL=[[one["n"] for one in known]])
    return found if len(known) >= MIN_SEEDS else Mean(found.estimate, None, None, len(known))


def _seeds(groups: Groups) -> str:
    lines = ["| protocol | seed | accuracy (95 % interval over instances) | soundness error, by | overlap |", "|---|---|---|---|---|"]
    for case, rows in groups.items():
        for row in sorted(rows, key=lambda row: row["seed"]):
            error = row["soundness_error"]
            by = f"{_with_ends(error)}, {str(error['by']).replace('_', ' ')}" if "estimate" in error else "no prover"
            lines.append(f"| {case} | {row['seed']} | {_with_ends(row['accuracy'])} | {by} | {row['overlap']} |")
    return "\n".join(lines)


def _seats(rows: Sequence[Row], groups: Groups) -> str:
    lines = ["| protocol | accuracy as it is | accuracy with a prover at random | its seeds |", "|---|---|---|---|"]
    for case in ORDER:
        found = [row["accuracy"] for row in sorted(rows, key=lambda row: row["seed"]) if row["case"] == case]
        if found:
            whole = _over_seeds([row["accuracy"] for row in groups.get(case, ())])
            lines.append(_line([case, whole, _over_seeds(found), ", ".join(_share(one["estimate"]) for one in found)]))
    return "\n".join(lines)


def _tuning(rows: Sequence[Row]) -> str:
    rates = sorted({row["lr"] for row in rows})
    lines = ["| protocol | " + " | ".join(f"{rate:g}" for rate in rates) + " |", "|---" * (len(rates) + 1) + "|"]
    for case in ORDER:
        found = {row["lr"]: row["accuracy"]["estimate"] for row in rows if row["case"] == case}
        if found:
            best = max(found.values())
            cells = (f"**{_share(found[rate])}**" if found.get(rate) == best else _share(found.get(rate)) for rate in rates)
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _with_ends(figure: Row) -> str:
    return f"{_share(figure['estimate'])} ({_share(figure['lower'])} to {_share(figure['upper'])})"


def _share(value: float | None) -> str:
    """Three decimals without the zero before the point."""
    return "-" if value is None else f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3f}"


def _draw(groups: Groups, task: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "protocols", "font.size": 9}):
        figure, (right, wrong) = pyplot.subplots(1, 2, figsize=(9, 0.42 * len(groups) + 1.4), sharey=True, layout="constrained")
        names = list(groups)
        if task == "gi":
            right.axvspan(BASELINE[1], BASELINE[2], color="0.9", label="verifier alone, fitted")
            right.axvline(BASELINE[0], color="0.6", linewidth=0.8)
        for at, (case, rows) in enumerate(groups.items()):
            _dots(right, at, [row["accuracy"] for row in rows])
            _dots(wrong, at, [row["soundness_error"] for row in rows if "estimate" in row["soundness_error"]])
            if case in PUBLISHED[task]:
                label = "published" if case == next(name for name in names if name in PUBLISHED[task]) else None
                right.plot([PUBLISHED[task][case]], [at], "|", color="C3", markersize=14, markeredgewidth=2, label=label)
        right.set(xlabel="held-out accuracy", xlim=(0.45, 1.01))
        wrong.set(xlabel="soundness error in the worst case", xlim=(-0.02, 1.02))
        right.set_yticks(range(len(names)), names)
        right.invert_yaxis()
        if PUBLISHED[task]:
            right.legend(loc="lower right")
        figure.savefig(ROOT / "docs" / f"results-{task}.svg", metadata={"Date": None})
        pyplot.close(figure)


def _dots(axes: Any, at: int, figures: Sequence[Row]) -> None:
    """Every seed, their interquartile mean and its interval."""
    if not figures:
        return
    found = _spread(figures)
    axes.plot([one["estimate"] for one in figures], [at] * len(figures), "o", color="C0", alpha=0.4, markersize=4)
    axes.plot([found.estimate], [at], "D", color="C0", markersize=5)
    if found.lower is not None and found.upper is not None:
        axes.plot([found.lower, found.upper], [at, at], color="C0", linewidth=1.5)
