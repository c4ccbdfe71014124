"""The content of a page apart from its headline and curves: plain strings and numbers for the template."""

import hashlib
import json
from datetime import datetime
from typing import Any

from nip_ray.evaluation.report.describe import describe, section, verdicts_of
from nip_ray.evaluation.report.episodes import browser, short
from nip_ray.evaluation.report.findings import Findings, baseline_by, exact_figures, held_out, played_figures
from nip_ray.evaluation.report.panels import agents, deciders, group_values, slope_words, wrong_side
from nip_ray.evaluation.report.source import (
    MAX_TEXT,
    Figure,
    RunSource,
    cell,
    count_words,
    figure_of,
    finite,
    interval_words,
    percent_words,
    sure_words,
)
from nip_ray.evaluation.report.trust import completeness_error, is_held_out, soundness_error, trust
from nip_ray.evaluation.trend import slope
from nip_ray.progress import duration
from nip_ray.protocols.spec import VERDICTS
from nip_ray.storage.folder import CONFIG, METRICS

GROUP_ROWS_SHOWN = 60

NAMES = {
    "verifier/accuracy": "Accuracy",
    "verifier/completeness": "Completeness: accepted, of those to accept",
    "verifier/soundness": "Soundness: rejected, of those to reject",
    "verifier/undecided": "Undecided",
    "verifier/acceptance": "Acceptance: accepted, of the decided",
    "verifier/always_fail": "Always wrong: instances on which no play was right",
    "episode_length": "Rounds in an episode",
    "score_difference": "Agent score difference: an honest prover's return less a lying one's",
    "simulator/message_distance": "Simulator's distance: messages",
    "simulator/decision_distance": "Simulator's distance: decisions",
    "simulator/symbol_distance": "Simulator's distance: what was said",
}
GROUP_NOTES = {
    "wl_score": (
        "Rounds of colour refinement (Weisfeiler-Leman) after which the two graphs differ; -1: they are isomorphic."
    )
}


def page_contents(source: RunSource, findings: Findings, running: bool = False) -> dict[str, Any]:
    """Variables of the template, all but the curves. running: True if the run is still running."""
    scale = None
    # the headline's picture: positions in per mille of the axis from 0 to 1
    if (accuracy := findings.accuracy) is not None:
        places = {"estimate": accuracy.estimate, "lower": accuracy.lower, "upper": accuracy.upper}
        places |= {
            "chance": findings.chance,
            "baseline": None if findings.baseline is None else findings.baseline.estimate,
        }
        scale = {
            name: round(1000 * min(1.0, max(0.0, share)), 1) for name, share in places.items() if share is not None
        }
    groups = []
    keys = {key for mode in ("greedy", "sampled") for key in section(source.evaluation, mode)} | {
        k for row in source.rows[-20:] for k in row
    }
    for group, values in sorted(group_values(keys).items()):
        rows = [
            _row(source, f"verifier/accuracy/{group}={value}", value, shares=True)
            for value in values[:GROUP_ROWS_SHOWN]
        ]
        groups.append({"group": short(group, 60), "rows": rows, "note": GROUP_NOTES.get(group, "")})
    names = verdicts_of(source.config)[:GROUP_ROWS_SHOWN]
    claims = [(share, name) for share in ("completeness", "soundness") for name in names] if len(names) > 2 else []
    played = []
    for name, figure in played_figures(source).items():
        ends = interval_words(figure, False)
        played.append(
            (short(name, 80), f"{figure.estimate:.4g} ({ends}; n {figure.n})" if ends else f"{figure.estimate:.4g}")
        )
    return {
        "title": str(source.config.get("name") or source.run_dir.name)[:100],
        "about": describe(source.config),
        "examined": "held-out" if is_held_out(source) else "evaluation",
        "findings": findings,
        "scale": scale,
        "tiles": _tiles(source),
        "facts": _facts(source, findings),
        "progress": _progress(source) if running else "",
        "notes": [note for note in source.notes if not (running and note.endswith("evaluation.json is missing."))],
        "cite": _cite(source),
        "figures": _figure_rows(source),
        "played": played,
        "exact": [(short(name, 80), f"{value:.4g}") for name, value in exact_figures(source).items()],
        "groups": groups[:6],
        "verdicts": [_row(source, f"verifier/{share}/{name}", f"{share}: {name}", True) for share, name in claims],
        "confusion": _confusion(source),
        "trust": trust(source, findings.accuracy is not None),
        "transcripts": browser(source),
        "machine": _machine(source),
        "config": short(source.config_text, MAX_TEXT),
        "environment": (
            short(json.dumps(source.environment, indent=2, ensure_ascii=False), MAX_TEXT) if source.environment else ""
        ),
    }


