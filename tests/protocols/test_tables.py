"""Names and limits of the shipped tables; what `build` and `register` refuse."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.protocols import (
    PROTOCOLS,
    Payment,
    Protocol,
    ProtocolParams,
    build,
    check,
    for_being_right,
    for_verdict,
    reads,
    register,
    start,
    step,
)
from nip_ray.protocols.tables import SHIPPED
from nip_ray.settings.protocol import PayoffSettings


@pytest.mark.parametrize(
    ("name", "agents", "channels", "limits", "goals"),
    [
        ("nip", "prover verifier", "main", (8, 1), {"prover": 1}),
        ("adp", "prover verifier", "main", (2, 1), {"prover": 1}),
        ("debate", "prover0 prover1 verifier", "prover0_channel prover1_channel", (8, 1), {"prover0": 0, "prover1": 1}),
        ("mnip", "prover0 prover1 verifier", "prover0_channel prover1_channel", (8, 1), {"prover0": 1, "prover1": 1}),
        ("merlin_arthur", "prover0 prover1 verifier", "main", (2, 1), {"prover0": 0, "prover1": 1}),
        ("consultancy", "prover0 prover1 verifier", "main", (8, 1), {"prover0": 0, "prover1": 1}),
        ("bisection", "prover0 prover1 verifier", "main", (9, 9), {"prover0": 0, "prover1": 1}),
        ("solo_verifier", "verifier", "main", (1, 1), {}),
        ("multi_channel_test", "prover0 prover1 prover2 verifier", "main prover0_verifier prover_chat", (8, 2), {}),
    ],
)
def test_names_limits_goals_and_amounts(
    name: str, agents: str, channels: str, limits: tuple[int, int], goals: dict[str, int]
) -> None:
    protocol = build(name)
    assert protocol.name == name
    assert protocol.force_guess is None
    assert (protocol.agents, protocol.channels) == (tuple(agents.split()), tuple(channels.split()))
    assert (protocol.max_rounds, protocol.min_rounds) == limits
    payoff = {"verifier": for_being_right(1, -1, -1), **{agent: for_verdict(goal, 1) for agent, goal in goals.items()}}
    assert protocol.payment == Payment(payoff, goals=goals)
    assert protocol.provers == tuple(agent for agent in agents.split() if agent != "verifier")
    assert protocol.agents[protocol.verifier_index] == "verifier"


def test_prover_and_estimator_bet_on_the_error() -> None:
    protocol = build("prover_estimator", max_rounds=7)
    assert [turns[0][0] for turns in protocol.turns[0]] == ["prover", "estimator", "prover"] * 2 + ["verifier"]
    assert (protocol.min_rounds, protocol.payment.goals) == (7, {"prover": 1})
    state = start(protocol, torch.tensor([0, 1, 1]), torch.zeros(3, dtype=torch.int64))
    decisions = torch.tensor([[2, 2, 1], [2, 2, 1], [2, 2, 2]])
    error_B = torch.tensor([0.5, -0.25, 1.0])
    for _ in range(6):
        state, outcome = step(protocol, state, decisions, error_B=error_B)
        assert not outcome.reward_BA.any(), "only the end pays"
    _, outcome = step(protocol, state, decisions, error_B=error_B)
    assert outcome.reward_BA.tolist() == [[1.5, -0.5, -1.0], [0.75, 0.25, 1.0], [1.0, -1.0, -1.0]]
    assert all(map(protocol.payment.is_paid, protocol.agents))
    with pytest.raises(
        UserError, match="per_error: estimates are paid for where a verifier decides, and not under zero knowledge"
    ):
        build("prover_estimator", zero_knowledge=True)
    with pytest.raises(UserError, match=r"per_error\['x'\]: must be a finite number"):
        check(replace(protocol, payment=replace(protocol.payment, per_error={"x": 1.0})))


def test_reward_mid_points() -> None:
    protocol = build("debate", prover_reward=3.0, verifier_reward=2.0, verifier_incorrect_penalty=-5.0)
    assert [protocol.reward_mid_point(agent) for agent in protocol.agents] == [1.5, 1.5, -1.5]
    unequal = build("nip", payoff={"verifier": PayoffSettings(false_accept=-9.0)})
    assert unequal.reward_mid_point("verifier") == 0.0, "between the worst right verdict and the best wrong one"
    assert build("nip").reward_mid_point("verifier") == build("kuhn_poker").reward_mid_point("player0") == 0.0


@pytest.mark.parametrize("name", ["adp", "merlin_arthur", "solo_verifier", "multi_channel_test"])
@pytest.mark.parametrize("key", ["max_rounds", "min_rounds"])
def test_fixed_lengths_can_only_be_repeated(name: str, key: str) -> None:
    own = getattr(build(name), key)
    assert getattr(build(name, **{key: own}), key) == own
    with pytest.raises(UserError, match=f"{key}: got .*{name} always has {own}"):
        build(name, **{key: own + 1})


@pytest.mark.parametrize(("chooser", "agents"), [("opponent", "prover0 prover1"), ("verifier", "prover")])
def test_bisection_alternates_commitment_and_choice(chooser: str, agents: str) -> None:
    protocol = build("bisection", max_rounds=5, half_chosen_by=chooser)
    *others, committer = agents.split()
    turn = [[agent for (agent, _) in turns] for turns in protocol.turns[0]]
    assert protocol.provers == (*others, committer)
    assert turn == [[committer], [*others] or ["verifier"]] * 2 + [["verifier"]]
    assert (protocol.min_rounds, protocol.payment.goals[committer]) == (5, 1), "only the last turn decides"


AMOUNTS = ("prover_reward", "verifier_reward", "verifier_terminated_penalty", "verifier_no_guess_reward")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("nib", {}, r"'nib'.*adp.*nip.*solo_verifier"),
    ("nip", {"max_round": 3}, r"'max_round'.*max_rounds"),
    ("nip", {"prover0_first": False}, "prover0_first"),
    ("debate", {"prover0_first": False}, "prover0_first"),
    ("message_game", {"prover_reward": 2.0}, "prover_reward"),
    ("nip", {"prover_reward": 2.0, "shared_reward": True}, "prover_reward"),
    ("solo_verifier", {"shared_reward": True}, "shared_reward"),
    ("adp", {"verifier_first": False}, "verifier_first"),
    ("merlin_arthur", {"verifier_first": False}, "verifier_first"),
    (
        "prover_estimator",
        {"max_rounds": 9},
        "max_rounds: got 9, but prover_estimator always has three for each halving",
    ),
    *(
        ("bisection", {"max_rounds": rounds}, f"max_rounds: got {rounds}, but bisection always has an odd number")
        for rounds in (1, 4)
    ),
    ("bisection", {"min_rounds": 3}, "min_rounds: got 3, but bisection always has 9"),
    ("debate", {"half_chosen_by": "verifier"}, "half_chosen_by: debate has no use"),
    *(
        (name, {"sequential": True}, f"sequential: {name} has no use")
        for name in ("nip", "adp", "merlin_arthur", "solo_verifier")
    ),
    (
        "nip",
        {"payoff": {"referee": PayoffSettings()}},
        "payoff.referee: no agent 'referee' of nip, expected one of prover, verifier",
    ),
    (
        "nip",
        {"zero_knowledge": True, "payoff": {"simulator": PayoffSettings(undecided=1)}},
        "payoff.simulator: it is paid for similarity",
    ),
    ("nip", {"payoff": {"prover": PayoffSettings(turns={"x": 1.0})}}, "payoff.prover.turns: no agent 'x' of nip"),
    (
        "nip",
        {"payoff": {"prover": PayoffSettings(undecided=float("nan"))}},
        r"payoff\['prover'\]: must be a finite number",
    ),
    (
        "nip",
        {"verifier_scoring": "log", "payoff": {"verifier": PayoffSettings(false_accept=-5.0)}},
        "log is honest only.*has 6 and 2",
    ),
    ("matrix_game", {"payoff": {"player0": PayoffSettings()}}, "payoff.player0: matrix_game has no verifier"),
    *(
        ("nip", {key: value}, "must be a finite number|not finite")
        for key in AMOUNTS
        for value in (float("nan"), float("-inf"), 1e39)
    ),
]


@pytest.mark.parametrize(("name", "params", "said"), REFUSED, ids=str)
def test_build_refuses(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(name, **params)


def test_a_parameter_that_a_builder_does_not_state_is_refused(no_plugins: None) -> None:
    def bonus(params: ProtocolParams) -> Protocol:
        amount = params.prover_reward
        return replace(
            PROTOCOLS["nip"](ProtocolParams()),
            name="bonus",
            payment=Payment(function=lambda ends: {"prover": amount * ends.y_B}),
        )

    register("bonus", bonus)
    build("bonus", verifier_reward=3.0)
    register("bonus", reads("prover_reward")(bonus))
    assert build("bonus", prover_reward=3.0).payment.function is not None
    with pytest.raises(UserError, match="verifier_reward: bonus has no use for it"):
        build("bonus", verifier_reward=3.0)


def test_the_statements_of_the_shipped_builders_hold() -> None:
    """A parameter that is stated changes the table, one that is not does not."""
    other: dict[str, Any] = dict(
        verifier_first=False, sequential=True, prover0_first=False, half_chosen_by="verifier", prover_reward=2.0
    )
    other |= dict(
        verifier_reward=3.0,
        verifier_incorrect_penalty=-3.0,
        verifier_terminated_penalty=-4.0,
        verifier_no_guess_reward=-0.5,
    )
    other |= dict(
        verifier_scoring="brier",
        one_prover=True,
        judges=5,
        panel_rule="veto",
        judges_paid_for="verdict",
        shared_reward=True,
    )
    other |= dict(force_guess="one")
    for name in SHIPPED:
        for key, value in other.items():
            base = ProtocolParams(sequential=key == "prover0_first")
            changed = PROTOCOLS[name](replace(base, **{key: value})) != PROTOCOLS[name](base)
            always = (name, key) == ("message_game", "shared_reward")
            assert (changed or always) == (key in PROTOCOLS[name].reads), (name, key)


def test_register_refuses_a_taken_name_and_takes_the_same_builder_twice() -> None:
    builder = PROTOCOLS["nip"]
    with pytest.raises(UserError, match="'adp' is registered already"):
        register("adp", builder)
    assert PROTOCOLS["adp"] is not builder
    register("nip", builder)
    assert PROTOCOLS["nip"] is builder


def test_register_checks_first_and_keeps_no_faulty_builder() -> None:
    def faulty(params: ProtocolParams) -> Protocol:
        return replace(build("nip"), max_rounds=0)

    with pytest.raises(UserError, match="max_rounds must be at least 1"):
        register("faulty", faulty)
    assert "faulty" not in PROTOCOLS
