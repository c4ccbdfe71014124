"""The transcripts for the page: plain texts, places and shares for the template.

Decisions that matter here:
- everything is in the page from the start; the script only shows and hides, and makes no element from data. Without
  scripts everything is visible, one episode below the other;
- records are untrusted, language models' replies among them. Malformed records are skipped, texts are cut to a length;
- wrong episodes come first, and pictures are drawn until they have filled their share of the page.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nip_ray.evaluation.report import drawings
from nip_ray.evaluation.report.describe import label_words, verdicts_of
from nip_ray.evaluation.report.panels import agent_colours
from nip_ray.evaluation.report.source import Record, RunSource, finite
from nip_ray.protocols.spec import DECISIONS, TWO_VERDICTS, VERDICTS

EPISODES_SHOWN = 60
ROUNDS_SHOWN, TURNS_SHOWN = 40, 12
TEXT_SHOWN = 4000  # characters of a message of words
SYMBOLS_SHOWN = 32
_BESIDE = ("id", "y", "label")  # keys of an item that are shown elsewhere
PAGE_SHARE = 1_200_000  # characters of texts and pictures of all episodes together

FILTERS = (("wrong", "wrong"), ("fooled", "fooled"), ("undecided", "undecided"))


def short(value: object, limit: int = 160) -> str:
    """`value` as text of at most `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]} …"


def browser(source: RunSource) -> dict[str, Any]:
    """All variables of the template of transcripts: episodes, filters with counts, whether messages are words."""
    ordered = sorted(source.transcripts, key=is_right)[:EPISODES_SHOWN]
    agents = colours_of(ordered)
    labels, episodes, left = label_words(source.config), [], PAGE_SHARE
    for number, record in enumerate(ordered, 1):
        episode = shown(
            record, number, agents, source.pictures if left > 0 else {}, source.items, verdicts_of(source.config)
        )
        episode["label"] = labels.get(episode["label"], f"label {episode['label']}")
        # The approximate number of characters of the episode on the page.
        picture = episode["picture"]
        drawn = 0 if picture is None else len(picture.get("uri", "")) + 90 * len(str(picture)) // 60
        drawn += sum(len(text) for _, text in episode["item"])
        left -= drawn + sum(600 + len(turn["message"]) for one in episode["rounds"] for turn in one["turns"])
        episodes.append(episode)
        if left < -PAGE_SHARE // 4:
            break
    judged = [episode for episode in episodes if episode["judged"]]
    filters = (
        [(flag, label, sum(flag in episode["flags"] for episode in judged)) for flag, label in FILTERS]
        if judged
        else []
    )
    return {
        "episodes": episodes,
        "filters": filters,
        "in_words": any(episode["in_words"] for episode in episodes),
        "total": len(source.transcripts),
        "file": source.transcripts_name,
    }


def is_right(record: Record) -> bool:
    """True if an episode was judged rightly, or not judged."""
    return record.get("correct") is not False


def colours_of(records: Sequence[Record]) -> dict[str, int]:
    """Agent -> its colour, for all with a turn in these episodes."""
    names = (turn.get("agent") for record in records for turn in _raw_turns(record.get("rounds")))
    return agent_colours(name for name in names if isinstance(name, str))


def shown(
    record: Record,
    number: int,
    agents: Mapping[str, int],
    pictures: Mapping[str, Record],
    items: Mapping[str, Record],
    verdicts: Sequence[str] = TWO_VERDICTS,
) -> dict[str, Any]:
    """One episode. number: on the page. agents: their colours. pictures, items: by instance, from the run's folder."""
    raw, rewards = record.get("rounds"), record.get("reward", record.get("rewards"))
    raw, paid = raw if isinstance(raw, list) else [], list(rewards.items()) if isinstance(rewards, dict) else []
    words = (*verdicts, VERDICTS[-1])
    verdict, label = _word(words, record.get("verdict")), _word(words, record.get("label"))
    judged, correct = "verdict" in record, record.get("correct") is True
    undecided, rejected = verdict == VERDICTS[-1], (label, verdict) == TWO_VERDICTS[::-1]
    # its filters; fooled: a false claim was accepted, or with more than two verdicts any wrong one
    marks = {"wrong": not correct, "fooled": not (correct or undecided or rejected), "undecided": undecided}
    rounds = []
    # place: for stepping through the page; the displayed number starts at 1
    for place, one in enumerate(raw[:ROUNDS_SHOWN]):
        if isinstance(one, dict):
            turns, counted = (
                [_turn(turn, agents, verdicts) for turn in _raw_turns([one])[:TURNS_SHOWN]],
                one.get("round", place),
            )
            rounds.append(
                {"place": place, "name": short(counted + 1 if type(counted) is int else counted, 10), "turns": turns}
            )
    picture = _picture(record, pictures, rounds)
    channels = list(dict.fromkeys(turn["channel"] for one in rounds for turn in one["turns"] if turn["channel"]))
    return {
        "number": number,
        "instance": short(record.get("instance", "?"), 60),
        "label": label,
        "verdict": verdict,
        "judged": judged,
        "correct": correct,
        "flags": [name for name, holds in marks.items() if holds and judged],
        "decides": any(turn["decision"] for one in rounds for turn in one["turns"]),
        "in_words": any(turn["in_words"] for one in rounds for turn in one["turns"]),
        "length": short(record.get("length", "?"), 20),
        "rewards": ", ".join(f"{short(agent, 40)} {short(reward, 20)}" for agent, reward in paid[:8]),
        "channels": channels if len(channels) > 1 else [],
        "rounds": rounds,
        "cut": len(raw) > ROUNDS_SHOWN,
        "picture": picture,
        "item": _item(items.get(str(record.get("instance")))),
        "tree": drawings.tree(record),
    }


def _item(item: Record | None) -> list[tuple[str, str]]:
    """(name, text) of the item of a dialogue of language agents, numbers and lists as JSON; for a program, only the
    problem and the program."""
    given = {name: value for name, value in (item or {}).items() if name not in _BESIDE}
    if item is not None and "solution" in item:
        given = {"problem": item.get("question"), "program": item["solution"]}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in given.items()
    }
    return [(name, short(text, TEXT_SHOWN)) for name, text in texts.items()]


def _raw_turns(rounds: Any) -> list[Record]:
    """All well-formed turns."""
    found = [one.get("turns") for one in rounds if isinstance(one, dict)] if isinstance(rounds, list) else []
    return [turn for turns in found if isinstance(turns, list) for turn in turns if isinstance(turn, dict)]


def _turn(turn: Record, agents: Mapping[str, int], verdicts: Sequence[str]) -> dict[str, Any]:
    message, decision = turn.get("message"), turn.get("decision")
    said = _symbols(message) + (f" · linear {_symbols(turn['linear'])}" if turn.get("linear") is not None else "")
    flags = [name for name in ("truncated", "invalid") if turn.get(name) is True]
    agent, written = turn.get("agent"), turn.get("written")
    if isinstance(written, str):  # the message of an unusable reply is empty
        said = f"{said}{_symbols(written) if written.strip() else '(an empty reply)'}"
    return {
        "agent": short(turn.get("agent", ""), 40),
        "colour": agents.get(agent, 0) if isinstance(agent, str) else 0,
        "channel": short(turn.get("channel", ""), 40),
        "message": f"{said} [{', '.join(flags)}]" if flags else said,
        "symbols": message[:SYMBOLS_SHOWN] if isinstance(message, list) else [],
        "in_words": isinstance(message, str),
        "decision": "" if decision is None else _word((*verdicts, DECISIONS[-1]), decision),
        "chances": _chances(turn, verdicts),
    }


def _chances(turn: Record, verdicts: Sequence[str]) -> list[tuple[str, float, float, str]]:
    """(decision, start of its bar, its length, in words) in per cent; for language models, confidence in acceptance."""
    given = turn.get("probabilities")
    if isinstance(given, dict):
        found = [(name, finite(given.get(name))) for name in (*verdicts, DECISIONS[-1])]
    else:
        sure = finite(turn.get("confidence"))
        found = [] if sure is None or len(verdicts) > 2 else [("reject", 1 - sure), ("accept", sure)]
    if not found or any(share is None or not -1e-6 <= share <= 1 + 1e-6 for _, share in found):
        return []
    chances, at = [], 0.0
    for name, share in found:
        width = round(100 * min(1.0, max(0.0, share or 0.0)), 1)
        words = f"{width:.0f}" if 0.5 <= width <= 99.5 or width in (0, 100) else "<1" if width < 1 else ">99"
        chances.append((name, round(at, 1), width, f"{words} %"))
        at += width
    return chances


def _picture(record: Record, pictures: Mapping[str, Record], rounds: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The picture of an episode, with the named places marked by round and agent. Also puts messages in words."""
    frames = drawings.positions(record)
    if frames is not None:
        # The host's coordinates in a frame's round, and the agent's answer in the next.
        words = {frame["round"]: frame["choice"] for frame in frames} | {
            frame["round"] + 1: frame["axis"] for frame in frames
        }
        for one in rounds:
            for turn in one["turns"]:
                turn["message"] = words.get(one["place"]) or turn["message"]
        return {"kind": "positions", "frames": frames}
    instance = record.get("instance")
    known = pictures.get(str(instance)) if isinstance(instance, int | str) else None
    if known is None:
        return None
    if known.get("kind") == "graphs" and (parts := drawings.graphs(known)) is not None:
        places = {
            node["symbol"]: (i, node, f"{part['name']}{node['number']}")
            for i, part in enumerate(parts)
            for node in part["nodes"]
        }
        for i, node, mark in _marks(places, rounds):
            parts[i].setdefault("marks", []).append({**mark, "x": node["x"], "y": node["y"]})
        return {"kind": "graphs", "parts": parts}
    if known.get("kind") == "image" and (drawn := drawings.image(known)) is not None:
        columns = drawn["columns"]
        places = {
            c["symbol"]: (0, c, f"row {c['symbol'] // columns + 1}, column {c['symbol'] % columns + 1}")
            for c in drawn["cells"]
        }
        marks = [{**mark, "x": cell["x"], "y": cell["y"]} for _, cell, mark in _marks(places, rounds)]
        return {"kind": "image", **drawn, "marks": marks}
    return None


def _marks(
    places: Mapping[int, tuple[int, Record, str]], rounds: list[dict[str, Any]]
) -> list[tuple[int, Record, dict[str, Any]]]:
    """(part, what was named, mark) for each naming. Repeated names get wider marks, so that all are visible."""
    marks, often = [], dict.fromkeys(places, 0)
    for one in rounds:
        for turn in one["turns"]:
            named = [symbol for symbol in turn["symbols"] if isinstance(symbol, int) and symbol in places]
            for symbol in named:
                part, item, _ = places[symbol]
                marks.append(
                    (
                        part,
                        item,
                        {
                            "round": one["place"],
                            "colour": turn["colour"],
                            "agent": turn["agent"],
                            "wider": often[symbol],
                        },
                    )
                )
                often[symbol] += 1
            if named and len(named) == len(turn["symbols"]):
                rest = turn["message"].partition(" · ")
                turn["message"] = ", ".join(places[symbol][2] for symbol in named) + rest[1] + rest[2]
    return marks


def _symbols(message: Any) -> str:
    """A message as text: its symbols, if a list."""
    if isinstance(message, list):
        return " ".join(short(symbol, 40) for symbol in message[:SYMBOLS_SHOWN])
    return "" if message is None else short(message, TEXT_SHOWN)


def _word(words: Sequence[str], value: Any) -> str:
    """The word for a decision code, anything else as text."""
    is_code = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(words)
    return words[value] if is_code else short(value)
