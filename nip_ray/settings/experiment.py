"""Where an experiment runs and what it keeps: settings that belong to no single room."""

from dataclasses import dataclass

from nip_ray.settings.message_regression import MessageRegressionSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class PlaySettings:
    """How much is played in an iteration, and where."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_copies: int = option(256, "Copies of the protocol played at once by each env runner, to their end, in every iteration.", ge=1)
    num_env_runners: int = option(0, "Remote env runners (0: play in the main process).", ge=0)
    num_cpus_per_env_runner: float = option(1, "CPUs that Ray reserves for each remote env runner.", ge=0)
    num_gpus_per_env_runner: float = option(0, "GPUs, or a share of one, for each remote env runner.", ge=0)


@dataclass(frozen=True)
class LearnerSettings:
    """Where gradients are computed."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_learners: int = option(0, "Remote learners, each on its share of the copies (0: learn in the main process).", ge=0)
    num_cpus_per_learner: float = option(1, "CPUs that Ray reserves for each remote learner.", ge=0)
    num_gpus_per_learner: float = option(0, "GPUs for each learner; with num_learners 0, for the main process.", ge=0)


@dataclass(frozen=True)
class EvaluationSettings:
    """When the verifier is examined on held-out instances."""

    __pydantic_config__ = FORBID_UNKNOWN

    interval: int = option(50, "Evaluate every so many iterations (0: at the end only).", ge=0)
    greedy: bool = option(True, "Evaluate with the most likely actions.")
    sampled: bool = option(True, "Evaluate with sampled actions.")
    max_instances: int | None = option(None, "Use at most so many held-out instances (none: all).", ge=1)
    num_transcripts: int = option(20, "Episodes written out at each evaluation.", ge=0)
    message_regression: MessageRegressionSettings = option(MessageRegressionSettings, "What agents' first messages say of the label.")


@dataclass(frozen=True)
class CheckpointSettings:
    """What is kept for resuming."""

    __pydantic_config__ = FORBID_UNKNOWN

    interval: int = option(50, "Write a checkpoint every so many iterations (the last one always is).", ge=1)
    keep: int | None = option(3, "Keep so many of the newest checkpoints (none: all).", ge=2)


@dataclass(frozen=True)
class RuntimeSettings:
    """What must not change a result: threads, Ray."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_threads: int | None = option(
        None, "Torch threads of the main process (none: $OMP_NUM_THREADS, else as many as it has cores, at most 8).", ge=1
    )
    ray_address: str | None = option(None, "Ray cluster to join (none: $RAY_ADDRESS, else a local one where remote workers are asked for).")
    ray_num_cpus: int | None = option(None, "CPUs of a local Ray (none: what the workers ask for, at least the machine's).", ge=1)
