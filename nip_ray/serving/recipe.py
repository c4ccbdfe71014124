"""What a fine-tuning is told, and what it says: the values that pass between a job, its process and its workers."""

from collections.abc import Callable
from dataclasses import dataclass

from nip_ray.serving.fine_tuning_job import Method

OnStep = Callable[[int, float], None]
ShouldStop = Callable[[], bool]


class Cancelled(Exception):
    """The fine-tuning was asked to stop."""


@dataclass(frozen=True)
class Recipe:
    """All that decides what comes out, besides base and data. batch_size: examples in a step, over all workers and parts. beta: of DPO.
    accumulation and what follows: see `LocalProvider`. nll_coefficient: what the better reply's negative log-likelihood, by token, counts
    beside DPO's loss.
    """

    method: Method = "supervised"
    seed: int = 0
    num_epochs: int = 3
    batch_size: int = 8
    learning_rate: float = 1e-4
    beta: float = 0.1
    adaptation: str = "lora"
    lora_rank: int = 16
    num_workers: int = 1
    accumulation: int = 1
    max_length: int | None = None
    checkpointing: bool | None = None
    dtype: str = "auto"
    optimizer: str = "adamw"
    quantize_base: bool = False
    save_merged: bool = False
    nll_coefficient: float = 0.0


@dataclass(frozen=True)
class Trained:
    """What a fine-tuning did. trained_tokens: of all examples, once for each epoch. loss: of the last step."""

    steps: int
    trained_tokens: int
    loss: float | None
