"""A check that a learning rule meets the requirements of runs, in one call.

Decisions that matter here:

- It runs the message game (or a given experiment) in this process, without Ray: workers use the same code.
- It checks the promises of runs: the same seed gives the same results, a resumed run equals an uninterrupted one, and
  resting agents are unchanged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import TrainingError, refuse_faults
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import cpu_copy

_GAME: dict[str, Any] = {
    "protocol": {"name": "message_game", "max_rounds": 4},
    "scenario": {"name": "message_game", "num_symbols": 5, "agents": {"_default": {"hidden": 8}}},
    "algorithm": {"minibatch_size": 32},
    "play": {"num_copies": 16},
}
_ITERATIONS = 3


def check_algorithm(config: type[ProtocolAlgorithmConfig], experiment: Mapping[str, Any] | None = None) -> None:
    """Raise one UserError that lists the faults of the learning rule of `config`, if any.

    experiment: to run, as a config's plain data without its algorithm (default: the message game, which takes a second
    or two). Checked: its settings; learning changes weights and logs finite metrics under the announced names; it is
    deterministic, resumes bit-identically from a saved state, and does not change resting agents. The rule must be
    registered.
    """
    refuse_faults(
        f"algorithm {config.settings_class().name!r}",
        lambda: _settings_faults(config),
        lambda: _learning_faults(config, experiment or _GAME),
    )


def _settings_faults(config: type[ProtocolAlgorithmConfig]) -> Iterator[str]:
    from nip_ray.rllib.registry import ALGORITHMS

    name = config.settings_class().name
    if ALGORITHMS.get(name) is not config:
        yield "is not registered; call nip_ray.plugins.register_algorithm"
        return
    made = config()
    if made.settings() != config.settings_class():
        yield f"a new {config.__name__} does not have the default settings"
    if hasattr(made.settings(), "lr") and made.training(lr=0.25).settings().lr != 0.25:
        yield f"{config.__name__}().training(lr=...) does not change the settings"


def _learning_faults(config: type[ProtocolAlgorithmConfig], base: Mapping[str, Any]) -> Iterator[str]:
    rule = {**asdict(config.settings_class()), **base.get("algorithm", {})}
    experiment = ExperimentConfig.model_validate({**base, "seed": 1, "iterations": _ITERATIONS, "algorithm": rule})
    try:
        yield from _trained_faults(config, experiment)
    except TrainingError as error:
        yield str(error)


def _trained_faults(config: type[ProtocolAlgorithmConfig], experiment: ExperimentConfig) -> Iterator[str]:
    first, again, resumed = (_built(config, experiment) for _ in range(3))
    start = _weights(first)
    saved: dict[str, Any] = {}
    for iteration in range(_ITERATIONS):
        first.train()
        again.train()
        learned = {key: value for key, value in first.row.items() if key.startswith("learn/")}
        if not learned:
            yield "logs no metric; give metrics with the Loss of agent_loss"
        yield from (f"{key} is {value}" for key, value in learned.items() if not torch.tensor(float(value)).isfinite())
        if iteration == 0:
            saved = cpu_copy(again.training_state())
    learners = [agent for agent, network in first.networks().items() if network.groups()]  # pyright: ignore[reportCallIssue]
    for agent in learners:
        if not _differ(start, _weights(first), agent):
            yield f"nothing of {agent!r} changed in {_ITERATIONS} iterations"
    if any(_differ(_weights(first), _weights(again), agent) for agent in learners):
        yield "the same seed gives other weights; draw from nip_ray.seeding.generator"
    resumed.load_training_state(saved)
    for _ in range(_ITERATIONS - 1):
        resumed.train()
    if any(_differ(_weights(first), _weights(resumed), agent) for agent in learners):
        yield (
            "a resumed run gives other weights; keep what lasts beyond an update in extra_state() and"
            " load_extra_state()"
        )
    yield from _resting_faults(config, experiment, learners)
    for algorithm in (first, again, resumed):
        algorithm.stop()


def _resting_faults(
    config: type[ProtocolAlgorithmConfig], experiment: ExperimentConfig, learners: list[str]
) -> Iterator[str]:
    """An agent that rests in the first iteration by its schedule keeps its weights."""
    if len(learners) < 2:
        return
    resting = learners[0]
    dumped = experiment.model_dump(mode="json")
    dumped["schedules"] = {resting: {"kind": "contiguous", "period": 2, "start": 1, "stop": 2}}
    algorithm = _built(config, ExperimentConfig.model_validate(dumped))
    before = _weights(algorithm)
    algorithm.train()
    if _differ(before, _weights(algorithm), resting):
        yield f"{resting!r} rests, and yet its weights change; learn from agents in self.updated only"
    algorithm.stop()


def _built(config: type[ProtocolAlgorithmConfig], experiment: ExperimentConfig) -> ProtocolAlgorithm:
    made: Any = config().experiment(experiment)
    return made.build_algo()


def _weights(algorithm: ProtocolAlgorithm) -> dict[str, dict[str, Tensor]]:
    return {
        agent: {k: v.detach().clone() for k, v in network.state_dict().items()}
        for agent, network in algorithm.networks().items()
    }


def _differ(one: Mapping[str, Mapping[str, Tensor]], other: Mapping[str, Mapping[str, Tensor]], agent: str) -> bool:
    return any(not torch.equal(value, other[agent][key]) for key, value in one[agent].items())
