"""A custom scenario for language models: is the claimed value of a sum right? The prover sees the answer, the verifier
does not.

`examples/own_language_scenario.yaml` plays it: nip-ray train examples/own_language_scenario.yaml
"""

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed
from nip_ray.play.dialogues import rulebook
from nip_ray.plugins import register_language_scenario
from nip_ray.protocols import CONTINUE, DECISIONS
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class ClaimSettings:
    """Settings of the task: sums and their claimed values."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["arithmetic_claim"] = option("arithmetic_claim", "The task.")
    num_terms: int = option(3, "Numbers to add.", ge=2)
    largest: int = option(99, "The largest of them.", ge=9)
    num_train: int = option(64, "Training items.", ge=2)
    num_test: int = option(32, "Held-out items.", ge=2)
    agents: dict[str, LanguageAgentSettings] = option(
        dict, "Agent -> its model; `_default` serves the agents not named."
    )


@dataclass(frozen=True)
class Claim:
    """An item. y: 1 if the claim is right."""

    id: int
    y: int
    terms: str
    total: int
    claimed: int


def claims(settings: ClaimSettings, seed: int) -> dict[str, list[Claim]]:
    """Every other claim is slightly wrong; no sum is in both splits."""
    random, seen, made = Random(stable_seed(seed, "arithmetic claims")), set[str](), []
    while len(made) < settings.num_train + settings.num_test:
        numbers = [random.randint(1, settings.largest) for _ in range(settings.num_terms)]
        terms, total, y = " + ".join(map(str, numbers)), sum(numbers), len(made) % 2
        off = 0 if y else random.choice([-10, -2, -1, 1, 2, 10])
        if terms not in seen:
            seen.add(terms)
            made.append(Claim(len(made), y, terms, total, total + off))
    return {"train": made[: settings.num_train], "test": made[settings.num_train :]}


class ArithmeticClaim(LanguageScenario):
    """A verifier replies accept, reject, or a question that begins with "ask:"; a prover replies freely."""

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The task, then round after round the agent's own replies and what others wrote in the channels that it
        sees."""
        chat: Chat = [{"role": "system", "content": self._task(dialogue.item, agent)}]
        for turns in dialogue.rounds:
            for turn in turns:
                if turn.agent == agent:
                    chat += [] if turn.invalid else [{"role": "assistant", "content": turn.raw}]
                else:
                    heard = [text for channel, text in turn.messages.items() if channel in self.protocol.sees[agent]]
                    chat += [
                        {"role": "user", "content": text or "(nothing)", "name": turn.agent}
                        for text in dict.fromkeys(heard)
                    ]
        return chat

    def _task(self, item: Claim, agent: str) -> str:
        claim = f"Somebody claims that {item.terms} = {item.claimed}."
        if agent in self.protocol.deciders:
            return f'{claim} Is that right? Reply "accept", "reject", or "ask:" and a question.'
        stance = self.stance(item, agent)
        wish = "" if stance is None else f" You want the verifier to {DECISIONS[stance]} the claim."
        return f"{claim} You know that {item.terms} = {item.total}.{wish} Answer in a sentence."

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """Raises InvalidReply for a verifier's reply of another form, and for an empty one."""
        text = reply.strip()
        if agent in self.protocol.deciders:
            if text.lower() in DECISIONS[:CONTINUE]:
                return Parsed(decision=DECISIONS.index(text.lower()))
            if not text.lower().startswith("ask:"):
                raise InvalidReply("expected accept, reject or ask:")
            text = text[len("ask:") :].strip()
        if not text:
            raise InvalidReply("nothing was said")
        channels = rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent]
        return Parsed(dict.fromkeys(channels, text))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A number, as a question or an answer; a verifier decides two times out of three."""
        random = Random(
            stable_seed(seed, "arithmetic claims", dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent)
        )
        number = random.randint(1, self.settings.largest)
        if agent not in self.protocol.deciders:
            return f"It is {number}."
        return random.choice(["accept", "reject", f"ask: Is it {number}?"])


def read_claim(record: Any) -> Claim:
    """A claim from its record in a run folder."""
    return Claim(**record)


register_language_scenario(LanguageScenarioKind(ClaimSettings, ArithmeticClaim, claims, read_claim))
