"""Examples for the warm-up of models that learn from their own tokens."""

from collections.abc import Sequence
from typing import Any

from nip_ray.play.dialogue import Chat, LanguageScenario
from nip_ray.play.dialogues import Answer, Question, play_in_step, start_dialogue
from nip_ray.seeding import stable_seed
from nip_ray.text.dialogues.runner import Task, training_tasks

Example = tuple[Chat, str]
"""A chat and the reply to learn."""


def invented_examples(scenario: LanguageScenario, tasks: Sequence[Task], seed: int) -> dict[str, list[Example]]:
    """Agent -> every turn of its own in dialogues of random replies of the right form."""
    found: dict[str, list[Example]] = {agent: [] for agent in scenario.protocol.agents}

    def answer(asked: list[Question]) -> list[Answer]:
        said = []
        for one in asked:
            place = ("format warm-up", tasks[one.place].number, len(one.dialogue.rounds), one.agent, one.attempt)
            said.append(scenario.invent(one.dialogue, one.agent, stable_seed(seed, *place)))
            found[one.agent].append((one.chat, said[-1]))
        return [Answer(text) for text in said]

    play_in_step(scenario, [start_dialogue(task.item, task.seed) for task in tasks], answer)
    return found


def scenario_examples(
    scenarios: Sequence[tuple[LanguageScenario, list[Any]]], agent: str, step: int, count: int, seed: int
) -> list[Example]:
    """Up to `count` examples of an agent for a supervised step. scenarios: with their training items; they take turns
    by step."""
    scenario, items = scenarios[step % len(scenarios)]
    tasks = training_tasks(items, stable_seed(seed, "warm-up", agent), step // len(scenarios), count)
    made = (scenario.warm_example(task.item, agent, task.seed) for task in tasks)
    return [example for example in made if example is not None]
