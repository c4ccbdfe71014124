"""Flat metrics of dialogues: the verifier, rewards, and replies.

Keys are relative, and the same as for networks if they mean the same (`nip_ray.evaluation.metrics`): a caller prefixes
``train/`` or ``eval_sampled/``. `docs/metrics.md` defines each.

Decisions that matter here:
- undecided is a share of its own. Accuracy, completeness and soundness count it as wrong; acceptance, precision, recall
  and confidence are over decided dialogues alone. Decision codes are never averaged;
- an item played more than once is one data point: intervals are over data points (`nip_ray.evaluation.intervals`), and
  so are ``verifier/worst_case`` and ``verifier/always_fail``;
- an undefined metric (0/0) has no key in the flat metrics, and estimate None in the record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.claims import score_difference, shares, sides
from nip_ray.evaluation.intervals import Mean, clustered_mean, clustered_share, proportion
from nip_ray.evaluation.selective import selective
from nip_ray.play.dialogue import Dialogue
from nip_ray.play.dialogues import rulebook, verdict_of
from nip_ray.progress import say
from nip_ray.protocols import ACCEPT, CONTINUE, Protocol
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.runner import read_dialogues, rollout_file

Array = npt.NDArray[np.float64]
Groups = Mapping[str, Callable[[Any], str | int]]
"""Grouping -> the function from an item to its group, such as ``{"difficulty": lambda item: item.difficulty}``."""
Record = dict[str, dict[str, float | int | None]]


@dataclass(frozen=True)
class Ratio:
    """A metric, sum(x_B) / sum(n_B) over B dialogues. share: x_B counts successes among n_B trials."""

    x_B: Array
    n_B: Array
    share: bool = True


def dialogue_metrics(
    dialogues: Sequence[Dialogue], protocol: Protocol, groups: Groups | None = None
) -> dict[str, float]:
    """Metrics of finished dialogues; {} for none. groups: `Groups`; each gives
    ``verifier/accuracy/<group>=<value>``."""
    if not dialogues:
        return {}
    ratios = {key: ratio for key, ratio in _ratios(dialogues, protocol, groups or {}).items() if ratio.n_B.any()}
    figures = {key: float(ratio.x_B.sum() / ratio.n_B.sum()) for key, ratio in ratios.items()}
    figures |= {f"{agent}/return_std": float(np.std(_returns(dialogues, agent))) for agent in protocol.agents}
    if (honesty := _score_difference(dialogues, protocol).estimate) is not None:
        figures["score_difference"] = honesty
    if protocol.verifier is not None:
        for who, seen in judged(dialogues, protocol).items():
            share_I = _right_by_item(seen)
            figures |= {f"{who}/worst_case": float(share_I.min()), f"{who}/always_fail": float(np.mean(share_I == 0))}
    return figures


def dialogue_record(dialogues: Sequence[Dialogue], protocol: Protocol, groups: Groups | None = None) -> Record:
    """The same with intervals: ``{key: {"estimate", "lower", "upper", "n"}}``, ready for JSON; `n` counts data points.

    Shares have exact intervals if each item was played once (or all its plays agree), else that of `share_ends` over
    items; means Student's over items. ``verifier/worst_case`` and ``<agent>/return_std`` have none.
    """
    item_B, count = _items(dialogues)
    ratios = _ratios(dialogues, protocol, groups or {}) | _confusion(dialogues, protocol)
    record = {key: _interval(ratio, item_B, count).record() for key, ratio in ratios.items()}
    if (honesty := _score_difference(dialogues, protocol)).estimate is not None:
        record["score_difference"] = honesty.record()
    for agent in protocol.agents:
        std = float(np.std(_returns(dialogues, agent))) if dialogues else None
        record[f"{agent}/return_std"] = Mean(std, None, None, count).record()
    if protocol.verifier is not None:
        for who, seen in judged(dialogues, protocol).items():
            share_I = _right_by_item(seen)
            worst = float(share_I.min()) if count else None
            record[f"{who}/worst_case"] = Mean(worst, None, None, count).record()
            record[f"{who}/always_fail"] = proportion(int(np.count_nonzero(share_I == 0)), count).record()
    return record


def _score_difference(dialogues: Sequence[Dialogue], protocol: Protocol) -> Mean:
    """Mean return of honest provers less that of lying ones; see `nip_ray.evaluation.claims`."""
    side_BA = sides(protocol, np.array([dialogue.seed for dialogue in dialogues], dtype=np.int64), _labels(dialogues))
    spoke = [{turn.agent for turns in dialogue.rounds for turn in turns} for dialogue in dialogues]
    spoke_BA = np.array([[agent in names for agent in protocol.agents] for names in spoke], dtype=bool).reshape(
        side_BA.shape
    )
    return_BA = np.array([_returns(dialogues, agent) for agent in protocol.agents]).T
    return score_difference(return_BA, side_BA * spoke_BA, _items(dialogues)[0])


def judged(dialogues: Sequence[Dialogue], protocol: Protocol) -> dict[str, Sequence[Dialogue]]:
    """Judge -> the dialogues by its judgement: "verifier" unchanged, a member of a panel by its vote as the verdict."""
    if protocol.panel is None:
        return {"verifier": dialogues}
    votes = [rulebook(protocol).votes(dialogue.item.y, dialogue.rounds) for dialogue in dialogues]
    return {"verifier": dialogues} | {
        member: [
            replace(
                dialogue,
                confidence=cast[member],
                verdict=CONTINUE if cast[member] is None else verdict_of(cast[member] or 0.0),
            )
            for dialogue, cast in zip(dialogues, votes)
        ]
        for member in protocol.panel.members
    }


def _ratios(dialogues: Sequence[Dialogue], protocol: Protocol, groups: Groups) -> dict[str, Ratio]:
    ratios = {}
    if protocol.verifier is not None:
        for who, seen in judged(dialogues, protocol).items():
            parts = _verdict_ratios(seen, protocol) | _group_ratios(seen, groups)
            parts |= _confidence_ratios(seen) if protocol.two_verdicts else {}
            ratios |= {key.replace("verifier/", f"{who}/", 1): part for key, part in parts.items()}
    one_B = np.ones(len(dialogues))
    for role in protocol.roles:
        drawn_B = _array(protocol.role_of(dialogue.seed) == role for dialogue in dialogues)
        parts = {
            key.replace("verifier/", f"{who}/", 1): part
            for who, seen in (judged(dialogues, protocol) if protocol.verifier is not None else {}).items()
            for key, part in _verdict_ratios(seen, protocol).items()
            if key.count("/") == 1
        }
        parts |= {f"{a}/return": Ratio(_returns(dialogues, a), one_B, share=False) for a in protocol.agents}
        ratios |= {
            f"{key}/role={role}": Ratio(part.x_B * drawn_B, part.n_B * drawn_B, part.share)
            for key, part in parts.items()
        }
    ratios["episode_length"] = Ratio(_array(len(dialogue.rounds) for dialogue in dialogues), one_B, share=False)
    turns = ([turn for taken in dialogue.rounds for turn in taken] for dialogue in dialogues)
    sent_B = _array(sum(bool(text) for turn in own for text in turn.messages.values()) for own in turns)
    ratios["messages"] = Ratio(sent_B, one_B, share=False)
    for agent in protocol.agents:
        ratios[f"{agent}/return"] = Ratio(_returns(dialogues, agent), one_B, share=False)
        ratios |= _turn_ratios(dialogues, agent)
    return ratios


def _verdict_ratios(dialogues: Sequence[Dialogue], protocol: Protocol) -> dict[str, Ratio]:
    verdict_B, y_B = _verdicts(dialogues), _labels(dialogues)
    seed_B = np.array([dialogue.seed for dialogue in dialogues], dtype=np.int64)
    found = {
        f"verifier/{name}": _share(hit_B, of_B)
        for name, (hit_B, of_B) in shares(protocol, verdict_B, y_B, seed_B).items()
    }
    if not protocol.two_verdicts:
        return found
    right_B, decided_B, accepted_B, positive_B = (
        verdict_B == y_B,
        verdict_B != CONTINUE,
        verdict_B == ACCEPT,
        y_B == ACCEPT,
    )
    return {
        **found,
        "verifier/acceptance": _share(accepted_B, decided_B),
        "verifier/precision": _share(right_B, accepted_B),
        "verifier/recall": _share(accepted_B, decided_B & positive_B),
    }


def _confusion(dialogues: Sequence[Dialogue], protocol: Protocol) -> dict[str, Ratio]:
    """With more than two verdicts: among the dialogues of each label, the count of each verdict."""
    if protocol.two_verdicts:
        return {}
    verdict_B, y_B = _verdicts(dialogues), _labels(dialogues)
    return {
        f"verifier/confusion/{label}={word}": _share(verdict_B == given, y_B == code)
        for code, label in enumerate(protocol.verdicts)
        for given, word in enumerate(protocol.verdict_words)
    }


def _confidence_ratios(dialogues: Sequence[Dialogue]) -> dict[str, Ratio]:
    """Confidence in the verdict, of decided dialogues; the Brier score also of those that ended mid-scale."""
    verdict_B, y_B = _verdicts(dialogues), _labels(dialogues)
    given_B = _array(-1.0 if dialogue.confidence is None else dialogue.confidence for dialogue in dialogues)
    known_B = given_B >= 0
    decided_B = known_B & (verdict_B != CONTINUE)
    own_B = np.where(verdict_B == ACCEPT, given_B, 1 - given_B)
    values = {
        "verifier/confidence": (own_B, decided_B),
        "verifier/overconfidence": (own_B - (verdict_B == y_B), decided_B),
        "verifier/brier": ((given_B - y_B) ** 2, known_B),
    }
    return {key: Ratio(x_B * where_B, where_B.astype(float), share=False) for key, (x_B, where_B) in values.items()}


def _group_ratios(dialogues: Sequence[Dialogue], groups: Groups) -> dict[str, Ratio]:
    right_B = _verdicts(dialogues) == _labels(dialogues)
    ratios = {}
    for group, value_of in groups.items():
        values = [value_of(dialogue.item) for dialogue in dialogues]
        for value in sorted(set(values)):
            ratios[f"verifier/accuracy/{group}={value}"] = _share(right_B, np.array([one == value for one in values]))
    return ratios


def _turn_ratios(dialogues: Sequence[Dialogue], agent: str) -> dict[str, Ratio]:
    """Shares of the agent's turns, and the length of its reasoning."""
    turns = [[turn for taken in dialogue.rounds for turn in taken if turn.agent == agent] for dialogue in dialogues]
    n_B = _array(map(len, turns))
    reasoned = [[turn for turn in own if turn.reasoning] for own in turns]
    words_B = _array(sum(len(turn.reasoning.split()) for turn in own) for own in reasoned)
    return {
        f"{agent}/retry_share": Ratio(_array(sum(turn.retries > turn.invalid for turn in own) for own in turns), n_B),
        f"{agent}/truncated_share": Ratio(_array(sum(turn.truncated for turn in own) for own in turns), n_B),
        f"{agent}/invalid_share": Ratio(_array(sum(turn.invalid for turn in own) for own in turns), n_B),
        f"{agent}/reasoning_words": Ratio(words_B, _array(map(len, reasoned)), share=False),
    }


