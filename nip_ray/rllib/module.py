"""An agent's networks as an RLModule: a thin shell, so that scenarios need no ray."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn

from nip_ray.learning.policy import Policy
from nip_ray.play.scenario import Scenario
from nip_ray.rllib.distribution import Layout, distribution_class
from nip_ray.rllib.shared import networks_of, scenario_of


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


def layout_of(scenario: Scenario, agent: str) -> Layout:
    """How `agent`'s turns are laid out as flat actions."""
    factors = len(scenario.protocol.writes[agent]) * scenario.message_size
    return Layout(factors, scenario.num_symbols, scenario.linear_symbols, agent in scenario.protocol.deciders)


def module_spec(experiment: dict[str, Any], agents: tuple[str, ...]) -> MultiRLModuleSpec:
    """One `AgentModule` per agent, its module id being the agent's name."""
    specs = {agent: RLModuleSpec(module_class=AgentModule, model_config={"experiment": experiment, "agent": agent}) for agent in agents}
    return MultiRLModuleSpec(rl_module_specs=specs)
