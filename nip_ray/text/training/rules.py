"""Learning rules of language models: built-in ones, those of plugins (`nip_ray.plugins`), and their fine-tuning sets.

Decisions that matter here:
- a fine-tuning set depends on the rollouts, the config and the iteration alone: repeated after a crash it has the same
  bytes, hence the same job;
- guess replacement: in a share of its dialogues the verifier learns the true verdict instead of its own.
"""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.keys import keys_of
from nip_ray.config.text_rules import chat_shapes, fine_tuning_rule
from nip_ray.errors import UserError
from nip_ray.learning.token_losses import Surrogate, clipped_surrogate, turn_advantages
from nip_ray.play.dialogue import Dialogue, Shape, shape_chat
from nip_ray.protocols import Protocol
from nip_ray.seeding import stable_seed
from nip_ray.serving.fine_tuning_job import Method
from nip_ray.settings.policy_gradient import PolicyGradientSettings, RatioClipSettings, TokenTrainingSettings
from nip_ray.settings.text_training import ExpertIterationSettings, MaltSettings, TextTrainingSettings
from nip_ray.text.dialogues.runner import read_dialogues, read_trees, rollout_file
from nip_ray.text.providers.interface import dpo_line, supervised_line
from nip_ray.text.training import expert_iteration, malt
from nip_ray.text.training.credit import TurnAdvantages
from nip_ray.text.training.expert_iteration import Example, LearningAgent, Pair, Preferences

Made = TypeVar("Made")


@dataclass(frozen=True)
class TextRule:
    """Play of an iteration, and what each agent learns from it, by exactly one of `examples`, `pairs` and `advantages`.

    settings: a frozen settings dataclass with a `name`, derived from `TextTrainingSettings` (examples, pairs) or
    `TokenTrainingSettings` (advantages). Its keys determine what is played of each item: with `num_responses` a tree of
    that many replies at each node, with `group_size` that many dialogues, next to each other; otherwise one dialogue.

    examples, pairs: (dialogues or trees of the iteration, an agent that learns) -> the data of a supervised fine-tuning
    job, or of one by preferences, for its group's model. advantages: of turns, for gradient steps on the tokens of
    models in this process (see `nip_ray.text.training.credit`). loss: of these tokens, see
    `nip_ray.learning.token_losses.clipped_surrogate`. figures: (what was played, the protocol, settings) -> metrics of
    an iteration, logged as ``train/<name>`` (examples, pairs).

    All are pure functions: only these agents and the memory of advantages survive a resume.
    """

    settings: type
    examples: Callable[[Sequence[Any], LearningAgent], list[Example]] | None = None
    pairs: Callable[[Sequence[Any], LearningAgent], Preferences] | None = None
    advantages: TurnAdvantages | None = None
    loss: Surrogate = clipped_surrogate
    figures: Callable[[Sequence[Any], Protocol, Any], dict[str, float]] | None = None

    @property
    def method(self) -> Method:
        """The method of its fine-tuning jobs."""
        return "dpo" if self.examples is None else "supervised"

    @property
    def plays_trees(self) -> bool:
        """True if trees are played, not dialogues."""
        return "num_responses" in keys_of(self.settings)

    def learned(self, played: Sequence[Any], agent: LearningAgent) -> list[Example] | Preferences:
        """Examples or preferences of `agent`, by `examples` or `pairs`. Raises UserError for anything else."""
        if self.pairs is None:
            assert self.examples is not None
            made = self.examples(played, agent)
            return _all_of(Example, made, f"algorithm {agent.settings.name!r}: examples")
        found = self.pairs(played, agent)
        place = f"algorithm {agent.settings.name!r}: pairs"
        if not isinstance(found, Preferences):
            raise UserError(f"{place} gives {reprlib.repr(found)}, expected Preferences([Pair(...), ...])")
        return replace(found, pairs=_all_of(Pair, found.pairs, place))

    def told(
        self, played: Sequence[Any], protocol: Protocol, settings: Any, taken: Sequence[str] = ()
    ) -> dict[str, float]:
        """Metrics by `figures`, {} without it. taken: names of other metrics.

        Raises UserError unless that is a mapping from new names to numbers.
        """
        made = {} if self.figures is None else self.figures(played, protocol, settings)
        if not (
            isinstance(made, Mapping)
            and all(isinstance(name, str) and isinstance(value, Real) for name, value in made.items())
        ):
            raise UserError(
                f"algorithm {settings.name!r}: figures gives {reprlib.repr(made)}, expected numbers by name"
            )
        if both := sorted(made.keys() & set(taken)):
            raise UserError(
                f"algorithm {settings.name!r}: figures gives {', '.join(both)}, names of other metrics, choose others"
            )
        return {name: float(value) for name, value in made.items()}

    def faults(self) -> Iterator[str]:
        """Parts that do not fit together."""
        given = {name: getattr(self, name) for name in ("examples", "pairs", "advantages", "loss", "figures")}
        for name, way in given.items():
            if not callable(way) and (way is not None or name == "loss"):
                yield f"{name}: {way!r} is not a function"
        sizes = (keys_of(self.settings).get(name) for name in ("group_size", "num_responses"))
        yield from (
            f"{key.name}: how many are played, expected int"
            for key in sizes
            if key is not None and key.annotation is not int
        )
        if sum(way is not None for way in (self.examples, self.pairs, self.advantages)) != 1:
            yield "give exactly one of examples, pairs and advantages"
        elif issubclass(self.settings, TokenTrainingSettings) != (self.advantages is not None):
            yield (
                "derive settings from TokenTrainingSettings where there are advantages, else from TextTrainingSettings"
            )
        elif self.advantages is None and self.loss is not clipped_surrogate:
            yield "loss is for rules with advantages, leave it out"
        elif self.advantages is not None and self.figures is not None:
            yield "figures is for rules with examples or pairs; a loss returns its own metrics"
        elif self.advantages is not None and self.plays_trees:
            yield "num_responses is for rules with examples or pairs; no trees are played to learn from tokens"
        elif (
            self.loss is clipped_surrogate
            and self.advantages is not None
            and not issubclass(self.settings, RatioClipSettings)
        ):
            yield (
                "derive settings from RatioClipSettings too, which clipped_surrogate reads, or give a loss of your own"
            )
        elif (self.pairs is not None or self.plays_trees) and getattr(self.settings, "replaces_guesses", False):
            yield (
                "set `replaces_guesses = False` in the settings, since no guess is replaced where pairs or trees are"
                " learned from"
            )


