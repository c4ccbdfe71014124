"""The tree of dialogues against plays of every script, and against a verifier whose worth is known."""

from collections.abc import Mapping
from itertools import product

import pytest
import torch
from torch import nn

from nip_ray.evaluation.message_tree import WAYS, MessageTree, TooManyNodes, exact_for
from nip_ray.learning.policy import Action
from nip_ray.play.core import BatchedPlay, Player, Turn
from nip_ray.play.message_search import MessageSearch
from nip_ray.play.staged import stage_all
from nip_ray.protocols import ACCEPT, REJECT, build
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from tests.builders import graph_scenario, spread_heads


@pytest.mark.parametrize(
    ("protocol", "attackers"), [("nip", ["prover"]), ("debate", ["prover1"]), ("mnip", ["prover0", "prover1"])]
)
def test_greedy_values_are_those_of_all_scripts(protocol: str, attackers: list[str]) -> None:
    """Three rounds on graphs of at most six nodes, in which each attacker has one turn."""
    scenario = graph_scenario(build(protocol, max_rounds=3, min_rounds=1))
    networks = {agent: scenario.build_agent(agent, 3).eval() for agent in scenario.protocol.agents}
    id_B = torch.arange(len(scenario.label_I))
    seed_B = torch.arange(len(id_B))
    tree = MessageTree(scenario, networks, attackers, ACCEPT, WAYS[:1], max_nodes=100_000)
    found = tree.values(id_B, seed_B)[:, 0]
    best = torch.zeros(len(id_B), 2)
    turns = [
        (agent, r)
        for agent in attackers
        for r in range(3)
        if scenario.protocol.turn_table_SKAC[:, r, scenario.protocol.agents.index(agent)].any()
    ]
    for said in product(range(-1, scenario.num_symbols), repeat=len(turns)):
        verdict_B = played(scenario, networks, attackers, dict(zip(turns, said, strict=True)), id_B, seed_B)
        best = torch.maximum(best, torch.stack([verdict_B == ACCEPT, verdict_B != scenario.label_I[id_B]], 1).float())
    assert (found >= best).all(), "scripts do not hear the others, so the tree may know more"
    if protocol == "nip":
        assert found.equal(best)
        assert 0 < best[:, 1].mean() < best[:, 0].mean(), "true claims are rightly accepted"


@pytest.mark.parametrize("rule", ["majority", "unanimous", "veto", "mean"])
def test_of_a_panel_and_its_members_values_are_those_of_all_messages(rule: str) -> None:
    scenario = graph_scenario(build("judge_panel", panel_rule=rule))
    networks = {agent: scenario.build_agent(agent, 3).eval() for agent in scenario.protocol.agents}
    id_B = torch.arange(len(scenario.label_I))
    play, everyone = BatchedPlay(scenario), {agent: Player(network) for agent, network in networks.items()}
    best = dict.fromkeys((None, "judge0", "judge1", "judge2"), torch.zeros(len(id_B), 2))
    sampled = torch.zeros(len(id_B))
    for said in range(-1, scenario.num_symbols):

        def script(turn: Turn, said: int = said) -> Action:
            legal_NF = turn.policy.message[..., max(said, 0)] > -1e8
            return {**turn.action, "message": torch.where(legal_NF & (said >= 0), said, -1)}

        staged = stage_all(play, {**everyone, "prover": Player(networks["prover"], edit=script)}, id_B, id_B)
        by = staged.by(scenario.protocol)
        for who in best:
            verdict_B = by[who or "verifier"].rollout.verdict_B
            best[who] = torch.maximum(
                best[who], torch.stack([verdict_B == ACCEPT, verdict_B != scenario.label_I[id_B]], 1).float()
            )
        sampled = torch.maximum(sampled, staged.chance_BRD[:, 1, ACCEPT])
    for who, expected in best.items():
        tree = MessageTree(scenario, networks, ["prover"], ACCEPT, WAYS[:2], max_nodes=100_000, who=who)
        found = tree.values(id_B, id_B)
        assert found[:, 0].equal(expected)
        if who is None:
            assert torch.allclose(found[:, 1, 0], sampled, atol=1e-5)
    assert exact_for(scenario.protocol)
    assert not exact_for(build("judge_panel", max_rounds=4)), "votes in round 2 are not known in round 4"


def played(
    scenario: GraphIsomorphism,
    networks: Mapping[str, nn.Module],
    attackers: list[str],
    said: dict[tuple[str, int], int],
    id_B: torch.Tensor,
    seed_B: torch.Tensor,
) -> torch.Tensor:
    """(B,) verdicts where the attackers say what was written down, or nothing where that cannot be said."""

    def script(turn: Turn) -> Action:
        wanted = said[turn.agent, turn.round]
        legal_NF = turn.policy.message[..., max(wanted, 0)] > -1e8
        heard_NF = torch.where(legal_NF & (wanted >= 0), wanted, -1)
        return {**turn.action, "message": heard_NF}

    players = {
        agent: Player(network, edit=script if agent in attackers else None) for agent, network in networks.items()
    }
    return stage_all(BatchedPlay(scenario), players, id_B, seed_B).rollout.verdict_B


