"""Findings on a run, in sentences: held-out accuracy against chance and solo baselines, and results of attacks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nip_ray.config.changes import over_iterations
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.players import agent_settings, deciding
from nip_ray.errors import UserError
from nip_ray.evaluation.report.describe import section, verdicts_of
from nip_ray.evaluation.report.panels import agents, deciders
from nip_ray.evaluation.report.source import (
    EXACT,
    Figure,
    RunSource,
    figure_of,
    finite,
    interval_words,
    percent_words,
    sure_words,
)
from nip_ray.evaluation.report.trust import (
    attackers,
    attacking_agents,
    completeness_error,
    every_message,
    is_held_out,
    soundness_error,
    stronger,
)

MODES = {"greedy": "eval", "sampled": "eval_sampled", "searched": "eval_searched"}
MAX_SOUNDNESS_ERROR = 0.05  # for runs whose config lacks the key
_SOLVED = 0.99  # nothing left to learn


@dataclass(frozen=True)
class Findings:
    """sentence: the headline. shown, not_shown: one each. accuracy: the metric it rests on, None if not evaluated.

    chance: accuracy of the best constant answer on the split. baseline: of the best verifier without a prover, None if
    unknown. tone: "good" when more was shown than chance or that baseline, "bad" for a leak or worse than chance, else
    "plain". learned: True if the accuracy is above these, or was not measured.
    """

    sentence: str
    shown: list[str]
    not_shown: list[str]
    accuracy: Figure | None
    chance: float
    baseline: Figure | None
    tone: str
    learned: bool = True


def held_out(source: RunSource, mode: str, name: str) -> Figure | None:
    """A metric of the last evaluation, on unseen instances where these are separate. mode: of `MODES`; name: a key
    without prefix."""
    table = source.told(mode)
    if isinstance(table, dict):
        return figure_of(table.get(name))
    key = f"{MODES[mode]}/{name}"
    last = next((row[key] for row in reversed(source.rows) if key in row), None)
    return None if last is None else Figure(last)


def find(source: RunSource) -> Findings:
    """The findings of a run."""
    chance, baseline = _chance(source), solo_baseline(source)
    seeds = "Other seeds: this is one run."
    # a game without a verifier
    if agents(source.rows) and not any("/verifier/accuracy" in key for row in source.rows for key in row):
        return Findings(_game_sentence(source), [], [seeds], None, chance, None, "plain")
    mode = next((mode for mode in MODES if held_out(source, mode, "verifier/accuracy")), None)
    attacked, broken, not_tried = _attacked(
        source, None if mode is None else held_out(source, mode, "verifier/completeness")
    )
    if mode is None:
        sentence = "No evaluation was made."
        if trained := [row["train/verifier/accuracy"] for row in source.rows if "train/verifier/accuracy" in row][-20:]:
            span = "in the last iteration" if len(trained) == 1 else f"over the last {len(trained)} iterations"
            right = percent_words(sum(trained) / len(trained))
            sentence += (
                f" In training the verifier decided {right} correctly {span}; that says nothing about other instances."
            )
        not_shown = ["Anything about instances that it was not trained with.", *broken, *not_tried, seeds]
        return Findings(sentence, attacked, not_shown, None, chance, baseline, "plain")
    accuracy = held_out(source, mode, "verifier/accuracy")
    assert accuracy is not None
    shown, not_shown, tone = _claims(source, accuracy, chance, baseline)
    right = f"On {_instances(source, accuracy)} the verifier decided {percent_words(accuracy.estimate)} correctly"
    sure = interval_words(accuracy, True)
    how = f"95\u00a0% interval {sure}, {mode} play" if sure else f"{mode} play, interval unknown"
    how = f"{EXACT}: every situation of the game was played; {mode} play" if sure == EXACT else how
    sentence = f"{right} ({how}): {_comparison(source, accuracy, chance, baseline)}."
    if (failed := not_learned(source, accuracy, chance, baseline)) is not None:
        sentence = f"{failed} {sentence}"
    if (error := soundness_error(source)) is not None:
        sentence += (
            f" {_whoever(source)} {percent_words(error.estimate)} of false claims are accepted{sure_words(error)}."
        )
        # half of the worst case where provers want different verdicts
        if (lost := completeness_error(source)) is not None:
            sentence += (
                f" When a prover attacks the true claims, {percent_words(lost.estimate)} of them are not"
                f" accepted{sure_words(lost)}."
            )
    return Findings(
        sentence,
        [*shown, *attacked],
        [*not_shown, *broken, *not_tried, seeds],
        accuracy,
        chance,
        baseline,
        "plain" if tone == "good" and broken else tone,
        learned=failed is None,
    )


def not_learned(source: RunSource, accuracy: Figure, chance: float, baseline: Figure | None) -> str | None:
    """A sentence if the verifier is no better than without a prover (or than chance, where that is unknown), with
    advice; else None."""
    alone = agents(source.rows) == ["verifier"]
    marks: dict[str, float | Figure] = {f"chance ({percent_words(chance)})": chance}
    if baseline is not None and not alone:
        marks[f"the {percent_words(baseline.estimate)} measured without a prover"] = baseline
    found = {mark: accuracy.against(level) for mark, level in marks.items()}
    failed = next((mark for mark in found if found[mark] != "above"), None)
    if accuracy.lower is None or failed is None or (accuracy.estimate >= _SOLVED and found[failed] != "below"):
        return None
    config, rule = source.config, section(source.config, "algorithm")
    made = _typed(config)
    annealed = made is None or any(over_iterations(made))  # no more iterations are added to such a run
    how_to = "--set iterations=N" if annealed else "nip-ray resume RUN_DIR --iterations N"
    if config.get("stop") is not None:
        how_to += " --set stop=null"
    attempts = ["another seed (--seed)", f"more iterations ({how_to})"]
    if not alone and rule.get("name") in ("ppo", "reinforce") and _verifier_learns(made):
        recipe = ["search: {}"] if config.get("search") is None and _can_search(config) else []
        recipe += (
            ["algorithm.verdict_gradient: expected"] if rule.get("verdict_gradient", "sampled") == "sampled" else []
        )
        attempts = [" and ".join(recipe), *attempts] if recipe else attempts
    how = "is below" if found[failed] == "below" else "is not shown to be above"
    sentence = f"This run did not learn: its verifier {how} {failed}; try {', '.join(attempts[:-1])} or {attempts[-1]}."
    searched = held_out(source, "searched", "verifier/accuracy")
    if searched is not None and all(searched.against(level) == "above" for level in marks.values()):
        sentence += (
            f" Against provers that search it is right on {percent_words(searched.estimate)}: their networks lag"
            " behind."
        )
    return sentence


def _can_search(config: Mapping[str, Any]) -> bool:
    """True if this config could have the key `search`."""
    from nip_ray.config.search_rules import search

    made = _typed({**config, "search": {}})
    return isinstance(made, ExperimentConfig) and not any(search(made))


def _typed(config: Mapping[str, Any]) -> Any:
    """The stored config with its types, None for one that plugins are needed for: a page imports nothing."""
    from nip_ray.config.load import config_from_dict

    try:
        return config_from_dict({**config, "plugins": []}, stored=True)
    except UserError:
        return None


def _verifier_learns(config: Any) -> bool:
    """False if all agents that decide are known to be random or frozen, or the verdict is forced."""
    if not isinstance(config, ExperimentConfig):
        return True
    own = [agent_settings(config, agent) for agent in deciding(config)]
    free = any(agent.kind == "learned" and agent.agent_lr_factor.actor > 0 for agent in own)
    return free and config.protocol.force_guess is None


def solo_baseline(source: RunSource) -> Figure | None:
    """Measured accuracy of the strongest verifier without a prover; None if not measured."""
    if source.evaluation:
        return figure_of(source.told("solo_baseline"))
    key = "eval/verifier/solo_baseline"
    return next((Figure(row[key]) for row in reversed(source.rows) if key in row), None)


def baseline_by(source: RunSource) -> str:
    """The source of that baseline: the fitted classifier unless the evaluation names another after the run."""
    return (
        "verifier trained alone" if source.told("solo_baseline_by") == "verifier trained alone" else "fitted classifier"
    )


def exact_figures(source: RunSource) -> dict[str, float]:
    """Exact metrics of a game, {} if none."""
    found = {name: finite(value) for name, value in section(source.evaluation, "exact").items()}
    return {name: value for name, value in found.items() if value is not None}


def played_figures(source: RunSource) -> dict[str, Figure]:
    """Metrics of the scenario's own games, {} if none."""
    found = {name: figure_of(record) for name, record in section(source.evaluation, "figures").items()}
    return {name: figure for name, figure in found.items() if figure is not None}


