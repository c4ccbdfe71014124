"""Settings of a runner file: an environment, the learners that share its copies, the driver, and outputs.

Decisions that matter here:
- there are two kinds of environment: a Gymnasium one, and an experiment of this package, whose game and algorithms are
  in its own config file. A runner file names that file and lists changes.
"""

from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.settings.options import FORBID_UNKNOWN, RESUMABLE, option


@dataclass(frozen=True)
class EnvironmentSettings:
    """A registered Gymnasium environment in many copies."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["gymnasium"] = option("gymnasium", "A registered Gymnasium environment.")
    id: str = option("CartPole-v1", "Name under which Gymnasium knows the environment.", min_length=1)
    num_copies: int = option(16, "Copies that are stepped together.", ge=1)
    vectorization: Literal["auto", "sync", "async", "vector_entry_point"] = option(
        "auto",
        "Vectorisation: the environment's vector form (auto: if it has one that restarts by `autoreset`), a loop, or a"
        " process each.",
    )
    autoreset: Literal["next_step", "same_step", "disabled"] = option(
        "next_step",
        "When a finished copy begins again: in the next step, in the same step, or when the driver resets it.",
    )
    shared: bool = option(
        False,
        "Make one environment of all copies, which learners share (a simulator that cannot be split); else each has its"
        " own.",
    )
    options: dict[str, bool | int | float | str | list[Any]] = option(dict, "Arguments of the environment itself.")


@dataclass(frozen=True)
class ExperimentEnvironmentSettings:
    """The protocol and the scenario of an experiment in many copies; a timestep is a round of all of them."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["experiment"] = option("experiment", "The experiment of a config file.")
    config: str = option("", "YAML config of an experiment, or the folder of a run.")
    changes: tuple[str, ...] = option((), "Keys of it that are changed, each as a.b=c.")
    num_copies: int = option(64, "Copies that are stepped together, of all learners.", ge=1)
    shared: bool = option(False, "Make one environment of all copies, which learners share; else each has its own.")


@dataclass(frozen=True)
class NetworkSettings:
    """A multi-layer perceptron."""

    __pydantic_config__ = FORBID_UNKNOWN

    hidden: tuple[int, ...] = option((64, 64), "Width of each hidden layer.")
    activation: Literal["tanh", "relu"] = option("tanh", "Between layers.")


@dataclass(frozen=True)
class PPOAgentSettings:
    """Proximal policy optimisation for discrete and continuous actions. An update follows every `rollouts`
    timesteps."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["ppo"] = option("ppo", "Proximal policy optimisation.")
    rollouts: int = option(16, "Timesteps between two updates.", ge=1)
    num_epochs: int = option(8, "Passes over the transitions of an update.", ge=1)
    mini_batches: int = option(2, "Parts of a pass.", ge=1)
    gamma: float = option(0.99, "Gamma.", ge=0, le=1)
    lam: float = option(0.95, "Lambda of generalised advantage estimation.", ge=0, le=1)
    lr: float = option(1e-3, "Learning rate of Adam.", gt=0)
    anneal_lr: bool = option(False, "Let it fall linearly to 0 over all timesteps.")
    clip_epsilon: float = option(0.2, "Clip range of the probability ratio.", gt=0)
    clip_value: float | None = option(None, "Clip the value's change to this much (none: no clipping).", gt=0)
    critic_coefficient: float = option(0.5, "Weight of the value loss (squared distance).", ge=0)
    entropy_coefficient: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    max_grad_norm: float | None = option(0.5, "Largest gradient norm (none: no clipping).", gt=0)
    kl_threshold: float | None = option(
        None, "Leave the rest of an update out beyond this KL divergence (none: never).", gt=0
    )
    kl_target: float | None = option(
        None, "Move the learning rate after each update so that the KL divergence stays near this (none: do not).", gt=0
    )


@dataclass(frozen=True)
class DQNAgentSettings:
    """Deep Q-learning for discrete actions, with one replay ring of its own."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["dqn"] = option("dqn", "Deep Q-learning.")
    double: bool = option(True, "Choose the next action by the online network (double DQN).")
    loss: Literal["smooth_l1", "l2"] = option("l2", "Distance between value and target: half the square, or Huber's.")
    memory_size: int = option(50_000, "Transitions in the replay ring.", ge=1)
    batch_size: int = option(64, "Transitions in a gradient step.", ge=1)
    gradient_steps: int = option(1, "Gradient steps in an update.", ge=1)
    update_interval: int = option(1, "Timesteps between two updates.", ge=1)
    target_update_interval: int = option(1, "Timesteps between two moves of the target network.", ge=1)
    polyak: float = option(0.01, "Step of the target network towards the online network.", gt=0, le=1)
    gamma: float = option(0.99, "Gamma.", ge=0, le=1)
    lr: float = option(1e-3, "Learning rate of Adam.", gt=0)
    max_grad_norm: float | None = option(10.0, "Largest gradient norm (none: no clipping).", gt=0)
    learning_starts: int = option(100, "Timesteps before the first update.", ge=0)
    random_timesteps: int = option(0, "First timesteps with uniformly random actions.", ge=0)
    exploration_start: float = option(1.0, "Share of random actions at first.", ge=0, le=1)
    exploration_end: float = option(0.05, "Share of random actions in the end.", ge=0, le=1)
    exploration_fraction: float = option(0.5, "Part of all timesteps over which the share falls, linearly.", gt=0, le=1)


