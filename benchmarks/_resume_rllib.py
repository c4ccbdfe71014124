"""RLlib's PPO on CartPole, new API stack. Variants: `Algorithm.save_to_path` and `restore_from_path` ("save"),
`Tuner.restore` ("tune")."""

import os
import shutil
from pathlib import Path
from typing import Any

from _resume_row import INTERVAL, Rows, generators, optimizer_digest

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "0")

import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback

STEPS = 512
LOSSES = ("policy_loss", "vf_loss", "entropy", "mean_kl_loss", "total_loss")


class Writer(RLlibCallback):
    """Writes from the algorithm's process, which is a trial's actor with Tune."""

    rows: Any = None

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """A row."""
        learner = {key: float(value) for key, value in result["learners"]["default_policy"].items() if key in LOSSES}
        returns = {"return": float(result["env_runners"].get("episode_return_mean", float("nan")))}
        self.rows.write("row", algorithm.training_iteration, {**learner, **returns}, **state(algorithm))

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Called by `Trainable.restore`, which Tune uses, when the state is in place."""
        self.rows.write("restored", algorithm.training_iteration, **state(algorithm))


def state(algorithm: Any) -> dict[str, Any]:
    """The whole state is in this process: no remote env runners, no remote learners."""
    learner = algorithm.learner_group._learner
    optimizer = learner.get_optimizer("default_policy")
    envs = algorithm.env_runner.env.unwrapped.envs
    random = [env.unwrapped.np_random.bit_generator.state for env in envs]
    counter = algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"), default=0)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return {
        "counter": int(counter),
        "lr": rates,
        "optimizer": optimizer_digest(optimizer),
        "generators": generators(random),
    }


def config(rows: Rows) -> PPOConfig:
    """One process; the learning rate falls linearly to zero."""
    callbacks = type("Callbacks", (Writer,), {"rows": rows})
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .learners(num_learners=0)
        .training(
            train_batch_size=STEPS, minibatch_size=128, num_epochs=4, lr=[[0, 1e-3], [STEPS * rows.iterations, 0.0]]
        )
        .debugging(seed=0)
        .callbacks(callbacks)
    )


def saved(rows: Rows) -> None:
    """By hand: the loop, folders, finding a complete checkpoint (a save is not atomic: so a new folder, renamed when
    done)."""
    algorithm = config(rows).build_algo()
    done = sorted(rows.folder.glob("checkpoint_[0-9][0-9][0-9][0-9]"))
    if rows.resume and done:
        algorithm.restore_from_path(str(done[-1]))
        rows.write("restored", algorithm.training_iteration, **state(algorithm))
    while algorithm.training_iteration < rows.iterations:
        algorithm.train()
        if algorithm.training_iteration % INTERVAL == 0:
            part = rows.folder / f"checkpoint_{algorithm.training_iteration:04}.part"
            shutil.rmtree(part, ignore_errors=True)
            algorithm.save_to_path(str(part))
            part.rename(part.with_suffix(""))
    algorithm.stop()


def tuned(rows: Rows) -> None:
    """By hand: `Tuner.restore` with the same trainable and parameters; Tune finds the trial and its newest checkpoint.

    Tune writes its own state at most every ten seconds, and only uses checkpoints named there: runs as short as these
    would restart. So it is configured to write at every event.
    """
    run, settings = rows.folder / "tune" / "run", config(rows)
    if rows.resume and tune.Tuner.can_restore(str(run)):
        tuner = tune.Tuner.restore(str(run), trainable=PPO, param_space=settings)
    else:
        checkpoints = tune.CheckpointConfig(checkpoint_frequency=INTERVAL)
        stop = {"training_iteration": rows.iterations}
        where = tune.RunConfig(
            name="run", storage_path=str(run.parent), stop=stop, checkpoint_config=checkpoints, verbose=0
        )
        tuner = tune.Tuner(PPO, param_space=settings, run_config=where)
    results = tuner.fit()
    if results.errors:
        raise results.errors[0]


def main() -> None:
    """Train, or resume."""
    rows = Rows()
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error", runtime_env=here)
    (tuned if rows.variant == "tune" else saved)(rows)
    ray.shutdown()


if __name__ == "__main__":
    main()
