"""What a rule with fine-tuning jobs is told of an agent that learns, and what it makes of the dialogues or trees that were played."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nip_ray.play.dialogue import Chat, Dialogue
from nip_ray.protocols import Protocol as Rules
from nip_ray.seeding import stable_seed


class LearnableScenario(Protocol):
    """What rules ask of a scenario (see `nip_ray.play.dialogue.LanguageScenario`)."""

    @property
    def protocol(self) -> Rules:
        """Who speaks when, and who is paid."""
        ...

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """All that `agent` is shown before its turn in the round about to be played."""
        ...

    def training_chat(self, dialogue: Dialogue, agent: str, round: int) -> tuple[Chat, str]:
        """(all that `agent` was shown before its turn in `round`, its raw reply there), neither with its invalid replies."""
        ...

    def usable_rounds(self, dialogue: Dialogue, agent: str) -> list[int]:
        """The rounds in which `agent` gave a usable reply."""
        ...

    def verdict_text(self, label: int) -> str:
        """The reply by which a verifier gives the verdict `label`."""
        ...


@dataclass(frozen=True)
class Example:
    """One conversation to learn from: `completion` is the assistant turn that follows `chat`."""

    chat: Chat
    completion: str

    def holds(self, earlier: "Example") -> bool:
        """Whether the chat goes on from the earlier example's, with its reply as an assistant turn."""
        shown = len(earlier.chat)
        reply = self.chat[shown : shown + 1]
        return self.chat[:shown] == earlier.chat and [(one["role"], one["content"]) for one in reply] == [("assistant", earlier.completion)]


@dataclass(frozen=True)
class Pair:
    """Of two replies to the same chat, the one that led to more. path: of the node whose children they stand in, in a tree."""

    chat: Chat
    preferred: str
    rejected: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class Preferences:
    """pairs: to learn from. equal, invalid: left out because both replies were the same, or because one was not usable."""

    pairs: list[Pair] = field(default_factory=list)
    equal: int = 0
    invalid: int = 0

    def figures(self) -> Mapping[str, float]:
        """As metrics."""
        return {"pairs": float(len(self.pairs)), "equal_pairs": float(self.equal), "invalid_pairs": float(self.invalid)}


@dataclass(frozen=True)
class LearningAgent:
    """An agent that learns after `iteration` (from 0), by a rule's `settings`."""

    name: str
    scenario: LearnableScenario
    settings: Any
    iteration: int
    seed: int

    def random(self) -> np.random.Generator:
        """For the draws of this agent after this iteration: the same whenever it is asked."""
        return np.random.default_rng(stable_seed(self.seed, self.settings.name, self.iteration, self.name))

    def examples(self, dialogue: Dialogue) -> list[Example]:
        """The agent's usable replies, each with what it saw before. A chat that goes on holds the earlier replies as assistant turns, so
        that its last example is all; where an agent is shown each turn afresh, every turn is one."""
        kept: list[Example] = []
        for round in reversed(self.scenario.usable_rounds(dialogue, self.name)):
            example = Example(*self.scenario.training_chat(dialogue, self.name, round))
            if not (kept and kept[-1].holds(example)):
                kept.append(example)
        return kept[::-1]