def _game_sentence(source: RunSource) -> str:
    exact = {name: value for name, value in exact_figures(source).items() if name.count("/") < 2}
    if exact:
        return (
            f"Computed exactly from the policies: {', '.join(f'{name} {value:.3g}' for name, value in exact.items())}."
        )
    for mode in reversed(MODES):  # sampled play first: policies may be mixed by design
        paid = [(agent, held_out(source, mode, f"{agent}/return")) for agent in agents(source.rows)]
        said = [f"{agent} {figure.estimate:.3g}" for agent, figure in paid if figure is not None]
        if said:
            return f"Paid in an episode of {mode} play, on average: {', '.join(said)}."
    return "No evaluation was made."


def _chance(source: RunSource) -> float:
    """The share of the most frequent label; uniform if the counts are unknown."""
    verdicts = verdicts_of(source.config)
    names = [f"confusion/{name}={name}" for name in verdicts] if len(verdicts) > 2 else ["completeness", "soundness"]
    for mode in MODES:
        sides = [held_out(source, mode, f"verifier/{name}") for name in names]
        counts = [side.n for side in sides if side is not None and side.n]
        if len(counts) == len(verdicts):
            return max(counts) / sum(counts)
    return 1 / len(verdicts)


def _attacked(source: RunSource, completeness: Figure | None) -> tuple[list[str], list[str], list[str]]:
    """(what an attack shows, what it refutes, what was not tested). Soundness counts as shown from a threshold in the
    config; completeness is reported beside it, since a verifier that accepts nothing is sound."""
    error = soundness_error(source)
    if error is None:
        return [], [], ["Soundness against other provers than those of this run: not computed, no attack was made."]
    most = section(section(source.config, "evaluation"), "attack").get("max_soundness_error", MAX_SOUNDNESS_ERROR)
    shown, broken, exhaustive = [], [], every_message(source, "soundness") is not None
    if (most := finite(most)) is not None:
        who = _whoever(source)
        beside = "" if completeness is None else f", at a completeness of {percent_words(completeness.estimate)}"
        if (lost := completeness_error(source)) is not None:
            beside += f", and of {percent_words(1 - lost.estimate)} under attack" if beside else ""
        measured = f"{who[0].lower()}{who[1:]} it is {percent_words(error.estimate)}{sure_words(error)}{beside}."
        if not exhaustive and (better := stronger(source, "soundness")) is not None:
            wrong = percent_words(better[1].estimate)
            measured += f" On the evaluated instances another did better ({better[0]}): {wrong}."
        claims = shown if error.upper is not None and error.upper <= most else broken
        claims.append(f"Soundness error at most {100 * most:g}\u00a0%: {measured}")
    return (
        shown,
        broken,
        [] if exhaustive else ["Soundness against attackers that were not tried: a stronger one may exist."],
    )


