"""What a page holds besides its headline and curves: plain strings and numbers that the template only has to place."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nip_ray.evaluation.report.findings import Figure, Findings, exact_figures, held_out
from nip_ray.evaluation.report.panels import agents, group_values
from nip_ray.evaluation.report.source import MAX_TEXT, Record, RunSource, finite

WRONG_SHOWN, EPISODES_SHOWN = 8, 12
ROUNDS_SHOWN, TURNS_SHOWN = 40, 12
GROUP_ROWS_SHOWN = 60
TEXT_SHOWN = 2000  # characters of a message of words

NAMES = {
    "verifier/accuracy": "Accuracy",
    "verifier/completeness": "Completeness: accepted, of those to accept",
    "verifier/soundness": "Soundness: rejected, of those to reject",
    "verifier/undecided": "Undecided",
    "verifier/acceptance": "Acceptance: accepted, of the decided",
    "verifier/always_fail": "Always wrong: instances on which no play was right",
    "episode_length": "Rounds in an episode",
    "simulator/message_distance": "Simulator's distance: messages",
    "simulator/decision_distance": "Simulator's distance: decisions",
    "simulator/symbol_distance": "Simulator's distance: what was said",
}
VERDICTS = {0: "reject", 1: "accept", 2: "undecided"}
GROUP_NOTES = {"wl_score": "Rounds of colour refinement (Weisfeiler-Leman) after which the two graphs differ; -1: they are isomorphic."}


def page_contents(source: RunSource, findings: Findings) -> dict[str, Any]:
    """Variables of the template, all but the curves."""
    return {
        "title": str(source.config.get("name") or source.run_dir.name)[:100],
        "findings": findings,
        "scale": _scale(findings),
        "tiles": _tiles(source),
        "facts": _facts(source),
        "notes": source.notes,
        "figures": _figure_rows(source),
        "exact": [(short(name, 80), f"{value:.4g}") for name, value in exact_figures(source).items()],
        "groups": _group_tables(source),
        "episodes": _episodes(source.transcripts),
        "num_transcripts": len(source.transcripts),
        "transcripts_name": source.transcripts_name,
        "config": short(source.config_text, MAX_TEXT),
        "environment": short(json.dumps(source.environment, indent=2, ensure_ascii=False), MAX_TEXT) if source.environment else "",
    }


def short(value: object, limit: int = 160) -> str:
    """`value` as text of at most `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]} …"


def seconds(duration: float) -> str:
    """A duration as a reader wants it."""
    if duration < 100:
        return f"{duration:.1f} s" if duration < 10 else f"{duration:.0f} s"
    minutes = round(duration / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _scale(findings: Findings) -> dict[str, float] | None:
    """The headline's picture: positions in per mille of the axis from 0 to 1."""
    accuracy = findings.accuracy
    if accuracy is None:
        return None
    places = {"estimate": accuracy.estimate, "lower": accuracy.lower, "upper": accuracy.upper}
    places |= {"chance": findings.chance, "ceiling": findings.ceiling}
    return {name: round(1000 * min(1.0, max(0.0, share)), 1) for name, share in places.items() if share is not None}


def _tiles(source: RunSource) -> list[tuple[str, str, str]]:
    """(name, figure, interval) of the greedy evaluation, or the sampled one where there is no other."""
    tiles = [(short(name, 40), f"{x:.3g}", "exact") for name, x in exact_figures(source).items() if name.count("/") < 2]
    for name in ("accuracy", "completeness", "soundness", "undecided"):
        figure = held_out(source, "greedy", f"verifier/{name}") or held_out(source, "sampled", f"verifier/{name}")
        if figure is not None:
            tiles.append((name, _share(figure.estimate), _interval(figure, shares=True)))
    return tiles


def _facts(source: RunSource) -> list[tuple[str, str]]:
    """What the run was, how far it came, and where its time went."""
    last, config = source.rows[-1], source.config
    done, wanted = int(last["iteration"]), config.get("iterations")
    unfinished = isinstance(wanted, int) and done < wanted
    played = f"{last['env_steps_total']:,.0f}" if "env_steps_total" in last else f"{_total(source, 'env_steps'):,.0f}"
    examined = source.evaluation.get("iteration")
    facts = [
        ("protocol", _inner(config, "protocol", "name")),
        ("scenario", _inner(config, "scenario", "name")),
        ("algorithm", _inner(config, "algorithm", "name")),
        ("seed", short(config.get("seed", ""))),
        ("iterations", f"{done:,} of {wanted:,} (unfinished)" if unfinished else f"{done:,}"),
        ("evaluated after", f"iteration {short(examined)}" if source.evaluation and examined is not None else ""),
        ("rounds played", "" if "cost/tokens" in last else played),
        ("spent", f"{last['cost/usd']:,.2f} US dollars, {last['cost/tokens']:,.0f} tokens" if "cost/tokens" in last else ""),
        ("speed", _speed(source)),
        ("time", _time_spent(source)),
    ]
    return [(name, text) for name, text in facts if text]


def _speed(source: RunSource) -> str:
    rates = sorted(row["env_steps_per_s"] for row in source.rows if "env_steps_per_s" in row)
    return f"{rates[len(rates) // 2]:,.0f} rounds/s (median)" if rates else ""


def _time_spent(source: RunSource) -> str:
    whole = sum(_total(source, f"time/{key}_s") for key in ("iteration", "evaluate", "checkpoint"))
    if whole <= 0:
        return ""
    parts = [(name, _total(source, f"time/{key}_s") / whole) for name, key in _PHASES]
    return f"{seconds(whole)}: " + ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= 0.005)


_PHASES = (("playing", "sample"), ("learning", "learn"), ("evaluation", "evaluate"), ("checkpoints", "checkpoint"))


def _total(source: RunSource, key: str) -> float:
    return sum(row.get(key, 0.0) for row in source.rows)


def _inner(config: Record, section: str, key: str) -> str:
    inner = config.get(section)
    return short(inner.get(key, "")) if isinstance(inner, dict) else ""


def _figure_rows(source: RunSource) -> list[dict[str, Any]]:
    """The table of final figures: one row a metric."""
    names = NAMES | {f"{agent}/return": f"Return of {agent}" for agent in agents(source.rows)}
    rows = [_row(source, name, label, shares=name.startswith("verifier/") and name in NAMES) for name, label in names.items()]
    return [row for row in rows if any(row[column][0] for column in ("greedy", "sampled", "training"))]


def _group_tables(source: RunSource) -> list[dict[str, Any]]:
    keys = {key for mode in ("greedy", "sampled") if isinstance(source.evaluation.get(mode), dict) for key in source.evaluation[mode]}
    keys |= {key for row in source.rows[-20:] for key in row}
    tables = []
    for group, values in sorted(group_values(keys).items()):
        rows = [_row(source, f"verifier/accuracy/{group}={value}", value, shares=True) for value in values[:GROUP_ROWS_SHOWN]]
        tables.append({"group": short(group, 60), "rows": rows, "note": GROUP_NOTES.get(group, "")})
    return tables[:6]


def _row(source: RunSource, name: str, label: str, shares: bool) -> dict[str, Any]:
    """label, n, and (figure, interval) for greedy, sampled and the newest training row that has it."""
    greedy, sampled = held_out(source, "greedy", name), held_out(source, "sampled", name)
    trained = next((row[f"train/{name}"] for row in reversed(source.rows[-20:]) if f"train/{name}" in row), None)
    counted = greedy or sampled
    columns = (("greedy", greedy), ("sampled", sampled), ("training", None if trained is None else Figure(trained)))
    cells = {column: _cell(figure, shares) for column, figure in columns}
    return {"label": short(label, 80), "n": "" if counted is None or counted.n is None else f"{counted.n:,}", **cells}


def _cell(figure: Figure | None, shares: bool) -> tuple[str, str]:
    return ("", "") if figure is None else (_number(figure.estimate, shares), _interval(figure, shares))


def _share(share: float) -> str:
    return f"{100 * share:.1f}\u2009%"


def _number(value: float, shares: bool) -> str:
    return _share(value) if shares else f"{value:.3g}"


def _interval(figure: Figure, shares: bool) -> str:
    if figure.lower is None or figure.upper is None:
        return ""
    if shares:
        return f"{100 * figure.lower:.1f} to {100 * figure.upper:.1f}"
    return f"{figure.lower:.3g} to {figure.upper:.3g}"


def _episodes(transcripts: Sequence[Record]) -> list[dict[str, Any]]:
    """A few episodes, the wrong ones first: most of the places for them, some for right ones."""
    wrong = [record for record in transcripts if record.get("correct") is False]
    right = [record for record in transcripts if record.get("correct") is not False]
    chosen = wrong[: max(WRONG_SHOWN, EPISODES_SHOWN - len(right))]
    return [_episode(record) for record in [*chosen, *right[: EPISODES_SHOWN - len(chosen)]]]


def _episode(record: Record) -> dict[str, Any]:
    rounds, rewards = record.get("rounds"), record.get("reward", record.get("rewards"))
    label = VERDICTS.get(_code(record.get("label")), short(record.get("label")))
    return {
        "instance": short(record.get("instance", "?")),
        "label": label,
        "verdict": VERDICTS.get(_code(record.get("verdict")), short(record.get("verdict"))),
        "in_words": any(isinstance(turn.get("message"), str) for turn in _raw_turns(rounds)),
        "judged": "verdict" in record,  # not in a game without a verifier
        "correct": record.get("correct") is True,
        "length": short(record.get("length", "?")),
        "rewards": ", ".join(f"{short(agent, 40)} {short(reward, 20)}" for agent, reward in list(rewards.items())[:8])
        if isinstance(rewards, dict)
        else "",
        "turns": [turn for one in rounds[:ROUNDS_SHOWN] for turn in _turns(one)] if isinstance(rounds, list) else [],
        "cut": isinstance(rounds, list) and len(rounds) > ROUNDS_SHOWN,
    }


def _raw_turns(rounds: Any) -> list[Mapping[str, Any]]:
    """All turns that are shaped like turns."""
    found = [one.get("turns") for one in rounds if isinstance(one, dict)] if isinstance(rounds, list) else []
    return [turn for turns in found if isinstance(turns, list) for turn in turns if isinstance(turn, dict)]


def _turns(one: Any) -> list[dict[str, str]]:
    """The turns of one round; what is not shaped like one is passed over."""
    turns = one.get("turns") if isinstance(one, dict) else None
    if not isinstance(turns, list):
        return []
    return [_turn(one, turn) for turn in turns[:TURNS_SHOWN] if isinstance(turn, dict)]


def _turn(one: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, str]:
    message, decision = turn.get("message"), turn.get("decision")
    said = _symbols(message) + (f" · linear {_symbols(turn['linear'])}" if turn.get("linear") is not None else "")
    decided = "" if decision is None else {2: "continue"}.get(_code(decision), VERDICTS.get(_code(decision), short(decision)))
    certain = finite(turn.get("confidence"))
    if decided and certain not in (None, 0.0, 1.0):
        decided = f"{decided} ({certain:.0%} sure of accept)"
    flags = [name for name in ("truncated", "invalid") if turn.get(name) is True]
    return {
        "round": short(one.get("round", ""), 10),
        "agent": short(turn.get("agent", ""), 40),
        "channel": short(turn.get("channel", ""), 40),
        "message": f"{said} [{', '.join(flags)}]" if flags else said,
        "decision": decided,
    }


def _symbols(message: Any) -> str:
    """A message as text: symbols of a list, or what else it is."""
    if isinstance(message, list):
        return " ".join(short(symbol, 40) for symbol in message[:32])
    return "" if message is None else short(message, TEXT_SHOWN)


def _code(value: Any) -> int:
    """A decision code, -1 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value in VERDICTS else -1
