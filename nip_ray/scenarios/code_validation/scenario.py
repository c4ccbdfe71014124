"""Code validation for language agents: their roles in chats, their messages, how replies are parsed, and their stances.

Decisions that matter here:
- an agent's chat is a pure function of the dialogue: system prompt, then round after round its own replies unchanged
  and others' messages in the channels that it sees. Nothing is cut: a round without messages does not end it;
- speakers of one round do not see each other's messages of it, since a chat contains only earlier rounds;
- a turn without a message (no usable reply, or a decision too early to count) appears as `EMPTY` to its readers; an
  agent's own unusable replies are not shown to it, so that no training set contains them;
- the verifier gets a notice of its last turn at the start of the last round in which it speaks, even if others have the
  last round.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase
from typing import Any

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, LanguageScenario, Message, Parsed, Turn
from nip_ray.play.dialogues import Rulebook, rulebook
from nip_ray.protocols import DECISIONS, Protocol
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.parse import (
    MARK,
    SCALES,
    SIDE,
    Scale,
    field_names,
    read_json_reply,
    read_reply,
    read_side,
    reply_schema,
    write_reply,
)
from nip_ray.scenarios.code_validation.prompts import (
    Prompts,
    check_prompts,
    load_prompts,
    prompt_variables,
    template_name,
)
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import CodeValidationSettings

EMPTY = "(empty message)"
"""Replaces a missing message."""
NUM_LETTERS = 20
"""Length of each invented message."""
_MOST_PROMPTS = 4096  # cached system prompts, of some kilobytes each


# ----------------------------------------------------------------------------------------------------------------------
# Roles in chats: names, headers of questions, the order of reading, and the notice before the last turn.
# - the built-in protocols have their roles as data (`ROLES`); a custom protocol gets roles by rule (`roles_of`), so it
#   needs only templates;
# - a prover's stance is not here: it is in the protocol's payment (`Protocol.payment.goals`), or the item's own.


@dataclass(frozen=True)
class Role:
    """One agent in the chats of the others.

    name: in prompts and in the "name" field of chat messages, of [a-zA-Z0-9_-]. headers: channel -> the first words of
    its message there; needed if it writes to several channels in one round. reads: the channels that it sees, in the
    order of display. shuffled: that order is drawn again for each round. anonymous: its messages carry no name.
    last_notice: it gets a notice before its last turn.
    """

    name: str
    headers: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ("main",)
    shuffled: bool = False
    anonymous: bool = False
    last_notice: bool = False


_FIRST, _SECOND = "prover0_channel", "prover1_channel"
_ASKS_BOTH = Role(
    "Verifier",
    {_FIRST: "Question for Expert_1:", _SECOND: "Question for Expert_2:"},
    reads=(_FIRST, _SECOND),
    shuffled=True,
    last_notice=True,
)

_UNNAMED = {"prover0": Role("Expert_1", anonymous=True), "prover1": Role("Expert_2", anonymous=True)}
_ASKS_ONE = Role("Verifier", {"main": "Question for Expert:"}, last_notice=True)

_DEBATE = {
    "verifier": _ASKS_BOTH,
    "prover0": Role("Expert_1", reads=(_SECOND, _FIRST)),  # the other's channel first, so that its own ends the round
    "prover1": Role("Expert_2", reads=(_FIRST, _SECOND)),
}

ROLES: dict[str, dict[str, Role]] = {
    "nip": {"verifier": _ASKS_ONE, "prover": Role("Expert")},
    "adp": {"verifier": Role("Verifier"), "prover": Role("Expert")},
    "debate": _DEBATE,
    "open_debate": _DEBATE,
    "critique": {"verifier": Role("Judge"), "proposer": Role("Proposer"), "critic": Role("Critic")},
    "helpful_sneaky": {"verifier": Role("Verifier"), "prover": Role("Expert")},
    "merlin_arthur": {"verifier": Role("Verifier"), **_UNNAMED},
    "consultancy": {"verifier": _ASKS_ONE, **_UNNAMED},
    "open_consultancy": {"verifier": _ASKS_ONE, "prover": Role("Expert")},
    "mnip": {
        "verifier": _ASKS_BOTH,
        "prover0": Role("Expert_1", reads=(_FIRST,)),
        "prover1": Role("Expert_2", reads=(_SECOND,)),
    },
    "solo_verifier": {"verifier": Role("Verifier")},
}
"""Protocol -> agent -> role, for the built-in protocols."""

LAST_NOTICE = (
    "This is your last turn. You cannot ask anything more: state your decision now, in the required form and with"
    " nothing else."
)


def roles_of(protocol: Protocol) -> dict[str, Role]:
    """Agent -> role. In a protocol that is not in `ROLES`: "prover" is Expert, "prover0" Expert_1 and so on, others
    keep their own names; a header names the other readers of the channel; channels are read in the protocol's order;
    the verifier gets a notice of its last turn if it has several."""
    shipped = ROLES.get(protocol.name, {})
    if set(shipped) == set(protocol.agents):
        return shipped
    names = {agent: generic_name(agent) for agent in protocol.agents}
    if len(set(names.values())) < len(names):  # two names that differ in forbidden characters alone
        names = {agent: f"{name[:58]}_{index}" for index, (agent, name) in enumerate(names.items())}
    return {agent: _generic_role(protocol, agent, names) for agent in protocol.agents}


def generic_name(agent: str) -> str:
    """An agent's name in chats: of [a-zA-Z0-9_-], at most 64 characters."""
    numbered = re.fullmatch(r"prover([0-9]{0,9})", agent)
    if numbered:
        return f"Expert_{int(numbered[1]) + 1}" if numbered[1] else "Expert"
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", agent)[:64]
    return name[:1].upper() + name[1:]


