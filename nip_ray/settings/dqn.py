"""Settings of deep Q-learning: the algorithm, the replay buffer, and those of each role."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option

RateKind = Literal["constant", "linear", "exponential", "inverse"]
USED_BY_KIND: dict[str, tuple[str, ...]] = {
    "constant": (),
    "linear": ("final", "steps"),
    "exponential": ("final", "rate"),
    "inverse": ("rate",),
}
"""Kind of schedule -> the keys that it needs in addition to `initial`."""
_KIND = "Constant; linear in `steps`; exponential by `rate`; or rate / (t + rate / initial)."
_RATE = "Factor per step of the distance to final (exponential), or numerator (inverse)."
_STEPS = "Gradient steps after which it is final (linear)."


@dataclass(frozen=True)
class RateSchedule:
    """A number that changes with the gradient steps t of training, counted from 0; see `nip_ray.learning.annealing`."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: RateKind = option("constant", _KIND)
    initial: float = option(0.001, "The value at first.", ge=0)
    final: float | None = option(None, "The value that it goes to (linear, exponential).", ge=0)
    rate: float | None = option(None, _RATE, gt=0)
    steps: int | None = option(None, _STEPS, ge=1)

    def faults(self) -> Iterator[str]:
        """Missing, superfluous and contradictory keys."""
        kind, used, defaults = self.kind, USED_BY_KIND[self.kind], type(self)()
        for name in ("initial", "final", "rate", "steps"):
            value = getattr(self, name)
            if name == "initial" or name in used:
                if value is None:
                    yield f"{name}: missing, a schedule of kind {kind} needs {', '.join(('initial', *used))}"
            elif value is not None and value != getattr(defaults, name):
                yield f"{name}: got {value}, but a schedule of kind {kind} has no use for it, leave it out"
        if kind == "exponential" and self.rate is not None and self.rate > 1:
            yield f"rate: got {self.rate}, by which the distance to final grows, expected a number <= 1"
        if kind == "inverse" and self.initial == 0:
            yield "initial: got 0, at which rate / initial is not a number, expected a number > 0"


@dataclass(frozen=True)
class LearningRate(RateSchedule):
    """The learning rate at gradient step t."""

    __pydantic_config__ = FORBID_UNKNOWN

    initial: float = option(0.001, "The learning rate at first.", gt=0)
    final: float | None = option(None, "The learning rate that it goes to (linear, exponential).", ge=0)


@dataclass(frozen=True)
class ExplorationRate(RateSchedule):
    """The share of moves drawn at random, evenly from the legal ones, at gradient step t."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: RateKind = option("linear", _KIND)
    initial: float = option(1.0, "The share of random moves at first.", ge=0, le=1)
    final: float | None = option(0.05, "The share that it goes to (linear, exponential).", ge=0, le=1)
    steps: int | None = option(10_000, _STEPS, ge=1)


@dataclass(frozen=True)
class ImportanceExponent(RateSchedule):
    """The correction for prioritised sampling at gradient step t, from 0 (none) to 1 (full)."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: RateKind = option("linear", _KIND)
    initial: float = option(0.4, "The exponent at first.", ge=0, le=1)
    final: float | None = option(1.0, "The exponent that it goes to (linear, exponential).", ge=0, le=1)
    steps: int | None = option(100_000, _STEPS, ge=1)


@dataclass(frozen=True)
class DQNRoleSettings:
    """Settings of one role. A step is one gradient step of each trained role, in their order."""

    __pydantic_config__ = FORBID_UNKNOWN

    gamma: float = option(0.99, "Discount per protocol round.", ge=0, le=1)
    batch_size: int = option(256, "Transitions in a gradient step.", ge=1)
    lr: LearningRate = option(LearningRate, "Learning rate.")
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or stochastic gradient descent.")
    adam_epsilon: float = option(1e-8, "Added to the root of Adam's mean squared gradient (adam).", gt=0)
    weight_decay: float = option(0.0, "Share of each weight that is added to its gradient.", ge=0)
    exploration: ExplorationRate = option(ExplorationRate, "Share of random moves in roll-outs for this role.")
    target_interval: int = option(1000, "Steps between updates of the target network (1 for Polyak averages).", ge=1)
    target_tau: float = option(
        1.0,
        "Step of the target network towards the trained one (1: a copy).",
        gt=0,
        le=1,
    )
    initial_rollout_size: int = option(100, "Copies played before the first step.", ge=1)
    rollout_size: int = option(20, "Copies played in each later roll-out.", ge=1)
    steps_between_rollouts: int = option(10, "Steps between two roll-outs for this role.", ge=1)

    def faults(self) -> Iterator[str]:
        """A setting of Adam without Adam."""
        yield from _unused(self, self.optimizer == "adam", ("adam_epsilon",), f"with {self.optimizer}")


