"""Saving and restoring: training continues exactly where it was, in learners and env runners, whichever way the state
travels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.ppo import ProtocolPPO, ProtocolPPOConfig
from tests.rllib.experiments import (
    PAST,
    TINY,
    Weights,
    distance,
    experiment,
    message_game,
    runner_weights,
    train,
    weights,
)
from tests.tiers import thinned

Travel = Callable[[ProtocolPPO, ProtocolPPO, Path], None]


def by_path(old: ProtocolPPO, new: ProtocolPPO, folder: Path) -> None:
    new.restore_from_path(old.save_to_path(folder / "checkpoint"))


def by_training_state(old: ProtocolPPO, new: ProtocolPPO, folder: Path) -> None:
    torch.save(old.training_state(), folder / "state.pt")
    new.load_training_state(torch.load(folder / "state.pt", weights_only=True))


def by_state(old: ProtocolPPO, new: ProtocolPPO, folder: Path) -> None:
    new.set_state(old.get_state())


TRAVELS = [
    pytest.param(by_path, id="path"),
    pytest.param(by_training_state, id="training_state"),
    pytest.param(by_state, id="state"),
]


@pytest.mark.parametrize("travel", thinned(TRAVELS, 3, 1))
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(experiment(dict(name="nip"), dict(shared_body=False)), id="nip"),
        pytest.param(message_game(), id="message_game"),
        pytest.param(message_game(opponents={**PAST, "size": 2}), id="opponents"),
    ],
)
def test_four_iterations_are_two_and_two(made: Any, tmp_path: Path, config: ExperimentConfig, travel: Travel) -> None:
    """The same weights to the last bit, with annealing, averages and the KL penalty; counters and coefficients
    included."""
    settings = dict(loss="kl_penalty", anneal_lr=True, average_weights=0.6)
    whole, first, second = (made(config, **settings) for _ in range(3))
    expected = train(whole, 4)
    halfway = train(first, 2)
    travel(first, second, tmp_path)
    assert distance(weights(second), halfway) == 0
    assert second.train_iteration == 2
    assert second.env_steps_total == first.env_steps_total > 0
    assert distance(train(second, 2), expected) == 0
    assert second.env_steps_total == whole.env_steps_total
    assert second.row["learn/lr"] == whole.row["learn/lr"]
    assert same_state(second.training_state(), whole.training_state())


@pytest.mark.parametrize("noise", [dict(noise_sigma=0.2), dict(transformer_dropout=0.3)], ids=["noise", "dropout"])
def test_noise_in_the_networks_does_not_break_a_resume(made: Any, tmp_path: Path, noise: dict[str, float]) -> None:
    """What is random in learning is drawn by seed and iteration, not from a generator whose state is lost."""
    config = experiment(dict(name="nip"), {"agents": {"_default": {**TINY, **noise}}})
    whole, first, second = (made(config) for _ in range(3))
    expected = train(whole, 3)
    train(first, 1)
    by_training_state(first, second, tmp_path)
    torch.manual_seed(12345)  # a new process has another state
    assert distance(train(second, 2), expected) == 0


@pytest.mark.slow
def test_a_checkpoint_of_local_workers_restores_into_remote_ones(ray_session: None, made: Any, tmp_path: Path) -> None:
    old, new = made(message_game()), made(message_game(play=dict(num_env_runners=1), learners=dict(num_learners=1)))
    train(old, 2)
    by_path(old, new, tmp_path)
    assert distance(train(new, 1), train(old, 1)) <= 1e-6


def same_state(first: Any, second: Any) -> bool:
    """Whether two nested states agree exactly."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_state(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same_state(a, b) for a, b in zip(first, second, strict=True))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.slow
