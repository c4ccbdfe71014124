"""What RLlib's own options do to our algorithms, one option after the other, in this process."""

from typing import Any

import pytest
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from nip_ray.errors import UserError
from nip_ray.rllib.algorithms import ProtocolPPOConfig
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from tests.rllib.experiments import Weights, distance, message_game, train, trained, weights


def config_of(**changes: Any) -> ProtocolPPOConfig:
    return ProtocolPPOConfig().experiment(message_game(**changes))


def after(config: AlgorithmConfig, iterations: int = 1) -> Weights:
    """The weights after so many iterations of what `config` builds."""
    algorithm: Any = config.build_algo()
    try:
        return train(algorithm, iterations)
    finally:
        algorithm.stop()


@pytest.fixture(scope="module")
def baseline() -> Weights:
    return trained(message_game(), 1)


def test_rllibs_seed_is_the_seed(baseline: Weights) -> None:
    """Of new networks, of what is played, and of minibatches: the numbers are those of an experiment with that seed."""
    assert distance(after(config_of().debugging(seed=0)), baseline) == 0
    tried = after(ProtocolPPOConfig().update_from_dict({**config_of().to_dict(), "seed": 1}))  # as Tune does
    assert distance(tried, trained(message_game(seed=1), 1)) == 0
    assert distance(tried, baseline) > 1e-3
    with pytest.raises(UserError, match="seed: got None"):
        config_of().debugging(seed=None).validate()


@pytest.mark.parametrize("chosen", [["prover"], lambda agent, batch: agent == "prover"])
def test_policies_to_train(baseline: Weights, chosen: Any) -> None:
    """Whoever is not named rests, whatever the form."""
    fresh = after(config_of(), 0)
    found = after(config_of().multi_agent(policies_to_train=chosen))
    assert distance({"_": found["verifier"]}, {"_": fresh["verifier"]}) == 0
    assert distance({"_": found["prover"]}, {"_": baseline["prover"]}) == 0


def test_policies_to_train_are_agents() -> None:
    with pytest.raises(UserError, match="'provers' is no agent of this game, did you mean prover"):
        config_of().multi_agent(policies_to_train=["provers"]).validate()


class Watched(ProtocolEnvRunner):
    """Remembers the instances that it has played."""

    played: list[list[int]] = []

    def _played(self, id_B: torch.Tensor, *rest: Any) -> Any:
        self.played.append(id_B.tolist())
        return super()._played(id_B, *rest)


@pytest.mark.parametrize("interval", [None, 1])
def test_evaluation_plays_held_out_instances(interval: int | None) -> None:
    """By `algo.evaluate()` and within `train`; the same ones each time, and training instances where they are asked for."""
    algorithm: Any = (
        config_of().env_runners(env_runner_cls=Watched).evaluation(evaluation_interval=interval, evaluation_duration=5).build_algo()
    )
    try:
        test, train_ids = (set(algorithm.scenario.ids(split).tolist()) for split in ("test", "train"))
        Watched.played.clear()
        results = algorithm.train()
        assert set(Watched.played[0]) <= train_ids
        found = (results["evaluation"] if interval else algorithm.evaluate())["env_runners"]
        assert found["num_episodes"] == 5
        again = algorithm.evaluate()["env_runners"]
        assert Watched.played[1] == Watched.played[2]
        assert set(Watched.played[1]) <= test
        assert len(set(Watched.played[1])) == 5
        assert again["episode_return_mean"] == found["episode_return_mean"]
        assert distance(weights(algorithm), trained(message_game(), 1)) == 0
    finally:
        algorithm.stop()


def test_evaluation_on_another_split() -> None:
    chosen = {"explore": False, "env_config": {"split": "train"}}
    algorithm: Any = config_of().env_runners(env_runner_cls=Watched).evaluation(evaluation_config=chosen).build_algo()
    try:
        Watched.played.clear()
        algorithm.evaluate()
        assert set(Watched.played[0]) <= set(algorithm.scenario.ids("train").tolist())
    finally:
        algorithm.stop()
    with pytest.raises(UserError, match=r"env_config\.split: got 'tests', did you mean test"):
        config_of().environment(env_config={"split": "tests"}).validate()
