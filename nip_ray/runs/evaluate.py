"""`evaluate_run`: examine a run's verifier again, from a checkpoint, on its own held-out split or on a file of instances."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import UserError
from nip_ray.runs.checkpoint import load_checkpoint
from nip_ray.runs.experiment import prepare_process, run_fingerprint
from nip_ray.runs.folder import CONFIG, RunFolder


def evaluate_run(
    run_dir: Path | str, *, dataset: Path | str | None = None, checkpoint: int | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Flat figures: ``eval/…`` (greedy) and ``eval_sampled/…`` as in `docs/metrics.md`, each accuracy with ``…/lower`` and ``…/upper``
    (95 %, exact), and what was examined: run_dir, iteration, dataset, num_instances, seed.

    dataset: a file of pairs of any readable kind (none: the run's own held-out split). checkpoint: an iteration (none: the newest).
    Needs torch only; no Ray is started. Raises UserError for what cannot be read or does not fit.
    """
    from nip_ray.config.load import load_stored_config
    from nip_ray.config.plugins import import_plugins
    from nip_ray.evaluation.examine import Examination
    from nip_ray.scenarios.registry import played_scenario

    folder = RunFolder.open(run_dir)
    config = load_stored_config(folder.path / CONFIG)
    found = load_checkpoint(folder.checkpoints, checkpoint, run_fingerprint(config))
    prepare_process(config.runtime.num_threads)
    import_plugins(config.plugins)
    scenario = played_scenario(config.protocol, _examined(config, dataset), config.algorithm)
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    for agent, network in networks.items():
        network.load_state_dict(found.tensors["training"]["modules"][agent])
    seed = config.seed if seed is None else seed
    examination = Examination(scenario, seed, config.evaluation.max_instances if dataset is None else None)
    figures: dict[str, Any] = {
        "run_dir": str(folder.path),
        "iteration": found.iteration,
        "dataset": None if dataset is None else str(dataset),
        "num_instances": len(examination.ids),
        "seed": seed,
        **examination.exact(networks),
    }
    for prefix, greedy in (("eval", True), ("eval_sampled", False)):
        rollout = examination.rollout(networks, greedy)
        figures |= examination.metrics(rollout, prefix)
        for name, record in examination.record(rollout).items():
            if name.startswith("verifier/") and "=" not in name:
                figures |= {f"{prefix}/{name}/{end}": record[end] for end in ("lower", "upper")}
        if not greedy:
            for agent, score in examination.regression(networks, config.evaluation.message_regression, rollout).items():
                key = f"eval/{agent}/message_regression"
                figures |= {key: score.estimate, f"{key}/lower": score.lower, f"{key}/upper": score.upper}
    return figures


def _examined(config: ExperimentConfig, dataset: Path | str | None) -> Any:
    """The scenario's settings, with the held-out split from `dataset`."""
    if dataset is None:
        return config.scenario
    if config.scenario.name != "graph_isomorphism":
        raise UserError(f"--dataset: the scenario {config.scenario.name!r} of this run has no data sets; leave it out")
    # training pairs are not needed: the file serves as both splits
    data = replace(config.scenario.data, train=str(dataset), test=str(dataset), num_train=None, num_test=None, min_wl_score=None)
    return replace(config.scenario, data=data)
