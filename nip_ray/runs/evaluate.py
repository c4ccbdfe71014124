"""`evaluate_run`: examine a run's verifier again, from a checkpoint, on its own held-out split or on a file of instances.

One checkpoint here, all of them in `nip_ray.runs.rerun`; both are `bench`, which makes ready what checkpoints have in common, and
`examine`, whose document has the shape of `evaluation.json`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_stored_config
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.evaluation.examine import Examination
from nip_ray.runs.checkpoint import Checkpoint, load_checkpoint
from nip_ray.runs.fingerprint import run_fingerprint
from nip_ray.runs.folder import CONFIG, RunFolder
from nip_ray.runs.process import prepare_process
from nip_ray.scenarios.registry import played_scenario

_MODES = (("greedy", "eval"), ("sampled", "eval_sampled"))


@dataclass(frozen=True)
class Bench:
    """What all checkpoints of a run are examined with. networks: agent -> a network for weights to be put into. dataset: None for the
    run's own held-out split. seed: of sampled actions.
    """

    run_dir: Path
    config: ExperimentConfig
    examination: Examination
    networks: Mapping[str, nn.Module]
    dataset: str | None
    seed: int


def evaluate_run(
    run_dir: Path | str, *, dataset: Path | str | None = None, checkpoint: int | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Flat figures: ``eval/…`` (greedy) and ``eval_sampled/…`` as in `docs/metrics.md`, each accuracy with ``…/lower`` and ``…/upper``
    (95 %, exact), and what was examined: run_dir, iteration, dataset, num_instances, seed.

    dataset: a file of pairs of any readable kind (none: the run's own held-out split). checkpoint: an iteration (none: the newest).
    Needs torch only; no Ray is started. Raises UserError for what cannot be read or does not fit.
    """
    folder = RunFolder.open(run_dir)
    config = load_stored_config(folder.path / CONFIG)
    found = load_checkpoint(folder.checkpoints, checkpoint, run_fingerprint(config))
    made = bench(folder.path, config, dataset, seed)
    return flat_figures(made, examine(made, found))


def bench(run_dir: Path, config: ExperimentConfig, dataset: Path | str | None, seed: int | None) -> Bench:
    """The run's scenario and networks. dataset, seed: as in `evaluate_run`. Raises UserError for data that cannot be read."""
    prepare_process(config.runtime.num_threads)
    import_plugins(config.plugins)
    scenario = played_scenario(config.protocol, _examined(config, dataset), config.algorithm)
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    seed = config.seed if seed is None else seed
    examination = Examination(scenario, seed, config.evaluation.max_instances if dataset is None else None)
    return Bench(run_dir, config, examination, networks, None if dataset is None else str(dataset), seed)


def examine(made: Bench, checkpoint: Checkpoint) -> dict[str, Any]:
    """The figures of one checkpoint with intervals, greedy and sampled, in the shape of `evaluation.json`."""
    for agent, network in made.networks.items():
        network.load_state_dict(checkpoint.tensors["training"]["modules"][agent])
    return made.examination.document(made.networks, checkpoint.iteration, regression=made.config.evaluation.message_regression)


def flat_figures(made: Bench, document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of `examine` as `evaluate_run` returns it."""
    return {
        "run_dir": str(made.run_dir),
        "iteration": document["iteration"],
        "dataset": made.dataset,
        "num_instances": document["num_instances"],
        "seed": made.seed,
        **dict(_figures(document)),
    }


def _figures(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys as in `docs/metrics.md`; what has no value, being a share of nothing, has no key."""
    yield from ((f"eval/{name}", value) for name, value in document.get("exact", {}).items())
    for mode, prefix in _MODES:
        for name, record in document[mode].items():
            if record["estimate"] is not None:
                yield f"{prefix}/{name}", record["estimate"]
                if name.startswith("verifier/") and "=" not in name:
                    yield from _bounds(f"{prefix}/{name}", record)
    if document["wl_ceiling"] is not None:
        yield "eval/verifier/wl_ceiling", document["wl_ceiling"]
    for agent, score in document.get("message_regression", {}).items():
        yield f"eval/{agent}/message_regression", score["estimate"]
        yield from _bounds(f"eval/{agent}/message_regression", score)


def _bounds(key: str, record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"{key}/{end}", record[end]) for end in ("lower", "upper"))


def _examined(config: ExperimentConfig, dataset: Path | str | None) -> Any:
    """The scenario's settings, with the held-out split from `dataset`."""
    if dataset is None:
        return config.scenario
    if config.scenario.name != "graph_isomorphism":
        raise UserError(f"--dataset: the scenario {config.scenario.name!r} of this run has no data sets; leave it out")
    # training pairs are not needed: the file serves as both splits
    data = replace(config.scenario.data, train=str(dataset), test=str(dataset), num_train=None, num_test=None, min_wl_score=None)
    return replace(config.scenario, data=data)
