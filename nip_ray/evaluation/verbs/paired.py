"""`compare_paired`: the verifiers of two runs on the same instances: where each is right, the difference, and a test.

Decisions that matter here:
- each run plays its own protocol with its own agents, so protocols can be compared, and a verifier alone with one that
  questions provers. Networks play greedily, under the same episode seeds; for language models the dialogues of the last
  test are read;
- the instances must be the same, one by one (for language models, those that both have tested count). Those that either
  run has trained on are left out, and counted;
- the interval of a difference is that of `paired_difference`; p is the exact two-sided binomial test of McNemar
  (Psychometrika 12, 1947): of the instances on which only one run is right, each run has half by chance. In a game
  whose situations are all played nothing is sampled: the metrics are exact, and there is no p.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.aggregates import paired_difference
from nip_ray.evaluation.claims import Flags, shares
from nip_ray.evaluation.enumerated import as_exact, distinct_part
from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.verbs.evaluate import bench, newest_or, trained
from nip_ray.evaluation.verbs.instances import content_of, same_content
from nip_ray.play.core import BatchedPlay, Player, episode_seeds
from nip_ray.play.staged import stage_all
from nip_ray.protocols import Protocol, from_settings
from nip_ray.seeding import stable_seed
from nip_ray.storage.folder import CONFIG, RunFolder


@dataclass(frozen=True)
class Judged:
    """The verdicts of a run's verifier. fresh_B: not trained with. shared: (the other's instances) -> the places of
    common instances, here and there; None without any. distinct: as of `distinct_part`, if the instances are all there
    are."""

    iteration: int
    protocol: Protocol
    verdict_B: npt.NDArray[np.int64]
    y_B: npt.NDArray[np.int64]
    fresh_B: Flags
    instances: Any
    shared: Callable[[Any], tuple[list[int], list[int]] | None]
    distinct: float | None = None

    def at(self, places: list[int]) -> "Judged":
        """The selection of these instances, in this order."""
        return replace(self, verdict_B=self.verdict_B[places], y_B=self.y_B[places], fresh_B=self.fresh_B[places])


def compare_paired(
    first: Path | str, second: Path | str, *, dataset: Path | str | None = None, seed: int = 0
) -> dict[str, Any]:
    """{"runs": two of {"run_dir", "protocol", "iteration"}, "num_instances", "left_out" (that a run has trained on),
    "only_in_one" (run), "dataset", and for accuracy, completeness, soundness and undecided {"first", "second",
    "difference" (records; first less second), "only_first", "only_second" (instances), "p"}}.

    dataset: a file of instances, for networks (None: the held-out split). seed: of the episodes. Raises UserError for
    runs without a verifier, without a checkpoint or test, of different scenarios, and with other instances.
    """
    run_dirs = [Path(first), Path(second)]
    if run_dirs[0].resolve() == run_dirs[1].resolve():
        raise UserError(f"--paired: {first} is named twice; name another run")
    configs = [load_config(RunFolder.open(run_dir).path / CONFIG, checked=False) for run_dir in run_dirs]
    names = [config.scenario.name for config in configs]
    if names[0] != names[1] or type(configs[0]) is not type(configs[1]):
        raise UserError(
            f"--paired: {first} is about {names[0]} and {second} about {names[1]}, with agents of their kind; name runs"
            " of one"
        )
    one, other = (_judged(run_dir, config, dataset, seed) for run_dir, config in zip(run_dirs, configs, strict=True))
    shared = one.shared(other.instances)
    if shared is None:
        hint = (
            "name a file of instances with --dataset"
            if isinstance(configs[0], ExperimentConfig)
            else "name runs with the same items"
        )
        raise UserError(f"--paired: {first} and {second} have other held-out instances; {hint}")
    counts = (len(one.y_B), len(other.y_B))
    one, other = judged = (one.at(shared[0]), other.at(shared[1]))
    if one.protocol.verdicts != other.protocol.verdicts:
        verdicts = [", ".join(run.protocol.verdicts) for run in judged]
        raise UserError(
            f"--paired: {first} gives the verdicts {verdicts[0]} and {second} {verdicts[1]}; name runs with the same"
            " ones"
        )
    kept_B = one.fresh_B & other.fresh_B
    if not kept_B.any():
        kept_B = np.ones_like(kept_B)  # such as a game with few instances, without held-out ones
    first_shares, second_shares = (shares(one.protocol, run.verdict_B[kept_B], one.y_B[kept_B]) for run in judged)
    return {
        "runs": [
            {"run_dir": str(run_dir), "protocol": found.protocol.name, "iteration": found.iteration}
            for run_dir, found in zip(run_dirs, judged, strict=True)
        ],
        "num_instances": int(kept_B.sum()),
        "left_out": len(kept_B) - int(kept_B.sum()),
        "only_in_one": sum(counts) - 2 * len(kept_B),
        "dataset": None if dataset is None else str(dataset),
        **{
            name: pair_record(hit_B[of_B], second_shares[name][0][of_B], distinct=one.distinct)
            for name, (hit_B, of_B) in first_shares.items()
        },
    }


def pair_record(first_B: Flags, second_B: Flags, distinct: float | None = None) -> dict[str, Any]:
    """The comparison of two shares on the same instances; see `compare_paired`. distinct: of `distinct_part`; then all
    is exact, and there is no p."""
    only_first, only_second = int((first_B & ~second_B).sum()), int((~first_B & second_B).sum())
    record = {
        "first": proportion(int(first_B.sum()), len(first_B)).record(),
        "second": proportion(int(second_B.sum()), len(second_B)).record(),
        "difference": paired_difference(first_B, second_B).record(),
        "only_first": only_first,
        "only_second": only_second,
        "p": mcnemar(only_first, only_second),
    }
    if distinct is None:
        return record
    counts = {"only_first": round(only_first * distinct), "only_second": round(only_second * distinct), "p": None}
    return {**as_exact(record, distinct), **counts}


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact two-sided p: min(1, 2 P(X <= min(b, c))) for X ~ Binomial(b + c, 1/2); 1 where b + c = 0."""
    from scipy.special import bdtr

    count = only_first + only_second
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), count, 0.5))) if count else 1.0


