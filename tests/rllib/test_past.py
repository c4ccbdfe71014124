"""Opponents from the past: the snapshots play, and nobody learns from what they did."""

from dataclasses import replace

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.play.rollout import own_rows
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from tests.rllib.experiments import PAST, TINY, Weights, built, distance, experiment, message_game, train, weights


@pytest.mark.parametrize("protocol", ["nip", "debate", "kuhn_poker"])
def test_each_agent_plays_with_the_weights_that_the_record_says(protocol: str) -> None:
    """Log-probabilities of all turns, recomputed from the weights of each iteration; a snapshot's turns are nobody's
    rows."""
    algorithm = built(experiment(dict(name=protocol), opponents=dict(every=1, latest=0.25, draws=2)))
    history: list[Weights] = []
    for _ in range(4):
        history.append(weights(algorithm))
        train(algorithm, 1)
    agents, rollout = algorithm.scenario.protocol.agents, algorithm.rollout
    assert rollout.version_BA is not None
    assert (rollout.version_BA.amin(1) < 0).all()  # somebody learns in every copy
    assert len(rollout.among_current().id_B) == 4
    for index, agent in enumerate(agents):
        everything = own_rows(algorithm.scenario, replace(rollout, version_BA=None), agent)
        version_N = rollout.version_BA[everything.copy_N, index]
        assert len(version_N.unique()) > 1
        network = algorithm.networks()[agent]
        for version in version_N.unique().tolist():
            network.load_state_dict(history[version][agent])
            with torch.no_grad():
                found_N = network.eval()(everything.obs, True, False)[0].log_prob(everything.action)
            own_N = version_N == version
            torch.testing.assert_close(found_N[own_N], everything.log_prob_N[own_N], rtol=1e-4, atol=1e-5)
        assert len(own_rows(algorithm.scenario, rollout, agent).copy_N) == int((version_N < 0).sum())
    algorithm.stop()


def test_what_a_snapshot_is_paid_moves_nobody() -> None:
    """The same play twice; rewards of those whose turns are not learned from are changed before the second update."""

    def updated(spoil: bool) -> Weights:
        algorithm: ProtocolAlgorithm = built(experiment(dict(name="nip"), opponents=dict(every=1, latest=0.5)))
        train(algorithm, 1)
        samples, _ = algorithm._play()
        if spoil:
            for sample in samples:
                assert sample.rollout.version_BA is not None
                past_BRA = (sample.rollout.version_BA >= 0)[:, None, :].expand_as(sample.rollout.reward_BRA)
                sample.rollout.reward_BRA[past_BRA] += 100.0
        algorithm.learn_from(samples)
        found = weights(algorithm)
        algorithm.stop()
        return found

    assert distance(updated(False), updated(True)) == 0


def test_the_past_is_for_those_who_are_named_and_learn_now() -> None:
    """The verifier alone meets snapshots, and not while it rests."""
    algorithm = built(
        message_game(
            opponents={**PAST, "agents": ["verifier"]},
            schedules=dict(verifier=dict(kind="contiguous", period=4, start=0, stop=3)),
        )
    )
    met = []
    for _ in range(4):
        train(algorithm, 1)
        met.append([key for key in algorithm.row if key.startswith("opponents/") and key.endswith("/met")])
    assert met == [[], ["opponents/verifier/met"], ["opponents/verifier/met"], []]
    assert algorithm.past is not None
    assert {agent for own in algorithm.past.weights.values() for agent in own} == {"prover"}
    algorithm.stop()


def test_an_agent_of_a_plugins_protocol_that_does_not_learn_is_refused_when_built() -> None:
    frozen = dict(agents={"_default": TINY, "prover": {**TINY, "kind": "random"}})
    with pytest.raises(UserError, match="opponents"):
        built(experiment(dict(name="nip"), frozen, opponents=PAST))
