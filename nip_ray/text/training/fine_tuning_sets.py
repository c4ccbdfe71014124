"""What a group of agents learns from an iteration: the lines of its fine-tuning file, made from the stored rollouts.

Depends on the rollouts, the config and the iteration alone: whoever makes it again after a crash makes the same bytes, hence
the same job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import chat_shapes, fine_tuning_rule
from nip_ray.play.chats import shape_chat
from nip_ray.play.dialogue import Dialogue
from nip_ray.serving.fine_tuning_job import Method
from nip_ray.settings.text_training import ExpertIterationSettings, MaltSettings
from nip_ray.text.dialogues.rollouts import read_dialogues, read_trees, rollout_file
from nip_ray.text.providers.fine_tuning import dpo_line, supervised_line
from nip_ray.text.training.expert_iteration import examples
from nip_ray.text.training.malt import Node, label_tree, mid_points, preference_pairs
from nip_ray.text.training.metrics import pair_statistics

METHODS: dict[type, Method] = {ExpertIterationSettings: "supervised", MaltSettings: "dpo"}
"""By which method the agents of a trainer are fine-tuned."""


@dataclass(frozen=True)
class FineTuningSet:
    """lines: of the fine-tuning file. figures: ``<agent>/examples``, how many of them are its own; for malt also which share of the
    pairs was left out (`nip_ray.text.training.metrics.pair_statistics`).
    """

    lines: list[dict[str, Any]]
    figures: Mapping[str, float]


def fine_tuning_set(
    config: TextExperimentConfig, scenario: Any, run_dir: Path, items: Mapping[int, Any], iteration: int, agents: Sequence[str]
) -> FineTuningSet:
    """What `agents`, who share a model, learn after `iteration` (from 0). items: the training items by id."""
    first = 0 if fine_tuning_rule(config).fine_tune_on_all_previous_rollouts else iteration
    files = [rollout_file(run_dir, "train", i) for i in range(first, iteration + 1)]
    if isinstance(config.algorithm, MaltSettings):
        return _from_trees(config, scenario, [tree for file in files for tree in read_trees(file, items)], agents)
    return _from_dialogues(config, scenario, [d for file in files for d in read_dialogues(file, items)], iteration, agents)


def format_warmup_set(config: TextExperimentConfig, scenario: Any, dialogues: Sequence[Dialogue], agents: Sequence[str]) -> FineTuningSet:
    """What `agents` learn from dialogues of random replies: every own turn, up to the last."""
    lines: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    shapes = chat_shapes(config)
    for agent in agents:
        last_turns = [(d, rounds[-1]) for d in dialogues if (rounds := scenario.usable_rounds(d, agent))]
        for dialogue, round in last_turns:
            chat, reply = scenario.training_chat(dialogue, agent, round)
            lines.append(supervised_line(shape_chat(chat, shapes[agent]), reply))
        figures[f"{agent}/examples"] = float(len(last_turns))
    return FineTuningSet(lines, figures)


def _from_dialogues(
    config: TextExperimentConfig, scenario: Any, dialogues: Sequence[Dialogue], iteration: int, agents: Sequence[str]
) -> FineTuningSet:
    rule = config.algorithm
    if not isinstance(rule, ExpertIterationSettings):
        raise TypeError(f"no examples are made of dialogues by {type(rule).__name__}")
    made = examples(dialogues, agents, scenario, rule, iteration, config.seed)
    figures = {f"{agent}/examples": float(sum(example.agent == agent for example in made)) for agent in agents}
    shapes = chat_shapes(config)
    return FineTuningSet(
        [supervised_line(shape_chat(example.chat, shapes[example.agent]), example.completion) for example in made], figures
    )


def _from_trees(config: TextExperimentConfig, scenario: Any, trees: Sequence[Node], agents: Sequence[str]) -> FineTuningSet:
    rule = config.algorithm
    if not isinstance(rule, MaltSettings):
        raise TypeError(f"no pairs are made of trees by {type(rule).__name__}")
    thresholds = mid_points(scenario.protocol, rule)
    lines: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    shapes = chat_shapes(config)
    for agent in agents:
        found = [preference_pairs(label_tree(tree, [agent], thresholds), agent, scenario, config.seed) for tree in trees]
        pairs = [pair for of_tree in found for pair in of_tree.pairs]
        lines += [dpo_line(shape_chat(pair.chat, shapes[agent]), pair.preferred, pair.rejected) for pair in pairs]
        figures |= {f"{agent}/examples": float(len(pairs)), **pair_statistics(found, agent)}
    return FineTuningSet(lines, figures)
