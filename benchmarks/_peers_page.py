"""The generated parts of docs/peers.md, from the pairs that `peers.py` recorded."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from _common import ROOT, put_between

PAGE = ROOT / "docs" / "peers.md"
BEGIN, END = "<!-- {}: written by `python benchmarks/peers.py page` -->", "<!-- end of {} -->"
LEAST_PAIRS = 3
"""For a comparison."""
OWN = 0.2
"""The share of a peer's time in our environment from which the first table names it."""
UNITS = {"B1": "env steps/s", "B3": "tokens/s", "B4": "seed-steps/s", "B6": "env steps/s"}
LINES = ("B1", "B4")
"""Benches whose scripts hold one variant each, so that their lines can be compared."""
BARS = {"B1": ".99", "B3": ".95", "B4": ".99 in every seed", "B6": "475"}
WHY = {
    "CFR": "it visits every history of the game in each iteration, in C++, and draws no samples",
    "DQN": "with the same settings and loss; ours begins with orthogonal weights, and with torch's it is undecided",
    "JaxMARL": "XLA compiles all eight seeds into one program, where ours starts some 310 kernels in a gradient step;"
    " its user writes the game again in JAX",
}
"""A part of a peer's name -> why it wins."""

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
Found = tuple[float, float, float]


def write_page(rows: Rows, wanted: Sequence[str]) -> None:
    """Write the verdict and the tables between their marks. wanted: the names of all rows."""
    text = PAGE.read_text()
    parts: dict[str, Callable[[Rows], str]] = {
        "verdict": lambda rows: verdict(rows, wanted),
        **{bench: (lambda rows, bench=bench: speed_table(bench, rows)) for bench in UNITS},
        "B2": poker_table,
    }
    for name, made in parts.items():
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text or end not in text:
            raise SystemExit(f"{PAGE}: no place for the {name}; write {begin} and {end} into it")
        text = put_between(text, begin, end, made(rows))
    PAGE.write_text(text)


def verdict(rows: Rows, wanted: Sequence[str]) -> str:
    """The wins of peers with their reasons, ours, what is undecided, and the rows that are missing."""
    peers, ours, undecided = list[str](), dict[str, list[str]](), dict[str, list[str]]()
    for row in measured(rows):
        name = f"{row['bench']} {row['peer']}"
        for what, (size, low, high) in figures(row).items():
            if high < 1:
                why = reason(row) if not any(reason(row) in won for won in peers) else ""
                range_ = f"{short(1 / size)} times ({short(1 / high)} to {short(1 / low)}; {counted(row, what)} pairs)"
                peers.append(f"{name}: {what} {range_}{why}")
            elif low > 1:
                range_ = f"{short(size)} ({short(low)} to {short(high)}; {counted(row, what)} pairs)"
                ours.setdefault(what, []).append(f"{name} {range_}{share(row) if what == 'speed' else ''}")
            else:
                undecided.setdefault(what, []).append(name)
    parts = [f"**A peer wins:** {'; '.join(peers) or 'nowhere that was measured'}."]
    parts += [f"**nip_ray wins**, {what}, times: {'; '.join(names)}." for what, names in ours.items()]
    parts += [f"**Undecided**, {what}: {'; '.join(names)}." for what, names in undecided.items()]
    known = {f"{row['bench']} {row['peer']}" for row in measured(rows)}
    if missing := [name for name in wanted if name not in known]:
        parts.append(f"**Fewer than {LEAST_PAIRS} pairs yet:** {'; '.join(missing)}.")
    return "\n\n".join(map(wrapped, parts))


def wrapped(paragraph: str) -> str:
    """In lines of the page's width."""
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def short(number: float) -> str:
    """Three digits, without powers of ten."""
    return f"{number:.3g}" if number < 100 else f"{float(f'{number:.3g}'):,.0f}"


def reason(row: Row) -> str:
    """The reason of a peer's win, where it is known."""
    return next((f" ({reason})" for part, reason in WHY.items() if part in row["peer"]), "")


def share(row: Row) -> str:
    """The share of a slower peer's time that is ours, if it is large."""
    found = median(pair["peer"].get("door_share", 0.0) for pair in row["pairs"])
    return f" ({found:.0%} of the peer's time is in our environment)" if found > OWN else ""


def measured(rows: Rows) -> list[Row]:
    """Rows with pairs enough."""
    return [row for row in rows.values() if len(row["pairs"]) >= LEAST_PAIRS]


def figures(row: Row) -> dict[str, Found]:
    """The ratios of a row, above 1 where ours is better, with the range of its pairs."""
    pairs = row["pairs"]
    if row["bench"] == "B2":
        return {"final exploitability": ratio([pair["peer"]["final"] / pair["ours"]["final"] for pair in pairs])}
    found = {"speed": ratio([pair["ours"]["steps_per_s"] / pair["peer"]["steps_per_s"] for pair in pairs])}
    reached = [(pair["peer"]["solved_s"], pair["ours"]["solved_s"]) for pair in pairs if all_of(pair, "solved_s")]
    if len(reached) >= LEAST_PAIRS:
        found["time to the bar"] = ratio([theirs / ours for theirs, ours in reached])
    if row["bench"] == "B6" and not reached:
        found["final mean"] = ratio([pair["ours"]["score"] / pair["peer"]["score"] for pair in pairs])
    return found


