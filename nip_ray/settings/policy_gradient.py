"""Settings of policy gradient on tokens of language agents. The formulas are in `nip_ray.learning.token_losses`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

from nip_ray.settings.options import FORBID_UNKNOWN, OVER_ITERATIONS, RESUMABLE, option

BETAS = (0.9, 0.999)
"""AdamW's decays of past gradients and of their squares, in supervised steps."""


@dataclass(frozen=True)
class PolicyGradientAgentSettings:
    """Settings of one agent that override the algorithm's."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: float | None = option(None, "Learning rate (none: the rule's).", gt=0)
    entropy_coefficient: float | None = option(None, "Weight of the entropy bonus (none: the rule's).", ge=0)
    kl_coefficient: float | None = option(
        None, "Weight of the KL divergence to the start model (none: the rule's).", ge=0
    )
    final_kl_coefficient: float | None = option(
        None,
        "Its final value, reached linearly over the run's iterations (none: the algorithm's).",
        meaning=OVER_ITERATIONS,
        ge=0,
    )
    from_iteration: int = option(1, "First iteration, counted from 1, in which it learns.", ge=1)
    until_iteration: int | None = option(None, "Last iteration in which it learns (none: the run's last).", ge=1)


@dataclass(frozen=True)
class CurriculumStage:
    """An easier task to learn from at first."""

    __pydantic_config__ = FORBID_UNKNOWN

    until_iteration: int = option(1, "Last iteration, counted from 1, that is played so.", ge=1)
    changes: tuple[str, ...] = option((), "KEY=VALUE of scenario and protocol, as in --set, such as scenario.length=2.")


@dataclass(frozen=True)
class TokenTrainingSettings:
    """Settings of all algorithms that learn from the tokens of an iteration's dialogues."""

    __pydantic_config__ = FORBID_UNKNOWN

    rollouts_per_iteration: int = option(128, "Dialogues in an iteration: items times group_size.", ge=1)
    group_size: int = option(8, "Dialogues about each item.", ge=1)
    discount: float = option(1.0, "Discount of rewards per protocol round.", ge=0, le=1)
    invalid_penalty: float = option(
        0.0,
        "Subtracted from the return of a turn with an invalid reply.",
        ge=0,
    )
    aggregation: Literal["token", "turn", "turn_mean"] = option(
        "token",
        "Token weights: equal (DAPO), by the most tokens (Dr. GRPO), or turn means (GRPO).",
    )
    num_epochs: int = option(1, "Passes over an iteration's turns.", ge=1)
    minibatch_size: int | None = option(None, "Turns in a gradient step (none: all of the iteration).", ge=1)
    micro_batch_tokens: int = option(
        16384,
        "Tokens, prompts and padding included, per forward pass: less saves memory.",
        meaning=RESUMABLE,
        ge=1,
    )
    kl_coefficient: float = option(0.0, "Weight of the KL divergence to the start model (0: not loaded).", ge=0)
    final_kl_coefficient: float | None = option(
        None,
        "Final KL coefficient, reached linearly over the run's iterations (none: constant).",
        meaning=OVER_ITERATIONS,
        ge=0,
    )
    kl_estimator: Literal["k3", "k2"] = option(
        "k3", "Its estimator: k3 as in GRPO, or k2 (gradient of KL(policy || start))."
    )
    kl_refresh: int | None = option(
        None, "Iterations after which the current model becomes the start model (none: never).", ge=1
    )
    entropy_coefficient: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    learning_rate: float = option(1e-4, "Learning rate of AdamW.", gt=0)
    anneal_learning_rate: bool = option(
        False, "Let learning rates fall linearly to 0 over the run's iterations.", meaning=OVER_ITERATIONS
    )
    average_weights: float | None = option(
        None,
        "Decay of weights averaged over iterations, used to test and save models (none: newest weights).",
        gt=0,
        lt=1,
    )
    momentum: float = option(
        BETAS[0], "AdamW's decay of past gradients (less where agents' best replies chase each other).", ge=0, lt=1
    )
    weight_decay: float = option(0.0, "Weight decay of AdamW.", ge=0)
    max_grad_norm: float | None = option(1.0, "Largest norm of a model's gradient (none: no clipping).", gt=0)
    agents: dict[str, PolicyGradientAgentSettings] = option(dict, "Settings by agent; `_default` for agents not named.")
    max_logprob_difference: float | None = option(
        0.01,
        "End if sampler and learner differ more in log-probability (none: never; bfloat16: 0.5 to 5).",
        meaning=RESUMABLE,
        gt=0,
    )
    num_rollout_workers: int = option(
        0,
        "Ray actors that play dialogues (0: the main process).",
        ge=0,
    )
    num_learners: int = option(0, "Ray actors that learn each model together (0: the main process).", ge=0)
    max_staleness: int = option(
        0,
        "Iterations of learning by which playing weights may lag; 1: play while learning.",
        ge=0,
        le=1,
    )
    format_warmup: int = option(
        0,
        "Dialogues of random, well-formed replies to learn the format from first (0: none).",
        ge=0,
    )
    warmup_steps: int = option(0, "Supervised steps on the scenario's examples before iteration 1 (0: none).", ge=0)
    warmup_batch_size: int = option(64, "Examples in a supervised step, also of the format warm-up.", ge=1)
    warmup_learning_rate: float | None = option(None, "Learning rate of supervised steps (none: learning_rate).", gt=0)
    anneal_warmup: bool = option(False, "Let that rate fall linearly to 0 over warmup_steps.")
    warmup_agents: tuple[str, ...] | None = option(
        None, "Agents that learn from the scenario's examples (none: all that are not frozen).", min_length=1
    )
    curriculum: tuple[CurriculumStage, ...] = option(
        (),
        "Easier tasks for the first iterations; held-out items stay the config's.",
    )
    evaluate_every: int = option(
        10,
        "Iterations between plays of held-out items, the first before iteration 1 (0: only the last iteration).",
        meaning=RESUMABLE,
        ge=0,
    )
    num_test_items: int | None = option(None, "Held-out items to play (none: all).", ge=1)
    num_test_repeats: int = option(1, "Plays of each held-out item.", ge=1)
    checkpoint_every: int = option(
        10, "Iterations between checkpoints (the last iteration always has one).", meaning=RESUMABLE, ge=1
    )
    keep_checkpoints: int | None = option(
        3, "Keep so many of the newest checkpoints (none: all).", meaning=RESUMABLE, ge=2
    )

    def faults(self) -> Iterator[str]:
        """Groups that do not divide the dialogues, and keys without an effect. (Clipping on-policy, where all ratios
        are 1, is none.)"""
        size, total = self.group_size, self.rollouts_per_iteration
        if total % size:
            near = max(size, total - total % size)
            yield (
                f"group_size: got {size}, but rollouts_per_iteration is {total}, use a divisor of that or {near}"
                " rollouts"
            )
        follows = any(one.kl_coefficient or one.final_kl_coefficient for one in (self, *self.agents.values()))
        for key in ("kl_estimator", "final_kl_coefficient", "kl_refresh"):
            if getattr(self, key) != getattr(TokenTrainingSettings, key) and not follows:
                yield f"{key}: kl_coefficient is 0, leave it out or raise that"
        for key in ("warmup_batch_size", "warmup_learning_rate"):
            if getattr(self, key) != getattr(TokenTrainingSettings, key) and not (
                self.warmup_steps or self.format_warmup
            ):
                yield f"{key}: there is no warm-up (warmup_steps, format_warmup), leave it out"
        for key in ("warmup_agents", "anneal_warmup"):
            if getattr(self, key) and not self.warmup_steps:
                yield f"{key}: warmup_steps is 0, leave it out or raise that"

    def of_agent(self, agent: str) -> PolicyGradientAgentSettings:
        """The settings of `agent`, else those of `_default`."""
        return self.agents.get(agent, self.agents.get("_default", PolicyGradientAgentSettings()))

    def seen_by(self, agent: str) -> Self:
        """These settings with what `agent` has of its own in their place."""
        own = self.of_agent(agent)
        names = ("learning_rate", "entropy_coefficient", "kl_coefficient", "final_kl_coefficient")
        return replace(self, **{name: value for name in names if (value := getattr(own, name)) is not None})

    def annealed(self, left: float) -> Self:
        """These settings when a share `left` of the iterations is still to come."""
        rate, kl, final = self.learning_rate, self.kl_coefficient, self.final_kl_coefficient
        return replace(
            self,
            learning_rate=rate * left if self.anneal_learning_rate else rate,
            kl_coefficient=kl if final is None else final + (kl - final) * left,
        )

    def warming(self, left: float) -> Self:
        """These settings when a share `left` of the warm-up is still to come."""
        return replace(self, warmup_learning_rate=self.warmup_rate * left) if self.anneal_warmup else self

    @property
    def warmup_rate(self) -> float:
        """The learning rate of supervised steps."""
        return self.learning_rate if self.warmup_learning_rate is None else self.warmup_learning_rate

    def follows_start(self, agent: str) -> bool:
        """Return True if a KL divergence to the start model is in the loss of `agent`, in some iteration."""
        seen = self.seen_by(agent)
        return bool(seen.kl_coefficient or seen.final_kl_coefficient)

    def learns(self, agent: str, iteration: int) -> bool:
        """Return True if `agent` learns in this iteration (from 0), as far as its first and last iteration say."""
        own = self.of_agent(agent)
        return own.from_iteration <= iteration + 1 <= (own.until_iteration or iteration + 1)


