"""The trust panel: attacks, the worst case, calibration, the value of messages, cross-play.

Reads evaluation.json and cross_play.json in the layout of docs/evaluation.md. Missing parts are not shown; without an
attack, the page says so and gives the command.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from nip_ray.evaluation.report.describe import (
    entries,
    has_held_out,
    label_words,
    pays_for_rejection,
    section,
    verdicts_of,
)
from nip_ray.evaluation.report.episodes import short
from nip_ray.evaluation.report.panels import deciders
from nip_ray.evaluation.report.source import (
    EXACT,
    Figure,
    Record,
    RunSource,
    cell,
    count_words,
    figure_of,
    finite,
    percent_words,
)

SIDES = ("soundness", "completeness", "refusal")
ATTACKERS_SHOWN, CELLS_SHOWN = 40, 24
KINDS = {
    "fresh": "trained from scratch",
    "continued": "this run's prover, trained further",
    "own": "this run's prover as it is",
    "random": "random messages",
    "silent": "silent messages",
    "manual": "made by hand",
    "search": "trying messages against the verifier first",
    "prompt": "with an added instruction",
    "best_of": "saying again what did best",
}
_BUDGETS = {"budget": "iterations", "search": "tries"}
_BUDGET_WORDS = {
    "budget": ("training iterations", "Each line is an attacker whose training could be prolonged"),
    "search": (
        "tries about each instance",
        "The line is an attacker that tries messages, or whole dialogues, against the verifier first",
    ),
}
_WIDTHS = {2: "twice", 4: "four times", 8: "eight times"}


def under_attack(source: RunSource, side: str) -> Figure | None:
    """The share of right verdicts against the chosen attacker. side: one of `SIDES`, or of more than two verdicts
    "soundness/<verdict>"."""
    name, slash, verdict = side.partition("/")
    return figure_of(source.evaluation.get("refusal" if side == "refusal" else f"{name}_under_attack{slash}{verdict}"))


def every_message(source: RunSource, side: str) -> Figure | None:
    """The share of right verdicts under the worst messages, where all were tried: exact on these instances."""
    return figure_of(section(section(source.evaluation, "attack"), side).get("every_message"))


def soundness_error(source: RunSource) -> Figure | None:
    """The share of false claims accepted under attack; None if not computed."""
    return figure_of(source.evaluation.get("soundness_error")) or _error(source, "soundness")


def completeness_error(source: RunSource) -> Figure | None:
    """The share of true claims not accepted under attack, if a prover is paid for rejection; None if not computed."""
    return _error(source, "completeness") if pays_for_rejection(source.config) else None


def _error(source: RunSource, side: str) -> Figure | None:
    """The share of wrong verdicts: over all messages (undecided counts as wrong), else against the chosen attacker."""
    if (every := every_message(source, side)) is not None:
        return complement(every)
    for one in attackers(source, side):
        if one.get("chosen") is True and (error := _error_by(one, side)) is not None:
            return error
    right = under_attack(source, side)
    return None if right is None else complement(right)


def _error_by(one: Record, side: str) -> Figure | None:
    """An attacker's part of the error of a side: of soundness, false claims accepted; else all not rightly judged,
    undecided ones too."""
    fooled, right = figure_of(one.get("fooled")), figure_of(one.get("held_out"))
    if side.startswith("soundness") and fooled is not None:
        return fooled
    return None if right is None else complement(right)


def complement(share: Figure) -> Figure:
    """One minus a share, with its interval."""
    lower, upper = (None if end is None else 1 - end for end in (share.upper, share.lower))
    return Figure(1 - share.estimate, lower, upper, share.n)


def stronger(source: RunSource, side: str) -> tuple[str, Figure] | None:
    """(in words, the error) of the attacker that did best on the measured instances, if it is not the chosen one."""
    made = [(one, error) for one in attackers(source, side) if (error := _error_by(one, side)) is not None]
    chosen = next((error for one, error in made if one.get("chosen") is True), None)
    if chosen is None:
        return None
    best, error = max(made, key=lambda found: found[1].estimate)
    return (attacker_words(best), error) if error.estimate > chosen.estimate else None


def is_held_out(source: RunSource) -> bool:
    """True if the verifier was evaluated on instances other than its training instances, or these are separate."""
    if isinstance(source.evaluation.get("unseen"), dict):
        return True
    told = source.evaluation.get("held_out")
    return told if isinstance(told, bool) else has_held_out(source.config)


def examined_words(source: RunSource) -> str:
    """A description of the evaluated instances, with those of training where they are included."""
    if not is_held_out(source):
        return "on training instances"
    return "evaluated" if source.evaluation.get("overlap") else "held out"


def attackers(source: RunSource, side: str) -> list[Record]:
    """The attackers of one side, from the file."""
    return entries(section(section(source.evaluation, "attack"), side), "attackers")[:ATTACKERS_SHOWN]


def attacking_agents(source: RunSource, side: str) -> list[str]:
    """The attacking agents of one side, from the file."""
    found = section(section(source.evaluation, "attack"), side).get("agents")
    return (
        [short(one, 40) for one in found if isinstance(one, str)][:ATTACKERS_SHOWN] if isinstance(found, list) else []
    )


def attacker_words(one: Record) -> str:
    """An attacker in words, such as: trained from scratch, twice the width, seed 0."""
    kind, size, seed = one.get("kind"), one.get("size"), one.get("seed")
    if not isinstance(kind, str) or kind not in KINDS:
        return short(one.get("name", "?"), 60)
    parts = [
        KINDS[kind],
        f"{_WIDTHS[size]} the width" if isinstance(size, int) and size in _WIDTHS else "",
        f"seed {short(seed, 9)}" if seed is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def trust(source: RunSource, has_verifier: bool) -> dict[str, Any]:
    """Variables of the trust panel."""
    sides = {key: _side(source, key) for key in SIDES}
    if sides["refusal"] is None and not pays_for_rejection(source.config):  # from before the two had different names
        sides["completeness"], sides["refusal"] = None, sides["completeness"]
    classes = names if len(names := verdicts_of(source.config)) > 2 else ()
    verdicts, questions = [], []
    for name in classes:  # the results for each verdict
        if (side := _side(source, f"soundness/{name}")) is not None:
            error = figure_of(source.evaluation.get(f"soundness_error/{name}"))
            verdicts.append((name, {**side, "error": cell(error), "n": count_words(error)}))
    for key, label in (("own", "the verifier's own"), ("random", "random"), ("best", "the best for each instance")):
        if (figure := figure_of(section(source.evaluation, "questions").get(key))) is not None:
            questions.append((label, _wrong(figure)))  # not rejected under the best of all messages
    return {
        "sides": sides,
        "verdicts": verdicts,
        "classes": bool(classes),
        "held_out": is_held_out(source),
        "labels": label_words(source.config),
        "attack_command": ""
        if sides["soundness"] or not has_verifier
        else f"nip-ray evaluate {shlex.quote(str(source.run_dir))} --attack",
        "questions": questions,
        "worst": list(_worst_case(source)),
        "calibration": _calibration(source),
        "selective": _selective(source),
        "messages": list(_message_value(source)),
        "deciders": list(_deciders(source)),
        "cross_play": heat_map(source.cross_play),
    }


def _side(source: RunSource, key: str) -> dict[str, Any] | None:
    """A side as shares of wrong verdicts: its headline, and a row per attacker, placed on the axis from 0 to 1."""
    whole = soundness_error(source) if key == "soundness" else _error(source, key)
    rows = [row for one in attackers(source, key) if (row := _attacker(one)) is not None]
    if whole is None and not rows:
        return None
    part = section(section(source.evaluation, "attack"), key)
    rows.sort(key=lambda row: (not row["chosen"], -row["at"]["estimate"]))
    better = stronger(source, key)
    return {
        "error": cell(whole),
        "n": count_words(whole),
        "chosen": next((row["fooled"] for row in rows if row["chosen"]), ("", "")),
        "attacker": next((row["name"] for row in rows if row["chosen"]), ""),
        "rows": rows,
        "stronger": None if better is None else (better[0], percent_words(better[1].estimate)),
        "any": _wrong(figure_of(part.get("any_attacker"))),
        "every": _wrong(every_message(source, key)),
        "budgets": [made for of, unit in _BUDGETS.items() if (made := _budget(source, key, of, unit)) is not None],
    }


def _budget(source: RunSource, key: str, of: str, unit: str) -> dict[str, Any] | None:
    """Share not rightly judged (high is bad) by the attackers' budget, a line for each that can be extended; places
    from 0 to 100, down from the top."""
    lines = []
    for one in attackers(source, key):
        known = [(finite(stop.get(unit)), figure_of(stop.get("held_out"))) for stop in entries(one, of)[:100]]
        lines.append([(after, 100 * right.estimate) for after, right in known if after and right is not None])
    longest = max((after for line in lines for after, _ in line), default=0)
    if longest <= 0:
        return None
    bound = every_message(source, key)
    return {
        "lines": [
            [(round(100 * after / longest, 1), round(down, 1)) for after, down in line] for line in lines if line
        ],
        "bound": None if bound is None else round(100 * bound.estimate, 1),
        "longest": f"{longest:g}",
        "words": _BUDGET_WORDS[of],
    }


def _wrong(right: Figure | None) -> tuple[str, str]:
    return cell(None if right is None else complement(right))


def _attacker(one: Record) -> dict[str, Any] | None:
    """fooled: verdicts as the attacker wants; undecided ones are neither right nor fooled."""
    figure, fooled = figure_of(one.get("held_out")), figure_of(one.get("fooled"))
    if figure is None:
        return None
    fooled = fooled or complement(figure)
    return {
        "name": attacker_words(one),
        "mode": one["mode"] if one.get("mode") in ("greedy", "sampled") else "",
        "chosen": one.get("chosen") is True,
        "fooled": cell(fooled),
        "undecided": cell(figure_of(one.get("undecided")))[0],
        "at": _places(fooled),
        "n": count_words(figure),
    }


def _places(figure: Figure) -> dict[str, float]:
    """The metric and its interval in per cent of the axis."""
    ends = {"estimate": figure.estimate, "lower": figure.lower, "upper": figure.upper}
    return {name: round(100 * min(1.0, max(0.0, share)), 1) for name, share in ends.items() if share is not None}


def _worst_case(source: RunSource) -> Iterator[tuple[str, tuple[str, str], str]]:
    part = source.part("worst_case")
    names = {
        "accuracy": "Right in every episode",
        "completeness": "Completeness",
        "soundness": "Soundness",
        "undecided": "Ever undecided",
    }
    if len(verdicts := verdicts_of(source.config)) > 2:
        names |= {f"soundness/{name}": f"Soundness: {name}" for name in verdicts}
    for key, label in names.items():
        figure = figure_of(part.get(f"verifier/{key}"))
        if figure is not None:
            yield label, cell(figure), count_words(figure)


def _deciders(source: RunSource) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(member of a panel, its own vote: right in greedy play, right in every sampled play, Brier score, soundness error
    under attack)."""
    greedy, deep, attack = (source.part(name) for name in ("greedy", "deciders", "deciders_under_attack"))
    for who in deciders(source.rows):
        own = section(deep, who)
        shares = (
            greedy.get(f"{who}/accuracy"),
            section(own, "worst_case").get(f"{who}/accuracy"),
            section(section(attack, who), "soundness_error"),
        )
        right, always, fooled = (cell(figure_of(share)) for share in shares)
        yield short(who, 60), [right, always, _number(figure_of(section(own, "calibration").get("brier"))), fooled]