def _all_of(kind: type[Made], made: Any, place: str) -> list[Made]:
    if isinstance(made, Sequence) and all(isinstance(one, kind) for one in made):
        return list(made)
    raise UserError(f"{place} gives {reprlib.repr(made)}, expected a list of {kind.__name__}")


TEXT_ALGORITHMS: dict[str, TextRule] = {
    "expert_iteration": TextRule(ExpertIterationSettings, examples=expert_iteration.examples),
    "malt": TextRule(MaltSettings, pairs=malt.pairs, figures=malt.tree_figures),
    "policy_gradient": TextRule(PolicyGradientSettings, advantages=turn_advantages),
}
"""By name."""


def rule_of(settings: Any) -> TextRule:
    """The rule of a config's `algorithm`."""
    return TEXT_ALGORITHMS[settings.name]


# ----------------------------------------------------------------------------------------------------------------------
# Guess replacement: in a share of its dialogues the verifier learns the true verdict instead of its own.
# - the verifier's guesses are replaced before a rule selects, and the rule sees the other dialogues only;
# - the schedule is the published one (Hammond and Adam-Day, ICLR 2025): iterations count from 0, so the first has the
#   whole share, and of n dialogues int(share * n) are replaced, up to rounding (0.29 of 100 is 29). The selection
#   depends on (seed, iteration, agent) alone.


def replaced_guesses(dialogues: Sequence[Dialogue], agent: LearningAgent) -> tuple[list[Example], list[Dialogue]]:
    """(examples in which the agent gives the true verdict, the remaining dialogues); provers, and all without a share,
    keep all."""
    part = share(agent.settings, agent.iteration)
    if agent.name not in agent.scenario.protocol.verifiers or not part:
        return [], list(dialogues)
    random = np.random.default_rng(stable_seed(agent.seed, "guess_replacement", agent.iteration, agent.name))
    order = random.permutation(len(dialogues)).tolist()
    count = int(part * len(dialogues) + 1e-9)
    examples: list[Example] = []
    for number in sorted(order[:count]):
        if own := agent.examples(dialogues[number]):
            examples += [*own[:-1], replace(own[-1], completion=agent.scenario.verdict_text(dialogues[number].item.y))]
    return examples, [dialogues[number] for number in sorted(order[count:])]