_TILES = {
    "accuracy": "accuracy",
    "soundness error": "soundness error: false claims accepted under attack",
    "completeness": "completeness: true claims accepted, without an attack",
}


def _tiles(source: RunSource) -> list[tuple[str, str, str]]:
    """(name, metric, interval): the results of a run, from the greedy evaluation, or else the sampled one."""
    tiles = [(short(name, 40), f"{x:.3g}", "exact") for name, x in exact_figures(source).items() if name.count("/") < 2]
    shares = {
        name: held_out(source, "greedy", f"verifier/{name}") or held_out(source, "sampled", f"verifier/{name}")
        for name in _TILES
    }
    shares["soundness error"] = soundness_error(source)
    for name, label in _TILES.items():
        if (figure := shares[name]) is not None:
            tiles.append((label, percent_words(figure.estimate), interval_words(figure, True) or "interval unknown"))
        elif name == "soundness error" and shares["completeness"] is not None:
            tiles.append((label, "–", "not computed"))
    if (lost := completeness_error(source)) is not None:
        words = "completeness error: true claims not accepted under attack"
        tiles.append((words, percent_words(lost.estimate), interval_words(lost, True) or "interval unknown"))
    return tiles


def _facts(source: RunSource, findings: Findings) -> list[tuple[str, str]]:
    """Settings, progress and timing of the run."""
    last, config = source.rows[-1], source.config
    done, wanted = int(last["iteration"]), config.get("iterations")
    unfinished = isinstance(wanted, int) and done < wanted
    played = f"{last['env_steps_total']:,.0f}" if "env_steps_total" in last else f"{_total(source, 'env_steps'):,.0f}"
    examined = source.evaluation.get("iteration")
    rates = sorted(row["env_steps_per_s"] for row in source.rows if "env_steps_per_s" in row)
    measured, bound = findings.baseline, finite(source.told("wl_bound"))
    alone = (
        []
        if measured is None
        else [f"{percent_words(measured.estimate)} measured, {baseline_by(source)}{sure_words(measured)}"]
    )
    alone += [] if bound is None else [f"at most {percent_words(bound)} (a loose upper bound)"]
    pretrained = {
        short(agent, 40): figure
        for agent, own in section(source.pretraining, "agents").items()
        if isinstance(own, dict) and (figure := figure_of(own.get("held_out"))) is not None
    }
    x_N, wrong_N, _ = wrong_side(source.rows)
    wrong = [percent_words(wrong_N[-1]), slope_words(slope(x_N, wrong_N))] if len(x_N) else []
    whole = sum(_total(source, f"time/{key}_s") for key in ("iteration", "evaluate", "checkpoint"))
    parts = [(name, _total(source, f"time/{key}_s") / whole) for name, key in _PHASES] if whole > 0 else []
    facts = [
        *((key, short(section(config, key).get("name", ""))) for key in ("protocol", "scenario", "algorithm")),
        ("seed", short(config.get("seed", ""))),
        ("iterations", f"{done:,} of {wanted:,} (unfinished)" if unfinished else f"{done:,}"),
        ("evaluated after", f"iteration {short(examined)}" if source.evaluation and examined is not None else ""),
        ("without a prover", "; ".join(alone)),
        (
            "pretrained, alone",
            "; ".join(f"{who} {percent_words(one.estimate)}{sure_words(one)}" for who, one in pretrained.items()),
        ),
        ("the wrong side wins", ", ".join(filter(None, wrong))),
        ("rounds played", "" if "cost/tokens" in last else played),
        (
            "spent",
            f"{last['cost/usd']:,.2f} US dollars, {last['cost/tokens']:,.0f} tokens" if "cost/tokens" in last else "",
        ),
        ("speed", f"{rates[len(rates) // 2]:,.0f} rounds/s (median)" if rates else ""),
        (
            "time",
            (
                f"{duration(whole)}: " + ", ".join(f"{name} {part:.0%}" for name, part in parts if part >= 0.005)
                if parts
                else ""
            ),
        ),
    ]
    return [(name, text) for name, text in facts if text]