def _calibration(source: RunSource) -> dict[str, Any] | None:
    """Bins of a reliability diagram, in per cent of its sides, and the figures beside it."""
    part = source.part("calibration")
    bins = []
    for one in entries(part, "bins")[:40]:
        seen, said = figure_of(one.get("positive")), finite(one.get("confidence"))
        if seen is not None and said is not None:
            bins.append({"said": round(100 * said, 1), "n": seen.n or 0, **_places(seen)})
    figures = [
        (label, _number(figure_of(part.get(key))))
        for key, label in (("brier", "Brier score"), ("ece", "Calibration error"))
    ]
    figures = [(label, cell) for label, cell in figures if cell[0]]
    return {"bins": bins, "figures": figures} if bins or figures else None


def _selective(source: RunSource) -> dict[str, Any] | None:
    """Risk against coverage: (coverage, risk, lower, upper) in per cent, the height of the drawing's axis, and the
    metrics beside it."""
    part = section(source.part("calibration"), "selective")
    points = []
    for one in entries(part, "curve")[:100]:
        known = [finite(one.get(key)) for key in ("coverage", "risk", "lower", "upper")]
        if known[0] is not None and known[1] is not None:
            points.append([100 * min(1.0, max(0.0, known[1] if share is None else share)) for share in known])
    figures = [
        ("Area under the curve", _number(figure_of(part.get("area")))),
        ("Coverage", cell(figure_of(part.get("coverage")))),
    ]
    for share, record in sorted(section(part, "precision").items())[:4]:
        reached = figure_of(record)
        figures.append(
            (f"Precision at coverage {short(share, 8)}", ("not reached", "") if reached is None else cell(reached))
        )
    figures = [(label, cell) for label, cell in figures if cell[0]]
    top = 50 if max((point[1] for point in points), default=0.0) <= 50 else 100
    at = [
        [round(point[0], 1), *(round(100 - min(share, top) * 100 / top, 1) for share in point[1:])] for point in points
    ]
    return {"curve": at, "top": top, "figures": figures} if at else None


