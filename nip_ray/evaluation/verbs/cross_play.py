"""`cross_play`: verifiers of some runs against provers of others.

Decisions that matter here:
- agents trained together may share a private code. A verifier that understands only its own prover has learned that
  prover, not the task: the matrix shows it off its diagonal;
- all pairs play the same held-out instances and episode seeds; of copies of a situation greedy play needs one. Runs
  must have the same scenario, held-out instances and protocol; networks may differ, and each agent observes instances
  by its own run's settings;
- runs that differ only in seed and name are a group. For each pair of groups: the interquartile mean over all pairs of
  seeds, except those trained together, with an interval by resampling verifiers and provers (`crossed_interval`);
- verifiers and provers are rated separately (`nip_ray.evaluation.elo`): an instance is a game, which the verifier wins
  by a right verdict.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_stored_config
from nip_ray.errors import UserError
from nip_ray.evaluation.aggregates import FREE_KEYS, crossed_interval, stratified_interval
from nip_ray.evaluation.claims import shares
from nip_ray.evaluation.elo import ratings, records
from nip_ray.evaluation.enumerated import as_exact, one_of_each
from nip_ray.evaluation.examine import players
from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.report.compare import names_apart
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.evaluation.verbs.instances import content_of, same_content
from nip_ray.play.core import BatchedPlay, Player, episode_seeds
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import stage_all
from nip_ray.protocols import Protocol
from nip_ray.scenarios.registry import WITH_FILES
from nip_ray.seeding import generator, stable_seed
from nip_ray.storage.folder import CONFIG, RunFolder

_MAX_RUNS = 64
_SPEECH = ("message_size", "linear_symbols", "num_block_groups")  # settings of scenarios that define a message


@dataclass(frozen=True)
class Contestant:
    """A run that takes part. group: the name of all runs that differ from it only in their seed."""

    name: str
    group: str
    run_dir: Path
    iteration: int
    config: ExperimentConfig
    scenario: Scenario
    ids: Tensor
    networks: Mapping[str, nn.Module]


@dataclass(frozen=True)
class Games:
    """Results of B games. y_B: labels. verdict_B: 2 for none. return_BA: each agent's return. seed_B: episode seeds."""

    y_B: Tensor
    verdict_B: Tensor
    return_BA: Tensor
    seed_B: Tensor


Cells = dict[tuple[str, str], dict[str, tuple[int, int]]]
"""(verifier, prover) -> name -> (successes, trials); see `shares`."""
Play = Callable[[int, int], Games]
"""The games of a row with a column, by number."""


