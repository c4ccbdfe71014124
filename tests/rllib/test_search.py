"""Provers that search while they learn, and decisions that learn from every verdict's pay, in the engine."""

from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.learning.verdicts import stakes
from nip_ray.play.rollout import own_rows
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from tests.rllib.experiments import PAST, built, distance, experiment, message_game, train, trained, weights
from tests.rllib.matrix import goes_on_exactly

EXPECTED, LABEL = dict(verdict_gradient="expected"), dict(verdict_gradient="label")
REINFORCE = dict(name="reinforce", num_epochs=1)
CASES: dict[str, ExperimentConfig] = {
    "one prover": experiment(dict(name="nip", max_rounds=3), search={}, algorithm=EXPECTED),
    "two at once, half of the copies": experiment(
        dict(name="debate", max_rounds=3), search=dict(share=0.5), algorithm=LABEL
    ),
    "two in turns": experiment(
        dict(name="mnip", max_rounds=4, sequential=True), search=dict(share=1.0, last_share=0.0), algorithm=EXPECTED
    ),
    "drawn roles, one searches": experiment(
        dict(name="consultancy", max_rounds=3), search=dict(agents=["prover0"]), algorithm=EXPECTED
    ),
    "a panel": experiment(dict(name="judge_panel", judges=2), search={}, algorithm=EXPECTED),
    "several symbols": experiment(
        dict(name="nip", max_rounds=3), dict(message_size=2), search=dict(candidates=6), algorithm=EXPECTED
    ),
    "opponents from the past": message_game(search=dict(share=0.5), algorithm=EXPECTED, opponents=PAST),
    "reinforce": message_game(search=dict(share=0.5), algorithm=REINFORCE | EXPECTED),
    "reinforce with a critic": message_game(search={}, algorithm=REINFORCE | LABEL | dict(baseline="critic")),
    "penalised, adaptive": message_game(
        search=dict(share=0.5), algorithm=EXPECTED | dict(loss="kl_penalty", adaptive_lr=True)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_trains_saves_restores_and_is_examined(name: str, tmp_path: Path) -> None:
    goes_on_exactly(CASES[name], tmp_path)


def test_the_other_copies_learn_by_the_rule_alone() -> None:
    """A prover without a search in an iteration has the loss that it has without the key."""
    plain, none = message_game(), message_game(search=dict(share=0.0))
    assert distance(trained(plain, 2), trained(none, 2)) < 1e-6


def test_a_searching_prover_imitates_and_the_verifier_meets_the_search() -> None:
    algorithm = built(experiment(dict(name="nip", max_rounds=3), search={}))
    algorithm.train()
    rollout = algorithm.rollout
    rows = own_rows(algorithm.scenario, rollout, "prover")
    assert rows.taught_NFS is not None
    assert (stakes(rows.taught_NFS) > 0).all()
    assert {name for name in algorithm.row if name.startswith("learn/prover/")} == {
        "learn/prover/imitation",
        "learn/prover/grad_norm",
    }
    assert own_rows(algorithm.scenario, rollout, "verifier").taught_NFS is None
    algorithm.stop()


def test_imitation_comes_near_what_is_found() -> None:
    """Against a verifier that rests, so that the same is found in each iteration."""
    config = experiment(
        dict(name="nip", max_rounds=3),
        dict(data=dict(num_train=4, num_test=4, graph_sizes=[7], non_iso_prop_score_1=0.5, non_iso_prop_score_2=0.5)),
        search=dict(temperature=1.0),
        algorithm=dict(lr=1e-2, num_epochs=8),
        schedules={"verifier": dict(kind="contiguous", period=100, start=99, stop=100)},
        iterations=100,
    )
    algorithm = built(config)
    found = []
    for _ in range(12):
        algorithm.train()
        found.append(algorithm.row["learn/prover/imitation"])
    algorithm.stop()
    assert found[-1] < 0.5 * found[0]


@pytest.mark.parametrize(
    "settings", [dict(play=dict(num_env_runners=2)), dict(play=dict(num_env_runners=1, max_staleness=1))], ids=str
)
def test_remote_runners_search_and_keep_what_they_found(ray_session: None, settings: dict[str, Any]) -> None:
    algorithm: ProtocolAlgorithm = built(message_game(search=dict(share=0.5), algorithm=EXPECTED, **settings))
    before = weights(algorithm)
    try:
        after = train(algorithm, 2)
        assert distance(before, after) > 0
        rollout = algorithm.rollout
        assert rollout.taught_BRAFS is not None
        taught_B = (rollout.taught_BRAFS > 0).flatten(1).any(1)
        assert 0 < taught_B.sum() < len(taught_B)
        assert rollout.pay_BRMD is not None
        assert not rollout.pay_BRMD.isnan().all()
    finally:
        algorithm.stop()


def test_two_learners_come_to_the_weights_of_one(ray_session: None) -> None:
    config = message_game(search=dict(share=0.5), algorithm=EXPECTED)
    two = config.model_copy(update={"learners": config.learners.__class__(num_learners=2)})
    assert distance(trained(config, 2), trained(two, 2)) < 1e-5
