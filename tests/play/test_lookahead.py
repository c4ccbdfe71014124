"""Provers that search: what a message is worth against plays of each, what is chosen against linear programmes, and who
is taught what."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.evaluation.examine import Examination
from nip_ray.learning.policy import FORBIDDEN_BELOW, Action, Policy
from nip_ray.play.core import BatchedPlay, Player, Turn, play_episodes
from nip_ray.play.lookahead import ends, equilibrium, likeliest, lookahead
from nip_ray.play.rollout import Rollout, own_rows
from nip_ray.play.staged import stage
from nip_ray.protocols import ACCEPT, REJECT, build
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.settings.search import SearchSettings, share_at
from tests.builders import copies, graph_agents, graph_scenario, spread_heads

COPIES = 8


def made(name: str, message_size: int = 1, **parameters: Any) -> tuple[GraphIsomorphism, dict[str, nn.Module]]:
    scenario = graph_scenario(build(name, **parameters), message_size=message_size)
    agents = graph_agents(scenario, 2)
    for network in agents.values():
        spread_heads(network)
    return scenario, agents


def searched(
    scenario: GraphIsomorphism,
    agents: dict[str, nn.Module],
    share: float = 1.0,
    players: dict[str, Player] | None = None,
    **settings: Any,
) -> Rollout:
    """Greedy play in which provers search."""
    play = BatchedPlay(scenario)
    found = lookahead(play, SearchSettings(**settings), scenario.protocol.provers, share, COPIES, 5, 0, 0)
    players = players or {agent: Player(network) for agent, network in agents.items()}
    return play_episodes(play, players, *copies(scenario, COPIES), search=found, every_verdict=True)


Said = dict[tuple[str, int], int | tuple[int, ...]]


def pay_of(scenario: GraphIsomorphism, agents: dict[str, nn.Module], said: Said, who: str) -> Tensor:
    """(B,) what `who` may expect where this is said, (agent, round) -> symbols, and all else is likeliest, over all
    draws of decisions: played for each path of decisions, one that puts off every decision but the last."""
    protocol, index = scenario.protocol, scenario.protocol.agents.index(who)
    total_B, on_B = torch.zeros(COPIES), torch.ones(COPIES)
    first = max(round_ for _, round_ in said) + 1  # nobody has decided by then
    for stop in range(first, protocol.max_rounds):
        for code in range(protocol.undecided):
            chances: list[Tensor] = []

            def edit(turn: Turn, stop: int = stop, code: int = code, chances: list[Tensor] = chances) -> Action:
                action = undecided_with(said, protocol.undecided)(turn)
                if turn.agent != protocol.verifier:
                    return action
                decides = (
                    turn.round == stop and turn.policy.may_decide is not None and bool(turn.policy.may_decide.all())
                )
                if decides:
                    chances.append(torch.softmax(turn.policy.decision, -1))  # type: ignore[arg-type]
                return {**action, "decision": torch.full((COPIES,), code if decides else protocol.undecided)}

            players = {agent: Player(network, edit=edit) for agent, network in agents.items()}
            rollout = play_episodes(BatchedPlay(scenario), players, *copies(scenario, COPIES))
            if chances:
                total_B += on_B * chances[0][:, code] * rollout.reward_BRA[:, :, index].sum(1)
        if chances:
            on_B = on_B * chances[0][:, -1]
    players = {
        agent: Player(network, edit=undecided_with(said, protocol.undecided)) for agent, network in agents.items()
    }
    never = play_episodes(BatchedPlay(scenario), players, *copies(scenario, COPIES))
    return total_B + on_B * never.reward_BRA[:, :, index].sum(1)


def undecided_with(said: Said, code: int) -> Any:
    def edit(turn: Turn) -> Action:
        message = turn.action["message"].clone()
        if (turn.agent, turn.round) in said:
            message[:] = torch.tensor(said[turn.agent, turn.round])
        return {
            name: torch.full_like(part, code) if name == "decision" else message for name, part in turn.action.items()
        }

    return edit


@pytest.mark.parametrize("parameters", [dict(max_rounds=3, min_rounds=3), dict(max_rounds=5, min_rounds=1)])
def test_one_prover_is_taught_the_softmax_of_what_each_message_pays(parameters: dict[str, int]) -> None:
    scenario, agents = made("nip", **parameters)
    rollout = searched(scenario, agents, temperature=0.05)
    index, rows = scenario.protocol.agents.index("prover"), own_rows(scenario, rollout, "prover")
    assert rows.taught_NFS is not None
    first = rows.round_N == 1
    legal_NS = agents["prover"](rows.obs, True, False)[0].message[:, 0] > FORBIDDEN_BELOW
    pay_BS = torch.stack(
        [pay_of(scenario, agents, {("prover", 1): symbol}, "prover") for symbol in range(scenario.num_symbols)], 1
    )
    expected_BS = torch.softmax((pay_BS / 0.05).masked_fill(~legal_NS[first], -torch.inf), 1)
    taught_BS = rows.taught_NFS[first, 0]
    torch.testing.assert_close(taught_BS / taught_BS.sum(1, keepdim=True), expected_BS, atol=1e-4, rtol=1e-3)
    legal_BS = legal_NS[first]
    gain_B = pay_BS.masked_fill(~legal_BS, -torch.inf).amax(1) - (pay_BS * legal_BS).sum(1) / legal_BS.sum(1)
    torch.testing.assert_close(taught_BS.sum(1), gain_B, atol=1e-4, rtol=1e-3)
    said_N = rollout.main_BRACM[rows.copy_N, rows.round_N, index].amax((1, 2))
    assert (said_N >= 0).any(), "not all are silent"
    spoken_N = rows.taught_NFS[:, 0].gather(1, said_N.clamp_min(0)[:, None])[:, 0]
    assert (spoken_N[said_N >= 0] > 0).all(), "what was drawn is among what is taught"


def test_under_zero_knowledge_likeness_counts() -> None:
    """The prover speaks in two conversations at once: the verdict depends on one, what is paid for likeness on the
    other."""
    scenario, agents = made("nip", max_rounds=3, min_rounds=3, zero_knowledge=True)
    rollout = searched(scenario, agents, temperature=0.05, candidates=4096)
    rows = own_rows(scenario, rollout, "prover")
    assert rows.taught_NFS is not None
    first, symbols = rows.round_N == 1, range(scenario.num_symbols)
    legal_NFS = agents["prover"](rows.obs, True, False)[0].message[first] > FORBIDDEN_BELOW
    pay_BSS = torch.zeros(COPIES, len(symbols), len(symbols))
    for pair in product(symbols, symbols):
        pay_BSS[:, pair[0], pair[1]] = pay_of(scenario, agents, {("prover", 1): pair}, "prover")
    assert (pay_BSS.std((1, 2)) > 0.01).any()
    legal_BSS = legal_NFS[:, 0, :, None] & legal_NFS[:, 1, None]
    chance_BSS = torch.softmax((pay_BSS / 0.05).masked_fill(~legal_BSS, -torch.inf).flatten(1), 1).view_as(pay_BSS)
    for factor, other in ((0, 2), (1, 1)):
        taught_BS = F.normalize(rows.taught_NFS[first, factor], p=1, dim=1)
        torch.testing.assert_close(taught_BS, chance_BSS.sum(other), atol=1e-4, rtol=1e-3)


def test_an_examination_says_what_is_believed_most() -> None:
    """With one question and one verdict."""
    scenario, agents = made("nip", max_rounds=3, min_rounds=3)
    examination = Examination(scenario, 0, search=(SearchSettings(temperature=1e-6), ("prover",)))
    found, plain = (examination.rollout(agents, greedy=True, searched=searched) for searched in (True, False))
    chances, index = [], scenario.protocol.agents.index("prover")
    for symbol in (*range(scenario.num_symbols), -1):

        def edit(turn: Turn, symbol: int = symbol) -> Action:
            legal_N = (turn.policy.message[:, 0, symbol] > FORBIDDEN_BELOW) | (symbol < 0)
            said_N1 = torch.where(legal_N[:, None], symbol, turn.action["message"])
            return {**turn.action, "message": said_N1}

        players = {
            agent: Player(network, edit=edit if agent == "prover" else None) for agent, network in agents.items()
        }
        staged = stage(BatchedPlay(scenario), players, examination.ids, found.seed_B)
        chances.append(ends(staged.chance_BRD)[:, ACCEPT])
    chance_BS = torch.stack(chances, 1)
    said = {
        name: rollout.main_BRACM[:, 1, index].amax((1, 2))[:, None]
        for name, rollout in (("found", found), ("plain", plain))
    }
    silence, honest_B = scenario.num_symbols, found.y_B == ACCEPT
    chance_BS[honest_B, silence] = 0.0  # it must speak
    best_B = chance_BS.amax(1)
    torch.testing.assert_close(
        chance_BS.gather(1, torch.where(said["found"] < 0, silence, said["found"]))[:, 0], best_B
    )
    assert (chance_BS.gather(1, said["plain"])[:, 0] < best_B - 1e-4).any()


def test_two_provers_play_an_equilibrium_of_what_their_messages_pay() -> None:
    """In the round in which both answer at once, or are silent where they lie: taught is how they choose where they
    speak."""
    scenario, agents = made("debate", max_rounds=3, min_rounds=3)
    rollout = searched(scenario, agents, temperature=0.01, candidates=4096)
    provers = scenario.protocol.provers
    rows = {agent: own_rows(scenario, rollout, agent) for agent in provers}
    symbols = [*range(scenario.num_symbols), -1]
    pays = [
        torch.stack(
            [
                pay_of(scenario, agents, {(provers[0], 1): mine, (provers[1], 1): its}, who)
                for mine, its in product(symbols, symbols)
            ],
            1,
        )
        for who in provers
    ]
    valids = []
    for agent in provers:
        legal_BS = agents[agent](rows[agent].obs, True, False)[0].message[:, 0] > FORBIDDEN_BELOW
        lies_B = rollout.y_B == (REJECT if agent == "prover1" else ACCEPT)
        valids.append(torch.cat([legal_BS, lies_B[:, None]], 1))
    both_BSS = valids[0][:, :, None] & valids[1][:, None]
    copy_K, one_K, other_K = both_BSS.nonzero(as_tuple=True)
    flat = [pay_BX.view(both_BSS.shape)[both_BSS] for pay_BX in pays]
    chances = equilibrium(flat, copy_K, [one_K, other_K], valids, 0.01)
    for agent, chance_BS, valid_BS, other, pay_BX in zip(provers, chances, valids, (1, 0), pays, strict=True):
        taught_BS = rows[agent].taught_NFS[:, 0]  # type: ignore[index]
        torch.testing.assert_close(
            F.normalize(taught_BS, p=1, dim=1), F.normalize(chance_BS[:, :-1], p=1, dim=1), atol=1e-3, rtol=1e-2
        )
        matrix_BSS = pay_BX.view(both_BSS.shape) if other else pay_BX.view(both_BSS.shape).transpose(1, 2)
        pay_BS = torch.einsum("bij,bj->bi", matrix_BSS, chances[other])[:, :-1]
        legal_BS = valid_BS[:, :-1]
        stake_B = pay_BS.masked_fill(~legal_BS, -torch.inf).amax(1) - (pay_BS * legal_BS).sum(1) / legal_BS.sum(1)
        torch.testing.assert_close(taught_BS.sum(1), stake_B, atol=1e-3, rtol=1e-2)


def test_games_of_two_come_near_their_values() -> None:
    """Sharp random matrices of ten by ten, against linear programmes: the mean loss to a best answer is at most 3 % of
    the span."""
    random = torch.Generator().manual_seed(0)
    games, size = 20, 10
    pay_BSS = torch.sigmoid(20 * (torch.rand(games, size, size, generator=random) - 0.5))
    copy_K, one_K, other_K = torch.ones(games, size, size).nonzero(as_tuple=True)
    valid = torch.ones(games, size, dtype=torch.bool)
    x, y = equilibrium([pay_BSS.flatten(), -pay_BSS.flatten()], copy_K, [one_K, other_K], [valid, valid], 1e-3)
    assert torch.allclose(x.sum(1), torch.ones(games))
    values = []
    for matrix in pay_BSS.double().numpy():
        solved = linprog(
            [0.0] * size + [-1.0],
            A_ub=[[*-matrix[:, j], 1.0] for j in range(size)],
            b_ub=[0.0] * size,
            A_eq=[[1.0] * size + [0.0]],
            b_eq=[1.0],
        )
        values.append(-solved.fun)
    value_B = torch.tensor(values)
    loss_x = value_B - torch.einsum("bij,bi->bj", pay_BSS, x).amin(1)
    loss_y = torch.einsum("bij,bj->bi", pay_BSS, y).amax(1) - value_B
    assert float(loss_x.mean()) < 0.03
    assert float(loss_y.mean()) < 0.03


def test_an_option_that_is_not_there_is_never_chosen() -> None:
    valid = torch.tensor([[True, False, True], [True, True, True]])
    copy_K, option_K = valid.nonzero(as_tuple=True)
    (chance,) = equilibrium([torch.tensor([0.0, 1.0, 0.5, 0.5, 0.5])], copy_K, [option_K], [valid], 0.1)
    torch.testing.assert_close(
        chance, torch.tensor([[1 / (1 + torch.e**10), 0, 1 / (1 + torch.e**-10)], [1 / 3] * 3]), atol=1e-5, rtol=1e-4
    )


def test_the_likeliest_messages_are_those_of_all_combinations() -> None:
    """Three factors, of which one is not in play and one has a symbol that cannot be said."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 3, 5, generator=random)
    logits[:, 2, 3] = -1e9
    speaks = torch.tensor([[True, False, True]]).expand(4, 3)
    found_NCF, valid_NC = likeliest(Policy(logits, None, None, speaks, None), 7)
    log_NFS = torch.log_softmax(logits, -1)
    for row in range(4):
        scores = {
            (a, 0, c): float(log_NFS[row, 0, a] + log_NFS[row, 2, c]) for a in range(5) for c in range(5) if c != 3
        }
        best = sorted(scores, key=lambda message: -scores[message])[:7]
        assert [tuple(message) for message in found_NCF[row].tolist()] == best
    assert valid_NC.all()
    every, valid = likeliest(Policy(logits, None, None, speaks, None), 100)
    assert every.shape[2] == 3
    assert valid.sum(1).tolist() == [20] * 4


