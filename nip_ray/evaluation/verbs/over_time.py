"""`cross_play_checkpoints`: every kept checkpoint of a run against every other, with ratings.

Decisions that matter here:
- rows are the verifiers of all checkpoints, columns everybody else of all: a verifier that has forgotten an earlier prover shows
  it below the diagonal. In a game without a verifier rows are the first player;
- a game is an instance: the verifier wins it by a right verdict, a player by being paid more than the others (as much: a draw).
  So a prover's rating says how often verifiers err in its company, whether it deceives them or does not help;
- all pairs are asked about the same instances under the same seeds; so ratings have intervals by a bootstrap over instances.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nip_ray.config.load import load_stored_config
from nip_ray.errors import UserError
from nip_ray.evaluation.elo import ratings, records
from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.staged import players
from nip_ray.evaluation.verbs.cross_play import Contestant, figures_of, places, played
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.play.opponent_pool import thinned
from nip_ray.play.rollout import Rollout
from nip_ray.progress import say
from nip_ray.protocols import Protocol
from nip_ray.storage.checkpoint import kept_iterations
from nip_ray.storage.folder import CONFIG, RunFolder

MOST = 40
"""Checkpoints that are played; of more, so many spread over all of training."""


def cross_play_checkpoints(
    run_dir: Path | str, *, greedy: bool = True, max_instances: int | None = None, seed: int = 0, dataset: Path | str | None = None
) -> dict[str, Any]:
    """{"run_dir", "roles", "runs", "greedy", "num_instances", "dataset", "matrix", "elo"}; docs/evaluation.md has the layout.

    The options are those of `cross_play`. Raises UserError for a run with fewer than two checkpoints and for one in which nobody meets.
    """
    everyone = _checkpoints(Path(run_dir), dataset)
    protocol = everyone[0].scenario.protocol
    place_B = places(len(everyone[0].ids), max_instances, seed)
    roles = ("verifier", "prover") if protocol.verifier is not None else protocol.agents[:2]
    matrix, scores = [], []
    for row in everyone:
        scores.append([])
        for column in everyone:
            rollout = played(row, column, place_B, greedy, seed)
            score_B = _scores(protocol, rollout)
            scores[-1].append(score_B)
            matrix.append({roles[0]: row.name, roles[1]: column.name, **_records(protocol, rollout, score_B)})
    of_rows, of_columns = ratings(torch.stack([torch.stack(own) for own in scores]).numpy(), seed)
    names = [one.name for one in everyone]
    return {
        "run_dir": str(run_dir),
        "roles": list(roles),
        "runs": [{"name": one.name, "iteration": one.iteration, "seed": one.config.seed} for one in everyone],
        "greedy": greedy,
        "num_instances": len(place_B),
        "dataset": None if dataset is None else str(dataset),
        "matrix": matrix,
        "elo": {role: records(names, own) for role, own in zip(roles, (of_rows, of_columns), strict=True)},
    }


def _checkpoints(run_dir: Path, dataset: Path | str | None) -> list[Contestant]:
    """Each kept checkpoint as one who takes part, oldest first."""
    folder = RunFolder.open(run_dir)
    config = load_stored_config(folder.path / CONFIG)
    kept = kept_iterations(folder.checkpoints)
    if config.algorithm.name == "solo":
        raise UserError(f"cross-play: the agent of {run_dir} learned alone and meets nobody; name another run")
    if len(kept) < 2:
        raise UserError(f"cross-play --checkpoints: {run_dir} has {len(kept)}, and needs two; set checkpoint.keep=null to keep all")
    if len(kept) > MOST:
        say(f"warning: {run_dir} has {len(kept)} checkpoints; {MOST} of them, spread over all of training, are played")
    made = bench(folder.path, config, dataset, None)
    scenario = made.examination.scenario
    ids, found = scenario.ids("test").cpu(), []
    for iteration in thinned(kept, MOST):
        tensors = newest_or(folder, iteration, config).tensors
        networks = {agent: copy.deepcopy(network) for agent, network in made.networks.items()}
        for agent, network in networks.items():
            network.load_state_dict(tensors["training"]["modules"][agent])
        name = f"{iteration:06d}"
        found.append(Contestant(name, name, folder.path, iteration, config, scenario, ids, players(config, networks)))
    return found


def _scores(protocol: Protocol, rollout: Rollout) -> Tensor:
    """(B,) float64: what the row scored in each game."""
    if protocol.verifier is not None:
        return (rollout.verdict_B == rollout.y_B).double()
    return_BA = rollout.reward_BRA.double().sum(1)
    return (1 + torch.sign(return_BA[:, 0] - return_BA[:, 1:].mean(1))) / 2


def _records(protocol: Protocol, rollout: Rollout, score_B: Tensor) -> dict[str, Any]:
    if protocol.verifier is not None:
        return {name: proportion(*count).record() for name, count in figures_of(rollout).items()}
    own_B = rollout.reward_BRA[:, :, 0].double().sum(1)
    return {"score": mean(score_B.numpy()).record(), "return": mean(own_B.numpy()).record()}
