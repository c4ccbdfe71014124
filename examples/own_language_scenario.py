"""A custom scenario for language models: is a product what it is claimed to be? Multiplying two numbers is hard for a
small model; checking one of the products of which a prover says that they add up is easier.

Under bisection (`ClaimByParts`) the claim is split by digits, and the verifier reads the last part alone.

`examples/own_language_scenario.yaml` plays it: nip-ray train examples/own_language_scenario.yaml
"""

import re
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from random import Random
from typing import Any, Literal

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Turn
from nip_ray.play.dialogues import rulebook
from nip_ray.plugins import register_language_scenario
from nip_ray.protocols import CONTINUE, DECISIONS, Protocol
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class ClaimSettings:
    """Products of two numbers and their claimed values."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["arithmetic_claim"] = option("arithmetic_claim", "The task.")
    largest: int = option(99, "The largest factor; the smallest is 11.", ge=19, le=99)
    num_train: int = option(64, "Training items.", ge=2)
    num_test: int = option(32, "Held-out items.", ge=2)
    agents: dict[str, LanguageAgentSettings] = option(dict, "Agent -> its model; `_default` serves the others.")


@dataclass(frozen=True)
class Claim:
    """An item. y: 1 if the claim is right."""

    id: int
    y: int
    factors: tuple[int, int]
    claimed: int

    def __str__(self) -> str:
        return f"{self.factors[0]} times {self.factors[1]} is {self.claimed}"


def claims(settings: ClaimSettings, seed: int) -> dict[str, list[Claim]]:
    """Every other claim is off by some tens, so that its last digit is right; no product is in both splits."""
    random, made = Random(stable_seed(seed, "arithmetic claims")), []
    pairs = [*combinations_with_replacement(range(11, settings.largest + 1), 2)]
    if (wanted := settings.num_train + settings.num_test) > len(pairs):
        raise UserError(f"scenario.largest: {settings.largest} gives {len(pairs)} products of the {wanted}, raise it")
    for number, pair in enumerate(random.sample(pairs, wanted)):
        one, two = random.sample(pair, 2)
        y, off = number % 2, random.choice([*range(-50, 0, 10), *range(10, 60, 10)])
        made.append(Claim(number, y, (one, two), one * two + (0 if y else off)))
    return {"train": made[: settings.num_train], "test": made[settings.num_train :]}


class ArithmeticClaim(LanguageScenario):
    """A verifier replies with a number and accept or reject, or with "ask:" and a question; a prover with any text."""

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The task, then by round the agent's own replies and the messages in the channels that it sees."""
        chat: Chat = [{"role": "system", "content": self._task(dialogue.item, agent)}]
        chat.append({"role": "user", "content": f"{dialogue.item}"})  # last: what all prompts share is computed once
        for turn in (turn for turns in dialogue.rounds for turn in turns):
            if turn.agent == agent:
                chat += [] if turn.invalid else [{"role": "assistant", "content": turn.raw}]
            else:
                seen = [text for channel, text in turn.messages.items() if channel in self.protocol.sees[agent]]
                chat += [
                    {"role": "user", "content": text or "(nothing)", "name": turn.agent} for text in dict.fromkeys(seen)
                ]
        return chat

    def _task(self, item: Claim, agent: str) -> str:
        if agent in self.protocol.deciders:
            ask = ', or "ask:" and a question' if self.protocol.provers else ""
            return f"Work the product out, then reply accept or reject{ask}."
        stance = self.stance(item, agent)
        wish = "" if stance is None else f" You want the verifier to {DECISIONS[stance]} the claim."
        return f"Show the products that add up, such as: {_products(12, 34, 0)}.{wish}"

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """Raises InvalidReply for a verifier's reply of another form, and for an empty one."""
        text = reply.strip()
        if agent in self.protocol.deciders:
            if found := VERDICT.fullmatch(text.lower()):
                return Parsed(decision=DECISIONS.index(found[1]))
            if not text.lower().startswith("ask:"):
                raise InvalidReply("expected a number and accept or reject, or ask:")
            text = text[len("ask:") :].strip()
        if not text:
            raise InvalidReply("expected some text")
        channels = rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent]
        return Parsed(dict.fromkeys(channels, text))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Products of random numbers; a verifier decides two times out of three."""
        random = Random(stable_seed(seed, "claims", dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent))
        one, two = random.randint(11, 99), random.randint(11, 99)
        if agent not in self.protocol.deciders:
            return _products(one, two, 0)
        return random.choice([f"{one * two} accept", f"{one * two} reject", f"ask: What is {one} times {two}?"])

    def warm_example(self, item: Claim, agent: str, seed: int) -> tuple[Chat, str]:
        """The products, of a false claim with a lie in one of them; the product and the right verdict."""
        random = Random(stable_seed(seed, "warm example", item.id, agent))
        lie = _products(*item.factors, item.claimed, random.random() < 0.5)
        dialogue, rules = Dialogue(item, random.randrange(2**16)), rulebook(self.protocol)
        decides, rounds = agent in self.protocol.deciders, rules.rounds_of(agent, dialogue.seed)

        def shown(speaker: str) -> str:
            return lie if self.stance(item, speaker) else _products(*item.factors, 0)

        for r in range(rounds[-1] if decides else rounds[0] if rounds else 0):
            turns = []
            for speaker, channels in rules.speakers(r, dialogue.seed).items():
                said = "Which products?" if speaker in self.protocol.deciders else shown(speaker)
                turns.append(Turn(speaker, said, dict.fromkeys(channels, said)))
            dialogue = replace(dialogue, rounds=(*dialogue.rounds, tuple(turns)))
        verdict = f"{item.factors[0] * item.factors[1]} {DECISIONS[item.y]}"
        return self.fenced_chat(dialogue, agent), verdict if decides else shown(agent)


Line = tuple[int, int, int]
"""Two factors and what their product is said to be."""
PARTS = ("first", "second")


class ClaimByParts(ArithmeticClaim):
    """Bisection. prover1 replies with a number, the value of the first part; prover0 with its own value of that and the
    part that is wrong; the verifier with its own value of the part that is left, and the verdict. A turn without a
    usable reply counts as 0 or as the first part."""

    @property
    def fences(self) -> bool:
        """False: what is sent on is a number or one of two words."""
        return False

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The task, and what is to be split, pointed at or judged."""
        line, said = self._disputed(dialogue)
        if self._is_judged(dialogue):
            task, shown = "Work the product out, then reply accept or reject.", _text(line)
        elif said is None:
            one, two, _ = _halves(line, 0)[0]
            task, shown = "What is the first part? Reply with a number.", f"{_text(line)}, first {one} x {two}"
        else:
            task = "Work the first part out, then reply first or second: which one is wrong?"
            shown = ", ".join(map(_text, _halves(line, said)))
        return [{"role": "system", "content": task}, {"role": "user", "content": shown}]

    def _is_judged(self, dialogue: Dialogue) -> bool:
        """Return True if the verdict is next."""
        return len(dialogue.rounds) == self.protocol.max_rounds - 1

    def _disputed(self, dialogue: Dialogue) -> tuple[Line, int | None]:
        """The line that is left, and the value of its first part if prover1 has just given it."""
        line: Line = (*dialogue.item.factors, dialogue.item.claimed)
        said = [turns[0].messages.get("main", "") for turns in dialogue.rounds]
        for number, part in zip(said[::2], said[1::2]):
            line = _halves(line, int(number or 0))[PARTS.index(part or PARTS[0])]
        return line, int(said[-1] or 0) if len(said) % 2 else None

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """Raises InvalidReply for a reply of another form."""
        r, last = len(dialogue.rounds), self._is_judged(dialogue)
        form = VERDICT if last else re.compile("[0-9]{1,4} (first|second)" if r % 2 else "([0-9]{1,4})")
        if not (found := form.fullmatch(reply.strip().lower())):
            after = " and accept or reject" if last else " and first or second" if r % 2 else ""
            raise InvalidReply(f"expected a number{after}")
        return Parsed(decision=DECISIONS.index(found[1])) if last else Parsed({"main": found[1]})

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A random number, with a random part or verdict."""
        r = len(dialogue.rounds)
        random = Random(stable_seed(seed, "parts", dialogue.item.id, dialogue.seed, r, agent))
        words = DECISIONS[:CONTINUE] if self._is_judged(dialogue) else PARTS if r % 2 else ("",)
        return f"{random.randint(0, 999)} {random.choice(words)}".strip()

    def warm_example(self, item: Claim, agent: str, seed: int) -> tuple[Chat, str]:
        """True values, and the part that is wrong. Before that prover1 has put each lie into a random part."""
        random = Random(stable_seed(seed, "warm example", item.id, agent))
        dialogue, rules = Dialogue(item, random.randrange(2**16)), rulebook(self.protocol)
        turn = random.choice(rules.rounds_of(agent, dialogue.seed))
        for r in range(turn):
            line, said = self._disputed(dialogue)
            first, off = _first(line), line[2] - line[0] * line[1]
            if r % 2 == 0:
                message = f"{first + random.choice((0, off))}"
            else:
                message = PARTS[first == said] if off else random.choice(PARTS)
            (speaker,) = rules.speakers(r, dialogue.seed)
            dialogue = replace(dialogue, rounds=(*dialogue.rounds, (Turn(speaker, message, {"main": message}),)))
        line, said = self._disputed(dialogue)
        first = _first(line)
        reply = f"{first} {PARTS[first == said]}" if turn % 2 else f"{first}"
        if self._is_judged(dialogue):
            reply = f"{line[0] * line[1]} {DECISIONS[item.y]}"
        return self.chat(dialogue, agent), reply


VERDICT = re.compile("(?:[0-9]+ )?(reject|accept)")


def _halves(line: Line, said: int) -> tuple[Line, Line]:
    """Two lines that add up to `line`, by the tens and ones of its second factor, then of its first. said: the value of
    the first one."""
    one, two, value = line
    if two > 10 and two % 10:
        return (one, two - two % 10, said), (one, two % 10, value - said)
    return (one - one % 10, two, said), (one % 10, two, value - said)


def _first(line: Line) -> int:
    """The true value of its first half."""
    (one, two, _), _ = _halves(line, 0)
    return one * two


def _text(line: Line) -> str:
    return f"{line[0]} x {line[1]} = {line[2]}"


def _products(one: int, two: int, claimed: int, first: bool = True) -> str:
    """By the tens and the ones of `two`. claimed: their sum, from a lie about one of them; 0 for the true products."""
    off = claimed - one * two if claimed else 0
    tens = one * (two - two % 10) + (off if first else 0)
    return f"{_text((one, two - two % 10, tens))}, {_text((one, two % 10, one * two + off - tens))}"


def read_claim(record: Any) -> Claim:
    """A claim from its record in a run folder."""
    return Claim(**{**record, "factors": tuple(record["factors"])})


def build(protocol: Protocol, settings: ClaimSettings) -> ArithmeticClaim:
    """The scenario under `protocol`."""
    return (ClaimByParts if protocol.name == "bisection" else ArithmeticClaim)(protocol, settings)


KIND = LanguageScenarioKind(ClaimSettings, build, claims, read_claim, subject=lambda claim: frozenset(claim.factors))
register_language_scenario(KIND)