def test_sampled_values_are_what_plays_come_to_on_average() -> None:
    """Against the best answers, found by the tree itself with one attacker who has one turn: answers do not depend on
    chance after it."""
    scenario = graph_scenario(build("nip", max_rounds=3, min_rounds=3))
    networks: dict[str, nn.Module] = {
        agent: scenario.build_agent(agent, 5).eval() for agent in scenario.protocol.agents
    }
    id_B, seed_B = torch.arange(len(scenario.label_I)), torch.zeros(len(scenario.label_I), dtype=torch.int64)
    # nobody attacks: the prover is sampled as well
    silent = MessageTree(scenario, networks, [], ACCEPT, max_nodes=100_000)
    expected_B = silent.values(id_B, seed_B)[:, WAYS.index("sampled"), 0]
    noise, repeats = torch.Generator().manual_seed(0), 400
    players = {agent: Player(network, noise) for agent, network in networks.items()}
    many_B = id_B.repeat(repeats)
    accepted_B = stage_all(BatchedPlay(scenario), players, many_B, seed_B.repeat(repeats)).rollout.verdict_B == ACCEPT
    share_B = accepted_B.view(repeats, -1).float().mean(0)
    assert ((share_B - expected_B).abs() < 4 * (expected_B * (1 - expected_B) / repeats).sqrt() + 1e-3).all()
    attacked = MessageTree(scenario, networks, ["prover"], ACCEPT, max_nodes=100_000).values(id_B, seed_B)
    by_way = dict(zip(WAYS, attacked.unbind(1), strict=True))
    assert (by_way["sampled"][:, 0] >= expected_B - 1e-6).all()
    for way in ("greedy", "random questions"):
        assert (by_way["best questions"] <= by_way[way] + 1e-6).all()


@pytest.mark.parametrize(
    ("protocol", "rules", "attackers"),
    [
        ("nip", dict(max_rounds=5, min_rounds=5), ["prover"]),
        ("mnip", dict(max_rounds=3, min_rounds=1), ["prover0", "prover1"]),
        ("debate", dict(max_rounds=3, min_rounds=3), ["prover1"]),
        ("open_debate", dict(max_rounds=3), ["prover0"]),
        ("judge_panel", {}, ["prover"]),
    ],
)
def test_a_search_with_tries_enough_finds_what_the_tree_does_and_never_more(
    protocol: str, rules: dict[str, int], attackers: list[str]
) -> None:
    scenario = graph_scenario(build(protocol, **rules))  # type: ignore[arg-type]
    networks = {agent: spread_heads(scenario.build_agent(agent, 3).eval()) for agent in scenario.protocol.agents}
    id_B = (scenario.label_I == REJECT).nonzero().flatten()
    tree = MessageTree(scenario, networks, attackers, ACCEPT, WAYS[:1], max_nodes=100_000).values(id_B, id_B)[:, 0]
    own = {agent: networks[agent] for agent in attackers}
    others = {agent: Player(network) for agent, network in networks.items() if agent not in attackers}
    play = BatchedPlay(scenario)
    before = tree + 1
    for tries in (1, 4, 20, 1000):
        search = MessageSearch(play, own, lambda: others, ACCEPT, tries)
        found = search.search(id_B, id_B)
        verdict_B = search.said(found.plan_BP, id_B, id_B).rollout.verdict_B
        reached = torch.stack([verdict_B == ACCEPT, verdict_B != REJECT], 1).float()
        assert reached.equal(torch.stack([found.fooled_B > 0, found.wrong_B > 0], 1).float())
        assert int(torch.maximum(found.fooled_B, found.wrong_B).max()) <= tries
        assert bool((reached <= tree).all())
        before = reached
    assert before.equal(tree)


def test_a_tree_that_is_too_large_is_not_walked() -> None:
    scenario = graph_scenario(build("nip", max_rounds=7))
    networks = {agent: scenario.build_agent(agent, 3).eval() for agent in scenario.protocol.agents}
    tree = MessageTree(scenario, networks, ["prover"], ACCEPT, max_nodes=50)
    with pytest.raises(TooManyNodes):
        tree.values(torch.arange(6), torch.zeros(6, dtype=torch.int64))
    assert tree.nodes < 1000


def test_more_words_than_can_be_held_are_too_many() -> None:
    """Eight judges who speak at once have more to say together than there may be nodes."""
    scenario = graph_scenario(build("judge_panel", judges=8, max_rounds=4))
    networks = {agent: scenario.build_agent(agent, 3).eval() for agent in scenario.protocol.agents}
    with pytest.raises(TooManyNodes):
        MessageTree(scenario, networks, ["prover"], ACCEPT, WAYS, max_nodes=2000).values(
            torch.arange(2), torch.arange(2)
        )
