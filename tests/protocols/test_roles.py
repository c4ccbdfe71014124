"""Roles that the episode draws: who is paid for what in each, who is told, and what is refused."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.play.dialogues import rulebook
from nip_ray.protocols import CONTINUE, Payment, Protocol, build, check, for_being_right, for_verdict, start, step
from nip_ray.protocols.payment import Stake
from nip_ray.settings.protocol import PayoffEntries, PayoffSettings

SNEAKY = build("helpful_sneaky")
ONE = build("consultancy", one_prover=True, max_rounds=2, min_rounds=2, verifier_first=False)


def paid(protocol: Protocol, seed: int, y: int, decision: int) -> dict[str, float]:
    """What each agent is paid when the verifier says this in the last round."""
    state = replace(
        start(protocol, torch.tensor([y]), torch.tensor([seed])), round_B=torch.tensor([protocol.max_rounds - 1])
    )
    _, outcome = step(protocol, state, torch.full((1, len(protocol.agents)), decision))
    return dict(zip(protocol.agents, outcome.reward_BA[0].tolist()))


def test_what_each_role_is_paid() -> None:
    for y, decision, seed in product((0, 1), (0, 1, CONTINUE), (0, 1, 2, 65535)):
        judged = -1 if decision != y else 1
        right = {"helpful": decision == y, "sneaky": decision == 1 - y}[SNEAKY.role_of(seed) or ""]
        assert paid(SNEAKY, seed, y, decision) == {"prover": float(right), "verifier": judged}
        assert paid(ONE, seed, y, decision) == {"prover": float(decision == seed % 2), "verifier": judged}
        assert rulebook(SNEAKY).outcome(1, seed, y, decision, ()).rewards == paid(SNEAKY, seed, y, decision)
        side = (("prover", seed % 2),)
        assert rulebook(ONE).outcome(1, seed, y, decision, side).rewards == paid(ONE, seed, y, decision)


def test_a_config_pays_by_role() -> None:
    entries = PayoffSettings(undecided=-1, by_role={"sneaky": PayoffEntries(false_accept=5)})
    judged = PayoffSettings(by_role={"helpful": PayoffEntries(false_accept=-9)})
    made = build("helpful_sneaky", prover_reward=2.0, payoff={"prover": entries, "verifier": judged}).payment
    assert made.of("helpful").payoff == {"prover": for_being_right(2, 0, -1), "verifier": ((1, -9, -1), (-1, 1, -1))}
    assert made.of("sneaky").payoff == {"prover": ((0, 5, -1), (2, 0, -1)), "verifier": for_being_right(1, -1, -1)}
    assert made.of(None).payoff["verifier"] == for_being_right(1, -1, -1), "what is known to who is not told"
    assert made.is_paid("prover")
    assert made.mid_point("prover") == 1.0


def test_a_payment_function_knows_the_role() -> None:
    made = replace(SNEAKY, payment=Payment(function=lambda ends: {"prover": ends.role_B + 1.0}))
    check(made)
    assert [paid(made, seed, 1, 1)["prover"] for seed in (0, 1)] == [1, 2]
    assert [rulebook(made).settle(1, seed, 1, 1.0, ()).rewards["prover"] for seed in (0, 1)] == [1, 2]


def test_one_prover_is_two_in_one() -> None:
    two = build("consultancy", max_rounds=4)
    one = build("consultancy", max_rounds=4, one_prover=True)
    assert (one.agents, one.roles, one.told) == (("prover", "verifier"), ("reject", "accept"), ("prover",))
    assert one.wanted_by("prover", 0) == one.wanted_by("prover", 1) == {0: ("reject",), 1: ("accept",)}
    for seed, role in enumerate(one.roles):
        assert one.payment.of(role).payoff["prover"] == two.payment.payoff[f"prover{seed}"]
        assert one.payment.of(role).goals == {"prover": seed}
    shared = build("merlin_arthur", one_prover=True, shared_reward=True)
    assert set(shared.payment.tables("prover")) == {for_being_right(1, -1, -1)}
    assert SNEAKY.wanted_by("prover", 0) == {0: ("helpful",), 1: ("sneaky",)}
    assert SNEAKY.wanted_by("prover", 1) == {1: ("helpful",), 0: ("sneaky",)}


@pytest.mark.parametrize("roles", [("helpful",), ("sneaky",), ("helpful", "sneaky")])
def test_seeds_within_roles(roles: tuple[str, ...]) -> None:
    three = replace(SNEAKY, roles=("helpful", "other", "sneaky"))
    for protocol in (SNEAKY, three):
        seed_B = protocol.seeds_within(roles, torch.arange(2**16))
        drawn = [protocol.role_of(seed) for seed in seed_B.tolist()]
        assert bool((seed_B < 2**16).all())
        assert set(drawn) == set(roles)
        assert max(drawn.count(role) for role in roles) - min(drawn.count(role) for role in roles) <= 4
    assert torch.equal(build("nip").seeds_within((), torch.arange(9)), torch.arange(9))


def test_only_who_is_told_sees_the_role() -> None:
    from nip_ray.play.core import turn_masks

    round_N, seed_N = torch.zeros(4, dtype=torch.int64), torch.arange(4)
    prover, verifier = (turn_masks(SNEAKY, agent, 1, round_N, seed_N) for agent in SNEAKY.agents)
    assert prover["told"].tolist() == [[1, 0], [0, 1]] * 2
    assert all(torch.equal(value, value[:1].expand_as(value)) for value in verifier.values())
    assert set(verifier) == {"round", "speaks", "may_decide"}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "twice": ({"roles": ("helpful", "helpful")}, "roles must be names .* each once"),
    "no name": ({"roles": ("helpful", "a role")}, "roles must be names"),
    "none": ({"roles": ()}, "told: no roles are drawn.*by_role: no roles are drawn"),
    "told nobody": ({"told": ("critic",)}, "told names 'critic', expected some of"),
    "one missing": ({"payment": replace(SNEAKY.payment, by_role={"helpful": {}})}, "by_role must name every role"),
    "turns": ({"turns": SNEAKY.turns * 3}, "one table for all roles, or one for each .has 3"),
    "nobody's stake": (
        {"payment": Payment(by_role={"helpful": {"critic": Stake(for_verdict(1, 1))}, "sneaky": {}})},
        r"by_role\['helpful'\]: payoff\['critic'\]: no agent",
    ),
    "goal": (
        {"payment": Payment(by_role={"helpful": {"prover": Stake(for_verdict(1, 1), 2)}, "sneaky": {}})},
        r"by_role\['helpful'\]: goals\['prover'\] = 2",
    ),
    "no verifier": ({"verifier": None}, "roles: a game without a verifier draws none"),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_check_names_the_fault(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(replace(SNEAKY, **change))


ENTRY = PayoffSettings(by_role={"sneeky": PayoffEntries(undecided=-1)})


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        (
            "helpful_sneaky",
            {"payoff": {"prover": ENTRY}},
            "payoff.prover.by_role.sneeky: no such role, expected one of helpful, sneaky",
        ),
        (
            "nip",
            {"payoff": {"prover": ENTRY}},
            "payoff.prover.by_role.sneeky: no such role, nip draws none, leave it out",
        ),
        ("helpful_sneaky", {"zero_knowledge": True}, "protocol.zero_knowledge: not defined where roles are drawn"),
        ("helpful_sneaky", {"shared_reward": True}, "shared_reward: helpful_sneaky has no use"),
        ("debate", {"one_prover": True}, "one_prover: debate has no use"),
    ],
)
def test_what_build_refuses(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(name, **params)


NONE, PLACES = 2, (0, 1)
"""A haystack without a needle, and where it may lie in one; half of the haystacks have none."""


def value(agent: str, said: dict[str, tuple[int, ...]], verdict: dict[int, int], checked: bool) -> float:
    """What `agent` is paid on average. said: role -> the place named in a haystack of each kind. verdict: of what the
    verifier sees, whether the needle is there (or, where nothing can be `checked`, the place that was named).
    """
    total = 0.0
    for (seed, role), kind in product(enumerate(SNEAKY.roles), (*PLACES, NONE)):
        place = said[role][kind]
        seen = int(place == kind) if checked else place
        total += (1 if kind == NONE else 0.5) / 4 * paid(SNEAKY, seed, int(kind != NONE), verdict[seen])[agent]
    return total


@pytest.mark.parametrize(("checked", "worth"), [(True, 0.5), (False, 0.0)])
def test_what_cannot_be_forged_is_what_a_message_is_worth(checked: bool, worth: float) -> None:
    """All pure strategies: what the verifier, paid 1 or -1, and the helpful prover can secure against the best sneaky
    prover."""
    scripts = list(product(PLACES, repeat=3))
    verdicts = [dict(enumerate(made)) for made in product((0, 1), repeat=2)]
    least = {
        (helpful, number): min(
            value("verifier", {"helpful": helpful, "sneaky": sneaky}, verdict, checked) for sneaky in scripts
        )
        for helpful, (number, verdict) in product(scripts, enumerate(verdicts))
    }
    assert max(least.values()) == worth, "right three times out of four, or as often as alone"
    if checked:  # and nobody gains by another strategy
        best = {"helpful": (0, 1, 0), "sneaky": (1, 0, 0)}
        follows = {0: 0, 1: 1}
        assert (
            max(value("verifier", best, verdict, checked) for verdict in verdicts)
            == value("verifier", best, follows, checked)
            == worth
        )
        paid_best = value("prover", best, follows, checked)
        for role, script in product(best, scripts):
            assert value("prover", {**best, role: script}, follows, checked) <= paid_best


def test_a_role_with_a_stake_without_a_goal_takes_the_agents_own_away() -> None:
    """Whoever argues for a verdict otherwise argues for none in a role that names no goal; who has no stake in it keeps
    its own."""
    stakes = {"lost": {"first": Stake(for_verdict(0, 1.0))}, "turned": {"first": Stake(for_verdict(0, 1.0), 0)}}
    payment = Payment(
        {"first": for_verdict(1, 1.0), "second": for_verdict(1, 1.0)}, goals={"first": 1, "second": 1}, by_role=stakes
    )
    assert payment.of("lost").goals == {"second": 1}
    assert payment.of("turned").goals == {"first": 0, "second": 1}
    assert payment.of(None).goals == {"first": 1, "second": 1}


def test_seeds_of_episodes_in_which_somebody_has_a_turn() -> None:
    """Like those given where everybody speaks in all; else each class in which one of them does comes as often."""
    seed_B = torch.arange(600)
    drawn = build("consultancy", verdicts=("zero", "one", "two"))
    assert (drawn.seeds_within((), seed_B, ("prover1",)) % 3 == 1).all()
    assert (drawn.seeds_within((), seed_B, ("prover0", "prover2")) % 3).bincount().tolist() == [300, 0, 300]
    for protocol, who in ((drawn, drawn.provers), (drawn, ()), (drawn, ("verifier",)), (build("debate"), ("prover1",))):
        assert protocol.seeds_within((), seed_B, who).equal(seed_B)
    assert (ONE.seeds_within(("accept",), seed_B, ("prover",)) % 2 == 1).all()