@dataclass(frozen=True)
class DQNSettings:
    """Deep Q-learning from replayed transitions, with legal-action masks throughout."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["dqn"] = option("dqn", "The learning rule: deep Q-learning.")
    steps_per_iteration: int = option(1000, "Steps in an iteration, each one gradient step per trained role.", ge=1)
    trained_roles: tuple[str, ...] = option(
        (), "Trained roles in order of their gradient steps (none: all that learn)."
    )
    double: bool = option(True, "The trained network chooses the target's move (false: the target network does).")
    dueling: bool = option(False, "Separate heads for value and advantages, whose sum is Q.")
    n_step: int = option(1, "Own moves whose rewards are summed before bootstrapping.", ge=1)
    bootstrap_cutoffs: bool = option(True, "Bootstrap when rounds run out (false: that end is worth 0).")
    loss: Literal["smooth_l1", "l2"] = option("smooth_l1", "Distance between value and target; l2 is half the square.")
    loss_beta: float = option(1.0, "Error above which smooth_l1 is linear.", gt=0)
    max_grad_norm: float | None = option(10.0, "Largest gradient norm of a role (none: no clipping).", gt=0)
    precision: Literal["float32", "bfloat16"] = option(
        "float32",
        "Precision of matrix products in a gradient step; weights and losses stay float32.",
    )
    buffer_size: int = option(100_000, "Transitions kept for each role; the oldest make room.", ge=1)
    buffer_device: Literal["cpu", "learner"] = option(
        "learner", "Device of the buffers: main memory, or the learner's device."
    )
    save_buffer: bool = option(True, "Keep buffers in checkpoints (false: a resumed run refills them, and differs).")
    warm_up: int = option(256, "Transitions that a role's buffer holds before its first gradient step.", ge=1)
    prioritised: bool = option(False, "Replay transitions in proportion to their error (false: uniformly).")
    priority_exponent: float = option(
        0.6, "Strength of the priorities: 0 none, 1 in proportion (prioritised).", ge=0, le=1
    )
    importance: ImportanceExponent = option(
        ImportanceExponent, "Exponent of the weights that correct for it (prioritised)."
    )
    roles: dict[str, DQNRoleSettings] = option(dict, "Settings by role; `_default` for roles not named.")

    def faults(self) -> Iterator[str]:
        """Sizes that do not fit, roles that are named twice, and settings without an effect."""
        if self.warm_up > self.buffer_size:
            yield f"warm_up: got {self.warm_up}, more than buffer_size {self.buffer_size} ever holds, use at most that"
        for role in dict.fromkeys(self.trained_roles):
            if (count := self.trained_roles.count(role)) > 1:
                yield f"trained_roles: {role} stands in it {count} times, name every role once"
        yield from _unused(self, self.prioritised, ("priority_exponent", "importance"), "without prioritised")
        yield from _unused(self, self.loss == "smooth_l1", ("loss_beta",), f"with loss {self.loss}")


def role_settings(settings: DQNSettings, role: str) -> DQNRoleSettings:
    """The settings of `role`: its own, else `_default`, else the defaults."""
    return settings.roles.get(role) or settings.roles.get("_default") or DQNRoleSettings()


def _unused(settings: DQNSettings | DQNRoleSettings, used: bool, names: tuple[str, ...], when: str) -> Iterator[str]:
    defaults = type(settings)()
    for name in () if used else names:
        if getattr(settings, name) != getattr(defaults, name):
            yield f"{name}: changed, but {when} there is no use for it, leave it out"
