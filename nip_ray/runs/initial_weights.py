"""Start from another run's agents: their weights and observation statistics, from a verified checkpoint.

An agent fits if both its network settings are the same, except those about initialisation and training, and if every
tensor has the same shape (which also depends on rounds, channels and the scenario).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from nip_ray.config.changes import run_fingerprint
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.players import agent_settings, rounds_of
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.scenarios.registry import played_scenario
from nip_ray.settings.schedule import WeightSource
from nip_ray.storage.checkpoint import Checkpoint, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder
from nip_ray.storage.sources import run_folder

_SHAPES_SHOWN = 3
_FREE = ("lr_factor", "initialisation", "initialisation_gain", "noise_sigma", "dropout", "input_bias")  # name suffixes


def initial_weights(
    config: ExperimentConfig, run_dir: Path | None = None
) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
    """(agent -> the initial state of its network, notes on skipped checkpoints) for all of `config.initial_weights`.

    run_dir: of the new run, beside which fetched artifacts are kept (None: not kept). Raises UserError if a run, its
    checkpoint or the agent in it is missing or damaged, and if the agent does not fit.
    """
    if not config.initial_weights:
        return {}, []
    import_plugins(config.plugins)
    scenario = played_scenario(config.protocol, config.scenario, config.algorithm)
    found, notes = {}, []
    # agents of one run come from one checkpoint
    opened: dict[tuple[str, int | None], tuple[ExperimentConfig, Checkpoint]] = {}
    for agent, source in config.initial_weights.items():
        where = f"initial_weights.{agent}"
        if agent not in scenario.protocol.agents:
            raise UserError(
                f"{where}: not an agent of this experiment, expected one of {', '.join(scenario.protocol.agents)}"
            )
        place = (source.run_dir, source.checkpoint)
        if place not in opened:
            opened[place] = _opened(where, source, run_dir)
        theirs, checkpoint = opened[place]
        notes += [f"{where}: {reason}; taking iteration {checkpoint.iteration}" for reason in checkpoint.skipped]
        other, modules = source.agent or agent, checkpoint.tensors["training"]["modules"]
        if other not in modules:
            raise UserError(
                f"{where}.agent: {source.run_dir} has no agent {other!r}, it has {', '.join(sorted(modules))}"
            )
        ours = scenario.build_agent(agent, 0).state_dict()
        faults = list(_faults(theirs, other, config, agent, _differing(modules[other], ours)))
        if faults:
            raise UserError(
                f"{where}: {other!r} of {source.run_dir} does not fit ({', '.join(faults)}), use the same settings"
            )
        found[agent] = modules[other]
    return found, notes


def put_weights(algorithm: Any, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Load these entries of its networks' states into an untrained algorithm, on all learners and runners."""
    state = algorithm.training_state()
    modules = {agent: {**own, **weights.get(agent, {})} for agent, own in state["modules"].items()}
    algorithm.load_training_state({**state, "modules": modules})


def _opened(where: str, source: WeightSource, beside: Path | None) -> tuple[ExperimentConfig, Checkpoint]:
    from nip_ray.config.load import load_stored_config

    try:
        with run_folder(source.run_dir, beside) as path, RunFolder.open(path) as folder:
            config = load_stored_config(folder.path / CONFIG)
            return config, load_checkpoint(folder.checkpoints, source.checkpoint, run_fingerprint(config))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _faults(
    theirs: ExperimentConfig, other: str, ours: ExperimentConfig, agent: str, differing: Mapping[str, str]
) -> Iterator[str]:
    """Differences of the agents: settings, and tensors (`differing`: name -> both shapes in words)."""
    if theirs.scenario.name != ours.scenario.name:
        yield f"scenario.name is {theirs.scenario.name} there and {ours.scenario.name} here"
        return
    there, here = _network_settings(theirs, other), _network_settings(ours, agent)
    if differing:  # only then the surroundings matter
        there, here = {**there, **_surroundings(theirs)}, {**here, **_surroundings(ours)}
    yield from (f"{name} is {there[name]} there and {here[name]} here" for name in here if there[name] != here[name])
    yield from list(differing.values())[:_SHAPES_SHOWN]
    if len(differing) > _SHAPES_SHOWN:
        yield f"and {len(differing) - _SHAPES_SHOWN} more"


def _network_settings(config: ExperimentConfig, agent: str) -> dict[str, Any]:
    """The settings that determine the functions an agent's network can compute, by name."""
    return {name: value for name, value in asdict(agent_settings(config, agent)).items() if not name.endswith(_FREE)}


def _surroundings(config: ExperimentConfig) -> dict[str, Any]:
    """Settings, apart from the agent's own, that shapes may depend on, by name."""
    plain = {
        name: value
        for name, value in asdict(config.scenario).items()
        if isinstance(value, int) and "normaliz" not in name
    }
    return {"protocol": config.protocol.name, "max_rounds": rounds_of(config), **plain}


def _differing(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, str]:
    """Tensors that are missing or of another shape, with the difference."""

    def shape(state: Mapping[str, Tensor], name: str) -> str:
        return " x ".join(map(str, state[name].shape)) or "one number" if name in state else "missing"

    shapes = {name: (shape(theirs, name), shape(ours, name)) for name in {**ours, **theirs}}
    return {name: f"{name} is {there} there and {here} here" for name, (there, here) in shapes.items() if there != here}
