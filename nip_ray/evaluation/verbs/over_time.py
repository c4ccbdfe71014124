"""`cross_play_checkpoints`: every kept checkpoint of a run against every other, with ratings.

Networks are played here, language models in `nip_ray.evaluation.verbs.text_over_time`; `nip_ray.evaluation.verbs.time_table` has the rest.
"""

import copy
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.enumerated import distinct_part
from nip_ray.evaluation.players import players
from nip_ray.evaluation.verbs.cross_play import Contestant, places, played
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.evaluation.verbs.time_table import Games, name_of, spread, table
from nip_ray.storage.checkpoint import kept_iterations
from nip_ray.storage.folder import CONFIG, RunFolder


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
        distinct = None
        protocol, iterations, play, count = meet.protocol, meet.iterations, meet.games, len(meet.tasks)
    else:
        everyone = _checkpoints(folder, config, dataset)
        protocol, iterations = everyone[0].scenario.protocol, [one.iteration for one in everyone]
        place_B = places(len(everyone[0].ids), max_instances, seed)
        count = len(place_B)
        distinct = distinct_part(everyone[0].scenario, everyone[0].ids[place_B]) if greedy else None

        def play(row: int, column: int) -> Games:
            found = played(everyone[row], everyone[column], place_B, greedy, seed)
            return Games(found.y_B, found.verdict_B, found.reward_BRA.double().sum(1), found.seed_B)

    return {
        "run_dir": str(run_dir),
        "runs": [{"name": name_of(iteration), "iteration": iteration, "seed": config.seed} for iteration in iterations],
        "greedy": greedy,
        "num_instances": count,
        "dataset": None if dataset is None else str(dataset),
        **table(protocol, [name_of(iteration) for iteration in iterations], play, distinct),
    }


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
        name = name_of(iteration)
        found.append(Contestant(name, name, folder.path, iteration, config, scenario, ids, players(config, networks)))
    return found
