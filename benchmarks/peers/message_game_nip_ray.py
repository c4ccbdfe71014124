"""The message game by nip_ray: `nip-ray train tune_configs/message_game.yaml` without its files. What a user writes is
that config."""

from pathlib import Path
from typing import Any

import torch
from _clock import Clock

from nip_ray.config.load import load_config
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.runs.initial_weights import initial_weights, put_weights

CONFIG = Path(__file__).resolve().parents[2] / "tune_configs" / "message_game.yaml"

clock = Clock("nip_ray", "torch", "ray")
torch.set_num_threads(1)
changes = [f"seed={clock.seed}", "runtime.num_threads=1"]
if clock.run:  # one seat: the verifier's, beside a trained prover that rests
    changes += [f"initial_weights.prover.run_dir={clock.run}"]
    changes += ["scenario.agents.prover.agent_lr_factor={actor: 0, critic: 0}"]
config: Any = load_config(CONFIG, changes)
algorithm = build_algorithm(config)
put_weights(algorithm, initial_weights(config)[0])  # as `nip-ray train` does
clock.start()
while True:
    algorithm.train()
    rollout = algorithm.rollout
    if not clock.goes_on(rollout.num_copies * rollout.num_rounds, rollout.reward_BRA[:, :, 1].sum(1).tolist()):
        break
clock.show()
algorithm.stop()
