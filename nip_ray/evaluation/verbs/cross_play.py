"""`cross_play`: verifiers of some runs against provers of others.

Decisions that matter here:
- agents trained together may share a private code. A verifier that understands only its own prover has learned that
  prover, not the task: the matrix shows it off its diagonal;
- all pairs play the same held-out instances and episode seeds; of copies of a situation greedy play needs one. Runs
  must have the same scenario, held-out instances and protocol; networks and language models may differ, and each agent
  observes instances by its own run's settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import AnyConfig, load_config
from nip_ray.config.text_rules import speaking_providers
from nip_ray.errors import UserError
from nip_ray.evaluation.aggregates import FREE_KEYS
from nip_ray.evaluation.enumerated import one_of_each
from nip_ray.evaluation.examine import players
from nip_ray.evaluation.report.compare import names_apart
from nip_ray.evaluation.verbs.contest import Contest, Entrant, Games, by_group, groups_of, places, table
from nip_ray.evaluation.verbs.evaluate import bench, newest_or
from nip_ray.evaluation.verbs.instances import content_of, same_content
from nip_ray.play.core import BatchedPlay, Player, episode_seeds
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import stage_all
from nip_ray.scenarios.registry import WITH_FILES
from nip_ray.seeding import generator, stable_seed
from nip_ray.storage.folder import CONFIG, RunFolder

_MAX_RUNS = 64
_SPEECH = ("message_size", "linear_symbols", "num_block_groups")  # settings of scenarios that define a message


@dataclass(frozen=True)
class Contestant(Entrant):
    """A run of agents with networks. ids: of its held-out instances."""

    scenario: Scenario
    ids: Tensor
    networks: Mapping[str, nn.Module]


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

    run_dirs: at least two. dataset: a file of instances (none: the held-out split, which must be the same of all; for
    language models, those that the first run holds out and none has trained with). greedy: the most likely actions,
    else sampled ones. max_instances: the size of a random sample. seed: of the sample, of sampled actions and of
    intervals. Raises UserError for incompatible runs, and for one without a checkpoint.
    """
    configs = _fitting(run_dirs)
    if not isinstance(configs[0], TextExperimentConfig):
        contest = network_contest(_contestants(run_dirs, configs, dataset), greedy, max_instances, seed)
    elif dataset is not None:
        raise UserError("--dataset: language models play items that their runs hold out; leave it out")
    else:
        contest = _of_language_models(run_dirs, configs, greedy, max_instances, seed)
    if contest.protocol.verifier is None or not contest.protocol.provers:
        name = contest.protocol.name
        raise UserError(
            f"cross-play: {run_dirs[0]} plays {name}, which has no verifier and prover to be exchanged; leave it out"
        )
    found, cells = table(contest.protocol, [run.name for run in contest.runs], contest.play, exact=contest.exact)
    return {
        "runs": [asdict(Entrant(run.name, run.group, run.seed, run.iteration)) for run in contest.runs],
        "groups": list(groups_of(contest.runs)),
        "greedy": greedy,
        "num_instances": contest.count,
        "dataset": None if dataset is None else str(dataset),
        "matrix": found["matrix"],
        "by_group": list(by_group(contest.runs, cells, seed)),
        "roles": found["roles"],
        "elo": found["elo"],
    }