def test_the_chances_of_ends_add_up_over_rounds() -> None:
    chance = torch.tensor([[[0.0, 0.0, 0.0], [0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]])
    torch.testing.assert_close(ends(chance), torch.tensor([[0.1 + 0.7 * 0.5, 0.2 + 0.7 * 0.25, 0.7 * 0.25]]))


def test_only_a_share_of_the_copies_is_searched_and_a_draw_repeats() -> None:
    scenario, agents = made("nip", max_rounds=3, min_rounds=3)
    plain = play_episodes(
        BatchedPlay(scenario), {agent: Player(network) for agent, network in agents.items()}, *copies(scenario, COPIES)
    )
    some, again = searched(scenario, agents, 0.5), searched(scenario, agents, 0.5)
    assert some.taught_BRAFS is not None
    assert again.taught_BRAFS is not None
    assert some.main_BRACM.equal(again.main_BRACM)
    assert some.taught_BRAFS.equal(again.taught_BRAFS)
    taught_B = (some.taught_BRAFS > 0).flatten(1).any(1)
    assert 0 < taught_B.sum() < COPIES
    assert some.main_BRACM[~taught_B].equal(plain.main_BRACM[~taught_B])
    none = searched(scenario, agents, 0.0)
    assert none.main_BRACM.equal(plain.main_BRACM)
    assert not none.taught_BRAFS.any()  # type: ignore[union-attr]


def test_candidates_bound_what_is_tried() -> None:
    scenario, agents = made("debate", max_rounds=3, min_rounds=3)
    rollout = searched(scenario, agents, candidates=9)
    for agent in scenario.protocol.provers:
        rows = own_rows(scenario, rollout, agent)
        assert rows.taught_NFS is not None
        assert ((rows.taught_NFS > 0).sum(2) <= 3).all(), "three each, where two speak at once"
        likely_N3 = agents[agent](rows.obs, True, False)[0].message[:, 0].topk(3).indices
        assert ((rows.taught_NFS[:, 0] > 0).gather(1, likely_N3).sum(1) == (rows.taught_NFS[:, 0] > 0).sum(1)).all()


def test_messages_of_several_symbols_are_taught_symbol_by_symbol() -> None:
    scenario, agents = made("nip", message_size=2, max_rounds=3, min_rounds=3)
    rollout = searched(scenario, agents, candidates=60, temperature=1e-4)
    rows = own_rows(scenario, rollout, "prover")
    assert rows.taught_NFS is not None
    assert rows.taught_NFS.shape[1] == 2
    first_N, second_N = rows.taught_NFS.sum(2).unbind(1)
    assert (first_N > 0).all()
    torch.testing.assert_close(first_N, second_N)
    speaks_N = (
        (rollout.main_BRACM[rows.copy_N, rows.round_N, scenario.protocol.agents.index("prover")] >= 0).flatten(1).any(1)
    )
    assert speaks_N.any()
    assert (rows.taught_NFS.gather(2, rows.action["message"][..., None])[speaks_N] > 0).all()


def test_snapshots_neither_search_nor_are_taught() -> None:
    scenario, agents = made("nip", max_rounds=3, min_rounds=3)
    version_B = torch.where(torch.arange(COPIES) < 3, 7, -1)
    players = {agent: Player(network) for agent, network in agents.items()}
    players["prover"] = replace(players["prover"], version_B=version_B, past={7: agents["prover"]})
    rollout = searched(scenario, agents, players=players)
    plain = play_episodes(
        BatchedPlay(scenario), {agent: Player(network) for agent, network in agents.items()}, *copies(scenario, COPIES)
    )
    assert rollout.taught_BRAFS is not None
    assert (rollout.taught_BRAFS > 0).flatten(1).any(1).tolist() == (version_B < 0).tolist()
    assert rollout.main_BRACM[:3].equal(plain.main_BRACM[:3])


def test_the_share_moves_linearly() -> None:
    settings = SearchSettings(share=1.0, last_share=0.2)
    assert [share_at(settings, i, 5) for i in range(5)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert share_at(SearchSettings(share=0.3), 99, 100) == 0.3