def _generic_role(protocol: Protocol, agent: str, names: Mapping[str, str]) -> Role:
    channels = tuple(channel for channel in protocol.channels if channel in protocol.sees[agent])
    headers = {}
    for channel in channels:
        readers = [names[other] for other in protocol.agents if other != agent and channel in protocol.sees[other]]
        headers[channel] = f"To {readers[0]}:" if len(readers) == 1 else f"In {channel}:"
    if len(set(headers.values())) < len(headers):  # several channels with the same only reader
        headers = {channel: f"In {channel}:" for channel in channels}
    last_notice = agent in protocol.verifiers and protocol.verifier_turns > 1
    return Role(names[agent], headers, reads=channels, last_notice=last_notice)


# ----------------------------------------------------------------------------------------------------------------------
# The scenario.


@dataclass(frozen=True, eq=False)
class CodeValidation(LanguageScenario):
    """The scenario, made by `build_text_scenario`.

    roles: by agent. prompts: the templates. scale: of the verifier's decisions.
    """

    settings: CodeValidationSettings
    roles: Mapping[str, Role]
    prompts: Prompts
    scale: Scale
    _rendered: dict[tuple[str, CodeItem, str | None], str] = field(default_factory=dict, repr=False)

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """All messages for `agent` before its turn in the next round."""
        role, rules = self.roles[agent], rulebook(self.protocol)
        own_rounds = rules.rounds_of(agent, dialogue.seed)
        notice = own_rounds[-1] if role.last_notice and own_rounds else -1
        drawn = None if self.protocol.told_of(agent) == (None,) else self.protocol.role_of(dialogue.seed)
        chat = [{"role": "system", "content": self.system_prompt(dialogue.item, agent, drawn)}]
        for r in range(len(dialogue.rounds) + 1):
            if r == notice:
                chat.append({"role": "system", "content": LAST_NOTICE})
            if r < len(dialogue.rounds):
                chat += self._shown(dialogue, agent, r, rules)
        return chat

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """Parse `agent`'s next reply. Raises InvalidReply; see `nip_ray.scenarios.code_validation.parse`."""
        channels = rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent]
        if self._chooses(dialogue, agent):
            return Parsed(read_reply(reply, channels, self.roles[agent].headers, None).messages, read_side(reply))
        fields = self.reply_fields(agent)
        if fields:
            return read_json_reply(reply, channels, fields, self.roles[agent].headers, self.scale)
        scale = self.scale if agent in self.protocol.verifiers else None
        return read_reply(reply, channels, self.roles[agent].headers, scale)

    def reply_fields(self, agent: str) -> dict[str, str]:
        """Channel -> the field of its message in `agent`'s replies, for one that replies in JSON; {} for all others."""
        if self.settings.decision_format == "text" or agent not in self.protocol.verifiers:
            return {}
        return field_names(rulebook(self.protocol).writes(agent), self.roles[agent].headers)

    def reply_schema(self, agent: str) -> dict[str, Any] | None:
        """The JSON schema of `agent`'s replies, None for one that replies in text."""
        fields = self.reply_fields(agent)
        return reply_schema(fields, self.scale) if fields else None

    def stance(self, item: CodeItem, agent: str, role: str | None = None) -> int | None:
        """The verdict that `agent` argues for and is paid for; None for a verifier, for an unpaid prover, and if a
        drawn role decides and is not given."""
        goal = self.protocol.payment.of(role).goals.get(agent)
        return item.prover_stance if goal is not None and self.settings.randomize_prover_stance else goal

    def system_prompt(self, item: CodeItem, agent: str, role: str | None = None) -> str:
        """The system prompt of `agent` in a dialogue about `item`. role: of the episode, None for an agent that does
        not know it."""
        key = (agent, item, role)  # not the id alone: those of two splits may be equal
        found = self._rendered.get(key)
        if found is None:
            found = self.prompts.render(
                template_name(self.protocol.name, agent), prompt_variables(self, item, agent, role)
            )
            if len(self._rendered) >= _MOST_PROMPTS:
                self._rendered.clear()
            self._rendered[key] = found
        return found

    def verdict_text(self, label: int) -> str:
        """The reply that decides for `label` (REJECT or ACCEPT) with full confidence."""
        fields = self.reply_fields(self.protocol.viewpoint)
        return write_reply(fields, {}, self.scale, float(label)) if fields else self.scale.decision(float(label))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Random letters; a verifier rejects, accepts or, three times in five, asks, as in the published dummy API."""
        r = len(dialogue.rounds)
        random = Random(stable_seed(seed, "dummy reply", dialogue.item.id, dialogue.seed, r, agent))
        fields = self.reply_fields(agent)
        if self._chooses(dialogue, agent):
            return f"{SIDE} {random.choice(DECISIONS[:2])}\n{_letters(random)}"
        if agent in self.protocol.verifiers and random.randrange(5) < 2:
            stated = random.choice(list(self.scale.confidences))
            return write_reply(fields, {}, self.scale, self.scale.confidences[stated]) if fields else f"{MARK} {stated}"
        channels = rulebook(self.protocol).speakers(r, dialogue.seed)[agent]
        if fields:
            return write_reply(fields, {channel: _letters(random) for channel in channels}, self.scale)
        headers = self.roles[agent].headers
        return "\n".join(f"{headers.get(channel, 'Answer:')} {_letters(random)}" for channel in channels)

    def _chooses(self, dialogue: Dialogue, agent: str) -> bool:
        """True if `agent` chooses its side in the next round."""
        return agent == self.protocol.chooser and len(dialogue.rounds) == self.protocol.choice_round

    def _shown(self, dialogue: Dialogue, agent: str, r: int, rules: Rulebook) -> Chat:
        """Part of round `r` in the chat of `agent`: its own reply, then the messages it read, channel by channel."""
        turns, speakers = dialogue.rounds[r], rules.speakers(r, dialogue.seed)
        shown: Chat = [
            {"role": "assistant", "content": turn.raw} for turn in turns if turn.agent == agent and not turn.invalid
        ]
        others = [turn for turn in turns if turn.agent != agent]
        for channel in self._reading_order(dialogue, agent, r):
            shown += [self._heard(turn, channel) for turn in others if channel in speakers[turn.agent]]
        return shown

    def _reading_order(self, dialogue: Dialogue, agent: str, r: int) -> tuple[str, ...]:
        role = self.roles[agent]
        if not (role.shuffled and self.settings.randomize_channel_order) or len(role.reads) == 1:
            return role.reads
        return tuple(sorted(role.reads, key=lambda channel: stable_seed(dialogue.seed, "channel order", r, channel)))

    def _heard(self, turn: Turn, channel: str) -> Message:
        speaker = self.roles[turn.agent]
        message = {"role": "user", "content": turn.messages.get(channel) or EMPTY}
        return message if speaker.anonymous else {**message, "name": speaker.name}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rendered": {}}


def _letters(random: Random) -> str:
    return "".join(random.choice(ascii_lowercase) for _ in range(NUM_LETTERS))


def build_text_scenario(protocol: Protocol, settings: CodeValidationSettings) -> CodeValidation:
    """The scenario of `settings` under `protocol`, with its prompts checked.

    Raises UserError for a protocol that language agents cannot play, that has no templates, or whose provers have no
    random stance; for settings of unknown agents; and for any fault of a template.
    """
    if protocol.verifier is None:
        raise UserError(
            f"protocol.name: {protocol.name!r} is a game without a verifier; code_validation needs a proof, such as nip"
        )
    if protocol.zero_knowledge is not None:
        raise UserError("protocol.zero_knowledge: not available for language agents; set it to false")
    untold = sorted({agent for stakes in protocol.payment.by_role.values() for agent in stakes} - set(protocol.told))
    if untold:
        raise UserError(
            f"protocol.payoff.{untold[0]}.by_role: its prompt cannot say what it is paid, {protocol.name!r} tells it no"
            " role"
        )
    if settings.randomize_prover_stance and protocol.fixed_stances:
        raise UserError(
            f"scenario.randomize_prover_stance: {protocol.name!r} fixes who argues for what; set it to false"
        )
    for agent in settings.agents:
        if agent not in (*protocol.agents, "_default"):
            known = ", ".join((*protocol.agents, "_default"))
            raise UserError(f"scenario.agents.{agent}: {protocol.name!r} has no such agent, expected one of {known}")
    if settings.verdict_scale not in SCALES:
        raise UserError(
            f"scenario.verdict_scale: unknown scale {settings.verdict_scale!r}, expected one of {', '.join(SCALES)}"
        )
    prompts = load_prompts(settings.prompt_version, settings.prompts, protocol)
    made = CodeValidation(protocol, settings, roles_of(protocol), prompts, SCALES[settings.verdict_scale])
    check_prompts(made)
    return made
