"""Games between language agents of different runs, or of different times of one run, for both kinds of cross-play.

Decisions that matter here:
- they are for models that learned by policy gradient, whose weights are in the run folder; weights are the averages
  where a run has them. Frozen agents play as their run has them;
- an agent keeps its run's model and settings (temperature, limits). All else is the verifier's run's, which must be the
  same of all runs;
- items are those held out by the first run with which no run has trained;
- in memory are the models of one verifier and of one run's other agents, and the learned weights (or adapters) of all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.contest import Games, Play
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import BudgetSettings
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.token_bills import TokenBills
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.items import item_content
from nip_ray.text.parts import Prepared, prepare
from nip_ray.text.training.model_play import ModelPlay
from nip_ray.text.training.policies import Policy, model_for, policy_for, use_threads

Weights = Mapping[str, Mapping[str, Any]]
"""Group of agents -> its learned weights."""
_OF_ITEMS = ("agents", "data", "num_train", "num_test")  # scenario settings that may differ between runs


@dataclass(frozen=True)
class LanguageRun:
    """A run of language agents. learning: its groups that learn. averaged: it averages their weights."""

    config: TextExperimentConfig
    prepared: Prepared
    run_dir: Path
    learning: Sequence[str]
    averaged: bool

    def weights(self, iteration: int | None = None) -> tuple[int, Weights]:
        """The iteration of a checkpoint (None: the newest) and its weights. Raises UserError without one."""
        found = load_checkpoint(self.run_dir / "checkpoints", iteration)
        return found.iteration, {
            group: found.tensors[group].get("averages", found.tensors[group]["weights"]) for group in self.learning
        }


def language_run(folder: RunFolder, config: TextExperimentConfig) -> LanguageRun:
    """Read a run. Raises UserError if its agents cannot be exchanged."""
    if not isinstance(config.algorithm, TokenTrainingSettings):
        raise UserError(
            f"cross-play: the models of {folder.path} learned by {config.algorithm.name}, in jobs; it is for"
            " policy_gradient"
        )
    prepared, agents = prepare(config, folder.path), language_agents(config)
    if prepared.scenario.protocol.panel is not None:
        raise UserError(
            f"cross-play: {folder.path} plays {config.protocol.name}, and takes one decider of language models"
        )
    learning = [group for group, own in groups(config).items() if not agents[own[0]].frozen]
    for group in learning:
        hosted = agents[groups(config)[group][0]].provider
        if not config.providers[hosted].local_models:
            raise UserError(f"cross-play: {hosted} keeps the weights of {group}, {folder.path} has none of them")
    return LanguageRun(config, prepared, folder.path, learning, config.algorithm.average_weights is not None)


def common_items(runs: Sequence[LanguageRun]) -> list[Any]:
    """The items held out by the first run with which no run has trained. Raises UserError without any, and for runs
    whose scenarios differ in more than their models and numbers of items."""
    first = runs[0]
    kind, ours = first.prepared.kind, asdict(first.config.scenario)
    trained: set[str] = set()
    for run in runs:
        theirs = asdict(run.config.scenario)
        for key in ours:
            if key not in _OF_ITEMS and ours[key] != theirs[key]:
                raise UserError(
                    f"cross-play: {first.run_dir} has scenario.{key}={ours[key]} and {run.run_dir} {theirs[key]}; name"
                    " runs of one task"
                )
        if kind.held_out:
            trained |= {item_content(item, kind) for item in run.prepared.items["train"]}
    items = [item for item in first.prepared.items["test"] if item_content(item, kind) not in trained]
    if not items:
        raise UserError(
            f"cross-play: the other runs have trained with all held-out items of {first.run_dir}; name runs with the"
            " same seed and items"
        )
    return items


def language_play(sides: Sequence[tuple[LanguageRun, Weights]], tasks: Sequence[Task], greedy: bool, seed: int) -> Play:
    """The games of these tasks, by number of the side whose verifier plays (without a verifier, the first player) and
    of the side with the other agents. greedy: the likeliest tokens. seed: of sampled ones."""
    protocol = sides[0][0].prepared.scenario.protocol
    own = protocol.viewpoint
    others = [agent for agent in language_agents(sides[0][0].config) if agent != own]
    use_threads(sides[0][0].config)
    loaded: dict[str, tuple[Path, dict[str, Policy]]] = {}  # one for rows and one for columns

    def models_of(number: int, of: str, agents: Sequence[str]) -> dict[str, Policy]:
        run, weights = sides[number]
        if of not in loaded or loaded[of][0] != run.run_dir:
            loaded.pop(of, None)  # before others are loaded
            config, played = (
                run.config,
                [name for name, members in groups(run.config).items() if {*members} & {*agents}],
            )
            loaded[of] = (
                run.run_dir,
                {name: (model_for if name in weights else policy_for)(config, name, run.run_dir) for name in played},
            )
        for name, model in loaded[of][1].items():
            if name in weights:
                model.take(weights[name])
        return loaded[of][1]

    def play(row: int, column: int) -> Games:
        (run, _), (other, _) = sides[row], sides[column]
        agents = {agent: language_agents((run if agent == own else other).config)[agent] for agent in (*others, own)}
        if greedy:
            agents = {agent: replace(settings, temperature=0.0, top_p=None) for agent, settings in agents.items()}
        config = run.config.model_copy(
            update={
                "scenario": replace(run.config.scenario, agents=agents),
                "providers": {**other.config.providers, **run.config.providers},
                "budget": BudgetSettings(),
                "seed": seed,
            }
        )
        bills = TokenBills(config, run.run_dir)
        plays = ModelPlay(
            config, models_of(row, "row", [own]), bills, lambda number: models_of(number, "column", others)
        )
        scenario = replace(run.prepared.scenario, settings=config.scenario)
        dialogues = plays.play(
            scenario, [replace(task, past=dict.fromkeys(others, column)) for task in tasks], "cross-play", 0
        ).dialogues
        bills.close()
        return Games(
            torch.tensor([dialogue.item.y for dialogue in dialogues]),
            torch.tensor([dialogue.verdict for dialogue in dialogues]),
            torch.tensor(
                [[dialogue.total(agent) for agent in protocol.agents] for dialogue in dialogues], dtype=torch.float64
            ),
            torch.tensor([dialogue.seed for dialogue in dialogues]),
        )

    return play
