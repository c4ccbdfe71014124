"""`ProtocolPPO`: workers and learners change where things are computed, not the numbers."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import tune

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import TrainingError
from nip_ray.rllib.ppo import ProtocolPPO, ProtocolPPOConfig
from tests.rllib.experiments import PAST, Weights, built, distance, experiment, message_game, train, trained, weights

# float32 sums in another order, through Adam's division by the root of tiny squares; a step moves weights by 3e-3
FLOAT_SUMS = 2e-4


def moved(config: ExperimentConfig, after: Weights) -> float:
    algorithm = built(config)
    try:
        return distance(weights(algorithm), after)
    finally:
        algorithm.stop()


def test_a_remote_env_runner_gives_the_numbers_of_a_local_one(ray_session: None) -> None:
    """Three iterations, rows of metrics and opponents from the past included."""
    rows: list[list[dict[str, float]]] = []
    found: list[Weights] = []
    met: list[list[str]] = []
    for runners in (0, 1):
        algorithm = built(experiment(dict(name="nip"), play=dict(num_env_runners=runners), opponents=PAST))
        rows.append([])
        for _ in range(3):
            algorithm.train()
            row = {key: value for key, value in algorithm.row.items() if not key.startswith("time/")}
            met.append([row.pop(key) for key in [*row] if key.endswith("/met")])
            rows[-1].append(row)
        found.append(weights(algorithm))
        algorithm.stop()
    assert distance(*found) <= FLOAT_SUMS
    for local, remote in zip(*rows, strict=True):
        assert local == pytest.approx(remote, rel=1e-3, abs=1e-5)
    assert met[:3] == met[3:]
    assert len(met[2]) == 2
    assert moved(experiment(dict(name="nip")), found[0]) > 30 * FLOAT_SUMS


PSPG = dict(name="stackelberg", variant="pspg")


@pytest.mark.parametrize(
    ("config", "training", "several"),
    [
        pytest.param(experiment(dict(name="nip")), dict(), (1, 2), id="nip-clip-agent", marks=pytest.mark.slow),
        pytest.param(
            message_game(), dict(loss="kl_penalty"), (2,), id="message_game-kl_penalty-agent", marks=pytest.mark.slow
        ),
        pytest.param(
            experiment(dict(name="merlin_arthur")),
            dict(loss="kl_penalty", clip_gradients="joint", minibatch_size=6),
            (2,),
            id="merlin_arthur-kl_penalty-joint-some-agents-without-rows",
        ),
        pytest.param(
            message_game(algorithm=dict(PSPG, ihvp_refresh=2)),
            dict(),
            (2,),
            id="message_game-pspg",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            message_game(algorithm=dict(PSPG, variant="psos", mutual=True)),
            dict(),
            (2,),
            id="message_game-psos",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_learners_share_the_work_and_not_the_result(
    ray_session: None, config: ExperimentConfig, training: dict[str, Any], several: tuple[int, ...]
) -> None:
    """Remote learners against the local one: several minibatches, early ends and so unequal slices, odd numbers of
    copies."""
    config = config.model_copy(update={"play": config.play.__class__(num_copies=18)})
    expected, state = weights_and_state(config, 0, training)
    assert moved(config, expected) > 30 * FLOAT_SUMS
    for learners in several:
        found, its_state = weights_and_state(config, learners, training)
        assert distance(found, expected) <= (1e-6 if learners == 1 else FLOAT_SUMS)
        assert its_state["extra"] == state["extra"], "KL coefficients follow the divergence over all rows"


def weights_and_state(
    config: ExperimentConfig, learners: int, training: dict[str, Any]
) -> tuple[Weights, dict[str, Any]]:
    """What two iterations with so many learners come to; the learners must agree to the last bit, buffers included."""
    settings = config.learners.__class__(num_learners=learners)
    algorithm = built(config.model_copy(update={"learners": settings}), **training)
    try:
        algorithm.train()
        algorithm.train()
        states = algorithm._foreach_learner(lambda learner: learner.training_state())
        assert len(states) == max(1, learners)
        for state in states[1:]:
            assert distance(state["modules"], states[0]["modules"]) == 0
            assert state["extra"] == states[0]["extra"]
        return weights(algorithm), algorithm.training_state()
    finally:
        algorithm.stop()


@pytest.mark.crash
@pytest.mark.parametrize("staleness", [0, 1])
def test_lost_env_runners_cost_time_and_no_numbers(ray_session: None, staleness: int) -> None:
    """Two runners of 16 copies: one is killed, and the other stands in; then both, and the iteration waits for new
    ones."""
    config = experiment(dict(name="nip"), play=dict(num_env_runners=2, max_staleness=staleness), opponents=PAST)
    algorithm = built(config)
    try:
        beginning = algorithm.training_state()
        undisturbed = train(algorithm, 4)
        algorithm.load_training_state(beginning)
        algorithm.train()
        for victims in ((0,), (0, 1)):
            pids = algorithm.env_runner_group.foreach_env_runner(_pid, local_env_runner=False)
            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)
            algorithm.train()
            _wait_for_runners(algorithm, 2)
        algorithm.train()
        assert distance(weights(algorithm), undisturbed) <= 1e-6
        assert algorithm.train_iteration == 4
    finally:
        algorithm.stop()


def _pid(runner: Any) -> int:
    return os.getpid()


def _wait_for_runners(algorithm: ProtocolPPO, count: int) -> None:
    deadline = time.monotonic() + 120
    while algorithm.env_runner_group.num_healthy_remote_workers() < count and time.monotonic() < deadline:
        algorithm.restore_env_runners(algorithm.env_runner_group)
        time.sleep(0.1)
    assert algorithm.env_runner_group.num_healthy_remote_workers() == count


def test_a_local_run_starts_no_ray(tmp_path: Path) -> None:
    """Everything in one process, a restore included: no cluster, no raylet among its children."""
    program = """
        import os, pathlib, sys, torch
        torch.set_num_threads(1)
        from tests.rllib.experiments import built, message_game, train
        algorithm = built(message_game())
        train(algorithm, 2)
        path = algorithm.save_to_path(sys.argv[1])
        algorithm.restore_from_path(path)
        algorithm.set_state(algorithm.get_state())
        restored = type(algorithm).from_checkpoint(path)
        train(restored, 1)
        algorithm.stop()
        import ray
        assert not ray.is_initialized()
        children = pathlib.Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        names = [pathlib.Path(f"/proc/{child}/comm").read_text().strip() for child in children]
        assert not [name for name in names if "ray" in name or "gcs" in name], names
        print("fine")
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "checkpoint")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("fine")


