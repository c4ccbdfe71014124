"""Games between language agents of different runs, or of different times of one run, for both kinds of cross-play.

Decisions that matter here:
- they are for models that learned by policy gradient, whose weights are in the run folder; weights are the averages
  where a run has them. Frozen agents play as their run has them;
- an agent keeps its run's model and settings (temperature, limits). All else is the verifier's run's, which must be the
  same of all runs;
- items are those held out by the first run whose subjects no run has trained with, in no stage of a curriculum;
- in memory are the models of one verifier and of one run's other agents, and the learned weights (or adapters) of all.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.policy_gradient_rules import stage_config
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.contest import Contest, Entrant, Games, Play, places
from nip_ray.progress import say
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.token_bills import Allowance, TokenBills
from nip_ray.text.dialogues.runner import Task, test_tasks
from nip_ray.text.items import stage_items
from nip_ray.text.parts import Prepared, prepare
from nip_ray.text.training.model_play import ModelPlay
from nip_ray.text.training.policies import Policy, model_for, policy_for, use_threads

Weights = Mapping[str, Mapping[str, Any]]
"""Group of agents -> its learned weights."""
_OF_ITEMS = ("agents", "data", "num_train", "num_test")  # scenario settings that may differ between runs


@dataclass(frozen=True)
class LanguageRun:
    """A run of language agents. learning: its groups that learn. rule: by which they learn."""

    config: TextExperimentConfig
    prepared: Prepared
    run_dir: Path
    learning: Sequence[str]
    rule: TokenTrainingSettings

    def weights(self, iteration: int | None = None) -> tuple[int, Weights]:
        """The iteration of a checkpoint (None: the newest undamaged one) and its weights. Raises UserError without
        one."""
        found = load_checkpoint(self.run_dir / "checkpoints", iteration)
        for line in found.skipped:
            say(f"warning: {line}; iteration {found.iteration} plays")
        if missing := [group for group in self.learning if group not in found.tensors]:
            raise UserError(
                f"cross-play: {self.run_dir}: its checkpoint has no weights of {missing[0]}; go back to a copy"
            )
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
    return LanguageRun(config, prepared, folder.path, learning, config.algorithm)


def common_items(runs: Sequence[LanguageRun]) -> list[Any]:
    """The items held out by the first run with whose subjects no run has trained. Raises UserError without any, and for
    runs whose scenarios differ in more than their models and numbers of items."""
    first = runs[0]
    kind, ours = first.prepared.kind, asdict(first.config.scenario)
    trained: set[Hashable] = set()
    for run in runs:
        theirs = asdict(run.config.scenario)
        for key in ours:
            if key not in _OF_ITEMS and ours[key] != theirs[key]:
                raise UserError(
                    f"cross-play: {first.run_dir} has scenario.{key}={ours[key]} and {run.run_dir} {theirs[key]}; name"
                    " runs of one task"
                )
        if kind.held_out:
            items = [*run.prepared.items["train"]]
            for stage in run.rule.curriculum:
                items += stage_items(stage_config(run.config, stage), run.prepared.items["test"])
            trained |= {kind.subject_of(item) for item in items}
    items = [item for item in first.prepared.items["test"] if kind.subject_of(item) not in trained]
    if not items:
        raise UserError(
            f"cross-play: the other runs have trained with all held-out items of {first.run_dir}; name runs with the"
            " same seed and items"
        )
    return items


def language_contest(
    runs: Sequence[Entrant],
    sides: Sequence[tuple[LanguageRun, Weights]],
    items: Sequence[Any],
    bills: TokenBills | Allowance,
    greedy: bool,
    max_instances: int | None,
    seed: int,
) -> Contest:
    """The contest of these runs about `items`, or a random sample of them. For the others see `language_play`."""
    chosen = [items[place] for place in places(len(items), max_instances, seed).tolist()]
    play = language_play(sides, test_tasks(chosen, seed, None, 1), bills, greedy, seed)
    return Contest(runs, sides[0][0].prepared.scenario.protocol, play, len(chosen))


def language_play(
    sides: Sequence[tuple[LanguageRun, Weights]],
    tasks: Sequence[Task],
    bills: TokenBills | Allowance,
    greedy: bool,
    seed: int,
) -> Play:
    """The games of these tasks, by number of the side whose verifier plays (without a verifier, the first player) and
    of the side with the other agents. bills: where tokens are booked. greedy: the likeliest tokens. seed: of sampled
    ones."""
    protocol = sides[0][0].prepared.scenario.protocol
    own = protocol.viewpoint
    others = [agent for agent in language_agents(sides[0][0].config) if agent != own]
    use_threads(sides[0][0].config)
    loaded: dict[str, tuple[Path, dict[str, Policy]]] = {}  # one for rows and one for columns

    def models_of(number: int, of: str, agents: Sequence[str]) -> dict[str, Policy]:
        (run, weights), models = sides[number], loaded.get(of, (None, {}))[1]
        try:
            if of not in loaded or loaded[of][0] != run.run_dir:
                models.clear()  # before others are loaded
                for name, members in groups(run.config).items():
                    if {*members} & {*agents}:
                        make = model_for if name in weights else policy_for
                        models[name] = make(run.config, name, run.run_dir)
                loaded[of] = run.run_dir, models
            for name, model in models.items():
                if name in weights:
                    model.take(weights[name])
                else:
                    model.forget()
        except UserError as error:
            raise UserError(f"cross-play: {run.run_dir}: {error}") from None
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"cross-play: {run.run_dir}: its checkpoint is not of its model ({error}); go back to a copy"
            ) from None
        return models

    def play(row: int, column: int) -> Games:
        (run, _), (other, _) = sides[row], sides[column]
        agents = {agent: language_agents((run if agent == own else other).config)[agent] for agent in (*others, own)}
        if greedy:
            agents = {agent: replace(settings, temperature=0.0, top_p=None) for agent, settings in agents.items()}
        config = run.config.model_copy(
            update={
                "scenario": replace(run.config.scenario, agents=agents),
                "providers": {**other.config.providers, **run.config.providers},
                "seed": seed,
            }
        )
        models, past = models_of(row, "row", [own]), models_of(column, "column", others)
        chats = [model.chat for model in (*models.values(), *past.values())]
        cut = sum(chat.prompts_cut for chat in chats)
        of_past = [replace(task, past=dict.fromkeys(others, column)) for task in tasks]
        # not the run's own scenario: it may have cached prompts that depend on settings
        scenario = run.prepared.kind.build(protocol, config.scenario)
        dialogues = ModelPlay(config, models, bills, lambda _: past).play(scenario, of_past, "cross-play", 0).dialogues
        if cut := sum(chat.prompts_cut for chat in chats) - cut:
            say(
                f"warning: {cut} prompts of {run.run_dir} with {other.run_dir} lost their middle to fit a context; the"
                " results of this pair are of what is left"
            )
        return Games(
            torch.tensor([dialogue.item.y for dialogue in dialogues]),
            torch.tensor([dialogue.verdict for dialogue in dialogues]),
            torch.tensor(
                [[dialogue.total(agent) for agent in protocol.agents] for dialogue in dialogues], dtype=torch.float64
            ),
            torch.tensor([dialogue.seed for dialogue in dialogues]),
        )

    return play