def share(settings: TextTrainingSettings, iteration: int) -> float:
    """The share of dialogues, in [0, 1], in which the verifier's guess is replaced in `iteration` (from 0).

    p = guess_replacement: none: p; linear: max(p - iteration * rate, 0); exponential: p * (1 - rate) ** iteration.
    """
    start, rate = settings.guess_replacement, settings.guess_replacement_rate
    if settings.guess_replacement_annealing == "linear":
        return max(start - iteration * rate, 0.0)
    if settings.guess_replacement_annealing == "exponential":
        return start * (1 - rate) ** iteration
    return start


# ----------------------------------------------------------------------------------------------------------------------
# The data that a group of agents learns from in an iteration: the lines of its fine-tuning file, made from stored
# rollouts.

Line = dict[str, Any]


@dataclass(frozen=True)
class FineTuningSet:
    """lines: of the fine-tuning file. figures: ``<agent>/examples``, the agent's number of lines; for rules that learn
    from pairs also ``<rule>/<agent>/{pairs, equal_pairs, invalid_pairs}``."""

    lines: list[Line]
    figures: Mapping[str, float]


def fine_tuning_set(
    config: TextExperimentConfig,
    scenario: Any,
    run_dir: Path,
    items: Mapping[int, Any],
    iteration: int,
    agents: Sequence[str],
) -> FineTuningSet:
    """The set of `agents` of one model, after `iteration` (from 0), agent by agent. items: the training items by id."""
    settings, rule = fine_tuning_rule(config), rule_of(config.algorithm)
    first = 0 if settings.fine_tune_on_all_previous_rollouts else iteration
    played = [one for i in range(first, iteration + 1) for one in read_played(rule, run_dir, items, i)]
    lines: list[Line] = []
    figures: dict[str, float] = {}
    for agent in agents:
        learning = LearningAgent(agent, scenario, settings, iteration, config.seed)
        own, counted = _taught(rule, played, learning, chat_shapes(config)[agent])
        lines += own
        figures |= {
            f"{agent}/examples": float(len(own)),
            **{f"{config.algorithm.name}/{agent}/{name}": value for name, value in counted.items()},
        }
    return FineTuningSet(lines, figures)


def read_played(rule: TextRule, run_dir: Path, items: Mapping[int, Any], iteration: int) -> list[Any]:
    """The dialogues or trees that were stored in an iteration."""
    path = rollout_file(run_dir, "train", iteration)
    return [*(read_trees if rule.plays_trees else read_dialogues)(path, items)]


def _taught(
    rule: TextRule, played: Sequence[Any], agent: LearningAgent, shape: Shape
) -> tuple[list[Line], Mapping[str, float]]:
    """One agent's lines and metrics."""
    replaced, kept = ([], played) if rule.pairs is not None else replaced_guesses(played, agent)
    found = rule.learned(kept, agent)
    if isinstance(found, Preferences):
        return [
            dpo_line(shape_chat(pair.chat, shape), pair.preferred, pair.rejected) for pair in found.pairs
        ], found.figures()
    return [supervised_line(shape_chat(one.chat, shape), one.completion) for one in (*replaced, *found)], {}


def format_warmup_set(
    config: TextExperimentConfig, scenario: Any, dialogues: Sequence[Dialogue], agents: Sequence[str]
) -> FineTuningSet:
    """The set of `agents` from dialogues of random replies: every own turn, up to the last; for `warmup_agents` the
    scenario's own example about each dialogue's item."""
    lines: list[Line] = []
    figures: dict[str, float] = {}
    shapes, shown = chat_shapes(config), fine_tuning_rule(config).warmup_agents
    for agent in agents:
        if agent in shown:
            taught = [scenario.warm_example(dialogue.item, agent, dialogue.seed) for dialogue in dialogues]
        else:
            last_turns = [(d, rounds[-1]) for d in dialogues if (rounds := scenario.usable_rounds(d, agent))]
            taught = [scenario.training_chat(dialogue, agent, round) for dialogue, round in last_turns]
        lines += [supervised_line(shape_chat(chat, shapes[agent]), reply) for chat, reply in taught]
        figures[f"{agent}/examples"] = float(len(taught))
    return FineTuningSet(lines, figures)