@dataclass(frozen=True)
class RatioClipSettings:
    """The clipped ratio of `nip_ray.learning.token_losses.clipped_surrogate`, the loss of every rule that brings none
    of its own."""

    __pydantic_config__ = FORBID_UNKNOWN

    clip_low: float | None = option(0.2, "Clip the probability ratio at 1 minus this (none: off).", gt=0, lt=1)
    clip_high: float | None = option(0.2, "Clip the probability ratio at 1 plus this (none: off).", gt=0)
    ratio: Literal["token", "sequence"] = option("token", "Ratio of each token, or of a turn (geometric mean: GSPO).")


@dataclass(frozen=True)
class PolicyGradientSettings(RatioClipSettings, TokenTrainingSettings):
    """Policy gradient: after each iteration's dialogues, gradient steps on the tokens that the agents wrote in them."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["policy_gradient"] = option("policy_gradient", "Policy gradient.")
    advantage: Literal["group", "leave_one_out", "role", "none"] = option(
        "group",
        "Baseline: group mean (GRPO), mean of the others (RLOO), role baseline (SPIRAL), or none.",
    )
    normalise_advantage: bool = option(False, "Divide by the deviation of the group's returns too (group).")
    role_baseline_decay: float = option(0.95, "Decay of the moving average at each dialogue (role).", ge=0, lt=1)

    def faults(self) -> Iterator[str]:
        """Settings without an effect, and groups of one."""
        unset = PolicyGradientSettings()
        if self.group_size == 1 and self.advantage in ("group", "leave_one_out"):
            yield f"group_size: got 1, but advantage {self.advantage} compares dialogues about one item, use at least 2"
        if self.normalise_advantage and self.advantage != "group":
            yield f"normalise_advantage: is for advantage group, not {self.advantage}, set it to false"
        if self.role_baseline_decay != unset.role_baseline_decay and self.advantage != "role":
            yield f"role_baseline_decay: is for advantage role, not {self.advantage}, leave it out"
