"""Code validation as language agents play it: what each agent is shown, how its replies are read, and what it argues for.

Decisions that matter here:
- all that an agent is shown is a pure function of the dialogue: system prompt, then round after round its own replies as they came and what
  others wrote in the channels that it sees. Nothing is cut: a round in which an agent hears nothing is no end;
- those who speak in one round do not see each other's messages of it, since a chat is made of earlier rounds alone;
- a turn that wrote nothing (no usable reply, or a decision that came too early to count) is shown to those who would have read it
  as `EMPTY`; the agent's own unusable replies are not shown to it, so that no training set holds them;
- the verifier is told of its last turn at the start of the last round in which it speaks, even where others have the last round.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from random import Random
from string import ascii_lowercase
from typing import Any

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, LanguageScenario, Message, Parsed, Turn
from nip_ray.play.dialogues import Rulebook, rulebook
from nip_ray.protocols import ACCEPT, DECISIONS, REJECT, Protocol
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
from nip_ray.scenarios.code_validation.prompts import Prompts, check_templates, load_prompts, rewards_of, template_name
from nip_ray.scenarios.code_validation.roles import LAST_NOTICE, Role, roles_of
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import CodeValidationSettings

EMPTY = "(empty message)"
"""What is shown in place of a message that is missing."""
NUM_LETTERS = 20
"""Of each message that is made up."""
_MOST_PROMPTS = 4096  # rendered system prompts that are kept; some kilobytes each


@dataclass(frozen=True, eq=False)
class CodeValidation(LanguageScenario):
    """The scenario; `build_text_scenario` makes it.

    roles: by agent. prompts: the templates. scale: of the verifier's decisions.
    """

    settings: CodeValidationSettings
    roles: Mapping[str, Role]
    prompts: Prompts
    scale: Scale
    _rendered: dict[tuple[str, CodeItem, str | None], str] = field(default_factory=dict, repr=False)

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """All that `agent` is shown before its turn in the round about to be played."""
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
        """What `agent`'s reply in the round about to be played says. Raises InvalidReply; see `nip_ray.scenarios.code_validation.parse`."""
        channels = rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent]
        if self._chooses(dialogue, agent):
            return Parsed(read_reply(reply, channels, self.roles[agent].headers, None).messages, read_side(reply))
        fields = self.reply_fields(agent)
        if fields:
            return read_json_reply(reply, channels, fields, self.roles[agent].headers, self.scale)
        scale = self.scale if agent in self.protocol.verifiers else None
        return read_reply(reply, channels, self.roles[agent].headers, scale)

    def reply_fields(self, agent: str) -> dict[str, str]:
        """Channel -> the field of its message in `agent`'s replies, for one that replies in JSON; empty for all others."""
        if self.settings.decision_format == "text" or agent not in self.protocol.verifiers:
            return {}
        return field_names(rulebook(self.protocol).writes(agent), self.roles[agent].headers)

    def reply_schema(self, agent: str) -> dict[str, Any] | None:
        """The JSON schema of `agent`'s replies, None for one that replies in text."""
        fields = self.reply_fields(agent)
        return reply_schema(fields, self.scale) if fields else None

    def stance(self, item: CodeItem, agent: str, role: str | None = None) -> int | None:
        """The verdict that `agent` argues for and is paid for; None for a verifier, for a prover that nothing is paid to, and where a drawn
        role decides and is not given.
        """
        goal = self.protocol.payment.of(role).goals.get(agent)
        return item.prover_stance if goal is not None and self.settings.randomize_prover_stance else goal

    def system_prompt(self, item: CodeItem, agent: str, role: str | None = None) -> str:
        """What `agent` is told before a dialogue about `item`. role: that the episode draws, None for an agent that is told none."""
        key = (agent, item, role)  # not the id alone: those of two splits may be equal
        found = self._rendered.get(key)
        if found is None:
            found = self.prompts.render(template_name(self.protocol.name, agent), prompt_variables(self, item, agent, role))
            if len(self._rendered) >= _MOST_PROMPTS:
                self._rendered.clear()
            self._rendered[key] = found
        return found

    def verdict_text(self, label: int) -> str:
        """The reply that decides for `label` (REJECT or ACCEPT) with full confidence."""
        fields = self.reply_fields(self.protocol.viewpoint)
        return write_reply(fields, {}, self.scale, float(label)) if fields else self.scale.decision(float(label))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Random letters; a verifier rejects, accepts or, three times out of five, asks, as in the published dummy API."""
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
        """Whether `agent` is to choose its side in the round about to be played."""
        return agent == self.protocol.chooser and len(dialogue.rounds) == self.protocol.choice_round

    def _shown(self, dialogue: Dialogue, agent: str, r: int, rules: Rulebook) -> Chat:
        """What round `r` adds to the chat of `agent`: its own reply, then what it read, channel by channel."""
        turns, speakers = dialogue.rounds[r], rules.speakers(r, dialogue.seed)
        shown: Chat = [{"role": "assistant", "content": turn.raw} for turn in turns if turn.agent == agent and not turn.invalid]
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
    """The scenario that `settings` describe, under `protocol`, its prompts checked.

    Raises UserError for a protocol that language agents cannot play, that has no templates, or whose provers have no random stance;
    for settings of agents that do not play; and for whatever is wrong with a template.
    """
    if protocol.verifier is None:
        raise UserError(f"protocol.name: {protocol.name!r} is a game without a verifier; code_validation needs a proof, such as nip")
    if protocol.zero_knowledge is not None:
        raise UserError("protocol.zero_knowledge: not available for language agents; set it to false")
    untold = sorted({agent for stakes in protocol.payment.by_role.values() for agent in stakes} - set(protocol.told))
    if untold:
        raise UserError(f"protocol.payoff.{untold[0]}.by_role: its prompt cannot say what it is paid, {protocol.name!r} tells it no role")
    if settings.randomize_prover_stance and protocol.fixed_stances:
        raise UserError(f"scenario.randomize_prover_stance: {protocol.name!r} fixes who argues for what; set it to false")
    for agent in settings.agents:
        if agent not in (*protocol.agents, "_default"):
            known = ", ".join((*protocol.agents, "_default"))
            raise UserError(f"scenario.agents.{agent}: {protocol.name!r} has no such agent, expected one of {known}")
    if settings.verdict_scale not in SCALES:
        raise UserError(f"scenario.verdict_scale: unknown scale {settings.verdict_scale!r}, expected one of {', '.join(SCALES)}")
    prompts = load_prompts(settings.prompt_version, settings.prompts, protocol)
    made = CodeValidation(protocol, settings, roles_of(protocol), prompts, SCALES[settings.verdict_scale])
    check_prompts(made)
    return made


_RULES = {
    "majority": "The verdict is the vote of more than half of the judges.",
    "unanimous": "The solution is accepted if all judges accept it, and else rejected.",
    "veto": "The solution is rejected if a single judge rejects it, and else accepted.",
    "mean": "The verdict is the mean of how sure the judges are.",
}

SAMPLE = CodeItem(-1, "Read two integers and print their sum.", "a, b = map(int, input().split())\nprint(a + b)", 1, 1, "introductory")
"""The item that templates are tried on."""


def check_prompts(scenario: CodeValidation) -> None:
    """Look at every template that the protocol needs and render it for a sample item, with either stance and every role that is told.

    Raises UserError, with file and line, for what is wrong: no template, a syntax error, an unknown variable, an unknown template
    to include, an error while rendering, or a prompt that is empty.
    """
    protocol = scenario.protocol
    speaking = [agent for agent in protocol.agents if protocol.writes[agent]]
    names = [template_name(protocol.name, agent) for agent in speaking]
    for name in names:
        if name not in scenario.prompts.templates:
            raise UserError(
                f"protocol.name: there are no prompts for {protocol.name!r} (no template {name!r}); "
                f"put {', '.join(names)} into a folder and name it in scenario.prompts"
            )
    if scenario.settings.prompts is not None:  # those that ship are looked at by the tests
        check_templates(scenario.prompts, names)
    for agent, name in zip(speaking, names):
        for stance, role in product((REJECT, ACCEPT), protocol.told_of(agent)):
            item = replace(SAMPLE, prover_stance=stance)
            made = scenario.prompts.render(name, prompt_variables(scenario, item, agent, role))
            if not made:
                raise UserError(f"{scenario.prompts.templates[name].file}, line 1: the template makes an empty prompt")
            for named in scenario.reply_fields(agent).values():
                if f'"{named}"' not in made:
                    raise UserError(
                        f"{scenario.prompts.templates[name].file}, line 1: scenario.decision_format is json, but the prompt does not name "
                        f'the field "{named}"; include _parts/json_reply.j2, or set decision_format to text'
                    )


def prompt_variables(scenario: CodeValidation, item: CodeItem, agent: str, role: str | None = None) -> dict[str, Any]:
    """What the template of `agent` may use; see `nip_ray.scenarios.code_validation.prompts.VARIABLES`. role: what it is told of it."""
    protocol, roles = scenario.protocol, scenario.roles
    names = {other: role.name for other, role in roles.items()}
    stance = scenario.stance(item, agent, role)
    is_random = scenario.settings.randomize_prover_stance
    return {
        "question": item.question,
        "solution": item.solution,
        "difficulty": item.difficulty,
        "protocol": protocol.name,
        "agent": agent,
        "role": role or "",
        "name": roles[agent].name,
        "names": names,
        "verifier_name": roles[agent].name if agent in protocol.verifiers else " and ".join(roles[one].name for one in protocol.verifiers),
        "panel": {} if protocol.panel is None else {**asdict(protocol.panel), "rule": _RULES[protocol.panel.rule]},
        "max_questions": protocol.verifier_turns - 1,
        "min_questions": _turns_too_early(protocol),
        "max_response_words": scenario.agent_settings(agent).max_response_words,
        "headers": dict(roles[agent].headers),
        "stance": stance,
        "stance_word": "" if stance is None else DECISIONS[stance],
        "stances": {prover: _known_stance(scenario, item, agent, prover, role) for prover in protocol.provers},
        "stance_is_random": is_random,
        "decision_format": "json" if scenario.reply_fields(agent) else "text",
        "reply_fields": scenario.reply_fields(agent),
        "scale": scenario.scale.name,
        "accept_decision": scenario.verdict_text(ACCEPT),
        "reject_decision": scenario.verdict_text(REJECT),
        "rewards": rewards_of(
            replace(protocol, payment=protocol.payment.of(role)), agent, stance, names, scenario.scale.name != "accept_reject"
        ),
        "sides": {} if protocol.chooser is None else {side: _on_side(scenario, item, agent, side, names) for side in protocol.roles},
    }


def _on_side(scenario: CodeValidation, item: CodeItem, agent: str, side: str, names: Mapping[str, str]) -> dict[str, Any]:
    """What `agent` argues for and is paid where the chooser takes this side."""
    stance, payment = scenario.stance(item, agent, side), scenario.protocol.payment.of(side)
    paid = rewards_of(replace(scenario.protocol, payment=payment), agent, stance, names, scenario.scale.name != "accept_reject")
    return {"stance_word": "" if stance is None else DECISIONS[stance], **paid}


def _known_stance(scenario: CodeValidation, item: CodeItem, agent: str, prover: str, role: str | None) -> str:
    """What `agent` may know of the stance of `prover`: a drawn one is hidden from the verifier."""
    stance = scenario.stance(item, prover, role)
    hidden = scenario.settings.randomize_prover_stance and agent in scenario.protocol.verifiers
    return "" if stance is None or hidden else DECISIONS[stance]


def _turns_too_early(protocol: Protocol) -> int:
    """The most turns, over episode seeds, in which the verifier's decision does not count yet."""
    rules = rulebook(protocol)
    pairs = product(protocol.verifiers, range(len(protocol.turns)))
    return max(sum(r < protocol.min_rounds - 1 for r in rules.rounds_of(verifier, seed)) for verifier, seed in pairs)
