"""A rollout in RLlib's hands: counting and slicing over copies."""

from dataclasses import fields

import pytest
import torch

from nip_ray.play.core import instance_ids
from nip_ray.play.rollout import Rollout, RolloutSamples
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.ppo import ProtocolPPOConfig
from tests.rllib.experiments import experiment


@pytest.fixture(scope="module")
def sample() -> RolloutSamples:
    """Ten copies of nip that end at different times."""
    config = experiment(dict(name="nip"), dict(linear_symbols=2))
    runner = ProtocolEnvRunner(config=ProtocolPPOConfig().experiment(config), worker_index=0, num_workers=0)
    (made,) = runner.sample(iteration=0, num_episodes=10)
    return made


def equal(first: Rollout, second: Rollout) -> bool:
    pairs = [(getattr(first, f.name), getattr(second, f.name)) for f in fields(Rollout)]
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in pairs)


def test_counts(sample: RolloutSamples) -> None:
    """Length is copies, env steps are rounds, agent steps are turns (one a round in nip)."""
    assert len(sample) == 10
    assert sample.env_steps() == int(sample.rollout.length_B.sum())
    assert sample.agent_steps() == sample.env_steps()
    assert sample.env_steps() < 10 * sample.rollout.num_rounds


@pytest.mark.parametrize(
    "index", [slice(0, 4), slice(4, None), slice(None), slice(3, 3), slice(-2, None), slice(0, 10, 3)]
)
def test_slices_are_copies(sample: RolloutSamples, index: slice) -> None:
    """Every part of the rollout is cut along the copies, by indexing and by RLlib's `slice`."""
    found = sample[index]
    expected = list(range(10))[index]
    assert len(found) == len(expected)
    assert found.worker == sample.worker
    assert equal(found.rollout, sample.rollout.copies(torch.tensor(expected, dtype=torch.long)))
    assert equal(found.rollout, sample.slice(index, len_lookback_buffer=0).rollout)


def test_the_shares_of_two_workers_are_what_one_would_play() -> None:
    """Worker after worker, iteration after iteration: no instance twice before all had their turn."""
    config = experiment(dict(name="nip"), play=dict(num_env_runners=2))
    runner = ProtocolEnvRunner(config=ProtocolPPOConfig().experiment(config), worker_index=1, num_workers=2)
    assert runner.play is not None
    shares = [runner.play_share(iteration, worker, 5, explore=False).id_B for iteration in (0, 1) for worker in (1, 2)]
    assert torch.equal(torch.cat(shares), instance_ids(runner.play.scenario, "train", config.seed, 0, 20))
