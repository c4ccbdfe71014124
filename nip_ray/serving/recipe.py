"""Instructions and results of a fine-tuning: the values that pass between a job, its process and its workers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from nip_ray.serving.fine_tuning_job import Method
from nip_ray.settings.providers import LocalProvider

OnStep = Callable[[int, float], None]
ShouldStop = Callable[[], bool]


class Cancelled(Exception):
    """The fine-tuning was asked to stop."""


@dataclass(frozen=True)
class Recipe:
    """All that decides what comes out, besides base and data. batch_size: examples in a step, over all workers and parts. beta: of DPO.
    nll_coefficient: what the better reply's negative log-likelihood, by token, counts beside DPO's loss. provider: how it is computed.
    """

    method: Method = "supervised"
    seed: int = 0
    num_epochs: int = 3
    batch_size: int = 8
    learning_rate: float = 1e-4
    beta: float = 0.1
    nll_coefficient: float = 0.0
    provider: LocalProvider = field(default_factory=LocalProvider)


@dataclass(frozen=True)
class Trained:
    """Result of a fine-tuning. trained_tokens: of all examples, once for each epoch. loss: of the last step."""

    steps: int
    trained_tokens: int
    loss: float | None
