"""Roll-outs with exploration: transitions against those rebuilt from tokens, shares against the whole, cuts, and who
explores."""

from typing import Any

import pytest
import torch
from torch import nn

from nip_ray.learning.dqn import greedy, legal_moves
from nip_ray.play.core import BatchedPlay
from nip_ray.play.exploration import Exploration, Explorer, explore
from nip_ray.play.rollout import final_rows, own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import build
from nip_ray.scenarios.registry import build_scenario
from nip_ray.settings.hironaka import HironakaAgentSettings, HironakaLayer, HironakaSettings
from nip_ray.settings.matrix_games import MatrixAgentSettings, MatrixGameSettings

GAMMA = {"host": 0.9, "agent": 0.8, "player0": 0.9, "player1": 0.8}


def hironaka(max_rounds: int = 3, **settings: Any) -> Scenario:
    layers = (HironakaLayer(16), HironakaLayer(8, norm="batch"))
    agent = HironakaAgentSettings(view="scaled", encoder="flat", layers=layers)
    made = HironakaSettings(
        max_rounds=max_rounds,
        max_points=6,
        max_value=9,
        num_train=200,
        num_test=5,
        agents={"_default": agent},
        **settings,
    )
    return build_scenario(build("hironaka"), made)


def kuhn(**agents: MatrixAgentSettings) -> Scenario:
    return build_scenario(
        build("kuhn_poker"), MatrixGameSettings(game="kuhn_poker", agents={"_default": SPREAD, **agents})
    )


SPREAD = MatrixAgentSettings(initial_scale=1.0)
SCENARIOS = {"hironaka": hironaka, "kuhn": kuhn}


def networks(scenario: Scenario) -> dict[str, nn.Module]:
    return {agent: scenario.build_agent(agent, i).eval() for i, agent in enumerate(scenario.protocol.agents)}


def plan(scenario: Scenario, copies: int = 30, epsilon: float = 0.5, **changes: Any) -> Exploration:
    explorers = {agent: Explorer(copies + i, epsilon, GAMMA[agent]) for i, agent in enumerate(scenario.protocol.agents)}
    return Exploration(**{"step": 7, "attempt": 0, "explorers": explorers, **changes})


@pytest.mark.parametrize("name", SCENARIOS)
def test_transitions_are_those_that_tokens_tell(name: str) -> None:
    """Observations, moves and rewards of own turns in own copies, in their order; next observations are those of next
    own turns."""
    scenario = SCENARIOS[name]()
    rollout, found = explore(BatchedPlay(scenario), networks(scenario), plan(scenario), seed=3)
    begin = 0
    for agent, explorer in plan(scenario).explorers.items():
        own = rollout.copies(slice(begin, begin + explorer.copies))
        begin += explorer.copies
        rows, told = found[agent], own_rows(scenario, own, agent)
        left_out = left_out_rows(scenario, own, agent, told.row_BR)
        kept_N = torch.tensor([row not in left_out for row in range(len(told.copy_N))])
        assert len(rows["action"]) == int(kept_N.sum()) > 20
        assert torch.equal(rows["action"], told.action["message"][kept_N, 0])
        for part in told.obs:
            assert torch.equal(rows[f"obs_{part}"], told.obs[part][kept_N]), part
        for place, row in enumerate(kept_N.nonzero().flatten().tolist()):
            copy, start = int(told.copy_N[row]), int(told.round_N[row])
            later = [r for r in range(start + 1, own.num_rounds) if told.row_BR[copy, r] >= 0]
            end = later[0] if later else int(own.length_B[copy])
            paid = own.reward_BRA[copy, start:end, scenario.protocol.agents.index(agent)]
            expected = sum(float(pay) * explorer.gamma**i for i, pay in enumerate(paid))
            assert float(rows["reward"][place]) == pytest.approx(expected, abs=1e-6)
            if later:
                assert float(rows["discount"][place]) == pytest.approx(explorer.gamma ** (end - start))
                for part in told.obs:
                    assert torch.equal(rows[f"next_obs_{part}"][place], told.obs[part][told.row_BR[copy, end]])


