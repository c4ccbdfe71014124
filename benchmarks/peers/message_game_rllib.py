"""The message game by stock RLlib: its PPO, env runner, connectors and learner, a module for each agent, on our
MultiAgentEnv; 64 copies in one process, all other settings equal. RLlib's default networks have no masks: choices out
of play do nothing."""

from pathlib import Path

import ray
import torch
from _clock import Clock
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from nip_ray.config.load import load_config
from nip_ray.rllib.protocol_env import ProtocolEnv

CONFIG = Path(__file__).resolve().parents[2] / "tune_configs" / "message_game.yaml"
AGENTS = ("prover", "verifier")

clock = Clock("ray", "torch", "nip_ray")
clock.door(ProtocolEnv, "step")
torch.set_num_threads(1)
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
config = (
    PPOConfig()
    .environment(ProtocolEnv, env_config={"experiment": load_config(CONFIG).model_dump(mode="json")})
    .env_runners(
        num_env_runners=0,
        num_envs_per_env_runner=64,
        env_to_module_connector=lambda env, spaces, device: FlattenObservations(multi_agent=True),
    )
    .learners(num_learners=0)
    .multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64], fcnet_activation="tanh", vf_share_layers=True))
    .training(
        train_batch_size=4096, minibatch_size=2048, num_epochs=4, lr=5e-3, gamma=0.9, lambda_=0.95, entropy_coeff=0.001,
        vf_loss_coeff=1.0, use_kl_loss=False, clip_param=0.2, grad_clip=1.0,
    )
    .reporting(metrics_num_episodes_for_smoothing=512)
    .debugging(seed=clock.seed, log_level="ERROR")
)  # fmt: skip
algorithm = config.build_algo()
clock.start()
before = 0
while True:
    played = algorithm.train()["env_runners"]
    steps = int(played["num_env_steps_sampled_lifetime"])
    mean = played["module_episode_returns_mean"]["verifier"]  # of the last 512 episodes
    if not clock.goes_on(steps - before, [mean] * int(played["num_episodes"])):
        break
    before = steps
clock.show()
algorithm.stop()
