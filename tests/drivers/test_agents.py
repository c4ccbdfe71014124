"""The shipped agents: their mathematics against slow references, their state, and that they learn."""

import math
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.agents.dqn import DQNAgent
from nip_ray.drivers.contract import Agent, Transition
from nip_ray.drivers.loops import SequentialDriver
from nip_ray.drivers.networks import NormalHead, head_for
from nip_ray.errors import TrainingError
from nip_ray.settings.drivers import (
    DQNAgentSettings,
    EnvironmentSettings,
    LearnerSettings,
    NetworkSettings,
    PPOAgentSettings,
)
from tests.drivers.small import DQN, PPO, RANDOM, agents, counting, quiet, same

BOX = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
TWO = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_what_ppo_learns_from_are_transitions_with_the_values_of_where_they_led(mode: str) -> None:
    """Of the counting environment every transition is known; so are all returns, since its values are read off the
    critic itself."""
    settings = LearnerSettings(algorithm=PPOAgentSettings(rollouts=30, num_epochs=1, gamma=0.9, lam=1.0))
    agent: Any = make_agent(settings, BOX, TWO, 3, 0, 0)
    driver = SequentialDriver(counting(3, mode), agent, quiet(100))
    driver.train(29)
    batch = agent._batch()

    def value(episode: float, count: float) -> float:
        with torch.no_grad():
            return float(agent.value(torch.tensor([[episode, count]], dtype=torch.float32)))

    filled = {(i, *map(int, row)) for i in range(3) for row in agent._buffers["observation"][:29, i]}
    assert len(filled) > 60
    seen = 0
    last = {i: tuple(map(int, agent._buffers["next_observation"][28, i])) for i in range(3)}
    places = np.argwhere(agent._buffers["valid"][:29])
    for (_, place), row, target in zip(places, batch["observation"].tolist(), batch["target"].tolist(), strict=True):
        episode, count = map(int, row)
        length = 2 + (episode + place) % 3
        end, gain, factor = length, 0.0, 1.0
        if episode == last[place][0]:
            end = last[place][1]
        for step in range(count + 1, end + 1):
            gain += factor * step
            factor *= 0.9
        terminal = end == length and episode % 2 == 0
        expected = gain if terminal else gain + factor * value(episode, end)
        assert target == pytest.approx(expected, rel=1e-4, abs=1e-4), (place, episode, count)
        assert count < length
        seen += 1
    assert seen == driver.env_steps
    driver.close()


@pytest.mark.parametrize("learner", [PPO, DQN, RANDOM], ids=["ppo", "dqn", "random"])
def test_an_agent_travels_with_all_that_it_has_learned(learner: LearnerSettings) -> None:
    (agent,) = agents(learner)
    driver = SequentialDriver(EnvironmentSettings(num_copies=6), agent, quiet(60))
    driver.train(21)
    twin = pickle.loads(pickle.dumps(agent))
    assert isinstance(twin, Agent)
    assert same(twin.state_dict(), agent.state_dict())
    seen = driver.core.parts[0].copies.observations
    assert np.array_equal(twin.act(seen, 21, 60), agent.act(seen, 21, 60))
    driver.close()


def test_normal_actions_have_the_density_of_torch_and_stay_within_bounds() -> None:
    head = head_for(gymnasium.spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32)))
    assert isinstance(head, NormalHead)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([0.3, -0.7]))
    mean, noise = torch.randn(500, 2), torch.randn(500, 2)
    action = head.sample(mean, noise)
    expected = torch.distributions.Normal(mean, head.log_std.exp())
    found, entropy = head.log_prob_and_entropy(mean, action)
    assert torch.allclose(found, expected.log_prob(action).sum(-1), atol=1e-5)
    assert torch.allclose(entropy, expected.entropy().sum(-1).mean(), atol=1e-5)
    taken = head.for_environment(action.detach().numpy())
    assert (np.abs(taken) <= [1, 2]).all()
    assert (action.detach().abs() > torch.tensor([1.0, 2.0])).any()


