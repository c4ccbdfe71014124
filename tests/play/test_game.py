"""Games with positions, on a race in which two players add 1 to 3 to a sum by turns: who reaches the goal is paid."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Policy
from nip_ray.play.core import BatchedPlay, episode_seeds, play_rollout, turn_masks
from nip_ray.play.rollout import Dialogue, GameRules, final_rows, own_rows, position_at
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Judgement, Protocol
from nip_ray.protocols.spec import Payment
from nip_ray.rllib.learner import agent_data
from nip_ray.settings.ppo import PPOSettings

PLAYERS = ("first", "second")


def race_protocol(max_rounds: int, cuts: bool = True) -> Protocol:
    turns = (((("first", "table"),), (("second", "table"),)),)
    sees = dict.fromkeys(PLAYERS, ("table",))
    return Protocol("race", PLAYERS, ("table",), sees, turns, max_rounds, 1, Payment(), verifier=None, cuts=cuts)


@dataclass(frozen=True)
class Sum:
    sum_B: Tensor


class RaceRules(GameRules[Sum]):
    def __init__(self, protocol: Protocol, goal: int) -> None:
        self.protocol, self.goal = protocol, goal

    def start(self, id_B: Tensor) -> Sum:
        return Sum(id_B)

    def advance(self, position: Sum, said_BACM: Tensor) -> tuple[Sum, Judgement]:
        moved_BA = said_BACM.flatten(2).amax(-1)
        sum_B = position.sum_B + (moved_BA + 1).sum(1)
        over_B = (moved_BA >= 0).any(1) & (sum_B >= self.goal)
        return Sum(sum_B), Judgement((over_B[:, None] & (moved_BA >= 0)).float(), over_B)

    def select(self, position: Sum, index_N: Tensor) -> Sum:
        return Sum(position.sum_B[index_N])

    def put(self, position: Sum, index_N: Tensor, other: Sum) -> Sum:
        return Sum(position.sum_B.index_copy(0, index_N, other.sum_B))

    def view(self, agent: str, position: Sum, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        return {**turn_masks(self.protocol, agent, 1, round_N, seed_N), "sum": position.sum_B.float()}


class Race(Scenario):
    name, num_symbols = "race", 3

    def __init__(self, max_rounds: int, goal: int, cuts: bool = True) -> None:
        self.protocol = race_protocol(max_rounds, cuts)
        self.label_I = torch.zeros(4, dtype=torch.int64)
        self.rules = RaceRules(self.protocol, goal)

    def ids(self, split: str) -> Tensor:
        return torch.arange(4)

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        return self.rules.view(agent, position_at(self.rules, id_N, said.before(round_N)), round_N, seed_N)

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        return Even()

    def to(self, device: str) -> "Race":
        return self


class Even(nn.Module):
    """All symbols alike; the value is a hundred times the sum."""

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        policy = Policy(torch.zeros(len(obs["sum"]), 1, 3), None, None, obs["speaks"], None) if want_policy else None
        return policy, 100 * obs["sum"] if want_value else None


def rollout_of(scenario: Race, copies: int = 40, seed: int = 0):
    players = {player: Even() for player in PLAYERS}
    noise = torch.Generator().manual_seed(seed)
    return play_rollout(BatchedPlay(scenario), players, torch.arange(copies) % 4, episode_seeds(seed, 0, copies), noise)


def test_positions_carried_along_are_those_that_a_replay_finds() -> None:
    scenario = Race(max_rounds=6, goal=11)
    rollout = rollout_of(scenario)
    for player in PLAYERS:
        rows = own_rows(scenario, rollout, player)
        said = rollout.dialogue.rows(rows.copy_N).before(rows.round_N)
        replayed = scenario.observe(player, rollout.id_B[rows.copy_N], said, rows.round_N, rollout.seed_B[rows.copy_N])
        assert len(rows.copy_N) > 40
        assert all(torch.equal(rows.obs[name], replayed[name]) for name in replayed)


def test_games_end_at_the_goal_and_are_cut_off_by_the_rounds() -> None:
    rollout = rollout_of(Race(max_rounds=5, goal=11))
    total_B = rollout.id_B + (rollout.main_BRACM.amax((2, 3, 4)) + 1).sum(1)
    assert torch.equal(rollout.cut_B, total_B < 11)
    assert 0 < int(rollout.cut_B.sum()) < 40
    assert bool((rollout.length_B[rollout.cut_B] == 5).all())
    assert torch.equal(rollout.reward_BRA.sum((1, 2)), (~rollout.cut_B).float())


def test_a_protocol_that_does_not_cut_ends_its_games_with_the_rounds() -> None:
    scenario = Race(max_rounds=5, goal=11, cuts=False)
    rollout = rollout_of(scenario)
    assert rollout.cut_B is None
    assert len(final_rows(scenario, rollout, "second")[0]) == 0


@pytest.mark.parametrize("max_rounds,next_player", [(4, "first"), (5, "second")])
def test_only_whoever_would_move_next_sees_what_a_cut_leaves(max_rounds: int, next_player: str) -> None:
    scenario = Race(max_rounds=max_rounds, goal=11)
    rollout = rollout_of(scenario)
    for player in PLAYERS:
        copy_K, obs = final_rows(scenario, rollout, player)
        expected = rollout.cut_B.nonzero().flatten() if player == next_player else torch.zeros(0, dtype=torch.int64)
        assert torch.equal(copy_K, expected)
        if player == next_player:
            total_B = rollout.id_B + (rollout.main_BRACM.amax((2, 3, 4)) + 1).sum(1)
            assert torch.equal(obs["sum"], total_B[copy_K].float())


def test_advantages_reach_beyond_a_cut_by_the_value_of_what_follows() -> None:
    scenario, settings = Race(max_rounds=4, goal=11), PPOSettings(gamma=0.5, lam=0.0)
    rollout = rollout_of(scenario)
    total_B = rollout.id_B + (rollout.main_BRACM.amax((2, 3, 4)) + 1).sum(1)
    first, second = (agent_data(scenario, Even(), rollout, player, settings) for player in PLAYERS)
    cut_N = rollout.cut_B[first.rows.copy_N] & (first.rows.round_N == 2)
    expected_N = 0.25 * 100 * total_B[first.rows.copy_N[cut_N]].float()  # two rounds on, and judged there
    assert torch.allclose(first.target_N[cut_N], expected_N)
    late_N = rollout.cut_B[second.rows.copy_N] & (second.rows.round_N == 3)
    assert torch.allclose(second.target_N[late_N], 0.5 * second.value_N[late_N])  # it has nothing newer to judge by
    over_N = ~rollout.cut_B[first.rows.copy_N] & (first.rows.round_N == 2)
    assert bool((first.target_N[over_N] <= 1).all())