def cross_play(
    run_dirs: Sequence[Path | str],
    *,
    dataset: Path | str | None = None,
    greedy: bool = True,
    max_instances: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """{"runs", "groups", "greedy", "num_instances", "dataset", "matrix", "by_group", "roles", "elo"};
    docs/evaluation.md has the layout.

    run_dirs: at least two. dataset: a file of instances (none: the held-out split, which must be the same of all).
    greedy: the most likely actions, else sampled ones. max_instances: the size of a random sample. seed: of the sample,
    of sampled actions and of intervals. Raises UserError for incompatible runs, and for one without a checkpoint.
    """
    check_fit(run_dirs)
    runs = _contestants(run_dirs, dataset)
    place_B = places(len(runs[0].ids), max_instances, seed)
    once = one_of_each(runs[0].scenario, runs[0].ids[place_B]) if greedy else None
    to_play_B = place_B if once is None else place_B[once]

    def play(verifier: int, prover: int) -> Games:
        return played(runs[verifier], runs[prover], to_play_B, greedy, seed)

    found, cells = table(runs[0].scenario.protocol, [run.name for run in runs], play, exact=once is not None)
    return {
        "runs": [
            {"name": run.name, "group": run.group, "seed": run.config.seed, "iteration": run.iteration} for run in runs
        ],
        "groups": list(_groups(runs)),
        "greedy": greedy,
        "num_instances": len(place_B),
        "dataset": None if dataset is None else str(dataset),
        "matrix": found["matrix"],
        "by_group": list(_by_group(runs, cells, seed)),
        "roles": found["roles"],
        "elo": found["elo"],
    }


def check_fit(run_dirs: Sequence[Path | str]) -> None:
    """Raise UserError, in one line, for incompatible runs, before torch builds anything."""
    if len(run_dirs) < 2:
        raise UserError("cross-play: needs at least two runs")
    if len(run_dirs) > _MAX_RUNS:
        raise UserError(
            f"cross-play: {len(run_dirs)} runs are {len(run_dirs) ** 2} pairs; name at most {_MAX_RUNS} runs"
        )
    first: ExperimentConfig | None = None
    for run_dir in run_dirs:
        config = load_stored_config(RunFolder.open(run_dir).path / CONFIG)
        if config.algorithm.name == "solo":
            raise UserError(f"cross-play: the agent of {run_dir} learned alone and has no prover; leave it out")
        if first is None:
            first = config
            continue
        if config.scenario.name != first.scenario.name:
            raise UserError(
                f"cross-play: {run_dirs[0]} plays {first.scenario.name} and {run_dir} {config.scenario.name}; name runs"
                " of one scenario"
            )
        if config.protocol != first.protocol:
            differing = [key for key, value in asdict(first.protocol).items() if value != asdict(config.protocol)[key]]
            values = [", ".join(f"{key}={asdict(one.protocol)[key]}" for key in differing) for one in (first, config)]
            raise UserError(
                f"cross-play: {run_dirs[0]} has the protocol {values[0]} and {run_dir} {values[1]}; name runs of one"
                " protocol"
            )
        for key in _SPEECH:
            one, other = (getattr(run.scenario, key, None) for run in (first, config))
            if one != other:
                raise UserError(
                    f"cross-play: {run_dirs[0]} has scenario.{key}={one} and {run_dir} {other}; name runs whose"
                    " messages are of one kind"
                )


def _contestants(run_dirs: Sequence[Path | str], dataset: Path | str | None) -> list[Contestant]:
    runs: list[Contestant] = []
    absolute = [Path(run_dir).resolve() for run_dir in run_dirs]
    for position, path in enumerate(absolute):
        if path in absolute[:position]:
            raise UserError(f"cross-play: {Path(run_dirs[position])} is named twice; name every run once")
    names = names_apart(absolute)
    for run_dir, name in zip(run_dirs, names, strict=True):
        folder = RunFolder.open(run_dir)
        config = load_stored_config(folder.path / CONFIG)
        found = newest_or(folder, None, config)
        made = bench(folder.path, config, dataset, None)
        for agent, network in made.networks.items():
            network.load_state_dict(found.tensors["training"]["modules"][agent])
            network.eval()
        scenario = made.examination.scenario
        if scenario.protocol.verifier is None or not scenario.protocol.provers:
            name = scenario.protocol.name
            raise UserError(
                f"cross-play: {run_dir} plays {name}, which has no verifier and prover to be exchanged; leave it out"
            )
        ids = scenario.ids("test").cpu()
        plain = config.model_dump(exclude=set(FREE_KEYS))
        group = next((other.group for other in runs if other.config.model_dump(exclude=set(FREE_KEYS)) == plain), name)
        own = players(config, made.networks)
        runs.append(Contestant(name, group, folder.path, found.iteration, config, scenario, ids, own))
        largest = [getattr(run.scenario, "num_nodes", None) for run in (runs[0], runs[-1])]
        if largest[0] != largest[1]:  # a symbol names a graph and a node: symbols are numbered by the largest graph
            raise UserError(
                f"cross-play: the largest graph of {run_dirs[0]}, training pairs included, has {largest[0]} nodes and"
                f" that of {run_dir} {largest[1]}, so their symbols name other nodes; name runs with the same largest"
                " graph"
            )
        prover = scenario.protocol.provers[0]
        if len(runs) > 1 and not same_content(
            *(content_of(run.scenario, run.ids, prover) for run in (runs[0], runs[-1]))
        ):
            has_files = config.scenario.name in WITH_FILES
            hint = (
                "name a file of instances with --dataset"
                if has_files
                else "name runs with the same settings of their instances"
            )
            raise UserError(f"cross-play: {run_dirs[0]} and {run_dir} have other held-out instances; {hint}")
    return runs


def places(count: int, most: int | None, seed: int) -> Tensor:
    """The places of the instances that are played, the same in all runs: all, or a random sample of `most`."""
    if most is None or most >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=generator(seed, "cross play", "instances"))[:most].sort().values


