"""An agent's networks as an RLModule, a thin wrapper, so that scenarios do not need Ray; its turn (`Layout`) as one
RLlib action."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchDistribution
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn

from nip_ray.environments.layout import Layout, layout_of
from nip_ray.learning.policy import Policy
from nip_ray.rllib.compat import WithoutTorchDistribution
from nip_ray.rllib.shared import networks_of, scenario_of


def distribution_class(layout: Layout) -> type[TorchDistribution]:
    """The distribution class of turns with this layout, for RLlib's own learners and connectors."""

    class TurnDistribution(WithoutTorchDistribution, TorchDistribution):
        """Independent categoricals under turn masks."""

        def __init__(self, policy: Policy, greedy: bool = False) -> None:
            self.policy, self.greedy = policy, greedy
            super().__init__()

        @classmethod
        def from_logits(cls, logits: Tensor, **kwargs: object) -> "TurnDistribution":
            return cls(layout.unflatten(logits))

        @staticmethod
        def required_input_dim(space: object, **kwargs: object) -> int:
            return sum(layout.sizes) + layout.factors + int(layout.decides)

        def sample(self, *, sample_shape: object = None, **kwargs: object) -> Tensor:
            if self.greedy:
                return layout.join(self.policy.sample(None))
            width = sum(layout.sizes)
            uniform = torch.rand(self.policy.message.shape[0], width, device=self.policy.message.device).clamp_(
                1e-20, 1 - 1e-7
            )
            return layout.join(self.policy.sample(-torch.log(-torch.log(uniform))))

        def rsample(self, *, sample_shape: object = None, **kwargs: object) -> Tensor:
            raise NotImplementedError("a turn is discrete: it has no reparameterised sample")

        def logp(self, value: Tensor, **kwargs: object) -> Tensor:
            return self.policy.log_prob(layout.split(value))

        def entropy(self) -> Tensor:
            return self.policy.entropy()

        def kl(self, other: "TurnDistribution", **kwargs: object) -> Tensor:
            return self.policy.kl(other.policy)

        def to_deterministic(self) -> "TurnDistribution":
            return TurnDistribution(self.policy, greedy=True)

    return TurnDistribution


class AgentModule(TorchRLModule, ValueFunctionAPI):
    """One agent. model_config: {"experiment": a dumped ExperimentConfig, "agent": its name}.

    Our learners and runners call `network` directly; the forward methods serve stock RLlib.
    """

    network: nn.Module
    layout: Layout

    def setup(self) -> None:
        """Build the agent's networks, equal in every process."""
        experiment, agent = self.model_config["experiment"], self.model_config["agent"]
        self.network = networks_of(experiment)[agent]
        self.layout = layout_of(scenario_of(experiment), agent)
        self.action_dist_cls = distribution_class(self.layout)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        policy, _ = self.network(batch[Columns.OBS], True, False)
        return {Columns.ACTION_DIST_INPUTS: self.layout.flatten(policy)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        policy, value = self.network(batch[Columns.OBS], True, True)
        return {Columns.ACTION_DIST_INPUTS: self.layout.flatten(policy), Columns.EMBEDDINGS: value}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """(N,) values; `embeddings` are the values of `_forward_train`, if it ran."""
        return embeddings if embeddings is not None else self.network(batch[Columns.OBS], False, True)[1]

    def policy(self, obs: dict[str, Tensor]) -> Policy:
        """The action distribution for observations."""
        return self.network(obs, True, False)[0]


def module_spec(experiment: dict[str, Any], agents: tuple[str, ...]) -> MultiRLModuleSpec:
    """One `AgentModule` per agent; module ids are the agents' names."""
    specs = {
        agent: RLModuleSpec(module_class=AgentModule, model_config={"experiment": experiment, "agent": agent})
        for agent in agents
    }
    return MultiRLModuleSpec(rl_module_specs=specs)
