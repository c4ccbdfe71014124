"""Dialogues of language agents: immutable states, so that a tree of continuations can share prefixes; the form of
chats; the interface of a scenario; and records.

Imports nothing heavy: the actors that keep budgets load it. `nip_ray.play.dialogues` plays dialogues; a scenario makes
an agent's chats and parses its replies.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from nip_ray.errors import UserError
from nip_ray.play.fences import Message, fence_chat, fence_code
from nip_ray.protocols import CONTINUE, NUM_SEEDS, Protocol
from nip_ray.settings.language_agents import LanguageAgentSettings

Chat = list[Message]


@dataclass(frozen=True)
class Turn:
    """An agent's turn in one round.

    agent: its name. raw: the reply as received, without reasoning. messages: channel -> its message (none after a
    decision). decision: a code of the protocol: reject 0, accept 1, continue 2 where it has two verdicts. confidence:
    of a decision, the verifier's probability of acceptance in [0, 1] (1 or 0 on the scale accept/reject; 1 with more
    than two verdicts), None where it continues. retries: unusable replies before this one. truncated: the reply reached
    its limit of tokens. invalid: no usable reply; an empty message takes its place. reasoning: the model's private text
    before its reply, which no agent reads.
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
    """A dialogue so far. `rounds[r]` are the turns of round r, in the protocol's order of agents; R rounds are played.

    item: its subject; scenarios know its type, all other code its `id` and `y`. seed: of the episode, in [0, 65536); a
    role that an agent chose is in it. rewards: for each round, agent -> reward. verdict: of a finished dialogue, its
    code, `Protocol.undecided` without one. confidence: see `Turn`. ended: with a verdict or because the rounds ran out.
    """

    item: Any
    seed: int
    rounds: tuple[tuple[Turn, ...], ...] = ()
    rewards: tuple[Mapping[str, float], ...] = ()
    verdict: int = CONTINUE
    confidence: float | None = None
    ended: bool = False

    def total(self, agent: str) -> float:
        """The undiscounted sum of `agent`'s rewards."""
        return sum(paid.get(agent, 0.0) for paid in self.rewards)


def beginning(dialogue: Dialogue, rounds: int) -> Dialogue:
    """The dialogue after its first `rounds` rounds, which were not its last."""
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
    """A parsed reply; see `Turn` for the fields. decision: None where it continues, or the code for that."""

    messages: Mapping[str, str] = field(default_factory=dict)
    decision: int | None = None
    confidence: float | None = None


class InvalidReply(Exception):
    """An unreadable reply, with the reason; the agent is queried again."""


# The form of chats: what providers and chat templates accept, and reasoning before a reply.
# - scenarios write a chat as it happened: the system prompt, replies, others' messages, notices as system messages in
#   their places. Templates of open-weight models refuse such chats (no user message, a system message that is not the
#   first, two users in a row, no system role at all), so every chat is shaped in the same way before it is sent and
#   before it is learned from;
# - shaping a chat up to one of the agent's replies gives a prefix of the shaped whole, so training and inference have
#   the same form;
# - reasoning in a reply is private to its agent: no agent reads it and it is not parsed.

Shape = Literal["openai", "alternating", "no_system"]
"""openai: at most one system message, first; a user message before each reply. alternating: also one user message
between two replies, with names of speakers in its text. no_system: also the system prompt begins the first user
message. In fenced chats (`LanguageScenario.fenced_chat`) names are in the text in all shapes."""
SHAPES: tuple[Shape, ...] = ("openai", "alternating", "no_system")
START, GO_ON = "Please begin.", "Please go on."
"""The user message before a reply if there is no message: before the first one, and later."""