@pytest.mark.slow
def test_tune_searches_over_learning_rates_and_seeds(ray_session: None, tmp_path: Path) -> None:
    """Trials of two iterations with checkpoints; our figures are in the results, and a checkpoint restores."""
    # one of RLlib's names and one of ours
    spaces = dict(lr=tune.grid_search([1e-3, 1e-2]), clip_epsilon=tune.choice([0.4]))
    config = ProtocolPPOConfig().experiment(message_game()).training(**spaces).debugging(seed=tune.grid_search([0, 3]))
    tuner = tune.Tuner(
        ProtocolPPO,
        param_space=config,
        tune_config=tune.TuneConfig(max_concurrent_trials=2),
        run_config=tune.RunConfig(
            name="search",
            storage_path=str(tmp_path),
            stop={"training_iteration": 2},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
    )
    results = tuner.fit()
    assert not results.errors
    assert sorted(result.config["lr"] for result in results) == [1e-3, 1e-3, 1e-2, 1e-2]
    for result in results:
        assert result.metrics is not None
        assert result.metrics["nip_ray"]["learn/lr"] == result.config["lr"]
        assert result.metrics["nip_ray"]["env_steps_total"] == 2 * 16 * 4
        assert "nip_ray/learn/verifier/objective" in results.get_dataframe().columns
        assert result.checkpoint is not None
        expected = trained(message_game(seed=result.config["seed"]), 2, lr=result.config["lr"], clip_epsilon=0.4)
        algorithm = built(message_game())
        algorithm.restore_from_path(result.checkpoint.path)
        assert algorithm.train_iteration == 2
        assert distance(weights(algorithm), expected) <= 1e-6
        algorithm.stop()


def test_gpu_settings_reach_rllib() -> None:
    """Shares of GPUs and CPUs arrive in the config's own fields, whether or not this machine has a GPU."""
    made = message_game(
        play=dict(num_env_runners=2, num_gpus_per_env_runner=0.25, num_cpus_per_env_runner=2),
        learners=dict(num_learners=2, num_gpus_per_learner=1, num_cpus_per_learner=3),
    )
    config = ProtocolPPOConfig().experiment(made)
    assert (config.num_env_runners, config.num_gpus_per_env_runner, config.num_cpus_per_env_runner) == (2, 0.25, 2)
    assert (config.num_learners, config.num_gpus_per_learner, config.num_cpus_per_learner) == (2, 1, 3)
    requested = ProtocolPPO.default_resource_request(config).bundles
    assert sum(bundle.get("GPU", 0) for bundle in requested) == 2.5


def test_annealing_ends_at_zero_and_stays_there() -> None:
    config = ProtocolPPOConfig().experiment(message_game(iterations=4)).training(lr=0.1, anneal_lr=True)
    assert [config.base_lr(iteration) for iteration in range(6)] == pytest.approx([0.1, 0.075, 0.05, 0.025, 0, 0])
    config.training(anneal_lr="quadratic")
    assert [config.base_lr(iteration) for iteration in range(6)] == pytest.approx([0.1, 0.05625, 0.025, 0.00625, 0, 0])


def test_averages_follow_the_weights_and_change_no_training() -> None:
    plain, averaging = built(message_game()), built(message_game(), average_weights=0.75)
    try:
        expected: dict[str, Any] = {}
        for _ in range(3):
            plain.train()
            averaging.train()
            newest = plain.training_state()["modules"]
            for agent, weights in newest.items():
                own = expected.setdefault(agent, weights)
                expected[agent] = {name: 0.75 * own[name] + 0.25 * value for name, value in weights.items()}
            state = averaging.training_state()
            for agent, network in averaging.networks().items():
                for name, value in network.state_dict().items():
                    torch.testing.assert_close(value, expected[agent][name])
                    assert torch.equal(state["modules"][agent][name], value)
                    assert torch.equal(state["trained"][agent][name], newest[agent][name])
        plain.load_training_state(state)  # which evaluates its newest weights, and those are these
        for agent, network in plain.networks().items():
            assert all(torch.equal(value, newest[agent][name]) for name, value in network.state_dict().items())
        assert any(
            (state["modules"][agent][name] != value).any()
            for agent, own in newest.items()
            for name, value in own.items()
        )
    finally:
        plain.stop()
        averaging.stop()


@pytest.mark.parametrize("clip_gradients", ["agent", "joint"])
@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_a_nan_is_named(agent: str, clip_gradients: str) -> None:
    algorithm = built(message_game(), clip_gradients=clip_gradients)
    try:
        algorithm.train()
        with torch.no_grad():
            next(algorithm.networks()[agent].parameters()).view(-1)[0] = float("nan")
        with pytest.raises(TrainingError, match=rf"iteration 2\b.*'{agent}'"):
            algorithm.train()
    finally:
        algorithm.stop()
