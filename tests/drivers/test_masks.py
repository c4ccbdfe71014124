"""Legal actions and observations of several parts, from the environment to what is learned."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.agents.base import legal_of
from nip_ray.drivers.contract import MASK
from nip_ray.drivers.environments import Copies, make_environment
from nip_ray.drivers.loops import SequentialDriver
from nip_ray.settings.drivers import DQNAgentSettings, EnvironmentSettings, LearnerSettings, NetworkSettings, PPOAgentSettings
from tests.drivers.small import RANDOM, quiet, same

PPO = LearnerSettings(algorithm=PPOAgentSettings(rollouts=16, num_epochs=4, lr=0.01), network=NetworkSettings((16,)))
DQN = LearnerSettings(
    algorithm=DQNAgentSettings(memory_size=2000, batch_size=64, learning_starts=5, lr=0.01, exploration_fraction=0.3),
    network=NetworkSettings((16,)),
)
LEARNERS = {"ppo": PPO, "dqn": DQN, "random": RANDOM}


class Doors(gymnasium.Env):
    """Five doors of which two are open; the open one of the larger number pays 1, the other 0, a closed one is an error. An episode has
    three turns. What is open stands in the observation, as its mask; so does a clock, in another part."""

    observation_space = gymnasium.spaces.Dict(
        clock=gymnasium.spaces.Discrete(4), marks=gymnasium.spaces.Box(0, 1, (5,), np.float64), action_mask=gymnasium.spaces.MultiBinary(5)
    )
    action_space = gymnasium.spaces.Discrete(5)

    def _seen(self) -> Any:
        self.open = np.zeros(5, dtype=np.int8)
        self.open[self.np_random.choice(5, 2, replace=False)] = 1
        return {"clock": self.turn, "marks": self.open.astype(np.float64), "action_mask": self.open.copy()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.open[action], "a closed door"
        reward = float(action == np.flatnonzero(self.open)[-1])
        self.turn += 1
        return self._seen(), reward, self.turn == 3, False, {}


class MaskInInfos(Doors):
    """The same doors, with the mask in the infos as Gymnasium's own environments do."""

    observation_space = gymnasium.spaces.Box(0, 1, (5,), np.float32)

    def reset(self, **options: Any) -> Any:
        seen, _ = super().reset(**options)
        return seen["marks"].astype(np.float32), {MASK: seen[MASK]}

    def step(self, action: Any) -> Any:
        seen, *rest, _ = super().step(action)
        return seen["marks"].astype(np.float32), *rest, {MASK: seen[MASK]}


def doors(kind: Any, copies: int, mode: str = "same_step") -> Any:
    return SyncVectorEnv([kind] * copies, autoreset_mode=AutoresetMode[mode.upper()])


def agent_for(learner: LearnerSettings, env: Any) -> Any:
    return make_agent(learner, env.single_observation_space, env.single_action_space, env.num_envs, 0, 0)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("kind", [Doors, MaskInInfos])
@pytest.mark.parametrize("name", LEARNERS)
def test_no_learner_opens_a_closed_door(name: str, kind: Any, mode: str) -> None:
    env = doors(kind, 6, mode)
    agent = agent_for(LEARNERS[name], env)
    driver = SequentialDriver(env, agent, quiet(60, stochastic_evaluation=True))
    driver.train(40)
    driver.evaluate(20)
    assert driver.core.learners[0].statistics.episodes > 20
    state = agent.state_dict()
    other = agent_for(LEARNERS[name], env)
    other.load_state_dict(state)
    assert same(other.state_dict(), state)
    driver.close()


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_what_is_learned_under_masks_is_the_best_of_what_is_legal(name: str) -> None:
    env = doors(Doors, 16)
    driver = SequentialDriver(env, agent_for(LEARNERS[name], env), quiet(480))
    driver.train()
    assert driver.evaluate(60)["learner_0/return_mean"] > 2.7  # of 3; an agent that draws has 1.5
    driver.close()


def test_probabilities_and_ratios_are_about_legal_actions() -> None:
    env = doors(Doors, 4)
    agent = agent_for(PPO, env)
    driver = SequentialDriver(env, agent, quiet(60))
    driver.train(10)
    batch = agent._batch()
    assert (batch["legal"].sum(-1) == 2).all()
    assert (batch["log_prob"].exp() > 0.2).all()  # of two legal doors at first about a half each, not a fifth
    agent._minibatch(batch)
    assert agent._minibatch(batch)[2] <= np.log(2) + 1e-6  # the entropy
    driver.close()


def test_a_value_after_is_that_of_a_legal_action() -> None:
    env = doors(Doors, 4)
    agent = agent_for(DQN, env)
    after = torch.randn(6, 9)
    legal = torch.zeros(6, 5, dtype=torch.bool)
    legal[:, 3] = True
    batch = {"next_observation": after, "reward": torch.zeros(6), "discount": torch.ones(6), "next_legal": legal}
    assert torch.allclose(agent.targets(batch), agent.target(after)[:, 3], atol=1e-6)
    env.close()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_mask_in_the_infos_travels_with_the_observation_it_is_about(mode: str) -> None:
    copies, random = Copies(doors(MaskInInfos, 3, mode)), np.random.default_rng(0)
    copies.reset(0, "episodes")
    over = 0
    for _ in range(20):
        legal = legal_of(copies.observations)
        assert legal is not None
        assert (copies.observations["observation"] == legal).all()  # the marks are what is open
        led_to, _, terminated, *_ = copies.step(np.array([random.choice(np.flatnonzero(row)) for row in legal]))
        assert (led_to["observation"] == led_to[MASK]).all()
        over += terminated.sum()
    assert over > 5
    copies.close()


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("role", ["Host", "Agent"])
def test_players_of_hironakas_game_are_learners_like_any_other(role: str, name: str, vectorization: Any) -> None:
    settings = EnvironmentSettings(
        id=f"nip_ray.scenarios.hironaka.environments:nip_ray/Hironaka{role}-v0",
        num_copies=8,
        vectorization=vectorization,
        options={"max_rounds": 4, "illegal_reward": -1000.0},
    )
    env = make_environment(settings, 8)
    driver = SequentialDriver(settings, agent_for(LEARNERS[name], env), quiet(30))
    driver.train()
    statistics = driver.core.learners[0].statistics
    assert statistics.episodes > 8
    assert min(gain for _, gain, _ in statistics.finished) > -100  # nobody makes an illegal move
    driver.close()
    env.close()
