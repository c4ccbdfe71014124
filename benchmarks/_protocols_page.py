"""The generated parts of docs/results.md, and its figure, from the recorded trials of `protocols_gi.py`."""

from collections.abc import Mapping, Sequence
from typing import Any

from _common import ROOT

from nip_ray.evaluation.intervals import mean

PAGE, FIGURE = ROOT / "docs" / "results.md", ROOT / "docs" / "results.svg"
BEGIN, END = "<!-- {}: written by `python benchmarks/protocols_gi.py page` -->", "<!-- end of {} -->"
ORDER = (
    "nip", "zero-knowledge nip", "debate", "debate, rejection first", "debate, acceptance first", "consultancy", "adp", "merlin_arthur",
    "mnip", "random prover", "solo",
)  # fmt: skip
PUBLISHED = {"nip": 0.9453, "debate": 0.6409, "adp": 0.6138, "mnip": 0.6646, "random prover": 0.6285}
"""On the training split, as published (Hammond and Adam-Day, ICLR 2025)."""
BASELINE = (0.640, 0.609, 0.670)
"""What a classifier fitted to what the verifier sees alone reaches on that split, with its interval (n = 1,000)."""
BEGINNING = """# Protocols compared on graph isomorphism

Eleven ways to question provers, on equal terms: the published networks (a verifier of two message-passing layers, provers
of five), the published test split of 1,000 pairs with none of its pairs in training, 307,200 steps of the environment a
run, one question where a protocol has questions, and a learning rate found for each protocol on a validation split that
shares no pair with either. The command, its settings and every recorded run are in the repository:

<!-- not run: takes hours -->
```sh
python benchmarks/protocols_gi.py tune --test VALIDATION.npz
python benchmarks/protocols_gi.py train --test PUBLISHED_TEST.npz   # or nip-ray sweep tune_configs/protocols_gi.yaml
python benchmarks/protocols_gi.py page
```

Accuracy is of greedy play; a verifier that has not decided counts as wrong. The soundness error in the worst case is the share
of false claims that are accepted over all messages that provers could send or, where these are too many to try, under
the strongest attacker. Published figures (Hammond and Adam-Day, ICLR 2025) are of the training split.

<!-- table: written by `python benchmarks/protocols_gi.py page` -->
<!-- end of table -->

![Accuracy and soundness error by protocol](results.svg)

## Every run

<!-- seeds: written by `python benchmarks/protocols_gi.py page` -->
<!-- end of seeds -->

"overlap" counts held-out pairs that occur in training, up to the names of nodes.

## Tuning

Held-out accuracy on the validation split after half of the steps, one seed that is none of the others, n = 1,000; the best is bold, and
what the runs above were trained with.

<!-- tuning: written by `python benchmarks/protocols_gi.py page` -->
<!-- end of tuning -->
"""
"""The page before it is first written; what stands between its generated parts may then be added to by hand."""

Row = Mapping[str, Any]


def write_page(record: Mapping[str, Sequence[Row]]) -> None:
    """Put the tables into the page and draw the figure."""
    groups = {case: [row for row in record["train"] if row["case"] == case] for case in ORDER}
    groups = {case: rows for case, rows in groups.items() if rows}
    parts = {"table": _table(groups), "seeds": _seeds(groups), "tuning": _tuning(record["tune"])}
    text = PAGE.read_text() if PAGE.exists() else BEGINNING
    for name, part in parts.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}\n\n{part}\n\n{end}{rest.split(end, 1)[1]}"
    PAGE.write_text(text)
    _draw(groups)


def _table(groups: Mapping[str, Sequence[Row]]) -> str:
    lines = [
        "| protocol | seeds | accuracy (95 % interval over seeds) | completeness | soundness error in the worst case | published |",
        "|---|---|---|---|---|---|",
    ]
    for case, rows in groups.items():
        figures = [_over_seeds([row[key].get("estimate") for row in rows]) for key in ("accuracy", "completeness", "soundness_error")]
        lines.append(f"| {case} | {len(rows)} | {figures[0]} | {figures[1]} | {figures[2]} | {_share(PUBLISHED.get(case))} |")
    return "\n".join(lines)


def _over_seeds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    found = mean(known)
    ends = "" if found.lower is None or found.upper is None else f" ({_share(max(found.lower, 0))} to {_share(min(found.upper, 1))})"
    return f"{_share(found.estimate)}{ends}"


def _seeds(groups: Mapping[str, Sequence[Row]]) -> str:
    lines = ["| protocol | seed | accuracy (95 % interval over instances) | soundness error, by | overlap |", "|---|---|---|---|---|"]
    for case, rows in groups.items():
        for row in sorted(rows, key=lambda row: row["seed"]):
            error = row["soundness_error"]
            by = f"{_with_ends(error)}, {str(error['by']).replace('_', ' ')}" if "estimate" in error else "no prover"
            lines.append(f"| {case} | {row['seed']} | {_with_ends(row['accuracy'])} | {by} | {row['overlap']} |")
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


def _draw(groups: Mapping[str, Sequence[Row]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "protocols", "font.size": 9}):
        figure, (right, wrong) = pyplot.subplots(1, 2, figsize=(9, 0.42 * len(groups) + 1.4), sharey=True, layout="constrained")
        names = list(groups)
        right.axvspan(BASELINE[1], BASELINE[2], color="0.9", label="verifier alone, fitted")
        right.axvline(BASELINE[0], color="0.6", linewidth=0.8)
        for at, (case, rows) in enumerate(groups.items()):
            _dots(right, at, [row["accuracy"]["estimate"] for row in rows])
            _dots(wrong, at, [row["soundness_error"]["estimate"] for row in rows if "estimate" in row["soundness_error"]])
            if case in PUBLISHED:
                label = "published" if case == next(name for name in names if name in PUBLISHED) else None
                right.plot([PUBLISHED[case]], [at], "|", color="C3", markersize=14, markeredgewidth=2, label=label)
        right.set(xlabel="held-out accuracy", xlim=(0.45, 1.01))
        wrong.set(xlabel="soundness error in the worst case", xlim=(-0.02, 1.02))
        right.set_yticks(range(len(names)), names)
        right.invert_yaxis()
        right.legend(loc="lower right")
        figure.savefig(FIGURE, metadata={"Date": None})
        pyplot.close(figure)


def _dots(axes: Any, at: int, values: Sequence[float]) -> None:
    """Every seed, their mean, and Student's interval of it."""
    if not values:
        return
    found = mean(values)
    axes.plot(values, [at] * len(values), "o", color="C0", alpha=0.4, markersize=4)
    axes.plot([found.estimate], [at], "D", color="C0", markersize=5)
    if found.lower is not None and found.upper is not None:
        axes.plot([found.lower, found.upper], [at, at], color="C0", linewidth=1.5)