def _interval(ratio: Ratio, item_B: npt.NDArray[np.int64], count: int) -> Mean:
    x_I = np.bincount(item_B, weights=ratio.x_B, minlength=count)
    n_I = np.bincount(item_B, weights=ratio.n_B, minlength=count)
    return clustered_share(x_I, n_I) if ratio.share else clustered_mean(x_I, n_I)


def _items(dialogues: Sequence[Dialogue]) -> tuple[npt.NDArray[np.int64], int]:
    """((B,) data point of each dialogue, number of data points)."""
    numbers: dict[Any, int] = {}
    item_B = [numbers.setdefault(dialogue.item.id, len(numbers)) for dialogue in dialogues]
    return np.array(item_B, dtype=np.int64), len(numbers)


def _right_by_item(dialogues: Sequence[Dialogue]) -> Array:
    """(I,) share of a data point's dialogues with the right verdict."""
    item_B, count = _items(dialogues)
    right_B = (_verdicts(dialogues) == _labels(dialogues)).astype(float)
    return np.bincount(item_B, weights=right_B, minlength=count) / np.bincount(item_B, minlength=count)


def _share(success_B: npt.NDArray[np.bool_], trial_B: npt.NDArray[np.bool_]) -> Ratio:
    return Ratio((success_B & trial_B).astype(float), trial_B.astype(float))


