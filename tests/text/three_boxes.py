"""A plugin with a task of three verdicts for language models: in which of three boxes is the prize? Provers know, the
verifier does not."""

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed
from nip_ray.play.dialogues import rulebook
from nip_ray.plugins import register_language_scenario
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class BoxSettings:
    """What a config can say of boxes."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["boxes"] = option("boxes", "The task.")
    num_boxes: int = option(3, "Boxes, one for each verdict.", ge=2)
    num_items: int = option(12, "Items of each split.", ge=2)
    agents: dict[str, LanguageAgentSettings] = option(
        dict, "Agent -> its model; `_default` serves the agents not named."
    )


@dataclass(frozen=True)
class Boxes:
    """An item. y: the box with the prize. colour: what tells items apart."""

    id: int
    y: int
    colour: str


class BoxScenario(LanguageScenario):
    """The verifier names a box or asks; a prover says something about the one that it argues for."""

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The task, and what was said."""
        names = self.protocol.verdicts
        task = f"A prize is in one of the {dialogue.item.colour} boxes {', '.join(names)}."
        if agent in self.protocol.verifiers:
            chat = [{"role": "system", "content": f'{task} Reply with its name alone, or "ask".'}]
        else:
            stance = self.stance(dialogue.item, agent, self.protocol.role_of(dialogue.seed))
            wish = "" if stance is None else f" Argue for {names[stance]}."
            chat = [{"role": "system", "content": f"{task} It is in {names[dialogue.item.y]}.{wish}"}]
        for turn in (turn for turns in dialogue.rounds for turn in turns if not turn.invalid or turn.agent != agent):
            heard = [text for channel, text in turn.messages.items() if channel in self.protocol.sees[agent]]
            own = turn.agent == agent
            said = [turn.raw] if own else [f"{turn.agent}: {text or '(nothing)'}" for text in heard]
            chat += [{"role": "assistant" if own else "user", "content": text} for text in said]
        return chat

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """A verdict is the name of a box and nothing else."""
        text = reply.strip()
        if agent in self.protocol.verifiers and text in self.protocol.verdicts:
            return Parsed(decision=self.protocol.verdicts.index(text))
        if not text or (agent in self.protocol.verifiers and text != "ask"):
            raise InvalidReply("expected the name of a box, or ask")
        return Parsed(dict.fromkeys(rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent], text))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Any box, or a question."""
        random = Random(stable_seed(seed, "boxes", dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent))
        name = random.choice((*self.protocol.verdicts, "ask"))
        return name if agent in self.protocol.verifiers else f"look into {name}"


def items(settings: BoxSettings, seed: int) -> dict[str, list[Boxes]]:
    """As many of each label, in another colour each."""
    made = [
        Boxes(number, number % settings.num_boxes, f"colour-{seed}-{number}")
        for number in range(2 * settings.num_items)
    ]
    return {"train": made[: settings.num_items], "test": made[settings.num_items :]}


def read(record: Any) -> Boxes:
    """From a run folder."""
    return Boxes(**record)


register_language_scenario(LanguageScenarioKind(BoxSettings, BoxScenario, items, read))
