"""Fine-tuning by several workers, through Ray Train.

Decisions that matter here:
- each worker runs `train`, that of `fine_tune`; Ray Train gives it its rank, a process group and its device, and the
  Trainer of transformers does the rest (data parallel: every worker has the whole model and a share of each batch);
- the first worker writes the model into the folder of the jobs, which all nodes must see, like the run's other files;
- the workers get copies of the callbacks, so they must work through files (those of `nip_ray.serving.jobs` do).
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nip_ray.errors import TrainingError
from nip_ray.serving.fine_tuning_job import Cancelled, OnStep, Recipe, ShouldStop, Trained

RESULT = "trained.json"


def train_on_workers(
    train: Callable[..., Trained],
    base_dir: Path,
    data: bytes,
    aside: Path,
    recipe: Recipe,
    checkpoints: Path | None,
    on_step: OnStep,
    should_stop: ShouldStop,
) -> Trained:
    """Run `train` on the recipe's `num_training_workers` (a GPU each if the cluster has enough); the model is at
    `aside/model`."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    workers = recipe.provider.num_training_workers
    (aside / "data.jsonl").write_bytes(data)
    config = {
        "base_dir": str(base_dir.resolve()),
        "aside": str(aside.resolve()),
        "checkpoints": None if checkpoints is None else str(checkpoints.resolve()),
        "recipe": recipe,
        "train": train,
        "callbacks": (on_step, should_stop),
    }
    gpus = ray.cluster_resources().get("GPU", 0) >= workers
    scaling = ScalingConfig(num_workers=workers, use_gpu=gpus)
    run = RunConfig(name="fine-tune", storage_path=str(aside.resolve() / "ray"))
    try:
        TorchTrainer(_worker, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    except Exception as error:
        raise TrainingError(f"fine-tuning by {workers} workers broke off: {type(error).__name__}: {error}") from None
    result = json.loads((aside / RESULT).read_text())
    if result is None:
        raise Cancelled
    return Trained(**result)


def _worker(config: dict[str, Any]) -> None:
    """One worker. The first writes the result; a cancellation is not an error."""
    import torch.distributed

    aside, on_step_and_stop = Path(config["aside"]), config["callbacks"]
    checkpoints = None if config["checkpoints"] is None else Path(config["checkpoints"])
    data = (aside / "data.jsonl").read_bytes()
    try:
        trained = config["train"](
            Path(config["base_dir"]), data, aside / "model", config["recipe"], checkpoints, *on_step_and_stop
        )
        result = asdict(trained)
    except Cancelled:
        result = None
    if torch.distributed.get_rank() == 0:
        (aside / RESULT).write_text(json.dumps(result))
