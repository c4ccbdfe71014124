"""What deep Q-learning refuses, each fault with its key and what would be right."""

import re
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError


def config(**changes: Any) -> dict[str, Any]:
    """A poker experiment, changed."""
    base: dict[str, Any] = dict(
        protocol=dict(name="kuhn_poker"),
        scenario=dict(name="matrix_game", game="kuhn_poker"),
        algorithm=dict(name="dqn"),
        evaluation=dict(sampled=False),
    )
    return {name: {**base.get(name, {}), **changes.get(name, {})} for name in (*base, *changes)}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (dict(evaluation=dict(sampled=True)), "evaluation.sampled: dqn values moves"),
        (dict(play=dict(num_copies=128)), "play.num_copies: dqn has no use for it"),
        (dict(algorithm=dict(warm_up=200_000)), "algorithm.warm_up: got 200000, more than buffer_size"),
        (dict(algorithm=dict(trained_roles=["player3"])), "algorithm.trained_roles: player3 is no agent of kuhn_poker"),
        (dict(algorithm=dict(roles=dict(host={}))), "algorithm.roles.host: no agent of kuhn_poker"),
        (
            dict(algorithm=dict(trained_roles=["player0"]), scenario=dict(agents=dict(player0=dict(kind="random")))),
            "trained_roles: player0",
        ),
        (dict(algorithm=dict(roles=dict(player0=dict(batch_size=2))), learners=dict(num_learners=3)), "algorithm.roles.player0.batch_size"),
        (dict(algorithm=dict(steps_per_iteration=5, roles=dict(_default=dict(steps_between_rollouts=6)))), "steps_between_rollouts: got 6"),
        (dict(algorithm=dict(roles=dict(player0=dict(lr=dict(kind="inverse"))))), "algorithm.roles.player0.lr.rate: missing, a schedule"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=re.escape(fault)):
        check(config_from_dict(config(**changes)))


@pytest.mark.parametrize("protocol", ["nip", "message_game"])
def test_those_who_decide_are_not_trained(protocol: str) -> None:
    data = dict(protocol=dict(name=protocol), algorithm=dict(name="dqn"), evaluation=dict(sampled=False))
    if protocol == "message_game":
        data["scenario"] = dict(name="message_game")
    with pytest.raises(UserError, match="trained_roles: dqn is for agents whose turn is one symbol, and verifier decides"):
        check(config_from_dict(data))


def test_a_prover_may_be_trained_alone_and_says_one_symbol() -> None:
    data: dict[str, Any] = dict(
        protocol=dict(name="nip"), algorithm=dict(name="dqn", trained_roles=["prover"]), evaluation=dict(sampled=False)
    )
    check(config_from_dict(data))
    with pytest.raises(UserError, match=r"scenario\.message_size: got 2, but dqn is for agents whose turn is one symbol, use 1"):
        check(config_from_dict({**data, "scenario": dict(name="graph_isomorphism", message_size=2)}))
