"""Independent PPO in one file, in the manner of CleanRL, on a protocol as a batched environment.

    python examples/independent_ppo.py tune_configs/message_game.yaml

Every agent has a network of its own, which sees a flat observation, and learns in every round: where it has no turn the
mask leaves one choice, whose log-probability is zero. For the recipe that learns proofs use `nip-ray train`.
Shapes: T rounds of B copies, F factors of an action, S choices of all factors.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nip_ray.vector

ROUNDS, EPOCHS, MINIBATCH, CLIP, GAMMA, LAMBDA, ENTROPY, LR = 32, 4, 1024, 0.2, 1.0, 0.95, 0.005, 2e-3


class Agent(nn.Module):
    """An actor and a critic of the same form; sizes: choices by factor."""

    def __init__(self, width: int, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
            for out in (sum(sizes), 1)
        )

    def policies(self, seen_NX: Tensor, mask_NS: Tensor) -> list[torch.distributions.Categorical]:
        """A distribution for each factor."""
        logit_NS = self.actor(seen_NX).masked_fill(mask_NS == 0, -1e8)
        return [torch.distributions.Categorical(logits=part) for part in logit_NS.split(self.sizes, 1)]


def flat(seen: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(observation (B, X), mask (B, S)) of an agent."""
    parts = [np.reshape(x, (len(x), -1)).astype(np.float32) for x in seen["observation"].values()]
    return torch.from_numpy(np.concatenate(parts, 1)), torch.from_numpy(seen["action_mask"])


def update(agent: Agent, optimizer: torch.optim.Optimizer, played: dict[str, Tensor], last_B: Tensor) -> None:
    """PPO's epochs on T rounds of B copies. last_B: values after the last round."""
    reward_TB, over_TB, value_TB = played["reward"], played["over"], played["value"]
    advantage_TB, later_B, next_B = torch.zeros_like(reward_TB), torch.zeros_like(last_B), last_B
    for t in range(len(reward_TB) - 1, -1, -1):
        goes_on_B = 1 - over_TB[t]
        delta_B = reward_TB[t] + GAMMA * next_B * goes_on_B - value_TB[t]
        later_B = delta_B + GAMMA * LAMBDA * goes_on_B * later_B
        advantage_TB[t], next_B = later_B, value_TB[t]
    target_N, advantage_N = (advantage_TB + value_TB).flatten(), advantage_TB.flatten()
    advantage_N = (advantage_N - advantage_N.mean()) / (advantage_N.std() + 1e-8)
    seen_NX, mask_NS, action_NF, old_N = (played[key].flatten(0, 1) for key in ("seen", "mask", "action", "log_prob"))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(old_N)).split(MINIBATCH):
            policies = agent.policies(seen_NX[rows], mask_NS[rows])
            log_prob = sum(one.log_prob(action_NF[rows, f]) for f, one in enumerate(policies))
            ratio, advantage = (log_prob - old_N[rows]).exp(), advantage_N[rows]
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            error = (agent.critic(seen_NX[rows])[:, 0] - target_N[rows]).square().mean()
            loss = 0.5 * error - gain - ENTROPY * sum(one.entropy() for one in policies).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def train(config: str, iterations: int = 60, num_copies: int = 128, seed: int = 0) -> list[dict[str, float]]:
    """Each agent's mean return of the episodes that ended, in every iteration."""
    torch.manual_seed(seed)
    env = nip_ray.vector.parallel(config, num_copies)
    seen, _ = env.reset(seed=seed)
    agents, optimizers = {}, {}
    for name in env.possible_agents:
        agents[name] = Agent(flat(seen[name])[0].shape[1], env.copies.sizes[name])
        optimizers[name] = torch.optim.Adam(agents[name].parameters(), LR, eps=1e-5)
    returns, totals = [], {name: np.zeros(num_copies) for name in agents}
    for _ in range(iterations):
        played: dict[str, dict[str, list[Tensor]]] = {name: {} for name in agents}
        ended: dict[str, list[float]] = {name: [] for name in agents}
        for _ in range(ROUNDS):
            actions = {}
            for name, agent in agents.items():
                with torch.no_grad():
                    seen_BX, mask_BS = flat(seen[name])
                    policies = agent.policies(seen_BX, mask_BS)
                    action_BF = torch.stack([one.sample() for one in policies], 1)
                    log_prob_B = torch.stack([one.log_prob(action_BF[:, f]) for f, one in enumerate(policies)]).sum(0)
                    value_B = agent.critic(seen_BX)[:, 0]
                actions[name] = action_BF.numpy()
                row = dict(seen=seen_BX, mask=mask_BS, action=action_BF, log_prob=log_prob_B, value=value_B)
                for key, x in row.items():
                    played[name].setdefault(key, []).append(x)
            seen, rewards, terminations, truncations, _ = env.step(actions)
            for name in agents:
                over_B = terminations[name] | truncations[name]  # proofs are never truncated
                played[name].setdefault("reward", []).append(torch.from_numpy(rewards[name].copy()))
                played[name].setdefault("over", []).append(torch.from_numpy(over_B.astype(np.float32)))
                totals[name] += rewards[name]
                ended[name] += totals[name][over_B].tolist()
                totals[name][over_B] = 0
        for name, agent in agents.items():
            with torch.no_grad():
                last_B = agent.critic(flat(seen[name])[0])[:, 0]
            update(agent, optimizers[name], {key: torch.stack(x) for key, x in played[name].items()}, last_B)
        returns.append({name: float(np.mean(own)) for name, own in ended.items()})
    return returns


if __name__ == "__main__":
    print(train(sys.argv[1])[-1])
