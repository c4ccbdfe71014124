"""`cross_play_checkpoints`: every kept checkpoint of a run against every other: results, scores of rows, ratings.

Decisions that matter here:
- rows are the verifiers of all checkpoints, columns the other agents: a verifier that has forgotten an earlier prover
  shows it below the diagonal. In a game without a verifier rows are the first player;
- a game is an instance: the verifier wins it by a right verdict, a player by being paid more than the others (as much:
  a draw). So a prover's rating measures how often verifiers err with it, by deception or for lack of help;
- all pairs play the same instances under the same seeds, so intervals of ratings are over instances;
- for language models, weights are those of the kept checkpoints and of the snapshots kept as opponents.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.examine import players
from nip_ray.evaluation.verbs.contest import Contest, Entrant, table
from nip_ray.evaluation.verbs.cross_play import Contestant, network_contest
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.play.opponent_pool import thinned
from nip_ray.progress import say
from nip_ray.settings.providers import BudgetSettings
from nip_ray.storage.checkpoint import kept_iterations
from nip_ray.storage.folder import CONFIG, RunFolder

MOST = 40
"""Maximum number of checkpoints played; more are thinned out evenly over training."""


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
        contest = _language_models(folder, config, greedy, max_instances, seed)
    else:
        contest = _networks(folder, config, greedy, max_instances, seed, dataset)
    return {
        "run_dir": str(run_dir),
        "runs": [{"name": run.name, "iteration": run.iteration, "seed": run.seed} for run in contest.runs],
        "greedy": greedy,
        "num_instances": contest.count,
        "dataset": None if dataset is None else str(dataset),
        **table(contest.protocol, [run.name for run in contest.runs], contest.play, exact=contest.exact)[0],
    }


def _entrant(iteration: int, seed: int) -> tuple[str, str, int, int]:
    """The fields of the `Entrant` that a checkpoint is. seed: its run's."""
    return f"{iteration:06d}", f"{iteration:06d}", seed, iteration


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
) -> Contest:
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
        everyone.append(Contestant(*_entrant(iteration, config.seed), scenario, ids, own))
    return network_contest(everyone, greedy, max_instances, seed)


def _language_models(
    folder: RunFolder, config: TextExperimentConfig, greedy: bool, max_instances: int | None, seed: int
) -> Contest:
    # not at the top: networks must not load language models
    from nip_ray.evaluation.verbs.language_meetings import LanguageRun, Weights, language_contest, language_run
    from nip_ray.text.costs.token_bills import TokenBills
    from nip_ray.text.training.past import kept_snapshots, snapshot_weights

    run = language_run(folder, config)
    how = "set algorithm.keep_checkpoints=null to keep all, or name opponents, whose snapshots are kept"
    checkpoints = kept_iterations(folder.checkpoints)
    averaged = run.rule.average_weights is not None  # snapshots are of the newest weights
    snapshots = [] if averaged else kept_snapshots(run.run_dir, run.learning)
    sides: list[tuple[LanguageRun, Weights]] = []
    iterations = _spread(sorted({*snapshots, *checkpoints}), run.run_dir, how)
    for iteration in iterations:
        if iteration in checkpoints:
            weights = run.weights(iteration)[1]
        else:
            weights = {group: snapshot_weights(run.run_dir, iteration, group) for group in run.learning}
        sides.append((run, weights))
    bills = TokenBills(config.model_copy(update={"budget": BudgetSettings()}), run.run_dir)
    entrants = [Entrant(*_entrant(iteration, config.seed)) for iteration in iterations]
    return language_contest(entrants, sides, run.prepared.items["test"], bills, greedy, max_instances, seed)
