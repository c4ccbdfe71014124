"""Expert iteration: supervised learning from an agent's own successful dialogues; and the input of every rule with
fine-tuning jobs (`LearningAgent`) and its output (`Example`, `Pair`).

Decisions that matter here:
- an agent's reward is its undiscounted sum over the episode, and a dialogue that reaches the threshold exactly is kept,
  up to rounding: a verdict given at 95 per cent pays 0.95 - 0.05, which is a little less than 0.9 in binary;
- an example is the whole dialogue as the agent saw it, its own turns as assistant turns, up to its last usable one; if
  a scenario shows an agent each turn afresh, every turn is an example. Invalid replies are in none: scenarios do not
  show an agent its own (`training_chat`), and none is a completion;
- weights are among dialogues in which the agent knew of the same role when it first spoke, since roles pay differently.
  A threshold is one number in the config for all;
- if all rewards are equal, weights are uniform (normalising them would divide 0 by 0).
Source: Anthony, Tian and Barber, "Thinking Fast and Slow with Deep Learning and Tree Search", NeurIPS 2017.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.play.dialogue import Chat, Dialogue, LanguageScenario
from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import ExpertIterationSettings


@dataclass(frozen=True)
class Example:
    """One conversation to learn from: `completion` is the assistant turn that follows `chat`."""

    chat: Chat
    completion: str

    def holds(self, earlier: "Example") -> bool:
        """True if the chat continues the earlier example's, with its reply as an assistant turn."""
        shown = len(earlier.chat)
        reply = self.chat[shown : shown + 1]
        return self.chat[:shown] == earlier.chat and [(one["role"], one["content"]) for one in reply] == [
            ("assistant", earlier.completion)
        ]


@dataclass(frozen=True)
class Pair:
    """Two replies to the same chat, of which the first led to a higher reward. path: of the parent node, in a tree."""

    chat: Chat
    preferred: str
    rejected: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class Preferences:
    """pairs: to learn from. equal, invalid: counts of pairs left out, because replies were equal, or one unusable."""

    pairs: list[Pair] = field(default_factory=list)
    equal: int = 0
    invalid: int = 0

    def figures(self) -> Mapping[str, float]:
        """The counts as metrics."""
        return {"pairs": float(len(self.pairs)), "equal_pairs": float(self.equal), "invalid_pairs": float(self.invalid)}


@dataclass(frozen=True)
class LearningAgent:
    """An agent that learns after `iteration` (from 0), by a rule's `settings`."""

    name: str
    scenario: LanguageScenario
    settings: Any
    iteration: int
    seed: int

    def random(self) -> np.random.Generator:
        """For the draws of this agent after this iteration: the same at every call."""
        return np.random.default_rng(stable_seed(self.seed, self.settings.name, self.iteration, self.name))

    def first_role(self, dialogue: Dialogue) -> str | None:
        """The role that the agent knew of in its first turn, None if it knew of none or had no turn."""
        spoke = (r for r, turns in enumerate(dialogue.rounds) if any(turn.agent == self.name for turn in turns))
        return self.scenario.protocol.told_role(self.name, next(spoke, -1), dialogue.seed)

    def examples(self, dialogue: Dialogue) -> list[Example]:
        """The agent's usable replies, each with what it saw before. A continued chat holds the earlier replies as
        assistant turns, so its last example is all; if an agent is shown each turn afresh, every turn is one."""
        kept: list[Example] = []
        for round in reversed(self.scenario.usable_rounds(dialogue, self.name)):
            example = Example(*self.scenario.training_chat(dialogue, self.name, round))
            if not (kept and kept[-1].holds(example)):
                kept.append(example)
        return kept[::-1]


ROUNDING = 1e-6
"""Rewards this far below the threshold reach it: protocols pay in single precision."""


def select(rewards: Sequence[float], settings: ExpertIterationSettings, random: np.random.Generator) -> list[int]:
    """Indices of the dialogues to learn from, by their episode rewards (n of them).

    threshold: all with reward >= reward_threshold, in order. weighted_sampling: round(n * sample_size_factor) draws by
    `random`, in order; without replacement at most those with a weight.
    """
    if settings.selection == "threshold":
        return [index for index, reward in enumerate(rewards) if reward >= settings.reward_threshold - ROUNDING]
    if not rewards:
        return []
    weight_B = weights(rewards, settings)
    count = round(len(rewards) * settings.sample_size_factor)
    if not settings.weighting_with_replacement:
        count = min(count, int(np.count_nonzero(weight_B)))
    return random.choice(len(rewards), size=count, replace=settings.weighting_with_replacement, p=weight_B).tolist()


def weights(rewards: Sequence[float], settings: ExpertIterationSettings) -> npt.NDArray[np.float64]:
    """(n,) probabilities of a draw: proportional to max(r, m) - m for the least reward m, plus weighting_epsilon / n,
    normalised.

    m is weighting_minimum or, if none, the smallest reward. Uniform if no reward is above m. n is at least 1.
    """
    reward_B = np.asarray(rewards, dtype=np.float64)
    least = reward_B.min() if settings.weighting_minimum is None else settings.weighting_minimum
    above_B = np.maximum(reward_B, least) - least
    if not above_B.any():
        return np.full(len(reward_B), 1 / len(reward_B))
    weight_B = above_B / above_B.sum() + settings.weighting_epsilon / len(reward_B)
    return weight_B / weight_B.sum()


def examples(dialogues: Sequence[Dialogue], agent: LearningAgent) -> list[Example]:
    """Examples from dialogues that `select` takes: twice from one drawn twice, none from one without a usable turn."""
    random, by_role = agent.random(), dict[str | None, list[Dialogue]]()
    for dialogue in dialogues:
        role = None if agent.settings.selection == "threshold" else agent.first_role(dialogue)
        by_role.setdefault(role, []).append(dialogue)
    return [
        example
        for alike in by_role.values()
        for index in select([dialogue.total(agent.name) for dialogue in alike], agent.settings, random)
        for example in agent.examples(alike[index])
    ]
