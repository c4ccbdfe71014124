"""Settings of policy gradients for networks: shared ones, PPO and REINFORCE."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.settings.options import FORBID_UNKNOWN, OVER_ITERATIONS, option


@dataclass(frozen=True)
class OnPolicyAgentSettings:
    """Settings of one agent that override the algorithm's."""

    __pydantic_config__ = FORBID_UNKNOWN

    entropy_coefficient: float | None = option(None, "Weight of the entropy bonus (none: the rule's).", ge=0)


@dataclass(frozen=True)
class OnPolicySettings:
    """Settings of PPO, REINFORCE and the Stackelberg family; defaults are the published library's. A frame is one round
    of one copy."""

    __pydantic_config__ = FORBID_UNKNOWN

    lr: float = option(0.003, "Base learning rate of Adam.", gt=0)
    anneal_lr: bool | Literal["quadratic"] = option(
        False,
        "Anneal the learning rate to 0: linearly (true) or quadratically.",
        meaning=OVER_ITERATIONS,
    )
    average_weights: float | None = option(
        None,
        "Decay of averaged weights, used to evaluate, save and export agents (none: newest weights).",
        gt=0,
        lt=1,
    )
    num_epochs: int = option(4, "Passes over an iteration's rollouts.", ge=1)
    minibatch_size: int = option(64, "Frames in a minibatch; it holds minibatch_size / rounds whole copies.", ge=1)
    minibatch_copies: int | None = option(
        None, "Whole copies in a minibatch, instead of minibatch_size (none: minibatch_size applies).", ge=1
    )
    gamma: float = option(0.9, "Discount per protocol round.", ge=0, le=1)
    lam: float = option(0.95, "Lambda of generalised advantage estimation, per own turn.", ge=0, le=1)
    entropy_coefficient: float = option(0.001, "Weight of the entropy bonus.", ge=0)
    critic_coefficient: float = option(1.0, "Weight of the critic loss.", ge=0)
    critic_loss: Literal["smooth_l1", "l1", "l2"] = option("smooth_l1", "Distance between value and target.")
    clip_value: float | bool = option(False, "Clip the value's change (true: clip_epsilon, or 0.2 without one).")
    normalize_advantage: bool = option(True, "Normalise advantages per agent and minibatch.")
    max_grad_norm: float | None = option(1.0, "Largest gradient norm (none: no clipping).", gt=0)
    clip_gradients: Literal["agent", "joint"] = option(
        "agent", "Clip each agent's gradients alone, or all of them together."
    )
    verdict_gradient: Literal["sampled", "expected", "label"] = option(
        "sampled",
        "Signal for decisions: drawn pay, expected pay, or drawn pay and the label's log score.",
    )
    skip_silent_messages: bool = option(False, "Leave unread messages of deciding turns out of ratios and entropies.")
    agents: dict[str, OnPolicyAgentSettings] = option(dict, "Settings by agent; `_default` for agents not named.")

    def faults(self) -> Iterator[str]:
        """A range of values that is empty."""
        if not isinstance(self.clip_value, bool) and self.clip_value <= 0:
            yield (
                f"clip_value: got {self.clip_value}, expected a number > 0, true (clip_epsilon) or false (no clipping)"
            )


def without_effect(settings: Any, *rows: tuple[str, bool, tuple[str, ...]]) -> Iterator[str]:
    """A fault for each setting that is not at its default and has no effect. rows: (what it counts with, whether that
    is the case, keys)."""
    for needed, is_used, keys in rows:
        for key in keys if not is_used else ():
            if (given := getattr(settings, key)) != getattr(type(settings), key):
                text = f"{given:g}" if type(given) in (int, float) else str(given).lower()
                yield f"{key}: got {text}, but it counts with {needed} only, leave it out"


@dataclass(frozen=True)
class PPOSettings(OnPolicySettings):
    """Settings of PPO; defaults are the published library's. A frame is one round of one copy."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["ppo"] = option("ppo", "The learning rule: independent proximal policy optimisation.")
    loss: Literal["clip", "kl_penalty"] = option("clip", "One of PPO's two objectives.")
    clip_epsilon: float = option(0.2, "Clip range of the probability ratio.", gt=0)
    kl_target: float = option(0.01, "KL divergence aimed at by the penalty and the adaptive learning rate.", gt=0)
    kl_beta: float = option(
        1.0,
        "First KL coefficient; doubled above 1.5 kl_target, halved below two thirds of it.",
        ge=0,
    )
    adaptive_lr: bool = option(
        False,
        "Change the learning rate by 1.5 after an iteration to keep KL near kl_target.",
    )
    adaptive_lr_min: float = option(1e-6, "Lowest adaptive learning rate.", gt=0)
    adaptive_lr_max: float = option(1e-2, "Highest adaptive learning rate.", gt=0)

    def faults(self) -> Iterator[str]:
        """A penalty that stays 0, two rules for one learning rate, and settings without an effect."""
        penalty, adaptive, low, high = (
            self.loss == "kl_penalty",
            self.adaptive_lr,
            self.adaptive_lr_min,
            self.adaptive_lr_max,
        )
        if penalty and self.kl_beta == 0:
            yield "kl_beta: got 0, which no factor can change, expected a number > 0"
        if adaptive and self.anneal_lr:
            yield "adaptive_lr: anneal_lr sets the learning rate too, set one of them to false"
        if adaptive and low > high:
            yield f"adaptive_lr_min: got {low:g}, more than adaptive_lr_max {high:g}, lower it"
        elif adaptive and not low <= self.lr <= high:
            yield (
                f"lr: got {self.lr:g}, but adaptive_lr keeps it between {low:g} and {high:g}, start there or change"
                " these bounds"
            )
        yield from without_effect(
            self,
            ("loss kl_penalty", penalty, ("kl_beta",)),
            ("adaptive_lr", adaptive, ("adaptive_lr_min", "adaptive_lr_max")),
            ("loss kl_penalty or adaptive_lr", adaptive or penalty, ("kl_target",)),
            ("loss clip or clip_value true", self.loss == "clip" or self.clip_value is True, ("clip_epsilon",)),
        )


@dataclass(frozen=True)
class ReinforceSettings(OnPolicySettings):
    """Settings of REINFORCE: log-probability times reward to go. A frame is one round of one copy."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["reinforce"] = option(
        "reinforce", "The learning rule: REINFORCE on the reward to go within the episode."
    )
    baseline: Literal["none", "critic"] = option(
        "none", "Nothing (reward to go alone), or a critic (generalised advantages)."
    )
    num_epochs: int = option(
        1, "Passes over an iteration's rollouts; later ones are off-policy (max_importance_weight).", ge=1
    )
    normalize_advantage: bool = option(False, "Normalise rewards to go, or advantages, per agent and minibatch.")
    entropy_coefficient: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    max_importance_weight: float | None = option(
        2.0,
        "Cap of the ratio of learning to playing policy as row weight (none: no weights).",
        ge=1,
    )

    def unused(self) -> Iterator[str]:
        """Settings without an effect."""
        of_critic = ("lam", "critic_loss", "critic_coefficient", "clip_value")
        yield from without_effect(self, ("baseline critic", self.baseline == "critic", of_critic))
