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
from nip_ray.errors import UserError
from nip_ray.play.chats import Shape, shape_chat
from nip_ray.play.dialogue import Dialogue
from nip_ray.text.dialogues.runner import read_dialogues, read_trees, rollout_file
from nip_ray.text.providers.interface import dpo_line, supervised_line
from nip_ray.text.training.guess_replacement import replaced_guesses
from nip_ray.text.training.learning_agent import LearningAgent, Preferences
from nip_ray.text.training.rules import TextRule, rule_of

Line = dict[str, Any]


@dataclass(frozen=True)
class FineTuningSet:
    """lines: of the fine-tuning file. figures: ``<agent>/examples``, how many of them are its own; for rules that learn from pairs also
    ``<rule>/<agent>/{pairs, equal_pairs, invalid_pairs}``.
    """

    lines: list[Line]
    figures: Mapping[str, float]


def fine_tuning_set(
    config: TextExperimentConfig, scenario: Any, run_dir: Path, items: Mapping[int, Any], iteration: int, agents: Sequence[str]
) -> FineTuningSet:
    """What `agents`, who share a model, learn after `iteration` (from 0), agent by agent. items: the training items by id."""
    settings, rule = fine_tuning_rule(config), rule_of(config.algorithm)
    first = 0 if settings.fine_tune_on_all_previous_rollouts else iteration
    played = [one for i in range(first, iteration + 1) for one in read_played(rule, run_dir, items, i)]
    lines: list[Line] = []
    figures: dict[str, float] = {}
    for agent in agents:
        learning = LearningAgent(agent, scenario, settings, iteration, config.seed)
        own, counted = _taught(rule, played, learning, chat_shapes(config)[agent])
        lines += own
        figures |= {
            f"{agent}/examples": float(len(own)),
            **{f"{config.algorithm.name}/{agent}/{name}": value for name, value in counted.items()},
        }
    return FineTuningSet(lines, figures)


def read_played(rule: TextRule, run_dir: Path, items: Mapping[int, Any], iteration: int) -> list[Any]:
    """The dialogues or trees that were stored in an iteration."""
    path = rollout_file(run_dir, "train", iteration)
    return [*(read_trees if rule.plays_trees else read_dialogues)(path, items)]


def _taught(rule: TextRule, played: Sequence[Any], agent: LearningAgent, shape: Shape) -> tuple[list[Line], Mapping[str, float]]:
    """One agent's lines and figures."""
    replaced, kept = ([], played) if rule.pairs is not None else replaced_guesses(played, agent)
    found = rule.learned(kept, agent)
    if isinstance(found, Preferences):
        return [dpo_line(shape_chat(pair.chat, shape), pair.preferred, pair.rejected) for pair in found.pairs], found.figures()
    return [supervised_line(shape_chat(one.chat, shape), one.completion) for one in (*replaced, *found)], {}


def format_warmup_set(config: TextExperimentConfig, scenario: Any, dialogues: Sequence[Dialogue], agents: Sequence[str]) -> FineTuningSet:
    """What `agents` learn from dialogues of random replies: every own turn, up to the last; `warmup_agents` the scenario's own example
    about each dialogue's item. Raises UserError for one without examples."""
    lines: list[Line] = []
    figures: dict[str, float] = {}
    shapes, shown = chat_shapes(config), fine_tuning_rule(config).warmup_agents
    for agent in agents:
        if agent in shown:
            taught = [scenario.warm_example(dialogue.item, agent, dialogue.seed) for dialogue in dialogues]
            if None in taught:
                raise UserError(f"algorithm.warmup_agents: {config.scenario.name} has no examples of its own for {agent}, leave it out")
        else:
            last_turns = [(d, rounds[-1]) for d in dialogues if (rounds := scenario.usable_rounds(d, agent))]
            taught = [scenario.training_chat(dialogue, agent, round) for dialogue, round in last_turns]
        lines += [supervised_line(shape_chat(chat, shapes[agent]), reply) for chat, reply in taught]
        figures[f"{agent}/examples"] = float(len(taught))
    return FineTuningSet(lines, figures)
