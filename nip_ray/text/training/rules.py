"""The learning rules of language models: those that ship, and those that a plugin adds (`nip_ray.plugins`)."""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeVar

from nip_ray.config.keys import keys_of
from nip_ray.errors import UserError
from nip_ray.learning.token_losses import Surrogate, clipped_surrogate, turn_advantages
from nip_ray.protocols import Protocol
from nip_ray.serving.fine_tuning_job import Method
from nip_ray.settings.policy_gradient import PolicyGradientSettings, RatioClipSettings, TokenTrainingSettings
from nip_ray.settings.text_training import ExpertIterationSettings, MaltSettings
from nip_ray.text.training import expert_iteration, malt
from nip_ray.text.training.credit import TurnAdvantages
from nip_ray.text.training.learning_agent import Example, LearningAgent, Pair, Preferences
from nip_ray.text.training.metrics import tree_figures

Made = TypeVar("Made")


@dataclass(frozen=True)
class TextRule:
    """What is played in an iteration, and what each agent learns from it, by exactly one of `examples`, `pairs` and `advantages`.

    settings: a frozen settings dataclass with a `name`, derived from `TextTrainingSettings` (examples, pairs) or `TokenTrainingSettings`
    (advantages). What is played of each item, its keys say: with `num_responses` a tree of that many replies at each node, with
    `group_size` so many dialogues, next to each other; otherwise one dialogue.

    examples, pairs: (dialogues or trees of the iteration, an agent that learns) -> what a supervised fine-tuning job, or one by
    preferences, of its group's model learns. advantages: what turns are worth, in gradient steps on the tokens of models in this process
    (see `nip_ray.text.training.credit`). loss: of these tokens, see `nip_ray.learning.token_losses.clipped_surrogate`.
    figures: (what was played, the protocol, settings) -> metrics of an iteration, logged as ``train/<name>`` (examples, pairs).

    All are pure functions: what these agents or the memory of advantages do not hold is not known when a run is resumed.
    """

    settings: type
    examples: Callable[[Sequence[Any], LearningAgent], list[Example]] | None = None
    pairs: Callable[[Sequence[Any], LearningAgent], Preferences] | None = None
    advantages: TurnAdvantages | None = None
    loss: Surrogate = clipped_surrogate
    figures: Callable[[Sequence[Any], Protocol, Any], dict[str, float]] | None = None

    @property
    def method(self) -> Method:
        """By which jobs models are fine-tuned."""
        return "dpo" if self.examples is None else "supervised"

    @property
    def plays_trees(self) -> bool:
        """Whether trees are played, not dialogues."""
        return "num_responses" in keys_of(self.settings)

    def learned(self, played: Sequence[Any], agent: LearningAgent) -> list[Example] | Preferences:
        """What `agent` learns by `examples` or `pairs`. Raises UserError where they give something else."""
        if self.pairs is None:
            assert self.examples is not None
            made = self.examples(played, agent)
            return _all_of(Example, made, f"algorithm {agent.settings.name!r}: examples")
        found = self.pairs(played, agent)
        place = f"algorithm {agent.settings.name!r}: pairs"
        if not isinstance(found, Preferences):
            raise UserError(f"{place} gives {reprlib.repr(found)}, expected Preferences([Pair(...), ...])")
        return replace(found, pairs=_all_of(Pair, found.pairs, place))

    def told(self, played: Sequence[Any], protocol: Protocol, settings: Any, taken: Sequence[str] = ()) -> dict[str, float]:
        """What `figures` gives, nothing without them. taken: names of other figures.

        Raises UserError where that is no mapping from names to numbers, or has a name that is taken.
        """
        made = {} if self.figures is None else self.figures(played, protocol, settings)
        if not (isinstance(made, Mapping) and all(isinstance(name, str) and isinstance(value, Real) for name, value in made.items())):
            raise UserError(f"algorithm {settings.name!r}: figures gives {reprlib.repr(made)}, expected numbers by name")
        if both := sorted(made.keys() & set(taken)):
            raise UserError(f"algorithm {settings.name!r}: figures gives {', '.join(both)}, names of other figures, choose others")
        return {name: float(value) for name, value in made.items()}

    def faults(self) -> Iterator[str]:
        """What does not fit together."""
        given = {name: getattr(self, name) for name in ("examples", "pairs", "advantages", "loss", "figures")}
        for name, way in given.items():
            if not callable(way) and (way is not None or name == "loss"):
                yield f"{name}: {way!r} is no function"
        sizes = (keys_of(self.settings).get(name) for name in ("group_size", "num_responses"))
        yield from (f"{key.name}: how many are played, expected int" for key in sizes if key is not None and key.annotation is not int)
        if sum(way is not None for way in (self.examples, self.pairs, self.advantages)) != 1:
            yield "give exactly one of examples, pairs and advantages"
        elif issubclass(self.settings, TokenTrainingSettings) != (self.advantages is not None):
            yield "derive settings from TokenTrainingSettings where there are advantages, else from TextTrainingSettings"
        elif self.advantages is None and self.loss is not clipped_surrogate:
            yield "loss is for rules with advantages, leave it out"
        elif self.advantages is not None and self.figures is not None:
            yield "figures is for rules with examples or pairs; a loss gives figures of its own"
        elif self.advantages is not None and self.plays_trees:
            yield "num_responses is for rules with examples or pairs; no trees are played to learn from tokens"
        elif self.loss is clipped_surrogate and self.advantages is not None and not issubclass(self.settings, RatioClipSettings):
            yield "derive settings from RatioClipSettings too, which clipped_surrogate reads, or give a loss of your own"
        elif (self.pairs is not None or self.plays_trees) and getattr(self.settings, "replaces_guesses", False):
            yield "set `replaces_guesses = False` in the settings, since no guess is replaced where pairs or trees are learned from"


def _all_of(kind: type[Made], made: Any, place: str) -> list[Made]:
    if isinstance(made, Sequence) and all(isinstance(one, kind) for one in made):
        return list(made)
    raise UserError(f"{place} gives {reprlib.repr(made)}, expected a list of {kind.__name__}")


TEXT_ALGORITHMS: dict[str, TextRule] = {
    "expert_iteration": TextRule(ExpertIterationSettings, examples=expert_iteration.examples),
    "malt": TextRule(MaltSettings, pairs=malt.pairs, figures=tree_figures),
    "policy_gradient": TextRule(PolicyGradientSettings, advantages=turn_advantages),
}
"""By name."""


def rule_of(settings: Any) -> TextRule:
    """The rule that a config's `algorithm` chooses."""
    return TEXT_ALGORITHMS[settings.name]
