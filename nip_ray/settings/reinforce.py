"""How REINFORCE learns."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.ppo import PolicyGradientSettings


@dataclass(frozen=True)
class ReinforceSettings(PolicyGradientSettings):
    """How REINFORCE learns: log-probability times reward to go. A frame is one round of one copy."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["reinforce"] = option("reinforce", "The learning rule: REINFORCE on the reward to go within the episode.")
    baseline: Literal["none", "critic"] = option("none", "Nothing (reward to go alone), or a critic (generalised advantages).")
    num_epochs: int = option(1, "Passes over an iteration's rollouts; later ones are off-policy (max_importance_weight).", ge=1)
    normalize_advantage: bool = option(False, "Normalise rewards to go, or advantages, per agent and minibatch.")
    entropy_coefficient: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    max_importance_weight: float | None = option(
        2.0, "Rows are weighted by the ratio of the policy that learns to the one that played, at most this (none: no weights).", ge=1
    )