def _number(figure: Figure | None) -> tuple[str, str]:
    """Three decimals, as far as they are meaningful."""
    if figure is None:
        return "", ""
    if figure.estimate < 0.0005 and (figure.upper or 0) < 0.0005:
        return "below 0.001", ""
    if figure.lower is not None and figure.lower == figure.upper:
        return f"{figure.estimate:.3f}", EXACT
    known = figure.lower is not None and figure.upper is not None
    return f"{figure.estimate:.3f}", f"{figure.lower:.3f} to {figure.upper:.3f}" if known else ""


def _message_value(source: RunSource) -> Iterator[tuple[str, tuple[str, str], tuple[str, str]]]:
    """(the change to the messages, accuracy, the loss)."""
    part = source.part("message_value")
    heard = figure_of(part.get("heard"))
    if heard is None:
        return
    yield "as they were sent", cell(heard), ("", "")
    ways = (
        ("silenced", "silenced"),
        ("shuffled", "shuffled between instances"),
        ("other_instance", "of another instance"),
    )
    changed = [(label, section(part, key)) for key, label in ways]
    without = section(part, "without")
    changed += [
        (f"{short(prover, 40)} alone silenced", section(without, prover)) for prover in list(without)[:ATTACKERS_SHOWN]
    ]
    for label, one in changed:
        figure, lost = figure_of(one.get("accuracy")), figure_of(one.get("lost"))
        if figure is not None:
            yield label, cell(figure), cell(lost)