def _progress(source: RunSource) -> str:
    """Progress of a running run, the time left at the pace of the last 20 iterations, and the age of its last row."""
    done, wanted = int(source.rows[-1]["iteration"]), source.config.get("iterations")
    wanted = wanted if isinstance(wanted, int) else None
    newest = source.rows[-20:]
    pace = sum(
        row.get(f"time/{key}_s", 0.0) for row in newest for key in ("iteration", "evaluate", "checkpoint")
    ) / len(newest)
    left = (
        f", about {duration(pace * (wanted - done))} left" if wanted is not None and wanted > done and pace > 0 else ""
    )
    written = datetime.fromtimestamp((source.run_dir / METRICS).stat().st_mtime).astimezone()
    return (
        f"Running: iteration {done:,}{'' if wanted is None else f' of {wanted:,}'}{left}; last update"
        f" {written:%H:%M:%S (UTC%z)}."
    )


def _cite(source: RunSource) -> str:
    """The identity of the run, for a citation."""
    told = source.environment
    lines = {
        "run": short(source.config.get("name") or source.run_dir.name, 100),
        "command": f"nip-ray train {CONFIG}" if source.config else "",
        "nip_ray": " ".join(short(told[key], 80) for key in ("nip_ray", "commit") if told.get(key)),
        "config": (
            f"sha256 {hashlib.sha256(source.config_text.encode()).hexdigest()[:16]}" if source.config_text else ""
        ),
    }
    return "\n".join(f"{name:8} {text}" for name, text in lines.items() if text)


def _machine(source: RunSource) -> list[tuple[str, str]]:
    """Machine and package versions of a run."""
    told = source.environment
    names = {
        "platform": "system",
        "usable_processors": "processors",
        "gpus": "GPUs",
        "python": "Python",
        "started": "started",
        "commit": "commit",
    }
    rows = [(label, short(told[key], 100)) for key, label in names.items() if told.get(key) not in (None, "", [])]
    versions = [
        f"{package} {short(told[package], 40)}" for package in ("nip_ray", "torch", "ray", "numpy") if told.get(package)
    ]
    return [*rows, ("packages", ", ".join(versions))] if versions else rows


_PHASES = (("playing", "sample"), ("learning", "learn"), ("evaluation", "evaluate"), ("checkpoints", "checkpoint"))


def _total(source: RunSource, key: str) -> float:
    return sum(row.get(key, 0.0) for row in source.rows)


def _figure_rows(source: RunSource) -> list[dict[str, Any]]:
    """The table of final metrics, one per row."""
    names = NAMES | {f"{agent}/return": f"Return of {agent}" for agent in agents(source.rows)}
    if len(verdicts_of(source.config)) > 2:
        names |= {
            "verifier/completeness": "Completeness: right, of those where it is argued for",
            "verifier/soundness": _SOUND,
        }
    rows = [
        _row(source, name, label, shares=name.startswith("verifier/") and name in NAMES)
        for name, label in names.items()
    ]
    for who in deciders(source.rows):
        rows += [_row(source, f"{who}/{name}", f"{who}, own vote: {name}", shares=True) for name in _TILES]
    return [row for row in rows if any(row[column][0] for column in ("greedy", "sampled", "training"))]


_SOUND = "Soundness: right, of those where a wrong verdict is argued for"


def _confusion(source: RunSource) -> dict[str, Any] | None:
    """Verdicts across, labels down, shares of each label; greedy if so evaluated."""
    names = verdicts_of(source.config)[:GROUP_ROWS_SHOWN]
    columns = (*names, VERDICTS[-1])
    for mode in ("greedy", "sampled") if len(names) > 2 else ():
        figures = [
            [held_out(source, mode, f"verifier/confusion/{label}={verdict}") for verdict in columns] for label in names
        ]
        if all(figure is not None for row in figures for figure in row):
            rows = [
                (label, "" if row[0] is None else f"{row[0].n:,}", [cell(figure, True) for figure in row])
                for label, row in zip(names, figures)
            ]
            return {"columns": columns, "rows": rows, "mode": mode}
    return None


def _row(source: RunSource, name: str, label: str, shares: bool) -> dict[str, Any]:
    """label, n, and (value, interval) for greedy, sampled and searched play and the newest training row that has it."""
    greedy, sampled = held_out(source, "greedy", name), held_out(source, "sampled", name)
    trained = next((row[f"train/{name}"] for row in reversed(source.rows[-20:]) if f"train/{name}" in row), None)
    counted = greedy or sampled
    columns = {
        "greedy": greedy,
        "sampled": sampled,
        "searched": held_out(source, "searched", name),
        "training": None if trained is None else Figure(trained),
    }
    cells = {column: cell(figure, shares) for column, figure in columns.items()}
    return {"label": short(label, 80), "n": count_words(counted), **cells}
