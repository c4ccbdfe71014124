"""Settings of the Stackelberg and opponent-shaping algorithms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.ppo import OnPolicySettings, without_effect


@dataclass(frozen=True)
class StackelbergSettings(OnPolicySettings):
    """Policy gradients of leaders who foresee their followers' learning. A frame is one round of one copy.

    spg, pspg: the leader's total derivative through its followers' best response. lola, pola: through one step of their
    learning. sos, psos: stable opponent shaping. The variants with a p clip probability ratios as PPO does.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["stackelberg"] = option(
        "stackelberg", "The learning rule: policy gradients that shape the followers."
    )
    variant: Literal["spg", "pspg", "lola", "pola", "sos", "psos"] = option("psos", "The algorithm of the family.")
    stackelberg_sequence: tuple[tuple[str, ...], ...] | None = option(
        None,
        "Groups of agents, leaders first (none: verifiers or the first player, then all others).",
    )
    mutual: bool = option(
        False,
        "Every agent shapes every other (not spg and pspg, which need an order).",
    )
    estimator: Literal["dice", "published"] = option(
        "dice", "Second-order terms per sample, unbiased (dice), or products of batch means (published)."
    )
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or plain gradient descent for small games.")
    independent_halves: bool = option(
        True,
        "Take the factors of second-order terms from two halves of a minibatch (dice).",
    )
    clip_epsilon: float = option(0.2, "Clip range of the probability ratio (pspg, pola, psos).", gt=0)
    shaping_lr: float | None = option(
        None,
        "Assumed step of followers (lola, pola, sos, psos; none: lr times the follower's factor).",
        gt=0,
    )
    additional_lola_term: bool = option(True, "Let lola and pola also differentiate through the followers' step.")
    sos_scaling_factor: float = option(
        0.5, "a of stable opponent shaping: bounds shaping against the plain gradient.", gt=0, lt=1
    )
    sos_threshold_factor: float = option(
        0.1, "b of stable opponent shaping: gradient norm below which shaping fades.", gt=0, lt=1
    )
    ihvp: Literal["conjugate_gradient", "neumann", "nystrom"] = option(
        "nystrom", "Method for inverse-Hessian products (spg, pspg)."
    )
    ihvp_num_iterations: int = option(5, "Iterations of conjugate_gradient, terms of neumann.", ge=1)
    ihvp_rank: int = option(5, "Columns of the Hessian that nystrom looks at.", ge=1)
    ihvp_refresh: int = option(1, "Minibatches between two looks of nystrom at the Hessian.", ge=1)
    ihvp_damping: float = option(0.1, "Added to the Hessian's diagonal before it is inverted (rho).", gt=0)
    ihvp_neumann_scale: float = option(0.1, "Step of neumann; below 2 / (largest eigenvalue + damping).", gt=0)

    def faults(self) -> Iterator[str]:
        """An order of agents for a variant without one, and empty groups."""
        if self.mutual and self.variant in ("spg", "pspg"):
            yield f"mutual: {self.variant} needs leaders and followers, set it to false or use lola, pola, sos or psos"
        elif self.mutual and self.stackelberg_sequence is not None:
            yield "stackelberg_sequence: with mutual everyone shapes everyone, leave it out"
        if not all(self.stackelberg_sequence or ()):
            yield "stackelberg_sequence: got an empty group, leave it out"

    def unused(self) -> Iterator[str]:
        """Settings without an effect."""
        variant, inverts = self.variant, self.variant in ("spg", "pspg")
        nystrom, neumann = inverts and self.ihvp == "nystrom", inverts and self.ihvp == "neumann"
        clips = variant in ("pspg", "pola", "psos")
        yield from without_effect(
            self,
            ("variant pspg, pola or psos, or clip_value true", clips or self.clip_value is True, ("clip_epsilon",)),
            ("variant lola, pola, sos or psos", not inverts, ("shaping_lr",)),
            ("variant lola or pola", variant in ("lola", "pola"), ("additional_lola_term",)),
            ("variant sos or psos", variant in ("sos", "psos"), ("sos_scaling_factor", "sos_threshold_factor")),
            ("estimator dice", self.estimator == "dice", ("independent_halves",)),
            ("variant spg or pspg", inverts, ("ihvp", "ihvp_damping")),
            ("variant spg or pspg with another ihvp", inverts and not nystrom, ("ihvp_num_iterations",)),
            ("variant spg or pspg with ihvp nystrom", nystrom, ("ihvp_rank", "ihvp_refresh")),
            ("variant spg or pspg with ihvp neumann", neumann, ("ihvp_neumann_scale",)),
        )
