"""What every policy-gradient learner makes of a rollout first: an agent's rows with values, advantages and value targets."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nip_ray.learning.advantages import normalise, own_turn_advantages
from nip_ray.learning.modes import learning_mode
from nip_ray.play.batch import AgentRows, final_rows, own_rows
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
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
    reward_BR = rewards_with_cuts(scenario, network, rollout, rows, value_N, settings.gamma)
    advantage_BR, target_BR = own_turn_advantages(reward_BR, rows.spread(value_N), rows.row_BR >= 0, settings.gamma, settings.lam)
    learning_mode(network)
    at = (rows.copy_N, rows.round_N)
    return AgentData(rows, value_N, advantage_BR[at], target_BR[at])


@torch.no_grad()
def rewards_with_cuts(scenario: Scenario, network: nn.Module, rollout: Rollout, rows: AgentRows, value_N: Tensor, gamma: float) -> Tensor:
    """(B, R): what an agent was paid, and in the last round of a copy that was cut off also what would have followed, by its value.

    Where another agent would have moved next, there is nothing to judge by yet: the value of its last own turn stands in, as in other
    libraries' time-limit bootstrap. value_N: its values at `rows`.
    """
    reward_BR = rollout.reward_BRA[:, :, scenario.protocol.agents.index(rows.agent)]
    if rollout.cut_B is None:
        return reward_BR
    last_B = rows.row_BR.amax(1)  # rows of a copy are numbered in the order of its rounds
    beyond_B = torch.where(rollout.cut_B & (last_B >= 0), value_N[last_B.clamp_min(0)], 0.0)
    copy_K, obs = final_rows(scenario, rollout, rows.agent)
    if len(copy_K):
        beyond_B[copy_K] = network(obs, False, True)[1]
    place_B1 = (rollout.length_B - 1)[:, None]
    return reward_BR.scatter_add(1, place_B1, gamma * beyond_B[:, None])


def explained_variance(data: AgentData) -> Tensor:
    """1 - Var(target - value) / Var(target), scalar."""
    unexplained = (data.target_N - data.value_N).var(unbiased=False) / data.target_N.var(unbiased=False).clamp_min(1e-6)
    return 1 - unexplained


def normalised_like(own_N: Tensor, all_N: Tensor) -> Tensor:
    """`own_N` by the mean and deviation of `all_N` (the same rows or more)."""
    if own_N.shape == all_N.shape:
        return normalise(all_N)
    return (own_N - all_N.mean()) / all_N.std(unbiased=False).clamp_min(1e-6)
