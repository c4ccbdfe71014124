"""What a dialogue between language agents is: immutable states, so that a tree of continuations can share its beginnings.

Imports nothing heavy. `nip_ray.play.dialogues` plays them; a scenario says what an agent is shown and how its reply is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nip_ray.protocols import CONTINUE
from nip_ray.protocols import Protocol as Rules

Message = dict[str, str]
"""One entry of a chat: "role" (system, user or assistant), "content", and "name" where the sender has one."""
Chat = list[Message]


@dataclass(frozen=True)
class Turn:
    """What one agent said in one round.

    agent: who. raw: the reply as it came, without reasoning. messages: channel -> what was written there (nothing after a decision).
    decision: a code of the protocol, reject 0, accept 1 and continue 2 where it has two verdicts. confidence: of a decision, the probability
    in [0, 1] that the verifier gives to acceptance (1 or 0 on the scale accept/reject; 1 with more than two verdicts), None where it
    continues. retries: replies that could not be used before this one. truncated: the reply
    reached its limit of tokens. invalid: no usable reply came; an empty message stands in its place. reasoning: what the model wrote for
    itself before its reply, which nobody is shown.
    """

    agent: str
    raw: str
    messages: Mapping[str, str]
    decision: int = CONTINUE
    confidence: float | None = None
    retries: int = 0
    truncated: bool = False
    invalid: bool = False
    reasoning: str = ""


@dataclass(frozen=True)
class Dialogue:
    """A dialogue so far. `rounds[r]` are the turns of round r, in the protocol's order of agents; R rounds have been played.

    item: what it is about; scenarios know its type, everyone else its `id` and `y`. seed: of the episode, in [0, 65536); a role that
    an agent chose is in it. rewards: for
    each round, agent -> what it was paid. verdict: of one that has ended, its code, `Protocol.undecided` without one. confidence: see
    `Turn`. ended: over, with a verdict or because the rounds ran out.
    """

    item: Any
    seed: int
    rounds: tuple[tuple[Turn, ...], ...] = ()
    rewards: tuple[Mapping[str, float], ...] = ()
    verdict: int = CONTINUE
    confidence: float | None = None
    ended: bool = False

    def total(self, agent: str) -> float:
        """The undiscounted sum of what `agent` was paid."""
        return sum(paid.get(agent, 0.0) for paid in self.rewards)


def beginning(dialogue: Dialogue, rounds: int) -> Dialogue:
    """The dialogue as it stood after its first `rounds` rounds, which were not its last."""
    return replace(
        dialogue,
        rounds=dialogue.rounds[:rounds],
        rewards=dialogue.rewards[:rounds],
        verdict=CONTINUE,
        confidence=None,
        ended=False,
    )


@dataclass(frozen=True)
class Parsed:
    """A reply, read: see `Turn` for the fields. decision: None where it continues, or the code for that."""

    messages: Mapping[str, str] = field(default_factory=dict)
    decision: int | None = None
    confidence: float | None = None


class InvalidReply(Exception):
    """A reply that cannot be read, with the reason; the agent is asked again."""


class Sided(Protocol):
    """A scenario that says who argues for what."""

    @property
    def protocol(self) -> Rules:
        """Who speaks when, and who is paid for what."""
        ...

    def stance(self, item: Any, agent: str, role: str | None = None) -> int | None:
        """The verdict, by its code, that `agent` argues for and is paid for, None for a verifier. role: that the episode draws, where the
        protocol draws one.
        """
        ...


class TextScenario(Sided, Protocol):
    """What the text core asks of a scenario. Pure functions of the dialogue: anything can be rebuilt from its record."""

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """All that `agent` is shown before its turn in the round about to be played."""
        ...

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """What `agent`'s reply in the round about to be played says. Raises InvalidReply."""
        ...


def stance_in(scenario: Sided, dialogue: Dialogue, agent: str) -> int | None:
    """The verdict that `agent` argues for in this dialogue; a scenario is told of roles under protocols that draw them alone."""
    role = scenario.protocol.role_of(dialogue.seed)
    return scenario.stance(dialogue.item, agent) if role is None else scenario.stance(dialogue.item, agent, role)
