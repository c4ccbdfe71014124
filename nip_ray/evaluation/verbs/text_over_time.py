"""`meeting`: language models of a run by policy gradient as they were at one time, with those of another.

Decisions that matter here:
- weights are those of the kept checkpoints, and of the snapshots that the run keeps as opponents from the past;
- in memory are one model for a group that is a row, one for a group that is a column, and the weights of all that learned (adapters,
  where these did) at all times. Who does not learn is the same at all times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.cross_play import places
from nip_ray.evaluation.verbs.time_table import Games, spread
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.protocols import Protocol
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import BudgetSettings
from nip_ray.storage.checkpoint import kept_iterations, load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.token_bills import TokenBills
from nip_ray.text.dialogues.runner import Task, test_tasks
from nip_ray.text.parts import prepare
from nip_ray.text.training.model_play import ModelPlay
from nip_ray.text.training.past import kept_snapshots, snapshot_weights
from nip_ray.text.training.policies import Policy, model_for, policy_for, use_threads

Weights = Mapping[str, Mapping[str, Any]]  # group -> what it had learned


@dataclass(frozen=True)
class Meeting:
    """Who meets whom about what. row: the agent that is a row; all others that learn are a column. weights: by iteration."""

    scenario: LanguageScenario
    tasks: list[Task]
    row: str
    others: list[str]
    group: str
    weights: Mapping[int, Weights]
    models: Mapping[str, Policy]
    plays: ModelPlay

    @property
    def protocol(self) -> Protocol:
        """What is played."""
        return self.scenario.protocol

    @property
    def iterations(self) -> list[int]:
        """Oldest first."""
        return [*self.weights]

    def games(self, row: int, column: int) -> Games:
        """The tasks once each, by the numbers of two of the iterations."""
        then, past = self.iterations[row], self.iterations[column]
        if self.group in self.weights[then]:
            self.models[self.group].take(self.weights[then][self.group])
        tasks = [replace(task, past=dict.fromkeys(self.others, past)) for task in self.tasks]
        dialogues = self.plays.play(self.scenario, tasks, "cross-play", 0).dialogues
        return Games(
            torch.tensor([dialogue.item.y for dialogue in dialogues]),
            torch.tensor([dialogue.verdict for dialogue in dialogues]),
            torch.tensor([[dialogue.total(agent) for agent in self.protocol.agents] for dialogue in dialogues], dtype=torch.float64),
            torch.tensor([dialogue.seed for dialogue in dialogues]),
        )


def meeting(folder: RunFolder, config: TextExperimentConfig, greedy: bool, max_instances: int | None, seed: int) -> Meeting:
    """See `cross_play_checkpoints`, whose options these are. Raises UserError for a run without weights of two times."""
    if not isinstance(config.algorithm, TokenTrainingSettings):
        raise UserError(
            f"cross-play --checkpoints: the models of {folder.path} learned by {config.algorithm.name}, in jobs; it is for policy_gradient"
        )
    prepared, run_dir = prepare(config, folder.path), folder.path
    if prepared.scenario.protocol.panel is not None:
        raise UserError(f"cross-play --checkpoints: {folder.path} plays {config.protocol.name}, and takes one decider of language models")
    agents, members = language_agents(config), groups(config)
    learning = [group for group, own in members.items() if not agents[own[0]].frozen]
    for group in learning:
        if not config.providers[hosted := agents[members[group][0]].provider].local_models:
            raise UserError(f"cross-play --checkpoints: {hosted} keeps the weights of {group}, {folder.path} has none of them")
    how = "set algorithm.keep_checkpoints=null to keep all, or name opponents, whose snapshots are kept"
    snapshots, checkpoints = kept_snapshots(run_dir, learning), kept_iterations(folder.checkpoints)
    weights: dict[int, Weights] = {}
    for iteration in spread(sorted({*snapshots, *checkpoints}), run_dir, how):
        if iteration in checkpoints:
            found = load_checkpoint(folder.checkpoints, iteration).tensors
            weights[iteration] = {group: found[group]["weights"] for group in learning}
        else:
            weights[iteration] = {group: snapshot_weights(run_dir, iteration, group) for group in learning}
    use_threads(config)
    told = {agent: replace(own, temperature=0.0, top_p=None) for agent, own in agents.items()} if greedy else agents
    played = config.model_copy(update={"scenario": replace(config.scenario, agents=told), "budget": BudgetSettings()})
    protocol = prepared.scenario.protocol
    row = protocol.viewpoint
    others = [agent for agent in agents if agent != row and not agents[agent].frozen]
    columns = [group for group in learning if any(agent in others for agent in members[group])]
    past = {group: model_for(config, group, run_dir) for group in columns}

    def load(iteration: int) -> Mapping[str, Policy]:
        for group, model in past.items():
            model.take(weights[iteration][group])
        return past

    models = {
        group: model_for(config, group, run_dir) if group in learning else policy_for(config, group, run_dir)
        for group, own in members.items()
        if row in own or group not in learning
    }
    items = prepared.items["test"]
    chosen = [items[place] for place in places(len(items), max_instances, seed).tolist()]
    group = next(name for name, own in members.items() if row in own)
    plays = ModelPlay(played, models, TokenBills(played, run_dir), load)
    return Meeting(prepared.scenario, test_tasks(chosen, seed, None, 1), row, others, group, weights, models, plays)