def left_out_rows(scenario: Scenario, rollout: Any, agent: str, row_BR: torch.Tensor) -> set[int]:
    """Last own turns before a cut after which another would have moved."""
    if rollout.cut_B is None:
        return set()
    copy_K, _ = final_rows(scenario, rollout, agent)
    return {
        int(row_BR[copy].max()) for copy in rollout.cut_B.nonzero().flatten().tolist() if copy not in copy_K.tolist()
    } - {-1}


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", SCENARIOS)
def test_shares_are_the_whole_in_parts(name: str, n_step: int) -> None:
    """Three players with a third each, the last explorers' copies split in the middle."""
    scenario = SCENARIOS[name]()
    agents, wanted = networks(scenario), plan(scenario, n_step=n_step)
    whole, rows = explore(BatchedPlay(scenario), agents, wanted, seed=3)
    parts = [explore(BatchedPlay(scenario), agents, wanted, 3, share, 3) for share in range(3)]
    assert torch.equal(whole.id_B, torch.cat([part.id_B for part, _ in parts]))
    assert torch.equal(whole.main_BRACM, torch.cat([part.main_BRACM for part, _ in parts]))
    for role, own in rows.items():
        for field, values in own.items():
            assert torch.equal(values, torch.cat([part[role][field] for _, part in parts if role in part])), field


def test_drawn_moves_of_players_without_anything_to_train_are_shared_out_alike() -> None:
    scenario = kuhn(player1=MatrixAgentSettings(kind="random"))
    agents = networks(scenario)
    wanted = Exploration(step=0, attempt=1, explorers={"player0": Explorer(60, 0.0, 1.0)})
    whole, _ = explore(BatchedPlay(scenario), agents, wanted, seed=3)
    parts = [explore(BatchedPlay(scenario), agents, wanted, 3, share, 2)[0] for share in range(2)]
    assert torch.equal(whole.main_BRACM, torch.cat([part.main_BRACM for part in parts]))
    said = whole.main_BRACM[:, 1, 1, 0, 0]
    assert 10 < int((said == 1).sum()) < 50


def test_only_explorers_explore_and_only_in_their_copies() -> None:
    """With epsilon 1 half of an explorer's moves are not its best; everybody else's all are."""
    scenario = kuhn()
    agents = networks(scenario)
    rollout, _ = explore(BatchedPlay(scenario), agents, plan(scenario, copies=100, epsilon=1.0), seed=3)
    for a, agent in enumerate(scenario.protocol.agents):
        rows = own_rows(scenario, rollout, agent)
        q_NK = agents[agent](rows.obs, True, False)[0].message[:, 0]
        best_N = rows.action["message"][:, 0] == greedy(q_NK, legal_moves(rows.obs, q_NK))
        own_N = (rows.copy_N < 100) == (a == 0)
        assert bool(best_N[~own_N].all())
        assert 0.35 < float(best_N[own_N].float().mean()) < 0.65


def test_explored_moves_are_legal() -> None:
    """The agent of the polyhedra game names a coordinate of the host's choice, whatever the dice say."""
    scenario = hironaka()
    _, found = explore(BatchedPlay(scenario), networks(scenario), plan(scenario, copies=200, epsilon=1.0), seed=5)
    for rows in found.values():
        assert bool(rows["obs_legal"].gather(1, rows["action"][:, None]).all())
    assert found["agent"]["action"].unique().tolist() == [0, 1, 2]


def test_a_cut_is_bootstrapped_where_the_own_turn_would_be_next() -> None:
    """One round of the game: the host would move again, and sees the points as they are then; the agent's only turn is
    left out."""
    scenario = hironaka(max_rounds=1)
    agents = networks(scenario)
    rollout, found = explore(BatchedPlay(scenario), agents, plan(scenario), seed=3)
    assert rollout.cut_B is not None
    own = rollout.copies(slice(0, 30))
    cut_B = own.cut_B
    assert 3 < int(cut_B.sum()) < 30 or int(cut_B.sum()) == 30
    host = found["host"]
    assert torch.allclose(host["discount"], torch.where(cut_B, 0.9**2, 0.0))
    copy_K, obs = final_rows(scenario, own, "host")
    for part, values in obs.items():
        assert torch.equal(host[f"next_obs_{part}"][copy_K], values), part
    ended = rollout.copies(slice(30, 61))
    assert len(found["agent"]["action"] if "agent" in found else []) == int((~ended.cut_B).sum())


def test_returns_of_several_turns_end_before_one_that_is_left_out() -> None:
    """The agent's third turn is left out by the cut: what the second one is followed by is what the agent saw there."""
    scenario = hironaka(max_rounds=3)
    agents = networks(scenario)
    single, several = (
        explore(BatchedPlay(scenario), agents, plan(scenario, n_step=n), seed=3)[1]["agent"] for n in (1, 2)
    )
    assert len(single["action"]) == len(several["action"])
    changed_N = (
        ((single["next_obs_round"] != several["next_obs_round"]) & (several["discount"] > 0)).nonzero().flatten()
    )
    assert len(changed_N) > 0
    assert set(single["obs_round"][changed_N].tolist()) == {1}
    row = int(changed_N[0])
    assert int(several["next_obs_round"][row]) == 5
    assert float(several["discount"][row]) == pytest.approx(0.8**4)
