"""Transcripts against a rollout that is written down by hand, and against random ones of every protocol."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from nip_ray.evaluation.transcripts import transcript_records
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import CONTINUE, PROTOCOLS, Protocol, build, start, step


def scenario(protocol: Protocol) -> Scenario:
    """All that transcripts ask of one."""
    return cast(Scenario, SimpleNamespace(protocol=protocol))


def random_rollout(protocol: Protocol, batch: int, size: int, linear: bool) -> Rollout:
    """Random play with random tokens, straight over the protocol's step."""
    noise = torch.Generator().manual_seed(0)

    def draw(*shape: int, high: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=noise)

    shape = (batch, protocol.max_rounds, len(protocol.agents), len(protocol.channels), size)
    main, line = torch.full(shape, -1), torch.full(shape, -1)
    y_B, seed_B = draw(batch, high=2), draw(batch, high=2**16)
    decision, reward = torch.full(shape[:3], CONTINUE), torch.zeros(shape[:3])
    turn, verdict_B = torch.zeros(shape[:3], dtype=torch.bool), torch.full((batch,), CONTINUE)
    state = start(protocol, y_B, seed_B)
    for r in range(protocol.max_rounds):
        active = protocol.active(state.round_B, seed_B) & ~state.ended_B[:, None, None]
        turn[:, r] = active.any(-1)
        main[:, r] = torch.where(active[..., None], draw(*shape[:1], *shape[2:], high=9), -1)
        line[:, r] = torch.where(active[..., None], draw(*shape[:1], *shape[2:], high=5), -1)
        wanted = draw(batch, len(protocol.agents), high=3)
        v = protocol.verifier_index
        decision[:, r, v] = torch.where(turn[:, r, v], wanted[:, v], CONTINUE)
        state, outcome = step(protocol, state, wanted)
        reward[:, r] = outcome.reward_BA
        verdict_B = torch.where(outcome.decided_B, outcome.decision_B, verdict_B)
    return Rollout(
        torch.arange(batch), seed_B, y_B, main, line if linear else None, decision, turn, reward,
        torch.zeros(shape[:3]), state.round_B, verdict_B,
    )  # fmt: skip


def test_written_by_hand() -> None:
    protocol = build("nip")  # rounds: verifier, prover, verifier, ...
    main = torch.full((2, 8, 2, 1, 2), -1)
    main[0, 0, 1, 0], main[0, 1, 0, 0], main[0, 2, 1, 0] = torch.tensor([4, 5]), torch.tensor([6, 7]), torch.tensor([8, 0])
    decision = torch.full((2, 8, 2), CONTINUE)
    decision[0, 2, 1] = 1
    turn = torch.zeros(2, 8, 2, dtype=torch.bool)
    turn[0, 0, 1] = turn[0, 1, 0] = turn[0, 2, 1] = True
    reward = torch.zeros(2, 8, 2)
    reward[0, 2] = torch.tensor([0.1, 1.0])
    reward[0, 0, 1] = -0.25
    rollout = Rollout(
        torch.tensor([17, 3]), torch.tensor([40000, 1]), torch.tensor([1, 0]), main, None, decision, turn, reward,
        torch.zeros(2, 8, 2), torch.tensor([3, 8]), torch.tensor([1, 2]),
    )  # fmt: skip
    first, second = transcript_records(scenario(protocol), rollout, 20)
    assert first == {
        "instance": 17,
        "label": 1,
        "seed": 40000,
        "length": 3,
        "verdict": "accept",
        "correct": True,
        "reward": {"prover": 0.1, "verifier": 0.75},
        "rounds": [
            {"round": 0, "turns": [{"agent": "verifier", "channel": "main", "message": [4, 5], "decision": "continue"}]},
            {"round": 1, "turns": [{"agent": "prover", "channel": "main", "message": [6, 7]}]},
            {"round": 2, "turns": [{"agent": "verifier", "channel": "main", "message": [8, 0], "decision": "accept"}]},
        ],
    }
    assert (second["verdict"], second["correct"], second["length"]) == ("undecided", False, 8)
    assert second["rounds"] == [{"round": r, "turns": []} for r in range(8)]


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("name", [name for name in sorted(PROTOCOLS) if build(name).verifier is not None])
def test_nothing_is_lost_or_added(name: str, linear: bool) -> None:
    protocol = build(name)
    rollout = random_rollout(protocol, 30, 2, linear)
    records = list(transcript_records(scenario(protocol), rollout, 25))
    assert len(records) == 25
    assert json.loads(json.dumps(records)) == records
    main, line = torch.full_like(rollout.main_BRACM[:25], -1), torch.full_like(rollout.main_BRACM[:25], -1)
    decision = torch.full_like(rollout.decision_BRA[:25, :, 0], CONTINUE)
    for b, record in enumerate(records):
        assert record["correct"] == (record["verdict"] == ("reject", "accept")[record["label"]])
        assert record["reward"] == {a: pytest.approx(float(rollout.reward_BRA[b, :, i].sum())) for i, a in enumerate(protocol.agents)}
        assert len(record["rounds"]) == record["length"]
        for r, round in enumerate(record["rounds"]):
            assert round["turns"], "someone speaks in every round that is played"
            for turn in round["turns"]:
                assert ("linear" in turn) == linear
                place = (b, r, protocol.agents.index(turn["agent"]), protocol.channels.index(turn["channel"]))
                main[place] = torch.tensor(turn["message"])
                line[place] = torch.tensor(turn.get("linear", [-1, -1]))
            decision[b, r] = decided(round["turns"], protocol)
    assert torch.equal(main, rollout.main_BRACM[:25])
    assert torch.equal(decision, rollout.decision_BRA[:25, :, protocol.verifier_index])
    if rollout.linear_BRACM is not None:
        assert torch.equal(line, rollout.linear_BRACM[:25])


def decided(turns: list[dict[str, Any]], protocol: Protocol) -> int:
    """The decision of a round, checked to stand once, and with the verifier."""
    found = [turn for turn in turns if "decision" in turn]
    assert [turn["agent"] for turn in found] == [protocol.verifier] * any(turn["agent"] == protocol.verifier for turn in turns)
    return ("reject", "accept", "continue").index(found[0]["decision"]) if found else CONTINUE


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (-1, 0), (1, 1), (99, 4)])
def test_limit(limit: int, expected: int) -> None:
    protocol = build("adp")
    assert len(list(transcript_records(scenario(protocol), random_rollout(protocol, 4, 1, False), limit))) == expected
