"""The shipped tables against turn orders and payments written out by hand; what `build` and `register` refuse."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.protocols import PROTOCOLS, Payment, Protocol, ProtocolParams, build, register, start, step


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    kept = dict(PROTOCOLS)
    yield
    PROTOCOLS.clear()
    PROTOCOLS.update(kept)


@pytest.mark.parametrize(
    ("name", "agents", "channels", "limits", "goals"),
    [
        ("nip", "prover verifier", "main", (8, 1), {"prover": 1}),
        ("adp", "prover verifier", "main", (2, 1), {"prover": 1}),
        ("debate", "prover0 prover1 verifier", "prover0_channel prover1_channel", (8, 1), {"prover0": 0, "prover1": 1}),
        ("mnip", "prover0 prover1 verifier", "prover0_channel prover1_channel", (8, 1), {"prover0": 1, "prover1": 1}),
        ("merlin_arthur", "prover0 prover1 verifier", "main", (2, 1), {"prover0": 0, "prover1": 1}),
        ("solo_verifier", "verifier", "main", (1, 1), {}),
        ("multi_channel_test", "prover0 prover1 prover2 verifier", "main prover0_verifier prover_chat", (8, 2), {}),
    ],
)
def test_names_limits_goals_and_amounts(name: str, agents: str, channels: str, limits: tuple[int, int], goals: dict[str, int]) -> None:
    protocol = build(name)
    assert protocol.name == name
    assert protocol.force_guess is None
    assert (protocol.agents, protocol.channels) == (tuple(agents.split()), tuple(channels.split()))
    assert (protocol.max_rounds, protocol.min_rounds) == limits
    assert protocol.payment == Payment(goals, 1.0, 1.0, -1.0, -1.0, 0.0, False)
    assert protocol.provers == tuple(agent for agent in agents.split() if agent != "verifier")
    assert protocol.agents[protocol.verifier_index] == "verifier"


def said(protocol: Protocol, seed_class: int = 0) -> str:
    """The speakers of rounds 0, 1, ... as one letter each: v, or the last letter of a prover's name."""
    words = []
    for turns in protocol.turn_table_SKAC[seed_class]:
        speaking = [agent for agent, row in zip(protocol.agents, turns, strict=True) if bool(row.any())]
        words.append("".join(sorted("v" if agent == "verifier" else agent[-1] for agent in speaking)))
    return " ".join(words)


@pytest.mark.parametrize(
    ("name", "params", "order", "verifier_turns"),
    [
        ("nip", {}, "v r v r v r v r", 4),
        ("nip", {"max_rounds": 9}, "v r v r v r v r v", 5),
        ("nip", {"verifier_first": False}, "r v r v r v r v", 4),
        ("nip", {"verifier_first": False, "max_rounds": 5}, "r v r v r", 2),
        ("adp", {}, "r v", 1),
        ("solo_verifier", {}, "v", 1),
        ("multi_channel_test", {}, "01 012 2v 01 012 2v 01 012", 2),
        ("debate", {}, "v 01 v 01 v 01 v 01", 4),
        ("debate", {"verifier_first": False}, "01 v 01 v 01 v 01 v", 4),
        ("debate", {"sequential": True}, "v 0 1 v 0 1 v 0", 3),
        ("debate", {"sequential": True, "prover0_first": False}, "v 1 0 v 1 0 v 1", 3),
        ("debate", {"sequential": True, "verifier_first": False}, "0 1 v 0 1 v 0 1", 2),
        ("debate", {"sequential": True, "verifier_first": False, "prover0_first": False}, "1 0 v 1 0 v 1 0", 2),
        ("mnip", {}, "v 01 v 01 v 01 v 01", 4),
        ("mnip", {"verifier_first": False}, "01 v 01 v 01 v 01 v", 4),
        ("mnip", {"sequential": True, "prover0_first": False, "max_rounds": 4}, "v 1 0 v", 2),
    ],
)
def test_turn_orders(name: str, params: dict[str, Any], order: str, verifier_turns: int) -> None:
    protocol = build(name, **params)
    assert said(protocol) == order
    assert protocol.verifier_turns == verifier_turns


