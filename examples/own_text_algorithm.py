"""A custom learning rule for language models: of several dialogues about one item, an agent learns those with its
highest rewards.

`examples/own_text_algorithm.yaml` trains with it: nip-ray train examples/own_text_algorithm.yaml
Source: Dong et al., "RAFT: Reward rAnked FineTuning for generative foundation model alignment", 2023 (2304.06767).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from nip_ray.play.dialogue import Dialogue
from nip_ray.plugins import register_text_algorithm
from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.text.training.expert_iteration import Example, LearningAgent
from nip_ray.text.training.rules import TextRule


@dataclass(frozen=True)
class BestOfGroupSettings(TextTrainingSettings):
    """Best of group: learn, supervised, from the best-paid of several dialogues about each item."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["best_of_group"] = option("best_of_group", "Best of group.")
    group_size: int = option(8, "Dialogues about each item.", ge=2)
    num_best: int = option(1, "Dialogues an agent learns from, the best of the group.", ge=1)

    def faults(self) -> Iterator[str]:
        """At least one dialogue must be left out."""
        if self.num_best >= self.group_size:
            yield f"num_best: got {self.num_best}, but group_size is {self.group_size}, use less"


def best_of_group(dialogues: Sequence[Dialogue], agent: LearningAgent) -> list[Example]:
    """Those with the agent's highest rewards; none of a group in which all are equal."""
    chosen: list[Dialogue] = []
    for _, group in groupby(dialogues, lambda dialogue: dialogue.item.id):
        ranked = sorted(group, key=lambda dialogue: dialogue.total(agent.name), reverse=True)
        if ranked[0].total(agent.name) > ranked[-1].total(agent.name):
            chosen += ranked[: agent.settings.num_best]
    return [example for dialogue in chosen for example in agent.examples(dialogue)]


register_text_algorithm(TextRule(BestOfGroupSettings, examples=best_of_group))
