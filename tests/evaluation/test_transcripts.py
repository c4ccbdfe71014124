"""Transcripts against a rollout that is written down by hand, and against random ones of every protocol."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from nip_ray.evaluation.report.instances import read_pictures
from nip_ray.evaluation.transcripts import decision_probabilities, keep_pictures, transcript_records
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import CONTINUE, PROTOCOLS, Protocol, build, start, step
from tests.builders import graph_agents, graph_scenario, random_pairs, rollout_of, spread_heads


def scenario(protocol: Protocol) -> Scenario:
    """All that transcripts ask of one."""
    return cast(Scenario, SimpleNamespace(protocol=protocol, label_I=torch.zeros(1), record_extras=lambda id, said, networks: {}))


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


class Overheard(nn.Module):
    """A network whose decisions' probabilities are noted as they are made."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.heard = network, []

    def forward(self, obs: dict[str, torch.Tensor], want_policy: bool, want_value: bool) -> Any:
        policy, value = self.network(obs, want_policy, want_value)
        self.heard.append((obs["round"], torch.softmax(policy.decision, -1), policy.may_decide))
        return policy, value


@pytest.mark.parametrize("name", ["nip", "adp", "solo_verifier"])
def test_probabilities_are_those_by_which_was_decided(name: str) -> None:
    made = graph_scenario(name)
    agents = graph_agents(made)
    verifier = Overheard(spread_heads(agents["verifier"]))
    rollout = rollout_of(made, {**agents, "verifier": verifier}, 10)
    chances_BRA3 = decision_probabilities(made, rollout, agents)
    v = made.protocol.verifier_index
    heard = 0
    for round_N, chance_N3, may_N in verifier.heard:
        r = int(round_N[0])
        found_N3 = chances_BRA3[rollout.turn_BRA[:, r, v], r, v]
        assert torch.allclose(found_N3[may_N], chance_N3[may_N], atol=1e-5)
        assert found_N3[~may_N].isnan().all()
        heard += int(may_N.sum())
    assert heard == int((~chances_BRA3.isnan()).all(-1).sum()) > 0


def test_a_record_has_probabilities_where_the_decision_could_count() -> None:
    made = graph_scenario(build("nip", min_rounds=3, max_rounds=5))
    agents = graph_agents(made)
    agents["verifier"].train()
    rollout = rollout_of(made, agents, 6)
    records = list(transcript_records(made, rollout, 6, agents))
    assert agents["verifier"].training, "networks are left as they were"
    assert json.loads(json.dumps(records)) == records
    for record in records:
        for one in record["rounds"]:
            for turn in one["turns"]:
                assert ("probabilities" in turn) == (turn["agent"] == "verifier" and one["round"] >= 2)
                if "probabilities" in turn:
                    assert sum(turn["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert all("probabilities" not in turn for record in transcript_records(made, rollout, 6) for turn in record["rounds"][-1]["turns"])


def test_a_pair_is_drawn_as_it_is() -> None:
    pairs = random_pairs(3)
    made = graph_scenario("nip", pairs)
    for number in range(len(pairs)):
        picture = made.instance_picture(number)
        assert json.loads(json.dumps(picture)) == picture
        for side, graph in enumerate(picture["graphs"]):
            adjacency = torch.zeros(picture["size"], picture["size"], dtype=torch.uint8)
            for i, j in graph["edges"]:
                adjacency[i, j] = adjacency[j, i] = 1
            assert torch.equal(adjacency, pairs.adjacency_P2nn[number, side])
            assert len(graph["nodes"]) == 4 + [0, 1, 2, 2, 1, 0][number]


def test_each_picture_is_kept_once(tmp_path: Path) -> None:
    made = graph_scenario("nip")
    keep_pictures(tmp_path, made, [1, 2, 2])
    first = read_pictures(tmp_path)
    assert first == {"1": made.instance_picture(1), "2": made.instance_picture(2)}
    written = (tmp_path / "instances.json").stat().st_mtime_ns
    keep_pictures(tmp_path, made, [2, 1])
    assert (tmp_path / "instances.json").stat().st_mtime_ns == written
    keep_pictures(tmp_path, made, [0])
    assert read_pictures(tmp_path) == {**first, "0": made.instance_picture(0)}
    (tmp_path / "instances.json").write_text('{"pictures": {')
    assert read_pictures(tmp_path) == {}
    keep_pictures(tmp_path, made, [0])
    assert list(read_pictures(tmp_path)) == ["0"]
