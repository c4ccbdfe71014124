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
    num_epochs: int = option(10, "Passes over its messages; few or subtle messages need more.", ge=1)


@dataclass(frozen=True)
class PlaySettings:
    """Amount and place of play in an iteration."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_copies: int = option(256, "Environment copies of each env runner, each one episode an iteration.", ge=1)
    num_env_runners: int = option(0, "Remote env runners (0: play in the main process).", ge=0)
    num_cpus_per_env_runner: float = option(1, "CPUs that Ray reserves for each remote env runner.", ge=0, meaning=FREE)
    num_gpus_per_env_runner: float = option(
        0, "GPUs, or a share of one, for each remote env runner.", ge=0, meaning=FREE
    )
    max_staleness: int = option(
        0,
        "Iterations of learning by which playing weights may lag; 1: play while learning.",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class LearnerSettings:
    """Processes and devices that compute gradients."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_learners: int = option(0, "Remote learners, each with a share of the copies (0: the main process).", ge=0)
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
        "Run of this verifier alone; its accuracy is `solo_baseline` if above the classifier's.",
        meaning=FILE,
    )
    message_regression: MessageRegressionSettings = option(
        MessageRegressionSettings, "Measure how much agents' first messages reveal of the label."
    )
    worst_case_episodes: int = option(5, "Episodes per held-out instance of which the worst counts (0: none).", ge=0)
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
        "Deciding metric, a key of `metrics.jsonl`: eval/... or eval_sampled/....",
    )
    mode: Literal["max", "min"] = option("max", "The better direction of the metric.")
    until: float | None = option(None, "End when the metric is this good or better (none: never).")
    patience: int | None = option(None, "End after this many evaluations without a better value (none: never).", ge=1)

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

    interval: int = option(50, "Iterations between checkpoints (the last iteration always has one).", ge=1)
    keep: int | None = option(3, "Keep so many of the newest checkpoints (none: all).", ge=2)


@dataclass(frozen=True)
class RuntimeSettings:
    """Settings without effect on results: threads, Ray."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_threads: int | None = option(
        None,
        "Torch threads of the main process (none: $OMP_NUM_THREADS, else cores, at most 8).",
        ge=1,
    )
    ray_address: str | None = option(None, "Ray cluster to join (none: $RAY_ADDRESS, else local if needed).")
    ray_num_cpus: int | None = option(
        None, "CPUs of a local Ray (none: as workers need, at least the machine's).", ge=1
    )
    num_cpus: float = option(1, "CPUs reserved for the main process of a sweep's trial.", gt=0)
    autoscaling: bool = option(False, "The cluster grows on demand: accept a run that does not fit yet.")


@dataclass(frozen=True)
class FaultToleranceSettings:
    """Limits for continuing after the loss of a process. A repeated fault ends the run in seconds."""

    __pydantic_config__ = FORBID_UNKNOWN

    max_env_runner_restarts: int = option(5, "Times that each lost env runner is recreated.", ge=0)
    restart_delay_s: float = option(1.0, "Seconds before an env runner that ended itself is recreated.", ge=0)
    hang_timeout_s: float = option(
        120.0,
        "Seconds without an answer until a process is lost; at least five median iterations.",
        gt=0,
    )
    sample_timeout_s: float = option(
        600.0, "Most seconds for an env runner's answer, however long iterations are.", gt=0
    )
    max_learner_failures: int = option(3, "Lost learners from which a run recovers by its newest checkpoint.", ge=0)


@dataclass(frozen=True)
class ProfilingSettings:
    """Torch's profiler around a few iterations; traces and a table go to `profile/` in the run folder."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Profile (the command line's --profile).")
    wait: int = option(2, "Iterations before it starts.", ge=0)
    warmup: int = option(1, "Iterations that are profiled and thrown away.", ge=0)
    active: int = option(3, "Iterations that are kept.", ge=1)
    memory: bool = option(False, "Memory, too.")
