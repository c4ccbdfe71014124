"""What a run proved, in plain sentences: held-out accuracy against chance and against what the verifier could reach alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from nip_ray.evaluation.report.panels import agents
from nip_ray.evaluation.report.source import Figure, RunSource, figure_of, finite, interval_words, percent_words
from nip_ray.evaluation.report.trust import attackers, every_message, is_held_out, stronger, withstood

MODES = {"greedy": "eval", "sampled": "eval_sampled"}


@dataclass(frozen=True)
class Findings:
    """sentence: the headline. shown, not_shown: one sentence each. accuracy: the figure it rests on, None without an evaluation.

    chance: accuracy of the best constant answer on the split. ceiling: of the verifier alone, None where unknown. tone: "good" when
    more was shown than chance or the verifier alone would do, "bad" for a leak or worse than chance, else "plain".
    """

    sentence: str
    shown: list[str]
    not_shown: list[str]
    accuracy: Figure | None
    chance: float
    ceiling: float | None
    tone: str


def held_out(source: RunSource, mode: str, name: str) -> Figure | None:
    """A figure of the last evaluation. mode: "greedy" or "sampled"; name: a key without prefix."""
    table = source.evaluation.get(mode)
    if isinstance(table, dict):
        return figure_of(table.get(name))
    key = f"{MODES[mode]}/{name}"
    last = next((row[key] for row in reversed(source.rows) if key in row), None)
    return None if last is None else Figure(last)


def find(source: RunSource) -> Findings:
    """The findings of a run."""
    chance, ceiling = _chance(source), _ceiling(source)
    if _is_game(source):
        return Findings(_game_sentence(source), [], ["Other seeds: this is one run."], None, chance, ceiling, "plain")
    mode = next((mode for mode in MODES if held_out(source, mode, "verifier/accuracy")), None)
    attacked, always = _attacked(source)
    if mode is None:
        sentence = f"No held-out evaluation was made. {_training_sentence(source)}".strip()
        return Findings(sentence, [], ["Anything about instances that it was not trained with.", *always], None, chance, ceiling, "plain")
    accuracy = held_out(source, mode, "verifier/accuracy")
    assert accuracy is not None
    alone = agents(source.rows) == ["verifier"]
    shown, not_shown, tone = _claims(accuracy, chance, ceiling, alone, is_held_out(source))
    right = f"On {_instances(source, accuracy)} the verifier decided {percent_words(accuracy.estimate)} correctly"
    broken = withstood(source, "soundness")
    tone = "plain" if tone == "good" and broken is not None and broken.against(0.5) != "above" else tone
    sentence = f"{right} ({_how_sure(accuracy, mode)}): {_comparison(accuracy, chance, ceiling, alone)}."
    return Findings(sentence, [*shown, *attacked], [*not_shown, *always], accuracy, chance, ceiling, tone)


def exact_figures(source: RunSource) -> dict[str, float]:
    """The figures of a game that were computed exactly, {} where there are none."""
    table = source.evaluation.get("exact")
    found = {name: finite(value) for name, value in table.items()} if isinstance(table, dict) else {}
    return {name: value for name, value in found.items() if value is not None}


def played_figures(source: RunSource) -> dict[str, Figure]:
    """What the scenario found in games of its own, {} where it plays none."""
    table = source.evaluation.get("figures")
    found = {name: figure_of(record) for name, record in table.items()} if isinstance(table, dict) else {}
    return {name: figure for name, figure in found.items() if figure is not None}


def _is_game(source: RunSource) -> bool:
    """Whether nobody gave a verdict, though somebody was paid."""
    return bool(agents(source.rows)) and not any("/verifier/accuracy" in key for row in source.rows for key in row)


def _game_sentence(source: RunSource) -> str:
    exact = {name: value for name, value in exact_figures(source).items() if name.count("/") < 2}
    if exact:
        return f"Computed exactly from the policies: {', '.join(f'{name} {value:.3g}' for name, value in exact.items())}."
    for mode in reversed(MODES):  # sampled play first: policies may be meant to be mixed
        paid = [(agent, held_out(source, mode, f"{agent}/return")) for agent in agents(source.rows)]
        said = [f"{agent} {figure.estimate:.3g}" for agent, figure in paid if figure is not None]
        if said:
            return f"Paid in an episode of {mode} play, on average: {', '.join(said)}."
    return "No evaluation was made."


def _chance(source: RunSource) -> float:
    """The share of the more frequent label, 1/2 where the counts are unknown."""
    for mode in MODES:
        sides = [held_out(source, mode, f"verifier/{name}") for name in ("completeness", "soundness")]
        counts = [side.n for side in sides if side is not None and side.n]
        if len(counts) == 2:
            return max(counts) / sum(counts)
    return 0.5


def _ceiling(source: RunSource) -> float | None:
    ceiling = finite(source.evaluation.get("wl_ceiling"))
    if ceiling is None and not source.evaluation:
        key = "eval/verifier/wl_ceiling"
        ceiling = next((row[key] for row in reversed(source.rows) if key in row), None)
    return ceiling


def _attacked(source: RunSource) -> tuple[list[str], list[str]]:
    """(shown, not shown) of attacks on the finished verifier. It withstands one in which it is right more often than not, beyond doubt."""
    shown, not_shown = [], []
    for side, right in (("soundness", "rejected what it ought to reject"), ("completeness", "accepted what it ought to accept")):
        figure = withstood(source, side)
        if figure is None:
            continue
        sure = "" if figure.lower is None or figure.upper is None else f" (95\u00a0% interval {interval_words(figure, True)})"
        told = f"{_whoever(source, side)} it {right} in {percent_words(figure.estimate)}{sure}.{_but(source, side)}"
        if figure.against(0.5) == "above":
            shown.append(f"{side.capitalize()} under attack: {told}")
        else:
            not_shown.append(f"{side.capitalize()} under attack: {told}")
    if withstood(source, "soundness") is None:
        not_shown.append("Soundness against provers other than those of this run: no attacker was trained against the finished verifier.")
    elif every_message(source, "soundness") is None:
        not_shown.append("Soundness against attackers that were not tried: a stronger one may exist.")
    return shown, [*not_shown, "Other seeds: this is one run."]


def _whoever(source: RunSource, side: str) -> str:
    """Whom the figure of an attack is against."""
    if every_message(source, side) is not None:
        return "whatever is said (every message was tried)"
    count = len(attackers(source, side))
    return "against an attacker" if count < 2 else f"against the attacker (of {count}) that did best on training instances,"


def _but(source: RunSource, side: str) -> str:
    """That another attacker did better than the one that was chosen, where that is so and counts."""
    found = None if every_message(source, side) is not None else stronger(source, side)
    return "" if found is None else f" On the instances of this figure {found[0]} did better: {percent_words(found[1].estimate)}."


def _claims(accuracy: Figure, chance: float, ceiling: float | None, alone: bool, apart: bool) -> tuple[list[str], list[str], str]:
    """(shown, not shown, tone). apart: whether it was examined on other instances than those of training."""
    shown, not_shown = [], [] if apart else ["Anything about instances that it was not trained with: the task has no others."]
    where = "instances that it was not trained with" if apart else "the instances that it was trained with"
    better, tone = f"The verifier decides better than chance on {where}.", "plain"
    if accuracy.against(chance) == "above":
        shown.append(better)
        tone = "good"
    else:
        not_shown.append(f"That {better[0].lower()}{better[1:]}")
        tone = "bad" if accuracy.against(chance) == "below" else "plain"
    if ceiling is None:
        return shown, not_shown, tone
    if alone:
        leak = accuracy.against(ceiling) == "above"
        claim = "It knows more than its message-passing layers can tell it: something leaks." if leak else ""
        claim = claim or "It keeps to its exact ceiling, as a verifier without a prover must."
        shown.append(claim)
        return shown, not_shown, "bad" if leak else tone
    claim = "It gets more from what it is told than it could find out alone."
    if accuracy.against(ceiling) == "above":
        shown.append(claim)
    else:
        not_shown.append(f"That {claim[0].lower()}{claim[1:]}")
        tone = "plain" if tone == "good" else tone
    return shown, not_shown, tone


def _comparison(accuracy: Figure, chance: float, ceiling: float | None, alone: bool) -> str:
    words = {"above": "above", "below": "below", "beside": "not distinguishable from"}
    if accuracy.lower is None:
        words["beside"] = "beside"
    first = accuracy.against(chance)
    text = f"{words[first]} chance ({percent_words(chance)})"
    if ceiling is None or abs(ceiling - chance) < 1e-9:
        return text
    second = accuracy.against(ceiling)
    joint = "but" if first == "above" and second != "above" and not alone else "and"
    return f"{text} {joint} {words[second]} the {percent_words(ceiling)} that it could reach {'at best' if alone else 'alone'}"


def _how_sure(accuracy: Figure, mode: str) -> str:
    if accuracy.lower is None or accuracy.upper is None:
        return f"{mode} play, interval unknown"
    return f"95\u00a0% interval {percent_words(accuracy.lower)} to {percent_words(accuracy.upper)}, {mode} play"


def _instances(source: RunSource, accuracy: Figure) -> str:
    split = source.evaluation.get("split")
    number = "" if accuracy.n is None else f"{accuracy.n:,} "
    if not is_held_out(source):
        return f"{number or 'the '}instances, on which it was trained too,"
    return f"{number}held-out instances" + (f" ({split[:40]})" if isinstance(split, str) and split != "test" else "")


def _training_sentence(source: RunSource) -> str:
    values = _last(source.rows, "train/verifier/accuracy", 20)
    if not values:
        return ""
    mean = sum(values) / len(values)
    span = "in the last iteration" if len(values) == 1 else f"over the last {len(values)} iterations"
    return f"In training the verifier decided {percent_words(mean)} correctly {span}; that says nothing of other instances."


def _last(rows: Sequence[dict[str, float]], key: str, count: int) -> list[float]:
    return [row[key] for row in rows if key in row][-count:]
