"""Settings of where an experiment runs and what it stores, which belong to no single package."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.options import FILE, FORBID_UNKNOWN, FREE, option


@dataclass(frozen=True)
class MessageRegressionSettings:
    """At each evaluation, and for each agent, a perceptron that reads the label off the first message that the agent
    sends."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Compute it.")
    agents: tuple[str, ...] | None = option(None, "Agents whose messages are read (none: all).")
    num_epochs: int = option(
        10, "Passes over the messages that it learns from; few messages, or a subtle code, need more.", ge=1
    )


@dataclass(frozen=True)
class PlaySettings:
    """Amount and place of play in an iteration."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_copies: int = option(
        256, "Copies of the protocol played at once by each env runner, to their end, in every iteration.", ge=1
    )
    num_env_runners: int = option(0, "Remote env runners (0: play in the main process).", ge=0)
    num_cpus_per_env_runner: float = option(1, "CPUs that Ray reserves for each remote env runner.", ge=0, meaning=FREE)
    num_gpus_per_env_runner: float = option(
        0, "GPUs, or a share of one, for each remote env runner.", ge=0, meaning=FREE
    )
    max_staleness: int = option(
        0,
        "Iterations of learning that the weights that play may lag behind: 1 plays the next iteration while learners"
        " learn.",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class LearnerSettings:
    """Processes and devices that compute gradients."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_learners: int = option(
        0, "Remote learners, each on its share of the copies (0: learn in the main process).", ge=0
    )
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
    solo_run: str | None = option(
        None,
        "Folder of a finished run of the same verifier alone on the same data: `solo_baseline` is its accuracy where"
        " that is above the fitted classifier's (graph isomorphism; none: the fitted classifier's alone).",
        meaning=FILE,
    )
    message_regression: MessageRegressionSettings = option(
        MessageRegressionSettings, "Measure how much agents' first messages reveal of the label."
    )
    worst_case_episodes: int = option(
        5, "Episodes for each held-out instance, of which the final evaluation counts the worst (0: none).", ge=0
    )
    attack: AttackSettings = option(AttackSettings, "Adversarial provers trained against the finished verifier.")

    def faults(self) -> Iterator[str]:
        """An evaluation that takes place in no way."""
        if not (self.greedy or self.sampled):
            yield "greedy: greedy and sampled are both false, so nothing would be evaluated, set one of them to true"


@dataclass(frozen=True)
class StopSettings:
    """When a run ends before its last iteration. It is decided after each evaluation; the run then ends as always, with
    a checkpoint, the final evaluation and the report."""

    __pydantic_config__ = FORBID_UNKNOWN

    metric: str = option(
        "eval/verifier/accuracy",
        "The metric that decides, by its key in `metrics.jsonl`: eval/... or eval_sampled/....",
    )
    mode: Literal["max", "min"] = option("max", "The better direction of the metric.")
    until: float | None = option(None, "End when the metric is this good or better (none: no such value).")
    patience: int | None = option(
        None, "End after so many evaluations in a row without a better value (none: never).", ge=1
    )

    def faults(self) -> Iterator[str]:
        """Settings that never end a run, and a metric that evaluations do not have."""
        if self.until is None and self.patience is None:
            yield "until: until and patience are both null, so the run would never end early, set one of them"
        if not self.metric.startswith(("eval/", "eval_sampled/")):
            yield f"metric: got {self.metric}, expected eval/... or eval_sampled/..., which evaluations log"


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoints for resuming."""

    __pydantic_config__ = FORBID_UNKNOWN

    interval: int = option(50, "Write a checkpoint every so many iterations (the last one always is).", ge=1)
    keep: int | None = option(3, "Keep so many of the newest checkpoints (none: all).", ge=2)


@dataclass(frozen=True)
class RuntimeSettings:
    """Settings without effect on results: threads, Ray."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_threads: int | None = option(
        None,
        "Torch threads of the main process (none: $OMP_NUM_THREADS, else as many as it has cores, at most 8).",
        ge=1,
    )
    ray_address: str | None = option(
        None, "Ray cluster to join (none: $RAY_ADDRESS, else a local one if remote workers are configured)."
    )
    ray_num_cpus: int | None = option(
        None, "CPUs of a local Ray (none: those that the workers need, at least the machine's).", ge=1
    )
    num_cpus: float = option(1, "CPUs that Ray reserves for the main process of a trial of a sweep.", gt=0)
    autoscaling: bool = option(False, "The cluster grows on demand: do not refuse what does not fit it yet.")


@dataclass(frozen=True)
class FaultToleranceSettings:
    """Limits for continuing after the loss of a process. A repeated fault ends the run in seconds."""

    __pydantic_config__ = FORBID_UNKNOWN

    max_env_runner_restarts: int = option(5, "Times that each lost env runner is recreated.", ge=0)
    restart_delay_s: float = option(
        1.0, "Seconds before an env runner that ended itself is recreated (one that was killed: at once).", ge=0
    )
    hang_timeout_s: float = option(
        120.0,
        "Seconds after which an env runner or a learner that does not answer, or a trial that gives no sign of life,"
        " counts as lost; for runners and learners five times the median iteration where that is longer, and ten times"
        " as many before the first one is over.",
        gt=0,
    )
    sample_timeout_s: float = option(
        600.0, "The most seconds that an env runner may take to answer, however long iterations are.", gt=0
    )
    max_learner_failures: int = option(
        3, "Times that a run continues from its newest checkpoint after losing a learner.", ge=0
    )


@dataclass(frozen=True)
class ProfilingSettings:
    """Torch's profiler around a few iterations; traces and a table go to `profile/` in the run folder."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Profile (the command line's --profile).")
    wait: int = option(2, "Iterations before it starts.", ge=0)
    warmup: int = option(1, "Iterations that are profiled and thrown away.", ge=0)
    active: int = option(3, "Iterations that are kept.", ge=1)
    memory: bool = option(False, "Memory, too.")
