"""`cross_play_checkpoints`: every kept checkpoint of a run against every other, with ratings.

Decisions that matter here:
- rows are the verifiers of all checkpoints, columns everybody else of all: a verifier that has forgotten an earlier prover shows
  it below the diagonal. In a game without a verifier rows are the first player;
- a game is an instance: the verifier wins it by a right verdict, a player by being paid more than the others (as much: a draw).
  So a prover's rating says how often verifiers err in its company, whether it deceives them or does not help;
- all pairs are asked about the same instances under the same seeds; so ratings have intervals by a bootstrap over instances.

What is played is the medium's business: networks here, language models in `nip_ray.evaluation.verbs.text_over_time`.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.elo import ratings, records
from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.staged import players
from nip_ray.evaluation.verbs.cross_play import Contestant, figures_of, places, played
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.play.opponent_pool import thinned
from nip_ray.progress import say
from nip_ray.protocols import Protocol
from nip_ray.storage.checkpoint import kept_iterations
from nip_ray.storage.folder import CONFIG, RunFolder

MOST = 40
"""Checkpoints that are played; of more, so many spread over all of training."""


@dataclass(frozen=True)
class Games:
    """How B games ended. y_B: labels. verdict_B: 2 where there is none. return_BA: what each agent was paid in all."""

    y_B: Tensor
    verdict_B: Tensor
    return_BA: Tensor


def cross_play_checkpoints(
    run_dir: Path | str, *, greedy: bool = True, max_instances: int | None = None, seed: int = 0, dataset: Path | str | None = None
) -> dict[str, Any]:
    """{"run_dir", "roles", "runs", "greedy", "num_instances", "dataset", "matrix", "elo"}; docs/evaluation.md has the layout.

    The options are those of `cross_play`. Raises UserError for a run with fewer than two checkpoints and for one in which nobody meets.
    """
    folder = RunFolder.open(run_dir)
    config = load_config(folder.path / CONFIG, checked=False)
    if isinstance(config, TextExperimentConfig):
        from nip_ray.evaluation.verbs.text_over_time import meeting

        if dataset is not None:
            raise UserError("--dataset: language models are asked about the run's own held-out items; leave it out")
        meet = meeting(folder, config, greedy, max_instances, seed)
        protocol, iterations, play, count = meet.protocol, meet.iterations, meet.games, len(meet.tasks)
    else:
        everyone = _checkpoints(folder, config, dataset)
        protocol, iterations = everyone[0].scenario.protocol, [one.iteration for one in everyone]
        place_B = places(len(everyone[0].ids), max_instances, seed)
        count = len(place_B)

        def play(row: int, column: int) -> Games:
            found = played(everyone[row], everyone[column], place_B, greedy, seed)
            return Games(found.y_B, found.verdict_B, found.reward_BRA.double().sum(1))

    return {
        "run_dir": str(run_dir),
        "runs": [{"name": _name(iteration), "iteration": iteration, "seed": config.seed} for iteration in iterations],
        "greedy": greedy,
        "num_instances": count,
        "dataset": None if dataset is None else str(dataset),
        **_table(protocol, [_name(iteration) for iteration in iterations], play, seed),
    }


def roles_of(protocol: Protocol) -> tuple[str, str]:
    """What rows and columns are called."""
    return ("verifier", "prover") if protocol.verifier is not None else (protocol.agents[0], protocol.agents[1])


def spread(kept: Sequence[int], run_dir: Path, how: str) -> list[int]:
    """The iterations that are played, of those whose weights are there. how: to have more of them. Raises UserError for fewer than two."""
    if len(kept) < 2:
        raise UserError(f"cross-play --checkpoints: {run_dir} has {len(kept)}, and needs two; {how}")
    if len(kept) > MOST:
        say(f"warning: {run_dir} has {len(kept)} checkpoints; {MOST} of them, spread over all of training, are played")
    return thinned(kept, MOST)


def _table(protocol: Protocol, names: Sequence[str], play: Callable[[int, int], Games], seed: int) -> dict[str, Any]:
    """ "roles", "matrix" and "elo". play: gives the games of a row, by its number, with a column."""
    roles, matrix, scores = roles_of(protocol), [], []
    for row, own in enumerate(names):
        scores.append([])
        for column, other in enumerate(names):
            games = play(row, column)
            score_B = _scores(protocol, games)
            scores[-1].append(score_B)
            matrix.append({roles[0]: own, roles[1]: other, **_records(protocol, games, score_B)})
    of_rows, of_columns = ratings(torch.stack([torch.stack(own) for own in scores]).numpy(), seed)
    elo = {role: records(names, found) for role, found in zip(roles, (of_rows, of_columns), strict=True)}
    return {"roles": list(roles), "matrix": matrix, "elo": elo}


def _name(iteration: int) -> str:
    return f"{iteration:06d}"


def _checkpoints(folder: RunFolder, config: ExperimentConfig, dataset: Path | str | None) -> list[Contestant]:
    """Each kept checkpoint as one who takes part, oldest first."""
    if config.algorithm.name == "solo":
        raise UserError(f"cross-play: the agent of {folder.path} learned alone and meets nobody; name another run")
    chosen = spread(kept_iterations(folder.checkpoints), folder.path, "set checkpoint.keep=null to keep all")
    made = bench(folder.path, config, dataset, None)
    scenario = made.examination.scenario
    ids, found = scenario.ids("test").cpu(), []
    for iteration in chosen:
        tensors = newest_or(folder, iteration, config).tensors
        networks = {agent: copy.deepcopy(network) for agent, network in made.networks.items()}
        for agent, network in networks.items():
            network.load_state_dict(tensors["training"]["modules"][agent])
        name = _name(iteration)
        found.append(Contestant(name, name, folder.path, iteration, config, scenario, ids, players(config, networks)))
    return found


def _scores(protocol: Protocol, games: Games) -> Tensor:
    """(B,) float64: what the row scored in each game."""
    if protocol.verifier is not None:
        return (games.verdict_B == games.y_B).double()
    return (1 + torch.sign(games.return_BA[:, 0] - games.return_BA[:, 1:].mean(1))) / 2


def _records(protocol: Protocol, games: Games, score_B: Tensor) -> dict[str, Any]:
    if protocol.verifier is not None:
        return {name: proportion(*count).record() for name, count in figures_of(games.verdict_B, games.y_B).items()}
    return {"score": mean(score_B.numpy()).record(), "return": mean(games.return_BA[:, 0].numpy()).record()}