@pytest.mark.parametrize("double", [False, True])
def test_dqn_aims_at_the_reward_and_the_value_of_a_next_state_that_is_not_terminal(double: bool) -> None:
    settings = LearnerSettings(algorithm=DQNAgentSettings(double=double, gamma=0.8), network=NetworkSettings((8,)))
    agent: Any = make_agent(settings, BOX, TWO, 1, 0, 0)
    assert isinstance(agent, DQNAgent)
    with torch.no_grad():  # a target network of another mind, so that double and plain differ
        for parameter in agent.target.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    after = torch.randn(20, 2)
    batch = {
        "next_observation": after,
        "reward": torch.arange(20.0),
        "discount": 0.8 * (torch.arange(20) % 2 == 0).float(),
        "next_legal": torch.ones(20, 2, dtype=torch.bool),
    }
    with torch.no_grad():
        judged, chosen = agent.target(after), agent.online(after).argmax(-1)
        value = judged[torch.arange(20), chosen] if double else judged.max(-1).values
        found = agent.targets(batch)
    expected = torch.arange(20.0) + torch.where(torch.arange(20) % 2 == 1, torch.zeros(20), 0.8 * value)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_divergence_ends_an_update_and_moves_the_learning_rate() -> None:
    found = {}
    for name, options in {"free": {}, "stopped": {"kl_threshold": 1e-9}, "adaptive": {"kl_target": 1e-6}}.items():
        learner = LearnerSettings(algorithm=PPOAgentSettings(rollouts=8, lr=0.01, **options))
        (agent,) = agents(learner)
        driver = SequentialDriver(EnvironmentSettings(num_copies=6), agent, quiet(60))
        driver.train(16)
        found[name] = agent
        driver.close()
    assert found["stopped"].tracked()["kl"] < found["free"].tracked()["kl"]
    assert found["adaptive"].learning_rate == pytest.approx(0.01 / 1.5**2)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
@pytest.mark.parametrize(
    ("shown", "paid", "advice"),
    [
        (0.0, math.nan, "the environment gave rewards that are not finite"),
        (math.nan, 0.0, "the environment gave observations that are not finite"),
        (math.inf, math.inf, "the environment gave observations and rewards that are not finite"),
        (1.0, 1e38, "a smaller lr may help"),
    ],
)
def test_numbers_that_are_not_finite_end_training_with_advice_that_fits(
    name: str, shown: float, paid: float, advice: str
) -> None:
    agent: Any = make_agent(PPO if name == "ppo" else DQN, BOX, TWO, 3, 0, 0)
    agent.enable_training_mode(True)
    nothing = np.zeros(3, dtype=bool)
    seen = np.full((3, 2), shown, dtype=np.float32)

    def train() -> None:
        for t in range(8):
            action = agent.act(seen, t, 8)
            agent.record_transition(Transition(seen, action, np.full(3, paid), seen, nothing, nothing, None, {}), t, 8)
            agent.post_interaction(t, 8)

    with pytest.raises(TrainingError, match=f"not finite; {advice}"):
        train()


CARTPOLE = EnvironmentSettings()


def mean_return(
    learner: LearnerSettings, timesteps: int, seed: int, environment: EnvironmentSettings = CARTPOLE
) -> float:
    """Greedy, after training."""
    env = environment.id
    agent = agents(learner, copies=environment.num_copies, env=env, seed=seed)
    driver = SequentialDriver(environment, agent, quiet(timesteps), seed=seed)
    driver.train()
    found = driver.evaluate(500)["learner_0/return_mean"]
    driver.close()
    return found


CARTPOLE_PPO = LearnerSettings(algorithm=PPOAgentSettings(rollouts=64, mini_batches=4, lr=2.5e-3, anneal_lr=True))


def test_ppo_learns_cartpole_somewhat_in_a_moment() -> None:
    assert mean_return(CARTPOLE_PPO, 1280, 0) > 100  # an agent that draws has 22


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_solves_cartpole(seed: int) -> None:
    assert mean_return(CARTPOLE_PPO, 6400, seed) >= 475


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dqn_learns_cartpole(seed: int) -> None:
    settings = DQNAgentSettings(
        update_interval=16,
        gradient_steps=128,
        target_update_interval=16,
        polyak=1.0,
        learning_starts=64,
        lr=2.3e-3,
        exploration_fraction=0.16,
        exploration_end=0.04,
    )
    learner = LearnerSettings(algorithm=settings, network=NetworkSettings((128, 128), "relu"))
    # 22 by drawing; how good the very last weights are varies between 68 and 500
    assert mean_return(learner, 3200, seed) > 50


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_continuous_actions(seed: int) -> None:
    settings = PPOAgentSettings(rollouts=64, num_epochs=10, mini_batches=8, lr=1e-3, gamma=0.9, anneal_lr=True)
    found = mean_return(LearnerSettings(algorithm=settings), 12_000, seed, EnvironmentSettings(id="Pendulum-v1"))
    assert found > -400  # an agent that draws has about -1200