def counted(row: Row, what: str) -> int:
    """The number of pairs behind a ratio of `figures`."""
    return sum(what != "time to the bar" or all_of(pair, "solved_s") for pair in row["pairs"])


def all_of(pair: Row, key: str) -> bool:
    """True if both sides have it."""
    return pair["peer"].get(key) is not None and pair["ours"].get(key) is not None


def ratio(values: Sequence[float]) -> Found:
    """The median of pairs, their smallest and largest."""
    return median(values), min(values), max(values)


def shown(found: Found) -> str:
    """With its range."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*found)


def speed_table(bench: str, rows: Rows) -> str:
    """A row for each peer: speeds, times to the bar, lines."""
    own = [row for row in rows.values() if row["bench"] == bench]
    titles = [
        "peer", f"{UNITS[bench]}: peer", "ours", "ours over peer's", f"seconds to {BARS[bench]}: peer", "ours",
    ]  # fmt: skip
    titles += ["lines: peer", "ours"] if bench in LINES else []
    doors = any(side["door_share"] for row in own for side in (pair["peer"] for pair in row["pairs"]))
    titles += ["peer's time in our environment"] if doors else []
    lines = [line([*titles, "pairs", "yardstick, ms"])]
    lines.append("|---" * (len(titles) + 2) + "|")
    for row in own:
        pairs = row["pairs"]
        if not pairs:
            lines.append(line([f"{row['peer']}: {why_not(row)}", *["-"] * (len(titles) + 1)]))
            continue
        cells = [row["peer"] + version(row)]
        cells += [short(speed(pairs, side)) for side in ("peer", "ours")]
        cells += [shown(figures(row)["speed"]) if len(pairs) >= LEAST_PAIRS else "-"]
        cells += [reached([pair[side]["solved_s"] for pair in pairs]) for side in ("peer", "ours")]
        cells += [str(row["lines"][side]) for side in ("peer", "ours") if bench in LINES]
        cells += [f"{median(pair['peer']['door_share'] for pair in pairs):.0%}"] if doors else []
        lines.append(line([*cells, str(len(pairs)), yardstick(pairs)]))
    return "\n".join(lines) if own else "Not measured yet."


def speed(pairs: Sequence[Row], side: str) -> float:
    """The median."""
    return median(pair[side]["steps_per_s"] for pair in pairs)


def reached(values: Sequence[float | None]) -> str:
    """The median of the seeds that reached it, smallest and largest, and how many did."""
    known = [value for value in values if value is not None]
    if not known:
        return f"none of {len(values)}"
    number = f"{median(known):.3g} ({min(known):.3g} to {max(known):.3g})"
    return number if len(known) == len(values) else f"{number}, {len(known)} of {len(values)}"


def poker_table(rows: Rows) -> str:
    """A row for each game and peer."""
    own = [row for row in rows.values() if row["bench"] == "B2"]
    titles = ["peer and game", "seconds"]
    titles += [f"seconds to {bar}: {side}" for bar in (".05", ".02") for side in ("peer", "ours")]
    titles += ["final: peer", "ours", "peer's over ours", "pairs", "yardstick, ms"]
    lines = [line(titles), "|---" * len(titles) + "|"]
    for row in own:
        pairs = row["pairs"]
        if not pairs:
            lines.append(line([f"{row['peer']}: {why_not(row)}", *["-"] * (len(titles) - 1)]))
            continue
        cells = [row["peer"] + version(row), re.findall(r"--seconds (\d+)", row["command"])[0]]
        cells += [reached([pair[side][key] for pair in pairs]) for key in KEYS for side in ("peer", "ours")]
        cells += [spread([pair[side]["final"] for pair in pairs]) for side in ("peer", "ours")]
        cells += [ratio_of_finals(row) if len(pairs) >= LEAST_PAIRS else "-"]
        lines.append(line([*cells, str(len(pairs)), yardstick(pairs)]))
    return "\n".join(lines) if own else "Not measured yet."


KEYS = ("to_0.05", "to_0.02")


def ratio_of_finals(row: Row) -> str:
    """With its range, also where it is small."""
    return "{:.2g} ({:.2g} to {:.2g})".format(*figures(row)["final exploitability"])


def spread(values: Sequence[float]) -> str:
    """Median, smallest and largest."""
    return f"{median(values):.2g} ({min(values):.2g} to {max(values):.2g})"


def yardstick(pairs: Sequence[Row]) -> str:
    """Median, smallest and largest."""
    values = [pair["yardstick_ms"] for pair in pairs]
    return f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def version(row: Row) -> str:
    """The first package that the peer's script reports."""
    versions = row["pairs"][0]["peer"]["versions"] if row["pairs"] else {}
    return f" ({next(iter(versions.items()))[0]} {next(iter(versions.values()))})" if versions else ""


def why_not(row: Row) -> str:
    """The last line of an error."""
    return "failed, " + (row["error"] or "not measured").strip().splitlines()[-1][:120].replace("|", "/")


def line(cells: Sequence[str]) -> str:
    """Of a table."""
    return f"| {' | '.join(cells)} |"
