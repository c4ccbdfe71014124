"""`check_algorithm` passes what ships and says what is wrong with a rule that does not keep its promises."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from nip_ray.config.members import forget
from nip_ray.errors import UserError
from nip_ray.plugins import register_algorithm
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.conformance import check_algorithm
from nip_ray.rllib.learner import Loss
from nip_ray.rllib.ppo import PPOLearner
from nip_ray.rllib.registry import ALGORITHMS
from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.ppo import PPOSettings


@dataclass(frozen=True)
class OddSettings(PPOSettings):
    """PPO under another name."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["odd"] = option("odd", "The learning rule.")  # type: ignore[assignment]


def odd(learner: type[PPOLearner]) -> type[ProtocolAlgorithmConfig]:
    """A registered config with this learner."""

    class OddConfig(ProtocolAlgorithmConfig):
        settings_class = OddSettings

        def get_default_learner_class(self) -> type[PPOLearner]:
            return learner

    ALGORITHMS.pop("odd", None)
    forget("algorithm", "odd")
    register_algorithm(OddConfig)
    return OddConfig


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    ALGORITHMS.pop("odd", None)
    forget("algorithm", "odd")


@pytest.mark.parametrize("name", ["ppo", "reinforce", "stackelberg"])
def test_what_ships_passes(name: str) -> None:
    check_algorithm(ALGORITHMS[name])


def test_a_rule_of_ones_own_passes() -> None:
    check_algorithm(odd(PPOLearner))


def scaled(loss: Loss, factor: Any) -> Loss:
    return replace(loss, value=loss.value * factor)


class Lazy(PPOLearner):
    def agent_loss(self, agent: str, data: Any, own: Tensor, all_rows: Tensor) -> Loss:
        return scaled(super().agent_loss(agent, data, own, all_rows), 0)


class Drawing(PPOLearner):
    calls = 0

    def agent_loss(self, agent: str, data: Any, own: Tensor, all_rows: Tensor) -> Loss:
        Drawing.calls += 1
        noise = torch.rand((), generator=torch.Generator().manual_seed(Drawing.calls))
        return scaled(super().agent_loss(agent, data, own, all_rows), 1 + noise)


class Forgetful(PPOLearner):
    """Counts its updates, and tells no checkpoint."""

    def build(self) -> None:
        super().build()
        self.count = 0

    def after_update(self, prepared: Any, steps: Any) -> None:
        self.count += 1

    def agent_loss(self, agent: str, data: Any, own: Tensor, all_rows: Tensor) -> Loss:
        policy, value_N = self.networks[agent](data.rows.obs_of(own))
        loss = super().agent_loss(agent, data, own, all_rows)
        more = self.count * ((value_N - 1) ** 2).mean() - self.count * policy.entropy().mean()
        return replace(loss, value=loss.value + more)


class Restless(PPOLearner):
    def after_update(self, prepared: Any, steps: Any) -> None:
        with torch.no_grad():
            for network in self.networks.values():
                for parameter in network.parameters():
                    parameter.mul_(0.5)


class Infinite(PPOLearner):
    def agent_loss(self, agent: str, data: Any, own: Tensor, all_rows: Tensor) -> Loss:
        return scaled(super().agent_loss(agent, data, own, all_rows), math.inf)


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (Lazy, "nothing of 'prover' changed"),
        (Drawing, "the same seed gives other weights"),
        (Forgetful, "a resumed run gives other weights"),
        (Restless, "rests, and yet its weights change"),
        (Infinite, "not finite"),
    ],
)
def test_what_is_wrong_is_said(learner: type[PPOLearner], said: str) -> None:
    with pytest.raises(UserError, match=f"algorithm 'odd': .*{said}"):
        check_algorithm(odd(learner))


def test_a_rule_must_be_registered() -> None:
    made = odd(PPOLearner)
    ALGORITHMS.pop("odd")
    with pytest.raises(UserError, match="is not registered"):
        check_algorithm(made)
