"""Legal actions and observations of several parts, from the environment to what is learned."""

from dataclasses import replace
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
from nip_ray.errors import TrainingError
from nip_ray.settings.drivers import (
    DQNAgentSettings,
    EnvironmentSettings,
    LearnerSettings,
    NetworkSettings,
    PPOAgentSettings,
)
from tests.drivers.small import RANDOM, quiet, same

PPO = LearnerSettings(algorithm=PPOAgentSettings(rollouts=16, num_epochs=4, lr=0.01), network=NetworkSettings((16,)))
DQN = LearnerSettings(
    algorithm=DQNAgentSettings(memory_size=2000, batch_size=64, learning_starts=5, lr=0.01, exploration_fraction=0.3),
    network=NetworkSettings((16,)),
)
LEARNERS = {"ppo": PPO, "dqn": DQN, "random": RANDOM}


class Doors(gymnasium.Env):
    """Five doors of which two are open; the open one of the larger number pays 1, the other 0, a closed one is an
    error. An episode has three turns. What is open stands in the observation, as its mask; so does a clock, in another
    part."""

    observation_space = gymnasium.spaces.Dict(
        clock=gymnasium.spaces.Discrete(4),
        marks=gymnasium.spaces.Box(0, 1, (5,), np.float64),
        action_mask=gymnasium.spaces.MultiBinary(5),
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


class MaskInSteps(gymnasium.Env):
    """Two buttons of which the first pays 1, and after it the second alone is legal; that either is at first, the infos
    do not say."""

    observation_space = gymnasium.spaces.Box(0, 2, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    infos: Any = staticmethod(lambda: {MASK: np.array([0, 1], dtype=np.int8)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.turn += 1
        return (
            np.full(1, self.turn, dtype=np.float32),
            float(self.turn == 1 and action == 0),
            self.turn == 2,
            False,
            self.infos(),
        )


class MaskAsList(MaskInSteps):
    infos = staticmethod(lambda: {MASK: [False, True]})


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


@pytest.mark.parametrize(("kind", "steps", "episodes", "bar"), [(Doors, 480, 60, 2.7), (MaskInSteps, 160, 20, 0.9)])
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_what_is_learned_under_masks_is_the_best_of_what_is_legal(
    name: str, kind: Any, steps: int, episodes: int, bar: float
) -> None:
    """Of 3, and drawing has 1.5; a mask in steps alone leaves the first move free: of 1, and drawing has 0.5."""
    env = doors(kind, 16)
    driver = SequentialDriver(env, agent_for(LEARNERS[name], env), quiet(steps))
    driver.train()
    assert driver.evaluate(episodes)["learner_0/return_mean"] > bar
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


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("kind", [MaskInSteps, MaskAsList])
def test_without_a_mask_in_its_infos_a_copy_may_do_anything(kind: Any, mode: str) -> None:
    """Gymnasium fills the rows of such copies with zeros where others have a mask."""
    copies = Copies(doors(kind, 3, mode))
    copies.reset(0, "episodes")
    assert legal_of(copies.observations) is None
    for _ in range(6):
        led_to, *_ = copies.step(np.ones(3, dtype=np.int64))
        turn = (copies.observations["observation"]).astype(int).tolist()
        assert copies.observations[MASK].tolist() == [[True, True] if now == [0] else [False, True] for now in turn]
        assert led_to[MASK].tolist() == [
            [True, True] if now == [0] else [False, True] for now in led_to["observation"].tolist()
        ]
        copies.step(np.ones(3, dtype=np.int64))
    copies.close()


class Stuck(Doors):
    """After the first turn every door is closed."""

    def _seen(self) -> Any:
        seen = super()._seen()
        return {**seen, MASK: seen[MASK] * (self.turn == 0)}


class StuckInInfos(MaskInSteps):
    infos = staticmethod(lambda: {MASK: np.zeros(2, dtype=np.int8)})


@pytest.mark.parametrize("kind", [Stuck, StuckInInfos])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_copy_without_a_legal_action_ends_training(name: str, kind: Any) -> None:
    env = doors(kind, 2, "next_step")
    driver = SequentialDriver(env, agent_for(LEARNERS[name], env), quiet(20))
    with pytest.raises(TrainingError, match="action_mask forbids every action of copy 0; expected a legal one"):
        driver.train()
    driver.close()


class OverAtOnce(MaskInSteps):
    """One turn; after it nothing is legal, and nothing need be."""

    def step(self, action: Any) -> Any:
        seen, reward, *_ = super().step(action)
        return seen, reward, True, False, {MASK: np.zeros(2, dtype=np.int8)}


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_stretch_without_a_transition_is_skipped(name: str) -> None:
    """Every second step only begins the episodes again, and `rollouts: 1` updates after each; an end may have a mask of
    zeros."""
    env = doors(OverAtOnce, 4, "next_step")
    learner = replace(PPO, algorithm=replace(PPO.algorithm, rollouts=1, mini_batches=1)) if name == "ppo" else DQN
    driver = SequentialDriver(env, agent_for(learner, env), quiet(10))
    driver.train()
    assert driver.core.learners[0].statistics.env_steps == 20
    driver.close()


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
