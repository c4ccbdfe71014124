"""Transcripts against random play of every protocol."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nip_ray.evaluation.report.source import read_pictures
from nip_ray.evaluation.transcripts import decision_probabilities, keep_pictures, transcript_records
from nip_ray.protocols import CONTINUE, Protocol, build
from nip_ray.scenarios.registry import random_twin
from tests.builders import PROTOCOLS, graph_agents, graph_scenario, protocol_id, rollout_of, spread_heads


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("given", PROTOCOLS, ids=protocol_id)
def test_nothing_is_lost_or_added(given: tuple[str, dict[str, Any]], linear: bool) -> None:
    protocol = build(given[0], **given[1])
    made = graph_scenario(protocol, message_size=2, linear_symbols=3 * linear)
    rollout = rollout_of(made, random_twin(made), 30)
    records = list(transcript_records(made, rollout, 25))
    assert len(records) == 25
    assert json.loads(json.dumps(records)) == records
    main, line = torch.full_like(rollout.main_BRACM[:25], -1), torch.full_like(rollout.main_BRACM[:25], -1)
    decision = torch.full_like(rollout.decision_BRA[:25, :, protocol.verifier_indices], CONTINUE)
    for b, record in enumerate(records):
        told = tuple(int(one[b]) for one in (rollout.id_B, rollout.seed_B, rollout.y_B, rollout.length_B))
        assert tuple(record[key] for key in ("instance", "seed", "label", "length")) == told
        assert record["verdict"] == ("reject", "accept", "undecided")[int(rollout.verdict_B[b])]
        assert record["correct"] == (record["verdict"] == ("reject", "accept")[record["label"]])
        assert record["reward"] == {
            a: pytest.approx(float(rollout.reward_BRA[b, :, i].sum())) for i, a in enumerate(protocol.agents)
        }
        assert len(record["rounds"]) == record["length"]
        for r, round in enumerate(record["rounds"]):
            assert round["turns"], "someone speaks in every round that is played"
            for turn in round["turns"]:
                assert ("linear" in turn) == linear
                place = (b, r, protocol.agents.index(turn["agent"]), protocol.channels.index(turn["channel"]))
                main[place] = torch.tensor(turn["message"])
                line[place] = torch.tensor(turn.get("linear", [-1, -1]))
            decision[b, r] = torch.tensor(decided(round["turns"], protocol))
    assert torch.equal(main, rollout.main_BRACM[:25])
    assert torch.equal(decision, rollout.decision_BRA[:25, :, protocol.verifier_indices])
    if rollout.linear_BRACM is not None:
        assert torch.equal(line, rollout.linear_BRACM[:25])


def decided(turns: list[dict[str, Any]], protocol: Protocol) -> list[int]:
    """The decisions of a round, checked to stand once, and with those who decide."""
    found = {turn["agent"]: turn["decision"] for turn in turns if "decision" in turn}
    assert sum("decision" in turn for turn in turns) == len(found)
    assert set(found) == {turn["agent"] for turn in turns} & set(protocol.deciders)
    return [("reject", "accept", "continue").index(found.get(agent, "continue")) for agent in protocol.verifiers]


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
    assert all(
        "probabilities" not in turn
        for record in transcript_records(made, rollout, 6)
        for turn in record["rounds"][-1]["turns"]
    )


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
