"""BenchMARL on VMAS's `balance`: MAPPO, or IQL with its replay buffer; `checkpoint_interval` and
`Experiment.reload_from_file`.

By hand: finding the newest complete file (`torch.save` writes in place). Its learning rate is constant.
"""

import re
from pathlib import Path
from typing import Any

from _resume_row import INTERVAL, Rows, digest, generators, optimizer_digest
from benchmarl.algorithms import IqlConfig, MappoConfig
from benchmarl.environments import VmasTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

FRAMES = 200


class Writer(Callback):
    """A row with each checkpoint."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows, self.figures = rows, {}

    def on_train_end(self, training_td: Any, group: str) -> None:
        """Mean losses."""
        self.figures = {f"{group}/{key}": float(value.mean()) for key, value in training_td.items() if "loss" in key}

    def on_state_dict(self, state_dict: Any) -> None:
        """Called before the state is written."""
        experiment: Any = self.experiment
        figures = {**self.figures, "return": float(experiment.mean_return)}
        self.rows.write("row", experiment.n_iters_performed, figures, **now(experiment, self.rows))


def now(experiment: Any, rows: Rows) -> dict[str, Any]:
    """The state of all groups."""
    optimizers = [one for group in experiment.optimizers.values() for one in group.values()]
    rates = [group["lr"] for one in optimizers for group in one.param_groups]
    kept = {name: buffer[:].to_dict() for name, buffer in experiment.replay_buffers.items() if len(buffer)}
    buffers = {"replay": digest(kept)} if rows.variant == "iql" else {}
    state = {"optimizer": digest([optimizer_digest(one) for one in optimizers]), "generators": generators(), **buffers}
    return {"counter": [experiment.n_iters_performed, experiment.total_frames], "lr": rates, **state}


def made(rows: Rows) -> Experiment:
    """The smallest experiment."""
    settings: Any = ExperimentConfig.get_from_yaml()
    settings.save_folder, settings.loggers, settings.create_json = str(rows.folder), [], False
    settings.render = settings.evaluation = False
    settings.lr, settings.max_n_frames, settings.max_n_iters = 1e-3, None, rows.iterations
    settings.on_policy_collected_frames_per_batch = settings.off_policy_collected_frames_per_batch = FRAMES
    settings.on_policy_n_envs_per_worker = settings.off_policy_n_envs_per_worker = 4
    settings.on_policy_n_minibatch_iters, settings.on_policy_minibatch_size = 4, 100
    settings.off_policy_n_optimizer_steps, settings.off_policy_train_batch_size, settings.off_policy_memory_size = (
        4,
        64,
        5000,
    )
    settings.checkpoint_interval, settings.keep_checkpoints_num = FRAMES * INTERVAL, 3
    settings.prefer_continuous_actions = rows.variant != "iql"
    model: Any = MlpConfig.get_from_yaml()
    model.num_cells = [32]
    algorithm: Any = (IqlConfig if rows.variant == "iql" else MappoConfig).get_from_yaml()
    return Experiment(
        task=VmasTask.BALANCE.get_from_yaml(),
        algorithm_config=algorithm,
        model_config=model,
        critic_model_config=model,
        seed=0,
        config=settings,
        callbacks=[Writer(rows)],
    )


def reloaded(rows: Rows) -> Experiment | None:
    """From the newest readable file, None without one."""
    files = sorted(
        rows.folder.glob("*/checkpoints/checkpoint_*.pt"), key=lambda path: int(re.findall(r"\d+", path.stem)[-1])
    )
    for path in reversed(files):
        if found := _read(path):
            return found
    return None


def _read(path: Path) -> Experiment | None:
    try:
        return Experiment.reload_from_file(str(path))
    except (RuntimeError, EOFError, OSError) as error:
        print(f"{path.name}: {error}")
        return None


def main() -> None:
    """Train, or resume."""
    rows = Rows()
    experiment: Any = reloaded(rows) if rows.resume else None
    if experiment is None:
        experiment = made(rows)
    else:
        loop = experiment._collection_loop

        def told() -> None:
            rows.write("restored", experiment.n_iters_performed, **now(experiment, rows))
            loop()

        experiment._collection_loop = told  # `run` seeds generators before it
    experiment.run()


if __name__ == "__main__":
    main()
