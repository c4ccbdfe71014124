"""The learning part of zero knowledge: the gradient of the similarity payment through logits.

The similarity that the simulator is paid for, and the adversarial verifier pays, is a function of their logits, not of
their draws. A score-function estimate of its gradient has mean zero in the compared turn; so both also follow the
derivative of the payment through their own logits, with the other's fixed. Source of the payment: Hammond and Adam-Day,
"Neural interactive proofs", ICLR 2025; the gradient is that of an expectation whose integrand depends on the parameters
(Schulman et al., "Gradient estimation using stochastic computation graphs", 2015, theorem 1).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Policy
from nip_ray.learning.similarity import similarity
from nip_ray.play.rollout import AgentRows, Rollout, own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import ZeroKnowledge


@dataclass(frozen=True)
class Compared:
    """The turns of the adversarial verifier and of the simulator in a rollout, and payments for their similarity."""

    extra: ZeroKnowledge
    adversary: AgentRows
    simulator: AgentRows

    def turns(self, copies: Tensor) -> int:
        """The number of common turns in some copies."""
        return len(self.adversary.beside(self.simulator, copies)[0])


def compared_turns(scenario: Scenario, rollout: Rollout, extra: ZeroKnowledge) -> Compared:
    """The comparable turns in `rollout`."""
    return Compared(extra, own_rows(scenario, rollout, extra.adversary), own_rows(scenario, rollout, extra.simulator))


def similarity_losses(
    compared: Compared, networks: Mapping[str, nn.Module], own_copies: Tensor, total: int, updated: Collection[str]
) -> dict[str, Tensor]:
    """Minus the mean similarity payment of those of the two agents in `updated`: this learner's share of the mean over
    all `total` common turns in the minibatch."""
    adversary_K, simulator_K = compared.adversary.beside(compared.simulator, own_copies)
    extra, found = compared.extra, {}
    if len(adversary_K) == 0:
        return found
    learns = {agent: agent in updated for agent in (extra.adversary, extra.simulator)}
    adversary = _policy(networks[extra.adversary], compared.adversary, adversary_K, learns[extra.adversary])
    simulator = _policy(networks[extra.simulator], compared.simulator, simulator_K, learns[extra.simulator])
    share = extra.simulator_reward / total
    if learns[extra.adversary]:
        found[extra.adversary] = similarity(adversary, _constant(simulator), extra.legacy).sum() * share
    if learns[extra.simulator]:
        found[extra.simulator] = -similarity(_constant(adversary), simulator, extra.legacy).sum() * share
    return found


def _policy(network: nn.Module, rows: AgentRows, row_K: Tensor, with_gradient: bool) -> Policy:
    with torch.set_grad_enabled(with_gradient):
        return network(rows.obs_of(row_K), True, False)[0]


def _constant(policy: Policy) -> Policy:
    everything = torch.arange(len(policy.message), device=policy.message.device)
    with torch.no_grad():
        return policy.rows(everything)