def _verdicts(dialogues: Sequence[Dialogue]) -> npt.NDArray[np.int64]:
    return np.array([dialogue.verdict for dialogue in dialogues], dtype=np.int64)


def _labels(dialogues: Sequence[Dialogue]) -> npt.NDArray[np.int64]:
    return np.array([dialogue.item.y for dialogue in dialogues], dtype=np.int64)


def _returns(dialogues: Sequence[Dialogue], agent: str) -> Array:
    return _array(dialogue.total(agent) for dialogue in dialogues)


def _array(values: Any) -> Array:
    return np.fromiter(values, dtype=np.float64)


def warn_of_form(row: Mapping[str, Any], agents: Sequence[str]) -> None:
    """Warn of `agents` that do not know the form of replies. row: an iteration's metrics."""
    for agent in agents:
        if (share := row.get(f"train/{agent}/invalid_share", 0.0)) > 0.5:
            say(
                f"warning: {share:.0%} of the replies of {agent} cannot be used; raise algorithm.format_warmup, or"
                " algorithm.warmup_learning_rate, and start again"
            )


def last_test(
    run_dir: Path, iterations: int, items: Mapping[int, Any], protocol: Protocol, kind: LanguageScenarioKind
) -> dict[str, Any] | None:
    """Metrics with intervals of the last of `iterations` that was tested, and the exact ones of a game; None if none
    was.

    items: the test items by id. kind: of the scenario. Raises UserError for a damaged file.
    """
    found = last_dialogues(run_dir, iterations, items)
    if found is None:
        return None
    iteration, dialogues = found
    record = dialogue_record(dialogues, protocol, groups=kind.groups)
    count = len({dialogue.item.id for dialogue in dialogues})
    about = {
        "iteration": iteration,
        "split": "test",
        "num_instances": count,
        "held_out": kind.held_out,
        "sampled": record,
    }
    if not kind.held_out:  # every situation was tested: these hold of the game, not of a sample
        rows = [row for row in RunFolder.open(run_dir).metrics() if row["iteration"] == iteration]
        exact = {key.removeprefix("eval/"): x for row in rows for key, x in row.items() if key.startswith("eval/")}
        about |= {"exact": exact} if exact else {}
    return about | risk_and_coverage(dialogues)


def risk_and_coverage(dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    """{"calibration": {"selective"}}, risk against coverage, as for networks; {} if all verdicts have the same
    confidence, as on a scale of two, and if an item was played more than once, since such dialogues are not
    independent."""
    sure = [one for one in dialogues if one.confidence is not None and one.verdict != CONTINUE]
    accepted_N = _array(0.0 if one.confidence is None else one.confidence for one in sure)
    verdict_N = _verdicts(sure)
    sure_N = np.where(verdict_N == ACCEPT, accepted_N, 1 - accepted_N)
    if len(np.unique(sure_N)) < 2 or _items(dialogues)[1] < len(dialogues):
        return {}
    return {"calibration": {"selective": selective(sure_N, verdict_N == _labels(sure), len(dialogues))}}


def last_dialogues(run_dir: Path, iterations: int, items: Mapping[int, Any]) -> tuple[int, list[Dialogue]] | None:
    """The last tested one of `iterations` (0: before the first), and its dialogues; None if none. items, errors: see
    `last_test`."""
    tested = [i for i in range(-1, iterations) if rollout_file(run_dir, "test", i).is_file()]
    return (tested[-1] + 1, read_dialogues(rollout_file(run_dir, "test", tested[-1]), items)) if tested else None
