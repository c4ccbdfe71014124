"""A custom scenario for language models: is a product what it is claimed to be? Multiplying two numbers is hard for a
small model; checking one of the products of which a prover says that they add up is easier.

Under bisection prover1 splits the claim into two parts, prover0 points at one, and the verifier reads that part alone
(`ClaimByParts`). Under other protocols all agents read all.

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
        return self.chat(dialogue, agent), verdict if decides else shown(agent)


class ClaimByParts(ArithmeticClaim):
    """Replies are a number of prover1, what the tens make; a number and the part at which prover0 points; a number, of
    that part, and the verdict. A turn without a usable reply counts as 0 or tens."""

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The task, and what is to be split, pointed at or judged."""
        said = [turns[0].messages.get("main", "") for turns in dialogue.rounds]
        if not said:
            task, shown = "How much of this do the tens make? Reply with a number.", str(dialogue.item)
        else:
            one, two = dialogue.item.factors
            parts = _parts(one, two, dialogue.item.claimed, int(said[0] or 0))
            task, shown = "Work the tens out, then reply tens or ones: which is wrong?", ", ".join(parts.values())
            if len(said) == 2:
                task, shown = "Work the product out, then reply accept or reject.", parts[said[1] or "tens"]
        return [{"role": "system", "content": task}, {"role": "user", "content": shown}]

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """Raises InvalidReply for a reply of another form."""
        form, expected = (
            (re.compile("([0-9]{1,4})"), "a number"),
            (re.compile("[0-9]{1,4} (tens|ones)"), "a number and tens or ones"),
            (VERDICT, "a number and accept or reject"),
        )[len(dialogue.rounds)]
        if not (found := form.fullmatch(reply.strip().lower())):
            raise InvalidReply(f"expected {expected}")
        return Parsed(decision=DECISIONS.index(found[1])) if form is VERDICT else Parsed({"main": found[1]})

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A random number, with a random part or verdict."""
        random = Random(stable_seed(seed, "parts", dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent))
        words = ([""], ["tens", "ones"], DECISIONS[:CONTINUE])[len(dialogue.rounds)]
        return f"{random.randint(0, 999)} {random.choice(words)}".strip()

    def warm_example(self, item: Claim, agent: str, seed: int) -> tuple[Chat, str]:
        """prover1 gives the true tens. A false claim has its lie in the tens or the ones, at which prover0 points."""
        random = Random(stable_seed(seed, "warm example", item.id, agent))
        (one, two), part = item.factors, random.choice(["tens", "ones"])
        true = {"tens": one * (two - two % 10), "ones": one * (two % 10)}
        tens = true["tens"] + (item.claimed - one * two if part == "tens" else 0)
        points = f"{true['tens']} {'ones' if tens == true['tens'] else 'tens'}"
        dialogue, rules = Dialogue(item, random.randrange(2**16)), rulebook(self.protocol)
        turn = random.choice(rules.rounds_of(agent, dialogue.seed))
        for r, said in enumerate((str(tens), part)[:turn]):
            (speaker,) = rules.speakers(r, dialogue.seed)
            dialogue = replace(dialogue, rounds=(*dialogue.rounds, (Turn(speaker, said, {"main": said}),)))
        return self.chat(dialogue, agent), (f"{true['tens']}", points, f"{true[part]} {DECISIONS[item.y]}")[turn]


VERDICT = re.compile("(?:[0-9]+ )?(reject|accept)")


def _products(one: int, two: int, claimed: int, first: bool = True) -> str:
    """By the tens and the ones of `two`. claimed: their sum, from a lie about one of them; 0 for the true products."""
    tens, off = one * (two - two % 10), claimed - one * two if claimed else 0
    return ", ".join(_parts(one, two, one * two + off, tens + off if first else tens).values())


def _parts(one: int, two: int, claimed: int, tens: int) -> dict[str, str]:
    """The products that add up to `claimed`, if the tens make `tens`."""
    return {
        "tens": f"{one} x {two - two % 10} = {tens}",
        "ones": f"{one} x {two % 10} = {claimed - tens}",
    }


def read_claim(record: Any) -> Claim:
    """A claim from its record in a run folder."""
    return Claim(**{**record, "factors": tuple(record["factors"])})


def build(protocol: Protocol, settings: ClaimSettings) -> ArithmeticClaim:
    """Raises UserError for a bisection of more than one halving."""
    if protocol.name == "bisection" and protocol.max_rounds != 3:
        raise UserError(f"protocol.max_rounds: {protocol.max_rounds}, but a claim is halved once, set it to 3")
    return (ClaimByParts if protocol.name == "bisection" else ArithmeticClaim)(protocol, settings)


register_language_scenario(LanguageScenarioKind(ClaimSettings, build, claims, read_claim))