def _fitting(run_dirs: Sequence[Path | str]) -> list[Any]:
    """The configs of compatible runs. Raises UserError, in one line, for others, before torch builds anything."""
    if len(run_dirs) < 2:
        raise UserError("cross-play: needs at least two runs")
    if len(run_dirs) > _MAX_RUNS:
        raise UserError(
            f"cross-play: {len(run_dirs)} runs are {len(run_dirs) ** 2} pairs; name at most {_MAX_RUNS} runs"
        )
    absolute = [Path(run_dir).resolve() for run_dir in run_dirs]
    for position, path in enumerate(absolute):
        if path in absolute[:position]:
            raise UserError(f"cross-play: {Path(run_dirs[position])} is named twice; name every run once")
    configs: list[AnyConfig] = []
    for run_dir in run_dirs:
        config = load_config(RunFolder.open(run_dir).path / CONFIG, checked=False)
        configs.append(config)
        if config.algorithm.name == "solo":
            raise UserError(f"cross-play: the agent of {run_dir} learned alone and has no prover; leave it out")
        first = configs[0]
        if type(config) is not type(first):
            kinds = [
                "language models" if isinstance(one, TextExperimentConfig) else "networks" for one in (first, config)
            ]
            raise UserError(
                f"cross-play: the agents of {run_dirs[0]} are {kinds[0]} and those of {run_dir} {kinds[1]}; name runs"
                " of one kind"
            )
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
    return configs


def _named(run_dirs: Sequence[Path | str], configs: Sequence[AnyConfig]) -> list[tuple[str, str]]:
    """For each run, its name and that of its group: of the first run that differs from it only in its seed."""
    names = names_apart([Path(run_dir).resolve() for run_dir in run_dirs])
    plain = [config.model_dump(exclude=set(FREE_KEYS)) for config in configs]
    return [(name, names[plain.index(own)]) for name, own in zip(names, plain, strict=True)]


def _of_language_models(
    run_dirs: Sequence[Path | str],
    configs: Sequence[TextExperimentConfig],
    greedy: bool,
    max_instances: int | None,
    seed: int,
) -> Contest:
    # not at the top: networks must not load language models
    from nip_ray.evaluation.verbs.language_meetings import common_items, language_contest, language_run
    from nip_ray.text.costs.token_bills import Allowance

    for run_dir, config in zip(run_dirs, configs, strict=True):
        if hosted := [name for name, provider in speaking_providers(config).items() if provider.hosted]:
            raise UserError(
                f"cross-play: {run_dir} has models at {hosted[0]}, which costs money; name runs of local models"
            )
    runs = [language_run(RunFolder.open(run_dir), config) for run_dir, config in zip(run_dirs, configs, strict=True)]
    items = common_items(runs)
    found = [run.weights() for run in runs]
    sides = [(run, weights) for run, (_, weights) in zip(runs, found, strict=True)]
    entrants = [
        Entrant(*named, config.seed, iteration)
        for named, config, (iteration, _) in zip(_named(run_dirs, configs), configs, found, strict=True)
    ]
    return language_contest(entrants, sides, items, Allowance(None), greedy, max_instances, seed)


def network_contest(runs: Sequence[Contestant], greedy: bool, max_instances: int | None, seed: int) -> Contest:
    """The contest of runs with the same held-out instances. The options are those of `cross_play`."""
    place_B = places(len(runs[0].ids), max_instances, seed)
    once = one_of_each(runs[0].scenario, runs[0].ids[place_B]) if greedy else None
    to_play_B = place_B if once is None else place_B[once]

    def play(row: int, column: int) -> Games:
        return played(runs[row], runs[column], to_play_B, greedy, seed)

    return Contest(runs, runs[0].scenario.protocol, play, len(place_B), once is not None)


def _contestants(
    run_dirs: Sequence[Path | str], configs: Sequence[ExperimentConfig], dataset: Path | str | None
) -> list[Contestant]:
    runs: list[Contestant] = []
    for run_dir, config, named in zip(run_dirs, configs, _named(run_dirs, configs), strict=True):
        folder = RunFolder.open(run_dir)
        found = newest_or(folder, None, config)
        made = bench(folder.path, config, dataset, None)
        for agent, network in made.networks.items():
            network.load_state_dict(found.tensors["training"]["modules"][agent])
            network.eval()
        scenario = made.examination.scenario
        ids = scenario.ids("test").cpu()
        own = players(config, made.networks)
        runs.append(Contestant(*named, config.seed, found.iteration, scenario, ids, own))
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
