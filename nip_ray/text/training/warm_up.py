"""The warm-up of models that learn from their own tokens: its examples, and what is saved until it is over."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nip_ray.play.dialogue import Chat, LanguageScenario
from nip_ray.play.dialogues import Answer, Question, play_in_step, start_dialogue
from nip_ray.progress import say
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.storage.checkpoint import AllDamaged, Checkpoint, has_checkpoint, load_checkpoint, save_checkpoint
from nip_ray.storage.folder import WARM_UP
from nip_ray.text.dialogues.runner import training_tasks

SAVED_EVERY_S = 300

Example = tuple[Chat, str]
"""A chat and the reply to learn."""


def format_batches(
    scenario: LanguageScenario,
    items: Sequence[Any],
    groups: Mapping[str, Sequence[str]],
    rule: TokenTrainingSettings,
    seed: int,
) -> dict[str, list[list[Example]]]:
    """Group -> batches of all turns of its agents in `rule.format_warmup` dialogues of random replies of the right
    form, shuffled."""
    tasks, size = training_tasks(items, seed, 0, rule.format_warmup), rule.warmup_batch_size
    found: dict[str, list[Example]] = {agent: [] for agent in scenario.protocol.agents}

    def answer(asked: list[Question]) -> list[Answer]:
        said = []
        for one in asked:
            place = ("format warm-up", tasks[one.place].number, len(one.dialogue.rounds), one.agent, one.attempt)
            said.append(scenario.invent(one.dialogue, one.agent, stable_seed(seed, *place)))
            found[one.agent].append((one.chat, said[-1]))
        return [Answer(text) for text in said]

    play_in_step(scenario, [start_dialogue(task.item, task.seed) for task in tasks], answer)
    batches: dict[str, list[list[Example]]] = {}
    for group, members in groups.items():
        own = [example for agent in members for example in found[agent]]
        order = torch.randperm(len(own), generator=generator(seed, "format warm-up", group)).tolist()
        batches[group] = [[own[number] for number in order[at : at + size]] for at in range(0, len(own), size)]
    return batches


def scenario_examples(
    scenarios: Sequence[tuple[LanguageScenario, list[Any]]],
    members: Sequence[str],
    rule: TokenTrainingSettings,
    step: int,
    seed: int,
) -> list[Example]:
    """Examples of those agents of a group that are taught, for a supervised step: up to `rule.warmup_batch_size`,
    but one of each at least. scenarios: with their training items; they take turns by step."""
    taught = [agent for agent in members if rule.warmup_agents is None or agent in rule.warmup_agents]
    count = max(1, rule.warmup_batch_size // max(1, len(taught)))
    scenario, items = scenarios[step % len(scenarios)]
    found: list[Example | None] = []
    for agent in taught:
        tasks = training_tasks(items, stable_seed(seed, "warm-up", agent), step // len(scenarios), count)
        found += [scenario.warm_example(task.item, agent, task.seed) for task in tasks]
    return [example for example in found if example is not None]


class WarmUpSaves:
    """The checkpoints of an unfinished warm-up, whose numbers are steps of both parts."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        self._folder, self._run_id, self._saved = run_dir / WARM_UP, run_id, time.monotonic()

    def newest(self) -> Checkpoint | None:
        """The newest undamaged one. Warns of damaged ones. Raises UserError for one of another run."""
        if not has_checkpoint(self._folder):
            return None
        try:
            found = load_checkpoint(self._folder, None, self._run_id)
        except AllDamaged as error:
            say(f"warning: {error}; the warm-up begins again")
            self.remove()
            return None
        for line in found.skipped:
            say(f"warning: {line}; continuing from step {found.iteration} of the warm-up")
        return found

    def due(self) -> bool:
        """Return True if the last one, or the beginning, is long ago."""
        return time.monotonic() - self._saved >= SAVED_EVERY_S

    def save(self, step: int, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Keep it and the one before."""
        save_checkpoint(self._folder, step, tensors, state, self._run_id, keep=2)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Remove all."""
        shutil.rmtree(self._folder, ignore_errors=True)
