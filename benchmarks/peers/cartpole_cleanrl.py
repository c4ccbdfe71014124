"""CartPole by a script in the manner of CleanRL's ppo.py, which is copied and changed, not imported: 16 copies, with
the settings of our config."""

import gymnasium as gym
import numpy as np
import torch
from _clock import Clock
from torch import nn, optim
from torch.distributions.categorical import Categorical

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCH, TOTAL = 16, 64, 8, 256, 200_000
GAMMA, LAMBDA, CLIP, VALUE, LR, NORM = 0.99, 0.95, 0.2, 0.5, 2.5e-3, 0.5


def layer_init(layer: nn.Linear, std: float = np.sqrt(2)) -> nn.Linear:
    """Orthogonal."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    """A critic and an actor."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )  # fmt: skip
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 2), std=0.01),
        )  # fmt: skip

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        """Of observations."""
        return self.critic(x)

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Action, log-probability, entropy, value."""
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


clock = Clock("torch", "gymnasium", window=50)
torch.set_num_threads(1)
torch.manual_seed(clock.seed)
np.random.seed(clock.seed)
envs = gym.vector.SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")) for _ in range(NUM_ENVS)]
)
agent = Agent()
optimizer = optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
obs = torch.zeros((NUM_STEPS, NUM_ENVS, 4))
actions, logprobs, rewards, dones, values = (torch.zeros((NUM_STEPS, NUM_ENVS)) for _ in range(5))
next_obs = torch.Tensor(envs.reset(seed=clock.seed)[0])
next_done = torch.zeros(NUM_ENVS)
updates = TOTAL // (NUM_ENVS * NUM_STEPS)
clock.start()
for iteration in range(updates):
    optimizer.param_groups[0]["lr"] = (1.0 - iteration / updates) * LR
    returns_ended: list[float] = []
    for step in range(NUM_STEPS):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
        values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
        seen, reward, terminations, truncations, infos = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward)
        next_obs, next_done = torch.Tensor(seen), torch.Tensor(np.logical_or(terminations, truncations))
        if "episode" in infos:
            returns_ended += infos["episode"]["r"][infos["_episode"]].tolist()
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages, lastgaelam = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
        for t in reversed(range(NUM_STEPS)):
            nonterminal = 1.0 - (next_done if t == NUM_STEPS - 1 else dones[t + 1])
            nextvalues = next_value[0] if t == NUM_STEPS - 1 else values[t + 1]
            delta = rewards[t] + GAMMA * nextvalues * nonterminal - values[t]
            advantages[t] = lastgaelam = delta + GAMMA * LAMBDA * nonterminal * lastgaelam
        targets = advantages + values
    b_obs, b_logprobs, b_actions = obs.reshape(-1, 4), logprobs.reshape(-1), actions.reshape(-1)
    b_advantages, b_returns = advantages.reshape(-1), targets.reshape(-1)
    b_inds = np.arange(NUM_ENVS * NUM_STEPS)
    for _ in range(EPOCHS):
        np.random.shuffle(b_inds)
        for start in range(0, len(b_inds), MINIBATCH):
            mb = b_inds[start : start + MINIBATCH]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
            ratio = (newlogprob - b_logprobs[mb]).exp()
            mb_adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
            pg_loss = torch.max(-mb_adv * ratio, -mb_adv * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss + v_loss * VALUE
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), NORM)
            optimizer.step()
    if not clock.goes_on(NUM_ENVS * NUM_STEPS, returns_ended):
        break
clock.show()