def _whoever(source: RunSource) -> str:
    """The provers behind the soundness error."""
    if every_message(source, "soundness") is not None:
        lying = attacking_agents(source, "soundness")
        honest = set(agents(source.rows)) - {"verifier", *deciders(source.rows), *lying}
        return (
            f"Over all possible messages of {' and '.join(lying)},"
            if lying and honest
            else "Over all possible prover messages,"
        )
    if len(verdicts_of(source.config)) > 2:
        return "Against the attackers that did best on training instances, one for each verdict,"
    count = len(attackers(source, "soundness"))
    return (
        "Against an attacker,"
        if count < 2
        else f"Against the attacker (of {count}) that did best on training instances,"
    )


def _claims(
    source: RunSource, accuracy: Figure, chance: float, baseline: Figure | None
) -> tuple[list[str], list[str], str]:
    """(shown, not shown, tone) of the accuracy: against chance, against a verifier alone, with messages silenced."""
    apart, alone = is_held_out(source), agents(source.rows) == ["verifier"]
    shown, not_shown = (
        [],
        [] if apart else ["Anything about instances that it was not trained with: none was evaluated."],
    )

    def claim(words: str, holds: bool) -> None:
        (shown if holds else not_shown).append(words if holds else f"That {words[0].lower()}{words[1:]}")

    where = "instances that it was not trained with" if apart else "the instances that it was trained with"
    claim(f"The verifier decides better than chance on {where}.", accuracy.against(chance) == "above")
    tone = {"above": "good", "below": "bad"}.get(accuracy.against(chance), "plain")
    if alone:
        bound = finite(source.told("wl_bound"))
        if bound is not None and accuracy.against(bound) == "above":
            leak = (
                f"It is right more often than its message-passing layers allow ({percent_words(bound)}): something"
                " leaks."
            )
            return [*shown, leak], not_shown, "bad"
        return shown, not_shown, tone
    if baseline is not None:
        better = accuracy.against(baseline) == "above"
        claim("It decides better than what was measured without a prover.", better)
        tone = "plain" if tone == "good" and not better else tone
    else:
        not_shown.append("That it decides better than without a prover: no such baseline was computed.")
    lost = figure_of(section(source.part("message_value"), "silenced").get("lost"))
    if lost is not None:
        # Trained with messages, it can do worse in silence than one trained alone: unless its accuracy beats that of a
        # verifier alone, a loss shows only that it relies on messages, not that they help.
        helps = baseline is not None and accuracy.against(baseline) == "above"
        told = "Messages make it decide better" if helps else "It relies on messages, whether or not they help"
        claim(
            f"{told}: silenced, it loses {100 * lost.estimate:.1f} points{sure_words(lost)}.",
            lost.against(0) == "above",
        )
    return shown, not_shown, tone


def _comparison(source: RunSource, accuracy: Figure, chance: float, baseline: Figure | None) -> str:
    words = {
        "above": "above",
        "below": "below",
        "beside": "not distinguishable from" if accuracy.lower is not None else "beside",
    }
    first = accuracy.against(chance)
    text = f"{words[first]} chance ({percent_words(chance)})"
    if baseline is None or abs(baseline.estimate - chance) < 1e-9:
        return text
    second = accuracy.against(baseline)
    joint = "but" if first == "above" and second != "above" else "and"
    return (
        f"{text} {joint} {words[second]} the {percent_words(baseline.estimate)} measured without a prover"
        f" ({baseline_by(source)})"
    )


def _instances(source: RunSource, accuracy: Figure) -> str:
    split = source.evaluation.get("split")
    number = "" if accuracy.n is None else f"{accuracy.n:,} "
    if not is_held_out(source):
        return f"{number or 'the '}instances, on which it was trained too,"
    overlap = finite(source.evaluation.get("overlap"))
    left_out = f" (and {overlap:,.0f} that it was trained with left out)" if overlap else ""
    return f"{number}held-out instances{left_out}" + (
        f" ({split[:40]})" if isinstance(split, str) and split != "test" else ""
    )
