"""What a dialogue between language agents is: immutable states, so that a tree of continuations can share its beginnings; the form of its
chats; a protocol's rules for it; and what is asked of a scenario.

`nip_ray.play.dialogues` plays them; a scenario says what an agent is shown and how its reply is read.
"""

import math
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from nip_ray.protocols import ACCEPT, CONTINUE, DECISIONS, NUM_DECISIONS, REJECT, Ends, Protocol, start, step
from nip_ray.protocols.batched_step import certainty, function_pays
from nip_ray.settings.language_agents import LanguageAgentSettings

Message = dict[str, str]
"""One entry of a chat: "role" (system, user or assistant), "content", and "name" where the sender has one."""
Chat = list[Message]


@dataclass(frozen=True)
class Turn:
    """What one agent said in one round.

    agent: who. raw: the reply as it came, without reasoning. messages: channel -> what was written there (nothing after a decision).
    decision: REJECT, ACCEPT or CONTINUE. confidence: of a decision, the probability in [0, 1] that the verifier gives to acceptance (1 or
    0 on the scale accept/reject), None where it continues. retries: replies that could not be used before this one. truncated: the reply
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
    each round, agent -> what it was paid. verdict: REJECT or ACCEPT once decided, else CONTINUE. confidence: see `Turn`. ended: over,
    with a verdict or because the rounds ran out.
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
    """A reply, read: see `Turn` for the fields."""

    messages: Mapping[str, str] = field(default_factory=dict)
    decision: int = CONTINUE
    confidence: float | None = None


class InvalidReply(Exception):
    """A reply that cannot be read, with the reason; the agent is asked again."""


class Sided(typing.Protocol):
    """A scenario that says who argues for what."""

    @property
    def protocol(self) -> Protocol:
        """Who speaks when, and who is paid for what."""
        ...

    def stance(self, item: Any, agent: str, role: str | None = None) -> int | None:
        """The verdict (REJECT or ACCEPT) that `agent` argues for and is paid for, None for a verifier. role: that the episode draws, where
        the protocol draws one.
        """
        ...


class TextScenario(Sided, typing.Protocol):
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


# ---------------------------------------------------------------------------------------------------------------------
# The form of chats: what providers and chat templates accept, and the reasoning that models write before a reply.
#
# - scenarios write a chat as it happened: the system prompt, replies, what others said, notices as system messages wherever they fall.
#   Templates of open-weight models refuse such chats (no user message, a system message that is not the first, two users in a row, no
#   system role at all), so every chat is shaped before it is sent, and in the same way before it is learned from;
# - shaping a chat up to one of the agent's replies gives the beginning of the shaped whole, so a model learns in the form in which it
#   is asked;
# - reasoning that stands in a reply is private to its agent: nobody is shown it and nothing is read from it.

Shape = Literal["openai", "alternating", "no_system"]
"""openai: one system message at most, and that first; a user message before each reply. alternating: besides, what stands between two
replies is one user message, and names of speakers stand in its text. no_system: besides, the system prompt begins the first user message.
"""
SHAPES: tuple[Shape, ...] = ("openai", "alternating", "no_system")
START, GO_ON = "Please begin.", "Please go on."
"""The user message before a reply where nobody has said anything: before the first one, and later."""

MARK = re.compile(r"(?:<|[\[◁](?=/?think[\]▷]))(/?)(?:think|thinking|thought|reasoning)[>\]▷]", re.IGNORECASE)
"""Of reasoning; "[Reasoning]" may be a heading. The group is a slash where it ends."""
OPENED = re.compile(r"(?:<(?:think|thinking|thought|reasoning)>|[\[◁]think[\]▷])(?=\s*\Z)", re.IGNORECASE)
"""A mark that begins reasoning, at the end of a text."""


def shape_chat(messages: "Chat", shape: Shape = "openai") -> "Chat":
    """`messages`, to which the assistant is about to reply, in this shape; see `Shape`. The last message is a user's."""
    shaped: Chat = []
    for message in messages:
        if message["role"] == "assistant":
            _before_reply(shaped)
        role = "user" if message["role"] == "system" and shaped else message["role"]
        shaped.append({**message, "role": role})
    _before_reply(shaped)
    if shape == "openai":
        return shaped
    merged: Chat = []
    for message in map(_with_name_in_text, shaped):
        if merged and _joins(merged[-1]["role"], message["role"], shape):
            merged[-1] = {"role": "user", "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def split_reasoning(reply: str) -> tuple[str, str]:
    """(reasoning, the rest of `reply`). Reasoning is what stands between marks such as <think> and </think>, in any case; before a
    closing mark without an opening one (templates may open it in the prompt); and behind an opening mark that is never closed.
    """
    reasoning, rest, inside, start = [], [], False, 0
    for mark in MARK.finditer(reply):
        piece, start = reply[start : mark.start()], mark.end()
        closes = bool(mark[1])
        if closes and not inside:  # all before it is reasoning
            reasoning, rest = [*reasoning, *rest, piece], []
        else:
            (reasoning if inside else rest).append(piece)
        inside = not closes
    (reasoning if inside else rest).append(reply[start:])
    if not reasoning:
        return "", reply
    return "\n".join(filter(None, (piece.strip() for piece in reasoning))), "".join(rest).strip()


def _before_reply(shaped: "Chat") -> None:
    """See that a user spoke last."""
    if not shaped or shaped[-1]["role"] != "user":
        shaped.append({"role": "user", "content": GO_ON if any(message["role"] == "assistant" for message in shaped) else START})


def _joins(before: str, role: str, shape: Shape) -> bool:
    return role == "user" and (before == "user" or (before == "system" and shape == "no_system"))


def _with_name_in_text(message: "Message") -> "Message":
    name = message.get("name")
    return {"role": message["role"], "content": f"{name}: {message['content']}" if name else message["content"]}


# ---------------------------------------------------------------------------------------------------------------------
# A protocol as language agents need it: who speaks in a round, and what a round pays and ends, as plain Python values.
#
# - payment and endings come from the one step function (`nip_ray.protocols.batched_step`), called once over every round, seed class, label
#   and decision; what it gives is remembered as plain floats, so that a round of a dialogue costs microseconds;
# - whom a decision pays is part of the key: an item may give a prover another stance than the protocol's goal;
# - a verdict with confidence c in (0, 1) pays c times what acceptance pays plus (1 - c) times what rejection pays: the expected payment
#   of a verdict drawn with that probability, for verifier and provers alike. Under another `Payment.scoring` the share is another for
#   those who are paid for being right. A payment function is given the confidence itself.

Stances = tuple[tuple[str, int], ...]
"""Pairs of a prover and the decision that it is paid for."""
_MOST_KEPT = 256


@dataclass(frozen=True)
class Outcome:
    """What a round paid and ended. rewards: agent -> amount. verdict: REJECT or ACCEPT where one counted, else CONTINUE.
    confidence: of the verdict, None without one. ended: with a verdict, or because the rounds ran out.
    """

    rewards: Mapping[str, float]
    verdict: int
    confidence: float | None
    ended: bool


class Rulebook:
    """The turns and payments of one protocol. Get it from `rulebook`, which makes it once."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._speakers = [[_speakers(protocol, table[r % len(table)]) for r in range(protocol.max_rounds)] for table in protocol.turns]
        self._outcomes: dict[Stances, list[Outcome]] = {}
        self._arguing: dict[Stances, Protocol] = {}

    def speakers(self, round: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Agent -> the channels that it writes to, for those with a turn in `round` (below max_rounds), in the protocol's order."""
        return self._speakers[seed % len(self._speakers)][round]

    def speaking(self, y: int, rounds: Sequence[Sequence[Turn]], seed: int) -> Mapping[str, tuple[str, ...]]:
        """`speakers` of the round after these, without members of a panel who have voted."""
        speakers = self.speakers(len(rounds), seed)
        if self.protocol.panel is None:
            return speakers
        voted = {agent for agent, grade in self.votes(y, rounds).items() if grade is not None}
        return {agent: channels for agent, channels in speakers.items() if agent not in voted}

    def rounds_of(self, agent: str, seed: int) -> list[int]:
        """The rounds in which `agent` has a turn under this episode seed."""
        return [r for r, speakers in enumerate(self._speakers[seed % len(self._speakers)]) if agent in speakers]

    def writes(self, agent: str) -> tuple[str, ...]:
        """The channels that `agent` ever writes to."""
        return tuple(self.protocol.channels[c] for c in self.protocol.writes[agent])

    def seed_after(self, round: int, seed: int, turns: Iterable[Turn]) -> int:
        """The episode seed after a round, which is another where an agent chose a role in it."""
        made = [turn.decision for turn in turns if turn.agent == self.protocol.chooser]
        return int(self.protocol.chosen(*torch.tensor([[round], [seed], made]))) if made else seed

    def votes(self, y: int, rounds: Sequence[Sequence[Turn]]) -> dict[str, float | None]:
        """Member of a panel -> the probability of acceptance that it voted with in these rounds, None where it has not; {} without a panel.

        The first that it gives from round ``min_rounds - 1`` on counts, or what `force_guess` puts in its place.
        """
        protocol, found = self.protocol, dict[str, float | None].fromkeys(self.protocol.verifiers if self.protocol.panel else ())
        forced = {"zero": 0.0, "one": 1.0, "y": float(y), None: None}[protocol.force_guess]
        for turn in (turn for turns in rounds[protocol.min_rounds - 1 :] for turn in turns if turn.agent in found):
            if found[turn.agent] is None:
                found[turn.agent] = turn.confidence if forced is None else forced
        return found

    def settle_votes(
        self, round: int, seed: int, y: int, before: Mapping[str, float | None], now: Mapping[str, float | None], stances: Stances
    ) -> Outcome:
        """The outcome of `round` where a panel decides. before, now: the `votes` before the round and after it."""
        if stances not in self._arguing:
            self._arguing[stances] = replace(self.protocol, payment=self.protocol.payment.arguing(dict(stances)))
        protocol = self._arguing[stances]
        grades = [[torch.nan if votes[agent] is None else votes[agent] for agent in protocol.verifiers] for votes in (before, now)]
        before_1M, now_1M = torch.tensor(grades, dtype=torch.float32)[:, None]
        decision_1A = torch.full((1, len(protocol.agents)), CONTINUE)
        decision_1A[:, protocol.verifier_indices] = torch.where(now_1M.isnan(), CONTINUE, ACCEPT)
        state = start(protocol, torch.tensor([y]), torch.tensor([seed]))
        state.agent_done_BA[:, protocol.verifier_indices] = ~before_1M.isnan()
        state = replace(state, round_B=torch.tensor([round]), grade_BM=before_1M)
        after, outcome = step(protocol, state, decision_1A, grade_BM=now_1M)
        ended = bool(after.ended_B)
        confidence = float(protocol.panel.confidence(after.grade_BM)) if protocol.panel is not None and ended else math.nan
        rewards = dict(zip(protocol.agents, outcome.reward_BA[0].tolist()))
        return Outcome(rewards, int(outcome.decision_B), None if math.isnan(confidence) else confidence, ended)

    def outcome(self, round: int, seed: int, y: int, decision: int, stances: Stances) -> Outcome:
        """What the step function says of `round` for label `y` when the verifier's decision is `decision`, by the tables alone."""
        if stances not in self._outcomes:
            self._outcomes[stances] = _all_outcomes(self.protocol, stances)
        seeds = self.protocol.seed_classes
        return self._outcomes[stances][((round * seeds + seed % seeds) * 2 + y) * NUM_DECISIONS + decision]

    def settle(self, round: int, seed: int, y: int, confidence: float | None, stances: Stances) -> Outcome:
        """The outcome of `round` where the verifier gave acceptance this probability (None: it did not decide)."""
        outcome = self._by_tables(round, seed, y, confidence, stances)
        if self.protocol.payment.function is None or not outcome.ended:
            return outcome
        given = certainty(torch.tensor([outcome.verdict])) if outcome.confidence is None else torch.tensor([outcome.confidence])
        role_B = self.protocol.role_B(torch.tensor([seed]))
        ends = Ends(torch.tensor([y]), torch.tensor([outcome.verdict]), given, torch.tensor([round + 1]), role_B)
        more = function_pays(self.protocol, ends)[0].tolist()
        return replace(outcome, rewards={agent: paid + extra for (agent, paid), extra in zip(outcome.rewards.items(), more)})

    def _by_tables(self, round: int, seed: int, y: int, confidence: float | None, stances: Stances) -> Outcome:
        """`settle` without what the payment function pays."""
        if confidence is None:
            return self.outcome(round, seed, y, CONTINUE, stances)
        accept = self.outcome(round, seed, y, ACCEPT, stances)
        reject = self.outcome(round, seed, y, REJECT, stances)
        if accept.verdict == reject.verdict or confidence == 1:  # the decision does not count, or is forced
            return accept
        if confidence == 0:
            return reject
        payment = self.protocol.payment.of(self.protocol.role_of(seed))
        shares = {agent: payment.share(agent, y, confidence) for agent in accept.rewards}
        mixed = {agent: share * accept.rewards[agent] + (1 - share) * reject.rewards[agent] for agent, share in shares.items()}
        return Outcome(mixed, verdict_of(confidence), confidence, accept.ended)


def verdict_of(confidence: float) -> int:
    """ACCEPT above one half, REJECT below, and exactly at one half CONTINUE: neither side is favoured, the dialogue ends undecided."""
    return CONTINUE if confidence == 0.5 else ACCEPT if confidence > 0.5 else REJECT


def rulebook(protocol: Protocol) -> Rulebook:
    """The rulebook of `protocol`, made at the first call for this very object. It must have no zero knowledge; without a verifier it has
    no outcomes.
    """
    found = _RULEBOOKS.get(id(protocol))
    if found is None:
        if len(_RULEBOOKS) >= _MOST_KEPT:
            _RULEBOOKS.clear()
        found = _RULEBOOKS[id(protocol)] = Rulebook(protocol)
    return found


_RULEBOOKS: dict[int, Rulebook] = {}  # by id: a rulebook keeps its protocol alive, so no id here is ever used again


def _speakers(protocol: Protocol, turns: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    spoken = {agent: tuple(channel for channel in protocol.channels if (agent, channel) in turns) for agent in protocol.agents}
    return {agent: channels for agent, channels in spoken.items() if channels}


def _all_outcomes(protocol: Protocol, stances: Stances) -> list[Outcome]:
    """Outcomes over (round, seed class, label, decision), the last varying fastest."""
    paid = replace(protocol, payment=replace(protocol.payment.arguing(dict(stances)), function=None))
    axes = (range(protocol.max_rounds), range(protocol.seed_classes), (0, 1), range(NUM_DECISIONS))
    round_B, seed_B, y_B, decision_B = torch.cartesian_prod(*(torch.tensor(list(axis)) for axis in axes)).T
    state = replace(start(paid, y_B, seed_B), round_B=round_B)
    after, outcome = step(paid, state, decision_B[:, None].expand(-1, len(paid.agents)))
    rows = zip(outcome.reward_BA.tolist(), outcome.decision_B.tolist(), after.ended_B.tolist())
    return [
        Outcome(dict(zip(paid.agents, rewards)), verdict, None if verdict == CONTINUE else float(verdict), ended)
        for rewards, verdict, ended in rows
    ]


# ---------------------------------------------------------------------------------------------------------------------
# What the text room asks of a scenario that language models play: what `TextScenario` has, and what asking models and learning need.

Probabilities = Callable[[str, Sequence[Chat], Sequence[str]], Sequence[Sequence[float]]]
"""(agent, chats, replies) -> for each chat, the probability that the agent replies with each of these texts and nothing else."""


@dataclass(frozen=True, eq=False)
class LanguageScenario(ABC):
    """A task of language agents. It can be pickled; its methods are pure functions of the dialogue, so all can be rebuilt from records.

    protocol: who speaks when. settings: a settings dataclass with `agents` (agent -> `LanguageAgentSettings`).
    """

    protocol: Protocol
    settings: Any

    @abstractmethod
    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """All that `agent` is shown before its turn in the round about to be played. Its own invalid replies are not in it."""

    @abstractmethod
    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """What `agent`'s reply in the round about to be played says. Raises InvalidReply."""

    @abstractmethod
    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A random reply of the right form in the round about to be played. It depends on the arguments alone."""

    def stance(self, item: Any, agent: str, role: str | None = None) -> int | None:
        """The verdict (REJECT or ACCEPT) that `agent` argues for and is paid for; None for a verifier, and where nothing is paid. role:
        that the episode draws, given under protocols that draw one.
        """
        return self.protocol.payment.of(role).goals.get(agent)

    def verdict_text(self, label: int) -> str:
        """The reply that decides for `label` (REJECT or ACCEPT) with full confidence, as `parse` reads it."""
        return DECISIONS[label]

    def reply_schema(self, agent: str) -> dict[str, Any] | None:
        """The JSON schema of `agent`'s replies, None for one that replies in text."""
        return None

    def judge(self, dialogue: Dialogue, turns: tuple[Turn, ...]) -> tuple[Mapping[str, float], bool]:
        """In a game without a verifier: what these turns of the dialogue's next round pay each agent, and whether the game is over."""
        raise NotImplementedError(f"{type(self).__name__} cannot judge a game without a verifier")

    def exact_figures(self, items: Sequence[Any], probabilities: Probabilities) -> dict[str, float]:
        """Figures that are computed instead of sampled, over these items, where the game is small enough."""
        return {}

    @property
    def words(self) -> tuple[str, ...]:
        """Every word of all chats and replies, between spaces, for models whose tokens are words (`model: words`); () for no such list."""
        return ()

    def warm_example(self, item: Any, agent: str, seed: int) -> tuple[Chat, str] | None:
        """What `agent` may be shown in a dialogue about `item`, and a reply that is worth imitating before any learning from rewards; None
        where the scenario knows of none. It depends on the arguments alone."""
        return None

    def agent_settings(self, agent: str) -> LanguageAgentSettings:
        """The settings of `agent`: its own, those of `_default`, or the built-in ones."""
        agents = self.settings.agents
        return agents.get(agent) or agents.get("_default") or LanguageAgentSettings()

    def max_invalid_replies(self, agent: str) -> int:
        """See `LanguageAgentSettings`."""
        return self.agent_settings(agent).max_invalid_replies

    def training_chat(self, dialogue: Dialogue, agent: str, round: int) -> tuple[Chat, str]:
        """What `agent` saw before its turn in `round`, and what it replied. Raises ValueError where it had no turn, or no usable reply."""
        turn = next((turn for turn in dialogue.rounds[round] if turn.agent == agent), None)
        if turn is None or turn.invalid:
            raise ValueError(f"{agent!r} has no usable reply in round {round} of this dialogue; ask `usable_rounds` first")
        return self.chat(beginning(dialogue, round), agent), turn.raw

    def usable_rounds(self, dialogue: Dialogue, agent: str) -> list[int]:
        """The rounds that `training_chat` can be asked for."""
        return [r for r, turns in enumerate(dialogue.rounds) if any(turn.agent == agent and not turn.invalid for turn in turns)]