def test_reward_mid_points() -> None:
    protocol = build("debate", prover_reward=3.0, verifier_reward=2.0, verifier_incorrect_penalty=-5.0)
    assert [protocol.reward_mid_point(agent) for agent in protocol.agents] == [1.5, 1.5, -1.5]
    assert build("nip").reward_mid_point("verifier") == 0.0


def play(name: str, y: int, decisions: list[int], seed: int = 0, **params: Any) -> list[list[float]]:
    """Rewards of one copy, a row a round, when the verifier decides `decisions`."""
    protocol = build(name, **params)
    state = start(protocol, torch.tensor([y]), torch.tensor([seed]))
    rows = []
    for decision in decisions:
        state, outcome = step(protocol, state, torch.full((1, len(protocol.agents)), decision))
        rows.append(outcome.reward_BA[0].tolist())
    return rows


def test_rewards_written_out_by_hand() -> None:
    amounts: dict[str, Any] = {"verifier_no_guess_reward": 0.25, "verifier_terminated_penalty": -2.0}
    unpaid = dict(amounts)
    amounts["prover_reward"] = 3.0
    assert play("nip", 1, [2, 0, 1, 1], **amounts) == [[0.0, 0.25], [0.0, 0.0], [3.0, 1.0], [0.0, 0.0]]
    assert play("nip", 1, [1, 1, 1, 1], min_rounds=2, **amounts) == [[0.0, 0.25], [0.0, 0.0], [3.0, 1.0], [0.0, 0.0]]
    assert play("nip", 0, [2, 2, 2], max_rounds=2, **amounts) == [[0.0, 0.25], [0.0, -2.0], [0.0, 0.0]]
    assert play("nip", 0, [2, 2], max_rounds=2, shared_reward=True, **unpaid) == [[0.25, 0.25], [-2.0, -2.0]]
    assert play("adp", 0, [1, 2], **amounts) == [[0.0, 0.0], [0.0, -2.0]]
    assert play("mnip", 0, [1], **amounts) == [[3.0, 3.0, -1.0]]
    assert play("mnip", 0, [0], **amounts) == [[0.0, 0.0, 1.0]]
    assert play("merlin_arthur", 1, [0, 0], seed=7, **amounts) == [[0.0, 0.0, 0.0], [3.0, 0.0, -1.0]]
    assert play("solo_verifier", 1, [2, 1], **unpaid) == [[-2.0], [0.0]]
    assert play("multi_channel_test", 1, [0, 0, 1], **unpaid) == [[0.0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 1.0]]


def test_build_refuses_an_unknown_name_and_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"'nib'.*adp.*nip.*solo_verifier"):
        build("nib")


def test_build_refuses_an_unknown_parameter_and_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"'max_round'.*max_rounds"):
        build("nip", max_round=3)


@pytest.mark.parametrize("name", ["adp", "merlin_arthur", "solo_verifier", "multi_channel_test"])
@pytest.mark.parametrize("key", ["max_rounds", "min_rounds"])
def test_fixed_lengths_can_only_be_repeated(name: str, key: str) -> None:
    own = getattr(build(name), key)
    assert getattr(build(name, **{key: own}), key) == own
    with pytest.raises(UserError, match=f"{key}: got .*{name} always has {own}"):
        build(name, **{key: own + 1})


@pytest.mark.parametrize("name", ["nip", "adp", "merlin_arthur", "solo_verifier", "multi_channel_test"])
def test_sequential_needs_two_provers_in_rounds_of_their_own(name: str) -> None:
    with pytest.raises(UserError, match=f"sequential: {name} has no use"):
        build(name, sequential=True)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("nip", {"prover0_first": False}),
        ("debate", {"prover0_first": False}),
        ("adp", {"verifier_first": False}),
        ("merlin_arthur", {"verifier_first": False}),
        ("message_game", {"prover_reward": 2.0}),
        ("nip", {"prover_reward": 2.0, "shared_reward": True}),
        ("solo_verifier", {"shared_reward": True}),
    ],
)
def test_what_a_protocol_has_no_use_for_is_refused(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        build(name, **params)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e39], ids=str)
@pytest.mark.parametrize("key", ["prover_reward", "verifier_reward", "verifier_terminated_penalty", "verifier_no_guess_reward"])
def test_amounts_that_float32_cannot_hold_are_refused(key: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{key}|not finite"):
        build("nip", **{key: value})


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