@dataclass(frozen=True)
class RandomAgentSettings:
    """Actions drawn evenly from the action space; nothing is learned."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["random"] = option("random", "Actions drawn evenly.")


@dataclass(frozen=True)
class ExperimentAgentSettings:
    """Plays for every agent of an experiment, and learns by the experiment's algorithm from whole episodes."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["experiment"] = option("experiment", "The experiment's algorithm.")
    changes: tuple[str, ...] = option(
        (),
        "Changes for this learner, each as a.b=c: algorithm, schedules, scenario.agents, initial_weights, pretraining.",
    )


@dataclass(frozen=True)
class LearnerSettings:
    """One learner."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: str | None = option(
        None, "Prefix of its metrics' keys (none: learner_0, learner_1, ...).", pattern=r"^[A-Za-z][A-Za-z0-9_-]*$"
    )
    algorithm: PPOAgentSettings | DQNAgentSettings | RandomAgentSettings | ExperimentAgentSettings = option(
        PPOAgentSettings, "Its algorithm (in an experiment: the config's)."
    )
    network: NetworkSettings = option(NetworkSettings, "Of each of its networks.")
    scope: int | None = option(
        None, "Copies that are its own (none, for all learners: equal shares, the remainder to the last).", ge=1
    )


@dataclass(frozen=True)
class DriverSettings:
    """Settings of the driver. A timestep is one step of every copy."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["sequential", "parallel", "step", "manual"] = option("sequential", "The driver.")
    timesteps: int = option(100_000, "Timesteps of training.", ge=1)
    headless: bool = option(True, "Do not render.")
    render_interval: int = option(1, "Timesteps between two pictures.", ge=1)
    progress_bar: bool = option(True, "Show one, where there is a terminal.")
    close_environment_at_exit: bool = option(True, "Close the environment when the process ends, however it does.")
    environment_info: str = option(
        "episode", "Key of the environment's infos whose single numbers are logged.", min_length=1
    )
    stochastic_evaluation: bool = option(False, "Evaluate with sampled actions instead of the most likely ones.")
    threads_per_learner: int = option(1, "Processor threads of each learner of the parallel driver.", ge=1)


@dataclass(frozen=True)
class RunnerEvaluationSettings:
    """Evaluation in separate copies, without learning."""

    __pydantic_config__ = FORBID_UNKNOWN

    timesteps: int = option(500, "Timesteps of an evaluation (0: there is none).", ge=0)
    num_copies: int = option(16, "Copies for each learner.", ge=1)


@dataclass(frozen=True)
class RunnerExperimentSettings:
    """Outputs of a run."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: str = option("runner", "Name of the run.", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    storage_path: str = option("runs", "Folder in which the run's own folder NAME-seedSEED is made.", min_length=1)
    write_interval: int | None = option(
        None, "Timesteps between two rows of metrics (none: a hundredth of all, 0: never).", ge=0
    )
    checkpoint_interval: int | None = option(
        None, "Timesteps between two checkpoints (none: a tenth of all, 0: at the end alone).", ge=0
    )
    keep_checkpoints: int | None = option(None, "The newest so many are kept (none: all).", ge=1)


@dataclass(frozen=True)
class RunnerSettings:
    """Everything in a runner file."""

    __pydantic_config__ = FORBID_UNKNOWN

    seed: int = option(0, "Of every random draw.", ge=0)
    environment: EnvironmentSettings | ExperimentEnvironmentSettings = option(EnvironmentSettings, "The environment.")
    learners: tuple[LearnerSettings, ...] = option(
        lambda: (LearnerSettings(),), "The learners; each sees only its own copies."
    )
    driver: DriverSettings = option(DriverSettings, "The driver that steps them.", meaning=RESUMABLE)
    evaluation: RunnerEvaluationSettings = option(RunnerEvaluationSettings, "The final evaluation.", meaning=RESUMABLE)
    experiment: RunnerExperimentSettings = option(RunnerExperimentSettings, "Outputs of the run.", meaning=RESUMABLE)
