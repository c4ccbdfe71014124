"""`cross_play_checkpoints`: every kept checkpoint of a run against every other: results, scores of rows, ratings.

Decisions that matter here:
- rows are the verifiers of all checkpoints, columns the other agents: a verifier that has forgotten an earlier prover
  shows it below the diagonal. In a game without a verifier rows are the first player;
- a game is an instance: the verifier wins it by a right verdict, a player by being paid more than the others (as much:
  a draw). So a prover's rating measures how often verifiers err with it, by deception or for lack of help;
- all pairs play the same instances under the same seeds, so intervals of ratings are over instances;
- for language models, weights are those of the kept checkpoints and of the snapshots kept as opponents. In memory are
  one model for a group that is a row, one for a group that is a column, and all learned weights (or adapters) of all
  times. Frozen agents are the same at all times.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import UserError
from nip_ray.evaluation.enumerated import one_of_each
from nip_ray.evaluation.examine import players
from nip_ray.evaluation.verbs.cross_play import Contestant, Games, Play, places, played, table
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.play.opponent_pool import thinned
from nip_ray.progress import say
from nip_ray.protocols import Protocol
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import BudgetSettings
from nip_ray.storage.checkpoint import kept_iterations, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder

if TYPE_CHECKING:
    from nip_ray.text.training.policies import Policy

MOST = 40
"""Maximum number of checkpoints played; more are thinned out evenly over training."""


@dataclass(frozen=True)
class Meeting:
    """Pairings of checkpoints. iterations: oldest first. count: of instances. exact: see `table`."""

    protocol: Protocol
    iterations: Sequence[int]
    play: Play
    count: int
    exact: bool = False


def cross_play_checkpoints(
    run_dir: Path | str,
    *,
    greedy: bool = True,
    max_instances: int | None = None,
    seed: int = 0,
    dataset: Path | str | None = None,
) -> dict[str, Any]:
    """{"run_dir", "roles", "runs", "greedy", "num_instances", "dataset", "matrix", "elo"}; see docs/evaluation.md.

    The options are those of `cross_play`. Raises UserError for a run with fewer than two checkpoints and for one
    without opponents.
    """
    folder = RunFolder.open(run_dir)
    config = load_config(folder.path / CONFIG, checked=False)
    if isinstance(config, TextExperimentConfig):
        if dataset is not None:
            raise UserError("--dataset: language models are tested on the run's own held-out items; leave it out")
        meeting = _language_models(folder, config, greedy, max_instances, seed)
    else:
        meeting = _networks(folder, config, greedy, max_instances, seed, dataset)
    names = [_name(iteration) for iteration in meeting.iterations]
    return {
        "run_dir": str(run_dir),
        "runs": [
            {"name": _name(iteration), "iteration": iteration, "seed": config.seed} for iteration in meeting.iterations
        ],
        "greedy": greedy,
        "num_instances": meeting.count,
        "dataset": None if dataset is None else str(dataset),
        **table(meeting.protocol, names, meeting.play, exact=meeting.exact)[0],
    }


def _name(iteration: int) -> str:
    return f"{iteration:06d}"


def _spread(kept: Sequence[int], run_dir: Path, how: str) -> list[int]:
    """The played iterations, of those with weights. how: how to keep more. Raises UserError for fewer than two."""
    if len(kept) < 2:
        raise UserError(f"cross-play --checkpoints: {run_dir} has {len(kept)}, and needs two; {how}")
    if len(kept) > MOST:
        say(f"warning: {run_dir} has {len(kept)} checkpoints; {MOST} of them, spread over all of training, are played")
    return thinned(kept, MOST)


def _networks(
    folder: RunFolder,
    config: ExperimentConfig,
    greedy: bool,
    max_instances: int | None,
    seed: int,
    dataset: Path | str | None,
) -> Meeting:
    if config.algorithm.name == "solo":
        raise UserError(f"cross-play: the agent of {folder.path} learned alone and has no opponent; name another run")
    chosen = _spread(kept_iterations(folder.checkpoints), folder.path, "set checkpoint.keep=null to keep all")
    made = bench(folder.path, config, dataset, None)
    scenario = made.examination.scenario
    ids, everyone = scenario.ids("test").cpu(), []
    for iteration in chosen:
        tensors = newest_or(folder, iteration, config).tensors
        networks = {agent: copy.deepcopy(network) for agent, network in made.networks.items()}
        for agent, network in networks.items():
            network.load_state_dict(tensors["training"]["modules"][agent])
        own = players(config, networks)
        everyone.append(
            Contestant(_name(iteration), _name(iteration), folder.path, iteration, config, scenario, ids, own)
        )
    place_B = places(len(ids), max_instances, seed)
    once = one_of_each(scenario, ids[place_B]) if greedy else None
    to_play_B = place_B if once is None else place_B[once]

    def play(row: int, column: int) -> Games:
        return played(everyone[row], everyone[column], to_play_B, greedy, seed)

    return Meeting(scenario.protocol, chosen, play, len(place_B), once is not None)


def _language_models(
    folder: RunFolder, config: TextExperimentConfig, greedy: bool, max_instances: int | None, seed: int
) -> Meeting:
    # not at the top: networks must not load language models
    from nip_ray.text.costs.token_bills import TokenBills
    from nip_ray.text.dialogues.runner import test_tasks
    from nip_ray.text.parts import prepare
    from nip_ray.text.training.model_play import ModelPlay
    from nip_ray.text.training.past import kept_snapshots, snapshot_weights
    from nip_ray.text.training.policies import model_for, policy_for, use_threads

    if not isinstance(config.algorithm, TokenTrainingSettings):
        raise UserError(
            f"cross-play --checkpoints: the models of {folder.path} learned by {config.algorithm.name}, in jobs; it is"
            " for policy_gradient"
        )
    prepared, run_dir = prepare(config, folder.path), folder.path
    if prepared.scenario.protocol.panel is not None:
        raise UserError(
            f"cross-play --checkpoints: {folder.path} plays {config.protocol.name}, and takes one decider of language"
            " models"
        )
    agents, members = language_agents(config), groups(config)
    learning = [group for group, own in members.items() if not agents[own[0]].frozen]
    for group in learning:
        if not config.providers[hosted := agents[members[group][0]].provider].local_models:
            raise UserError(
                f"cross-play --checkpoints: {hosted} keeps the weights of {group}, {folder.path} has none of them"
            )
    how = "set algorithm.keep_checkpoints=null to keep all, or name opponents, whose snapshots are kept"
    checkpoints, averaged = kept_iterations(folder.checkpoints), config.algorithm.average_weights is not None
    snapshots = [] if averaged else kept_snapshots(run_dir, learning)  # these are of the newest weights
    weights: dict[int, Mapping[str, Mapping[str, Any]]] = {}  # iteration -> group -> its learned weights
    for iteration in _spread(sorted({*snapshots, *checkpoints}), run_dir, how):
        if iteration in checkpoints:
            found = load_checkpoint(folder.checkpoints, iteration).tensors
            weights[iteration] = {group: found[group].get("averages", found[group]["weights"]) for group in learning}
        else:
            weights[iteration] = {group: snapshot_weights(run_dir, iteration, group) for group in learning}
    use_threads(config)
    told = {agent: replace(own, temperature=0.0, top_p=None) for agent, own in agents.items()} if greedy else agents
    asked = config.model_copy(update={"scenario": replace(config.scenario, agents=told), "budget": BudgetSettings()})
    protocol = prepared.scenario.protocol
    row = protocol.viewpoint
    others = [agent for agent in agents if agent != row and not agents[agent].frozen]
    columns = [group for group in learning if any(agent in others for agent in members[group])]
    past_models = {name: model_for(config, name, run_dir) for name in columns}

    def load(iteration: int) -> "Mapping[str, Policy]":
        for name, model in past_models.items():
            model.take(weights[iteration][name])
        return past_models

    models = {
        group: model_for(config, group, run_dir) if group in learning else policy_for(config, group, run_dir)
        for group, own in members.items()
        if row in own or group not in learning
    }
    items = prepared.items["test"]
    chosen = [items[place] for place in places(len(items), max_instances, seed).tolist()]
    group = next(name for name, own in members.items() if row in own)
    tasks, plays = test_tasks(chosen, seed, None, 1), ModelPlay(asked, models, TokenBills(asked, run_dir), load)
    iterations = [*weights]

    def play(row: int, column: int) -> Games:
        then, past = iterations[row], iterations[column]
        if group in weights[then]:
            models[group].take(weights[then][group])
        of_past = [replace(task, past=dict.fromkeys(others, past)) for task in tasks]
        dialogues = plays.play(prepared.scenario, of_past, "cross-play", 0).dialogues
        return Games(
            torch.tensor([dialogue.item.y for dialogue in dialogues]),
            torch.tensor([dialogue.verdict for dialogue in dialogues]),
            torch.tensor(
                [[dialogue.total(agent) for agent in protocol.agents] for dialogue in dialogues], dtype=torch.float64
            ),
            torch.tensor([dialogue.seed for dialogue in dialogues]),
        )

    return Meeting(protocol, iterations, play, len(tasks))