def _judged(
    run_dir: Path, config: ExperimentConfig | TextExperimentConfig, dataset: Path | str | None, seed: int
) -> Judged:
    protocol = from_settings(config.protocol)
    if protocol.verifier is None:
        raise UserError(f"--paired: {run_dir} plays {protocol.name}, which has no verifier; leave it out")
    if isinstance(config, TextExperimentConfig):
        if dataset is not None:
            raise UserError("--dataset: goes with runs of networks; of language models the stored test is read")
        return _of_text(run_dir, config)
    return _of_networks(run_dir, config, dataset, seed)


@torch.no_grad()
def _of_networks(run_dir: Path, config: ExperimentConfig, dataset: Path | str | None, seed: int) -> Judged:
    found = newest_or(RunFolder.open(run_dir), None, config)
    made = bench(run_dir, config, dataset, None)
    examination, scenario = made.examination, made.examination.scenario
    ids = scenario.ids(examination.split).cpu()
    play = BatchedPlay(scenario)
    players = {agent: Player(network) for agent, network in trained(made, found).items()}
    rollout = stage_all(play, players, ids, episode_seeds(stable_seed(seed, "paired"), 0, len(ids))).rollout
    examination.ids = ids.to(examination.ids.device)  # all of them, also where the run examines some
    fresh_B = torch.isin(ids, examination.unseen_ids().cpu()).numpy()
    content, places = content_of(scenario, ids, scenario.protocol.viewpoint), list(range(len(ids)))

    def shared(other: Mapping[str, torch.Tensor]) -> tuple[list[int], list[int]] | None:
        return (places, places) if same_content(content, other) else None

    y_B = rollout.y_B.cpu().numpy()
    verdict_B = rollout.verdict_B.cpu().numpy()
    return Judged(
        found.iteration, scenario.protocol, verdict_B, y_B, fresh_B, content, shared, distinct_part(scenario, ids)
    )


def _of_text(run_dir: Path, config: TextExperimentConfig) -> Judged:
    from nip_ray.config.plugins import import_plugins
    from nip_ray.scenarios.language import language_kind
    from nip_ray.text.items import stored_items
    from nip_ray.text.training.metrics import last_dialogues

    import_plugins(config.plugins)
    kind = language_kind(config.scenario)
    items = stored_items(run_dir, kind) or {"train": [], "test": []}
    found = last_dialogues(run_dir, config.iterations, {item.id: item for item in items["test"]})
    if found is None:
        raise UserError(f"--paired: {run_dir} has no test dialogues; set algorithm.test_scheme or evaluate_every")
    iteration, dialogues = found
    if len({dialogue.item.id for dialogue in dialogues}) < len(dialogues):
        raise UserError(
            f"--paired: {run_dir} has tested items several times, so they do not form pairs; name runs with"
            " algorithm.num_test_repeats: 1"
        )
    written = [
        {key: value for key, value in kind.write_item(dialogue.item).items() if key != "id"} for dialogue in dialogues
    ]
    place_of = {json.dumps(record, sort_keys=True): place for place, record in enumerate(written)}

    def shared(other: Mapping[str, int]) -> tuple[list[int], list[int]] | None:
        both = [key for key in place_of if key in other]
        return ([place_of[key] for key in both], [other[key] for key in both]) if both else None

    verdict_B = np.array([dialogue.verdict for dialogue in dialogues], dtype=np.int64)
    y_B = np.array([dialogue.item.y for dialogue in dialogues], dtype=np.int64)
    fresh_B = np.full(len(y_B), kind.held_out)
    return Judged(iteration, from_settings(config.protocol), verdict_B, y_B, fresh_B, place_of, shared)