_NAMES = r"(?:\w{1,9}:)?(?:think|thinking|thoughts?|reasoning|reason|scratchpad)"
MARK = re.compile(rf"(?:<|[\[◁](?=/?think[\]▷]))(/?){_NAMES}(?:\s*>|[\]▷])", re.IGNORECASE)
"""Marks of reasoning; "[Reasoning]" may be a heading. The group is a slash at the end mark."""
OPENED = re.compile(rf"(?:<{_NAMES}>|[\[◁]think[\]▷])(?=\s*\Z)", re.IGNORECASE)
"""A mark that begins reasoning, at the end of a text."""
_OTHER_MARKS = (
    (re.compile(r"<\|begin_of_thought\|>"), "<think>"),
    (re.compile(r"<\|end_of_thought\|>"), "</think>"),
    (re.compile(r"<\|(?:begin|end)_of_solution\|>"), ""),
    # Harmony: channels before the final one are reasoning; without its special tokens, names of channels run into the
    # text, also of a reply cut before its final one. No other text has a letter or digit directly after "analysis".
    (
        re.compile(
            r"\A\s*(?:assistant)?analysis(?=[^\W_])|\A\s*(?:assistant)?analysis(?=\S)(?=.*assistantfinal)", re.DOTALL
        ),
        "<think>",
    ),
    (re.compile(r"(?<=<think>)(.*)assistantfinal", re.DOTALL), r"\1</think>"),
    (re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>\s*final\b[^<]*<\|message\|>"), "</think>"),
    (re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>[^<]*<\|message\|>"), "<think>"),
    (re.compile(r"<\|(?:end|return|call)\|>"), ""),
)
_OTHER = re.compile(
    r"<\|(?:channel|begin_of_thought)\|>|\A\s*(?:assistant)?analysis(?:[^\W_]|\S.*assistantfinal)", re.DOTALL
)
"""Other marks, which are replaced by those of `MARK`."""


def shape_chat(messages: "Chat", shape: Shape = "openai") -> "Chat":
    """`messages` before the assistant's reply, in this shape; see `Shape`. The last message is a user's."""
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
        before = merged[-1]["role"] if merged else ""
        if message["role"] == "user" and (before == "user" or (before == "system" and shape == "no_system")):
            merged[-1] = {"role": "user", "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def split_reasoning(reply: str) -> tuple[str, str]:
    """(reasoning, the rest of `reply`). Reasoning is the text between marks such as <think> and </think>, in any case;
    before a closing mark without an opening one (templates may open it in the prompt); and after an opening mark that
    is not closed. Channels of the Harmony form except the final one are reasoning too."""
    if _OTHER.search(reply):
        for pattern, mark in _OTHER_MARKS:
            reply = pattern.sub(mark, reply)
    reasoning, rest, inside, start = [], [], False, 0
    for mark in MARK.finditer(reply):
        piece, start = reply[start : mark.start()], mark.end()
        closes = bool(mark[1])
        if closes and not inside:  # all text before it is reasoning
            reasoning, rest = [*reasoning, *rest, piece], []
        else:
            (reasoning if inside else rest).append(piece)
        inside = not closes
    (reasoning if inside else rest).append(reply[start:])
    if not reasoning:
        return "", reply
    return "\n".join(filter(None, (piece.strip() for piece in reasoning))), "".join(rest).strip()


def _before_reply(shaped: "Chat") -> None:
    """Ensure that the last message is a user's."""
    if not shaped or shaped[-1]["role"] != "user":
        shaped.append(
            {"role": "user", "content": GO_ON if any(message["role"] == "assistant" for message in shaped) else START}
        )


def _with_name_in_text(message: "Message") -> "Message":
    name = message.get("name")
    return {"role": message["role"], "content": f"{name}: {message['content']}" if name else message["content"]}


# The interface of a scenario for language models.

Probabilities = Callable[[str, Sequence[Chat], Sequence[str]], Sequence[Sequence[float]]]
"""(agent, chats, replies) -> for each chat, the probability that the agent replies with exactly each of these texts."""


@dataclass(frozen=True, eq=False)
class LanguageScenario(ABC):
    """A task of language agents. It can be pickled; its methods are pure functions of the dialogue, so all can be
    rebuilt from records.

    protocol: the protocol. settings: a settings dataclass with `agents` (agent -> `LanguageAgentSettings`).
    """

    protocol: Protocol
    settings: Any

    @abstractmethod
    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The messages shown to `agent` before its turn in the next round, as they happened: others' messages as user
        messages with names, notices as system messages; `fenced_chat` turns them into text. Without its own invalid
        replies."""

    @abstractmethod
    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """The content of `agent`'s reply in the next round. Raises InvalidReply."""

    @abstractmethod
    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A random reply of the right form in the round about to be played. It depends on the arguments alone."""

    def stance(self, item: Any, agent: str, role: str | None = None) -> int | None:
        """The verdict, by its code, that `agent` argues for and is paid for; None for a verifier, and where nothing is
        paid. role: that the episode draws, given under protocols that draw one."""
        return self.protocol.payment.of(role).goals.get(agent)

    def verdict_text(self, label: int) -> str:
        """The reply that decides for `label` with full confidence, as `parse` reads it."""
        return self.protocol.verdicts[label]

    def reply_schema(self, agent: str) -> dict[str, Any] | None:
        """The JSON schema of `agent`'s replies, None for one that replies in text."""
        return None

    def judge(self, dialogue: Dialogue, turns: tuple[Turn, ...]) -> tuple[Mapping[str, float], bool]:
        """In a game without a verifier: what these turns of the dialogue's next round pay each agent, and whether the
        game is over."""
        raise NotImplementedError(f"{type(self).__name__} cannot judge a game without a verifier")

    def estimate_error(self, dialogue: Dialogue) -> float:
        """The error of the estimates in a whole dialogue, where the protocol pays for it (`Payment.per_error`)."""
        raise NotImplementedError(f"{type(self).__name__} measures no estimates")

    def exact_figures(self, items: Sequence[Any], probabilities: Probabilities) -> dict[str, float]:
        """Figures that are computed instead of sampled, over these items, where the game is small enough."""
        return {}

    @property
    def words(self) -> tuple[str, ...]:
        """Every word of all chats and replies, between spaces, for models whose tokens are words (`model: words`); ()
        if unknown."""
        return ()

    @cached_property
    def fences(self) -> bool:
        """True if others' messages are fenced (`nip_ray.play.fences`): not if they use a closed list of words."""
        return not self.words

    def fenced_chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """`chat`, as it is sent and learned from: no agent's message can pass for another's or for a notice."""
        chat, protocol = self.chat(dialogue, agent), self.protocol
        if not self.fences or not _hears(protocol.turns, protocol.max_rounds, agent, protocol.sees[agent]):
            return chat
        seed = dialogue.seed
        if protocol.chooser is not None:  # a choice changes the role in the seed: this part stays (`Protocol.chosen`)
            seed = min(seed // len(protocol.verdicts), NUM_SEEDS // len(protocol.verdicts) - 1)
        codes = {reader: fence_code(seed, dialogue.item.id, reader) for reader in protocol.agents}
        return fence_chat(chat, codes[agent], codes.values())

    def warm_example(self, item: Any, agent: str, seed: int) -> tuple[Chat, str] | None:
        """A chat of `agent` in a dialogue about `item`, as `fenced_chat` gives it, and a reply worth imitating before
        any learning from rewards; None if the scenario has none. A function of the arguments."""
        return None

    def agent_settings(self, agent: str) -> LanguageAgentSettings:
        """The settings of `agent`: its own, those of `_default`, or the built-in ones."""
        agents = self.settings.agents
        return agents.get(agent) or agents.get("_default") or LanguageAgentSettings()

    def max_invalid_replies(self, agent: str) -> int:
        """See `LanguageAgentSettings`."""
        return self.agent_settings(agent).max_invalid_replies

    def training_chat(self, dialogue: Dialogue, agent: str, round: int) -> tuple[Chat, str]:
        """The chat of `agent` before its turn in `round`, and its reply. Raises ValueError if either is missing."""
        turn = next((turn for turn in dialogue.rounds[round] if turn.agent == agent), None)
        if turn is None or turn.invalid:
            raise ValueError(
                f"{agent!r} has no usable reply in round {round} of this dialogue; ask `usable_rounds` first"
            )
        return self.fenced_chat(beginning(dialogue, round), agent), turn.raw

    def usable_rounds(self, dialogue: Dialogue, agent: str) -> list[int]:
        """The rounds that `training_chat` accepts."""
        return [
            r
            for r, turns in enumerate(dialogue.rounds)
            if any(turn.agent == agent and not turn.invalid for turn in turns)
        ]


@lru_cache(maxsize=256)
def _hears(
    orders: tuple[tuple[tuple[tuple[str, str], ...], ...], ...], max_rounds: int, agent: str, sees: tuple[str, ...]
) -> bool:
    """Return True if another agent can write what `agent` sees before a turn of its own. orders: `Protocol.turns`."""
    for order in orders:
        rounds = [order[r % len(order)] for r in range(max_rounds)]
        last = max((r for r, turns in enumerate(rounds) if any(speaker == agent for speaker, _ in turns)), default=0)
        if any(speaker != agent and channel in sees for turns in rounds[:last] for speaker, channel in turns):
            return True
    return False


def stance_in(scenario: LanguageScenario, dialogue: Dialogue, agent: str) -> int | None:
    """The verdict that `agent` argues for in this dialogue; scenarios only see roles under protocols that draw them."""
    role = scenario.protocol.role_of(dialogue.seed)
    return scenario.stance(dialogue.item, agent) if role is None else scenario.stance(dialogue.item, agent, role)


# Dialogues as JSON: records, from which a dialogue can be rebuilt exactly.
# - a record holds the item's id and label, not its text, which is in the data set. Rebuilding checks both.

FORMAT, VERSION = "nip_ray.dialogue", 1


def dialogue_record(scenario: LanguageScenario, dialogue: Dialogue) -> dict[str, Any]:
    """`dialogue` without its item's text, in plain JSON values; see `dialogue_from_record`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "protocol": scenario.protocol.name,
        "item": dialogue.item.id,
        "y": dialogue.item.y,
        "seed": dialogue.seed,
        "rounds": [[_turn_record(turn) for turn in turns] for turns in dialogue.rounds],
        "rewards": [dict(paid) for paid in dialogue.rewards],
        "verdict": dialogue.verdict,
        "confidence": dialogue.confidence,
        "ended": dialogue.ended,
    } | ({} if scenario.protocol.two_verdicts else {"verdicts": scenario.protocol.undecided})


def dialogue_from_record(record: Mapping[str, Any], item: Any) -> Dialogue:
    """The dialogue about `item` from its `record`.

    Raises UserError when it is damaged, of another format, or about another item.
    """
    found = (record.get("format"), record.get("version"))
    if found != (FORMAT, VERSION):
        raise UserError(f"dialogue record: expected format {FORMAT!r} version {VERSION}, got {found[0]!r} {found[1]!r}")
    about = (record.get("item"), record.get("y"))
    if about != (item.id, item.y):
        raise UserError(
            f"dialogue record: it is about item {about[0]!r} with label {about[1]!r}, not item {item.id} with label"
            f" {item.y}; read it with the data set that it was made with"
        )
    try:
        most = _typed(record, "verdicts", int) if "verdicts" in record else CONTINUE
        return Dialogue(
            item=item,
            seed=_typed(record, "seed", int),
            rounds=tuple(tuple(_turn(turn, most) for turn in turns) for turns in record["rounds"]),
            rewards=tuple({str(agent): float(amount) for agent, amount in paid.items()} for paid in record["rewards"]),
            verdict=_code(record, "verdict", most),
            confidence=_optional_float(record, "confidence"),
            ended=_typed(record, "ended", bool),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"dialogue record of item {item.id}: damaged ({type(error).__name__}: {error}); leave it out"
        ) from None


def _turn_record(turn: Turn) -> dict[str, Any]:
    return {
        "agent": turn.agent,
        "raw": turn.raw,
        "messages": dict(turn.messages),
        "decision": turn.decision,
        "confidence": turn.confidence,
        "retries": turn.retries,
        "truncated": turn.truncated,
        "invalid": turn.invalid,
    } | ({"reasoning": turn.reasoning} if turn.reasoning else {})


def _turn(record: Mapping[str, Any], most: int) -> Turn:
    messages = {str(channel): _text(message, "messages") for channel, message in record["messages"].items()}
    return Turn(
        agent=_typed(record, "agent", str),
        raw=_typed(record, "raw", str),
        messages=messages,
        decision=_code(record, "decision", most),
        confidence=_optional_float(record, "confidence"),
        retries=_typed(record, "retries", int),
        truncated=_typed(record, "truncated", bool),
        invalid=_typed(record, "invalid", bool),
        reasoning=_text(record.get("reasoning", ""), "reasoning"),
    )


def _typed(record: Mapping[str, Any], key: str, kind: type) -> Any:
    value = record[key]
    if type(value) is not kind:
        raise TypeError(f"{key} must be {kind.__name__}, got {value!r:.60}")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} must hold text, got {value!r:.60}")
    return value


def _code(record: Mapping[str, Any], key: str, most: int) -> int:
    value = _typed(record, key, int)
    if not 0 <= value <= most:
        raise ValueError(f"{key} must be one of {', '.join(map(str, range(most + 1)))}, got {value}")
    return value


def _optional_float(record: Mapping[str, Any], key: str) -> float | None:
    return None if record[key] is None else float(record[key])
