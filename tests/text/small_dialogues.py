"""Dialogues for tests: a tiny text scenario over the real protocols, and random dialogues played under their rules."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Turn
from nip_ray.play.dialogues import advance, rulebook, start_dialogue
from nip_ray.protocols import ACCEPT, REJECT, build
from nip_ray.protocols import Protocol as Rules


@dataclass(frozen=True)
class Item:
    """A question about a program."""

    id: int
    y: int
    question: str = "Print the sum of two numbers."
    solution: str = "print(sum(map(int, input().split())))"
    difficulty: str = "interview"


@dataclass(frozen=True, eq=False)
class TinyScenario(LanguageScenario):
    """Agents see all that was said so far; a verifier's "Decision: accept" or "Decision: reject" decides, "???" cannot
    be read."""

    settings: Any = None

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """A system prompt, then every usable turn: one's own as assistant, others' as user, in each round one's own
        first."""
        rounds = (sorted(turns, key=lambda turn: turn.agent != agent) for turns in dialogue.rounds)
        said = [turn for turns in rounds for turn in turns if not turn.invalid]
        system = {"role": "system", "content": f"You are {agent}. Item {dialogue.item.id}."}
        return [
            system,
            *({"role": "assistant" if turn.agent == agent else "user", "content": turn.raw} for turn in said),
        ]

    def training_chat(self, dialogue: Dialogue, agent: str, round: int) -> tuple[Chat, str]:
        """The chat before the round, and the reply in it."""
        before = replace(dialogue, rounds=dialogue.rounds[:round], rewards=dialogue.rewards[:round])
        (reply,) = (turn.raw for turn in dialogue.rounds[round] if turn.agent == agent)
        return self.chat(before, agent), reply

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """The same word."""
        return "word"

    def verdict_text(self, label: int) -> str:
        """A decision in words."""
        return f"Decision: {'accept' if label == ACCEPT else 'reject'}"

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """Raises InvalidReply for "???"."""
        if "???" in reply:
            raise InvalidReply("question marks")
        if agent == self.protocol.verifier and reply.startswith("Decision: "):
            label = ACCEPT if reply.endswith("accept") else REJECT
            return Parsed(decision=label, confidence=float(label))
        return Parsed(messages=dict.fromkeys(channels_of(self.protocol, dialogue, agent), reply))

    def max_invalid_replies(self, agent: str) -> int:
        """One."""
        return 1


def tiny(name: str = "nip", **params: Any) -> TinyScenario:
    """The tiny scenario under a shipped protocol."""
    return TinyScenario(build(name, **params))


def channels_of(protocol: Rules, dialogue: Dialogue, agent: str) -> tuple[str, ...]:
    """Where `agent` writes in the round about to be played."""
    return rulebook(protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent]


def speakers(protocol: Rules, dialogue: Dialogue) -> list[str]:
    """Who has a turn in the round about to be played, in the protocol's order."""
    return list(rulebook(protocol).speaking(dialogue.item.y, dialogue.rounds, dialogue.seed))


def random_turn(
    scenario: TinyScenario, dialogue: Dialogue, agent: str, random: np.random.Generator, decide: float = 0.3
) -> Turn:
    """A random reply: a verifier decides with probability `decide`; one reply in ten is cut short, one in ten
    invalid."""
    kind = dict(retries=int(random.integers(3)), truncated=bool(random.random() < 0.1))
    if random.random() < 0.1:
        return Turn(
            agent, "???", dict.fromkeys(channels_of(scenario.protocol, dialogue, agent), ""), invalid=True, **kind
        )
    if agent in scenario.protocol.verifiers and random.random() < decide:
        label = int(random.integers(2))
        confidence = float(random.uniform(0.5, 1) if label == ACCEPT else random.uniform(0, 0.5))
        return Turn(agent, scenario.verdict_text(label), {}, label, confidence, **kind)
    text = f"{agent} says {random.integers(4)}"
    return Turn(agent, text, scenario.parse(dialogue, agent, text).messages, **kind)


def play(scenario: TinyScenario, item: Item, seed: int, random: np.random.Generator, decide: float = 0.3) -> Dialogue:
    """A random dialogue, to its end."""
    dialogue = start_dialogue(item, seed)
    while not dialogue.ended:
        turns = [
            random_turn(scenario, dialogue, agent, random, decide) for agent in speakers(scenario.protocol, dialogue)
        ]
        dialogue = advance(scenario, dialogue, turns)
    return dialogue


def random_dialogues(
    scenario: TinyScenario, items: int, repeats: int = 1, seed: int = 0, decide: float = 0.3
) -> list[Dialogue]:
    """Each of `items` items `repeats` times; labels are random."""
    random = np.random.default_rng(seed)
    made = [Item(id=number, y=int(random.integers(2))) for number in range(items)]
    return [play(scenario, item, int(random.integers(2**16)), random, decide) for _ in range(repeats) for item in made]
