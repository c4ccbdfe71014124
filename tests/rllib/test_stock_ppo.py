"""RLlib's own PPO, with its own env runner, connectors and learner, trains our agents on the one-copy env."""

import math
from typing import Any

import pytest
import torch
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.rllib.config import agent_is_module
from nip_ray.rllib.module import module_spec
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.rllib.shared import scenario_of
from tests.rllib.experiments import copied, experiment, message_game


def stock(config: ExperimentConfig, **environments: Any) -> PPO:
    """Stock PPO on the env of `config`, a module per agent."""
    dumped = config.model_dump(mode="json")
    agents = scenario_of(dumped).protocol.agents
    made = (
        PPOConfig()
        .environment(ProtocolEnv, env_config={"experiment": dumped})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4, **environments)
        .learners(num_learners=0)
        .multi_agent(policies=set(agents), policy_mapping_fn=agent_is_module)
        .rl_module(rl_module_spec=module_spec(dumped, agents))
        .training(train_batch_size_per_learner=96, minibatch_size=32, num_epochs=2, lr=1e-3)
        .debugging(seed=0, log_level="ERROR")
    )
    return made.build_algo()


def module_weights(algorithm: PPO) -> dict[str, dict[str, Tensor]]:
    module = algorithm.learner_group._learner.module
    return {agent: copied(module[agent].unwrapped().network.state_dict()) for agent, _ in module.items()}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(experiment(dict(name="nip")), id="nip"),
        pytest.param(
            experiment(dict(name="debate"), dict(shared_body=False, linear_symbols=2)),
            id="debate",
            marks=pytest.mark.slow,
        ),
        pytest.param(experiment(dict(name="merlin_arthur")), id="merlin_arthur", marks=pytest.mark.slow),
        pytest.param(message_game(), id="message_game"),
    ],
)
def test_three_iterations_of_stock_ppo(ray_session: None, config: ExperimentConfig) -> None:
    algorithm = stock(config)
    try:
        before = module_weights(algorithm)
        for iteration in range(3):
            results = algorithm.train()
            assert results["env_runners"]["num_episodes"] > 0
            for agent in before:
                learned = results["learners"][agent]
                for name in ("total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss"):
                    assert math.isfinite(learned[name]), f"{agent} {name} in iteration {iteration}"
                assert learned["entropy"] > 0
        after = module_weights(algorithm)
    finally:
        algorithm.stop()
    for agent, state in before.items():
        moved = [
            name
            for name, value in state.items()
            if value.is_floating_point() and not torch.equal(value, after[agent][name])
        ]
        assert any("value_head" in name for name in moved), agent
        assert len(moved) > 3, agent