def test_remote_runners_have_the_learners_weights(ray_session: None, made: Any, tmp_path: Path) -> None:
    """After every kind of restore, at once and in the first sample; also when the restored state is the older one."""
    config = message_game(play=dict(num_env_runners=2))
    algorithm = made(config)
    train(algorithm, 2)
    old_weights, old_state = weights(algorithm), algorithm.training_state()
    old_rllib_state = algorithm.get_state()
    path = algorithm.save_to_path(tmp_path / "checkpoint")
    expected = train(algorithm, 1)
    expected_rollout = algorithm.rollout
    later = train(algorithm, 1)
    assert distance(later, old_weights) > 1e-4

    def check(restored: ProtocolPPO) -> None:
        assert distance(weights(restored), old_weights) == 0
        for found in runner_weights(restored):
            assert distance(found, old_weights) == 0
        assert len(runner_weights(restored)) == 2
        assert distance(train(restored, 1), expected) <= 1e-6
        assert torch.equal(restored.rollout.log_prob_BRA, expected_rollout.log_prob_BRA)

    for restore in (
        lambda: algorithm.restore_from_path(path),
        lambda: algorithm.set_state(old_rllib_state),
        lambda: algorithm.load_training_state(old_state),
    ):  # into the live algorithm, which is ahead
        restore()
        check(algorithm)
        train(algorithm, 1)
    algorithm.stop()
    # where stock RLlib's remote runners now and then sample with fresh weights
    again = ProtocolPPO.from_checkpoint(path)
    try:
        check(again)
    finally:
        again.stop()


def test_an_older_state_is_taken_by_learner_and_runner(made: Any, tmp_path: Path) -> None:
    algorithm = made(message_game())
    train(algorithm, 1)
    older: Weights = weights(algorithm)
    state, training_state, path = (
        algorithm.get_state(),
        algorithm.training_state(),
        algorithm.save_to_path(tmp_path / "checkpoint"),
    )
    for restore in (
        lambda: algorithm.set_state(state),
        lambda: algorithm.load_training_state(training_state),
        lambda: algorithm.restore_from_path(path),
    ):
        assert distance(train(algorithm, 2), older) > 1e-4
        restore()
        assert distance(weights(algorithm), older) == 0
        assert distance(runner_weights(algorithm)[0], older) == 0
        assert algorithm.train_iteration == 1


def test_a_frozen_agent_stays_as_it_is(made: Any, tmp_path: Path) -> None:
    """A learning-rate factor of 0: weights and buffers do not change, the other agent learns, and checkpoints work."""
    frozen = {**TINY, "agent_lr_factor": dict(actor=0, critic=0)}
    config = experiment(dict(name="nip"), {"agents": {"_default": TINY, "verifier": frozen}})
    algorithm, other = made(config), made(config)
    before = weights(algorithm)
    after = train(algorithm, 2)
    assert distance({"verifier": before["verifier"]}, {"verifier": after["verifier"]}) == 0
    assert distance({"prover": before["prover"]}, {"prover": after["prover"]}) > 1e-3
    assert "learn/verifier/objective" not in algorithm.row
    by_path(algorithm, other, tmp_path)
    assert distance(train(other, 1), train(algorithm, 1)) == 0


def test_a_frozen_actor_plays_as_before_while_its_critic_learns(made: Any) -> None:
    """With separate bodies, nothing that the policy is computed from moves."""
    frozen = {**TINY, "agent_lr_factor": dict(actor=0, critic=1)}
    config = experiment(dict(name="nip"), {"shared_body": False, "agents": {"_default": TINY, "prover": frozen}})
    algorithm = made(config)
    before, after = weights(algorithm)["prover"], train(algorithm, 2)["prover"]
    changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
    assert changed
    assert all(name.startswith("value_") for name in changed), changed


def test_nobody_learns(made: Any) -> None:
    algorithm = made(experiment(dict(name="nip"), {"agents": {"_default": dict(kind="random")}}))
    before = weights(algorithm)
    assert distance(train(algorithm, 2), before) == 0
    assert algorithm.row["episodes"] == 16


@pytest.mark.parametrize(
    ("settings", "worker", "device"),
    [
        (dict(learners=dict(num_gpus_per_learner=1)), 0, "cuda"),
        (dict(), 0, "cpu"),
        (dict(learners=dict(num_gpus_per_learner=1, num_learners=1)), 0, "cpu"),
        (dict(play=dict(num_env_runners=2, num_gpus_per_env_runner=0.5)), 1, "cuda"),
        (dict(play=dict(num_env_runners=2), learners=dict(num_gpus_per_learner=1)), 1, "cpu"),
    ],
)
def test_where_a_runner_plays(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], worker: int, device: str
) -> None:
    """The local runner beside the local learner, a remote one on its own share of a GPU, else the CPU; without a GPU
    always there."""
    runner = ProtocolEnvRunner.__new__(ProtocolEnvRunner)
    runner.config = ProtocolPPOConfig().experiment(message_game(**settings))
    runner.worker_index = worker
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runner._choose_device().type == device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runner._choose_device().type == "cpu"
