"""What every policy-gradient learner makes of a rollout first: an agent's rows with values, advantages and value targets."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nip_ray.learning.advantages import normalise, own_turn_advantages
from nip_ray.play.batch import AgentRows, own_rows
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.rllib.learners.base import learning_mode
from nip_ray.settings.ppo import PolicyGradientSettings


@dataclass(frozen=True)
class AgentData:
    """One agent's rows with old values, advantages and value targets, each (N,)."""

    rows: AgentRows
    value_N: Tensor
    advantage_N: Tensor
    target_N: Tensor


@torch.no_grad()
def agent_data(scenario: Scenario, network: nn.Module, rollout: Rollout, agent: str, settings: PolicyGradientSettings) -> AgentData | None:
    """The rows of `agent` with generalised advantages over its own turns; None if it had no turn."""
    rows = own_rows(scenario, rollout, agent)
    if len(rows.copy_N) == 0:
        return None
    network.eval()
    _, value_N = network(rows.obs, False, True)
    learning_mode(network)
    reward_BR = rollout.reward_BRA[:, :, scenario.protocol.agents.index(agent)]
    advantage_BR, target_BR = own_turn_advantages(reward_BR, rows.spread(value_N), rows.row_BR >= 0, settings.gamma, settings.lam)
    at = (rows.copy_N, rows.round_N)
    return AgentData(rows, value_N, advantage_BR[at], target_BR[at])


def explained_variance(data: AgentData) -> Tensor:
    """1 - Var(target - value) / Var(target), scalar."""
    unexplained = (data.target_N - data.value_N).var(unbiased=False) / data.target_N.var(unbiased=False).clamp_min(1e-6)
    return 1 - unexplained


def normalised_like(own_N: Tensor, all_N: Tensor) -> Tensor:
    """`own_N` by the mean and deviation of `all_N` (the same rows or more)."""
    if own_N.shape == all_N.shape:
        return normalise(all_N)
    return (own_N - all_N.mean()) / all_N.std(unbiased=False).clamp_min(1e-6)