def played(verifier: Contestant, prover: Contestant, place_B: Tensor, greedy: bool, seed: int) -> Games:
    """Play the instances at these places once: the verifier (all deciders; without any, the first player) of one run,
    the other agents of the other."""
    protocol, play = verifier.scenario.protocol, BatchedPlay(verifier.scenario)
    players = {}
    for agent in protocol.agents:
        noise = None if greedy else generator(seed, "cross play", agent)
        if agent in (protocol.verifiers or protocol.agents[:1]):
            players[agent] = Player(verifier.networks[agent], noise)
        else:  # each observes by its own run's settings, where the same instance may have another number
            players[agent] = Player(
                prover.networks[agent], noise, shown_B=prover.ids[place_B], scenario=prover.scenario
            )
    found = stage_all(
        play, players, verifier.ids[place_B], episode_seeds(stable_seed(seed, "cross play"), 0, len(place_B))
    ).rollout
    return Games(found.y_B, found.verdict_B, found.reward_BRA.double().sum(1), found.seed_B)


def table(protocol: Protocol, names: Sequence[str], play: Play, *, exact: bool) -> tuple[dict[str, Any], Cells]:
    """The entries "roles", "matrix" and "elo", and the counts of a verifier's cells. exact: the games are those of
    every situation, once."""
    roles = ("verifier", "prover") if protocol.verifier is not None else protocol.agents[:2]
    matrix, scores, cells = [], [], {}
    for row, own in enumerate(names):
        scores.append([])
        for column, other in enumerate(names):
            games = play(row, column)
            if protocol.verifier is not None:
                score_B = (games.verdict_B == games.y_B).double()
                found = shares(
                    protocol, *(part_B.cpu().numpy() for part_B in (games.verdict_B, games.y_B, games.seed_B))
                )
                counts = {name: (int(hit_B.sum()), int(of_B.sum())) for name, (hit_B, of_B) in found.items()}
                cells[own, other], figures = (
                    counts,
                    {name: proportion(*count).record() for name, count in counts.items()},
                )
            else:
                score_B = (1 + torch.sign(games.return_BA[:, 0] - games.return_BA[:, 1:].mean(1))) / 2
                figures = {
                    "score": mean(score_B.numpy()).record(),
                    "return": mean(games.return_BA[:, 0].numpy()).record(),
                }
            scores[-1].append(score_B)
            matrix.append({roles[0]: own, roles[1]: other, **as_exact(figures, 1.0 if exact else None)})
    rated = ratings(torch.stack([torch.stack(own) for own in scores]).numpy())
    elo = {role: records(names, found) for role, found in zip(roles, rated, strict=True)}
    return {"roles": list(roles), "matrix": matrix, "elo": elo}, cells


def _groups(runs: Sequence[Contestant]) -> dict[str, list[Contestant]]:
    found: dict[str, list[Contestant]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    return found


def _by_group(runs: Sequence[Contestant], cells: Cells, seed: int) -> Iterator[dict[str, Any]]:
    """For each pair of groups the interquartile means; within a group also of those trained together."""
    groups = _groups(runs)
    for verifiers, first in groups.items():
        for provers, second in groups.items():
            row: dict[str, Any] = {"verifiers": verifiers, "provers": provers}
            for name in (key for key in next(iter(cells.values())) if key != "undecided"):
                counts = [[cells[v.name, p.name][name] if v is not p else (0, 0) for p in second] for v in first]
                score = [[hits / tried if tried else math.nan for hits, tried in row_of] for row_of in counts]
                trials = [[tried for _, tried in row_of] for row_of in counts]
                row[name] = crossed_interval(score, seed, n_VP=trials).record()
                if verifiers == provers:
                    known = [
                        (hits, tried) for run in first for hits, tried in [cells[run.name, run.name][name]] if tried
                    ]
                    together = stratified_interval(
                        [[hits / tried for hits, tried in known]], seed, n_KL=[[tried for _, tried in known]]
                    )
                    row[f"{name}_trained_together"] = together.record()
            yield row
