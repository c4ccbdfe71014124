"""How far the simulator's conversation is from the adversarial verifier's: by hand, on random play, and in what
evaluation writes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nip_ray.evaluation.examine import Examination
from nip_ray.evaluation.metrics import evaluation_record, rollout_metrics, simulation_values, symbol_distance
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import build
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.scenarios.registry import random_twin
from tests.builders import graph_agents, graph_scenario, random_pairs, rollout_of

PROTOCOL = build("nip", zero_knowledge=True, max_rounds=3, min_rounds=3)
KEYS = {"simulator/message_distance", "simulator/decision_distance"}


def played(count: int = 6) -> tuple[GraphIsomorphism, Rollout]:
    scenario = graph_scenario(PROTOCOL)
    return scenario, rollout_of(scenario, random_twin(scenario), count)


def test_means_over_rounds_then_over_episodes() -> None:
    scenario, rollout = played(3)
    message = [[0.2, -1, 0.4], [0.5, -1, -1], [-1, -1, -1]]
    decision = [[-1, -1, 0.6], [-1, -1, -1], [-1, -1, -1]]
    rollout = replace(rollout, simulation_BR2=torch.tensor([message, decision]).permute(1, 2, 0))
    values = simulation_values(rollout)
    assert {key: x.tolist() for key, x in values.items()} == {
        "simulator/message_distance": [pytest.approx(0.3), 0.5],
        "simulator/decision_distance": [pytest.approx(0.6)],
    }
    found = rollout_metrics(scenario.protocol, rollout, {})
    assert found["simulator/message_distance"] == pytest.approx(0.4)
    assert found["simulator/decision_distance"] == pytest.approx(0.6)
    record = evaluation_record(scenario.protocol, rollout, {})["simulator/message_distance"]
    assert (record["estimate"], record["n"]) == (pytest.approx(0.4), 2)
    assert record["lower"] < 0.4


def test_nothing_without_zero_knowledge_and_no_decision_in_legacy() -> None:
    plain = graph_scenario("nip")
    rollout = rollout_of(plain, random_twin(plain))
    assert simulation_values(rollout) == {}
    assert symbol_distance(plain, rollout) is None
    assert not any("simulator" in key for key in rollout_metrics(plain.protocol, rollout, {}))
    legacy = graph_scenario(build("nip", zero_knowledge=True, zero_knowledge_legacy=True))
    assert set(simulation_values(rollout_of(legacy, graph_agents(legacy)))) == {"simulator/message_distance"}


def test_symbol_kinds_are_graph_and_degree() -> None:
    scenario = graph_scenario(PROTOCOL)
    id_N = torch.arange(6)
    for symbol in range(scenario.num_symbols):
        side, node = divmod(symbol, scenario.num_nodes)
        degree = [int(scenario.adjacency_IGVV[i, side, node].sum()) for i in id_N.tolist()]
        kinds = scenario.symbol_kinds(id_N, torch.full((6,), symbol))
        assert kinds.tolist() == [side * scenario.num_nodes + d for d in degree]
        assert max(degree) < scenario.num_nodes


def with_symbols(rollout: Rollout, said: dict[tuple[int, int, int], int]) -> Rollout:
    """Only these symbols stand in the rollout: (copy, round, agent) -> symbol, in the agent's own channel."""
    main = torch.full_like(rollout.main_BRACM, -1)
    for (b, r, a), symbol in said.items():
        main[b, r, a, {2: 1, 3: 2}[a], 0] = symbol
    return replace(rollout, main_BRACM=main)


class Plain(GraphIsomorphism):
    """Every symbol is a kind of its own."""

    def symbol_kinds(self, id_N: torch.Tensor, symbol_N: torch.Tensor) -> torch.Tensor:
        return symbol_N


def test_symbol_distance_by_hand() -> None:
    """Round 0: {1, 1, 2} against {1, 3, 3}; round 2: {5} against {5}, and in one copy the adversary was silent."""
    scenario, rollout = played(3)
    scenario.__class__ = Plain
    said = {(0, 0, 2): 1, (1, 0, 2): 1, (2, 0, 2): 2, (0, 0, 3): 1, (1, 0, 3): 3, (2, 0, 3): 3}
    assert symbol_distance(scenario, with_symbols(rollout, said)) == (pytest.approx(2 / 3), 3)
    said |= {(1, 2, 2): 5, (1, 2, 3): 5, (2, 2, 3): 4}
    assert symbol_distance(scenario, with_symbols(rollout, said)) == (pytest.approx((3 * 2 / 3 + 0) / 4), 3)
    assert symbol_distance(scenario, with_symbols(rollout, {(0, 0, 2): 1})) is None


class Names(nn.Module):
    """Passes on, with all weight on the nodes of one graph."""

    def __init__(self, network: nn.Module, side: int) -> None:
        super().__init__()
        self.network, self.side = network, side

    def forward(self, obs: dict[str, torch.Tensor], want_policy: bool = True, want_value: bool = True) -> object:
        policy, value = self.network(obs, want_policy, want_value)
        size = policy.message.shape[-1] // 2
        return replace(policy, message=policy.message + 50 * (torch.arange(2 * size) // size == self.side)), value


def test_examinations_report_it() -> None:
    pairs = random_pairs(0, sizes=(5, 6) * 20)
    scenario = graph_scenario(PROTOCOL, pairs)
    examination = Examination(scenario, 0)
    agents = dict(random_twin(scenario))
    same = examination.metrics(examination.rollout(agents, greedy=False), "eval_sampled")
    agents |= {
        "adversarial_verifier": Names(agents["adversarial_verifier"], 0),
        "simulator": Names(agents["simulator"], 1),
    }
    other = examination.metrics(examination.rollout(agents, greedy=False), "eval_sampled")
    assert (same["eval_sampled/simulator/message_distance"], other["eval_sampled/simulator/message_distance"]) == (
        0.0,
        pytest.approx(1.0),
    )
    assert other["eval_sampled/simulator/symbol_distance"] == 1.0
    assert 0 < same["eval_sampled/simulator/symbol_distance"] < 0.5  # two samples of one distribution
    document = examination.document(agents, 3)
    for mode in ("greedy", "sampled"):
        record = document[mode]
        assert isinstance(record, dict)
        assert set(record) >= {"simulator/symbol_distance", *KEYS}
        assert record["simulator/symbol_distance"] == {"estimate": 1.0, "lower": None, "upper": None, "n": 40}
        assert record["simulator/message_distance"]["n"] == 40