def heat_map(crossed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Cross-play: verifiers down, provers across, each cell its accuracy; for checkpoints of one run also ratings, and
    in a game without a verifier players and their scores. None if malformed."""
    roles = crossed.get("roles")
    down, across = map(str, roles) if isinstance(roles, list) and len(roles) == 2 else ("verifier", "prover")
    pairs = (
        (str(one.get(down)), str(one.get(across)), one.get("accuracy", one.get("score")))
        for one in entries(crossed, "matrix")
    )
    figures = {(row, column): figure_of(record) for row, column, record in pairs}
    verifiers, provers = (list(dict.fromkeys(pair[side] for pair in figures)) for side in (0, 1))
    rows, columns = verifiers[:CELLS_SHOWN], provers[:CELLS_SHOWN]
    if not rows:
        return None
    elo = _elo(crossed, down), _elo(crossed, across)
    made = []
    for row in rows:
        cells = []
        for column in columns:  # own: the two trained together; step: the shade, from 0 (all wrong) to 10 (all right)
            figure = figures.get((row, column))
            text, interval = ("–", "") if figure is None else cell(figure)
            step = "none" if figure is None else round(10 * min(1.0, max(0.0, figure.estimate)))
            cells.append({"text": text, "interval": interval, "step": step, "own": row == column})
        made.append({"name": short(row, 60), "elo": elo[0].get(row), "cells": cells})
    runs = max(len(verifiers), len(provers))
    cut = f"{CELLS_SHOWN} of {runs} runs shown; the file has all." if runs > CELLS_SHOWN else ""
    last = [elo[1].get(column, "") for column in columns] if elo[1] else []
    names = [short(name, 60) for name in columns]
    return {
        "columns": names,
        "rows": made,
        "cut": cut,
        "roles": (short(down, 30), short(across, 30)),
        "elo": bool(elo[0]),
        "last": last,
    }


def _elo(crossed: Mapping[str, Any], role: str) -> dict[str, str]:
    """Name -> rating with its interval, in whole points."""
    figures = {str(one.get("name")): figure_of(one) for one in entries(section(crossed, "elo"), role)}
    return {
        name: f"{one.estimate:.0f} [{one.lower:.0f}, {one.upper:.0f}]"
        for name, one in figures.items()
        if one and one.lower is not None
    }
