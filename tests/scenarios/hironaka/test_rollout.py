"""Roll-outs: what is kept is what was played, for both roles."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import rules
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.players import NetworkPlayer, Player, Role, scripted
from nip_ray.scenarios.hironaka.rollout import Transitions, roll_out
from nip_ray.settings.hironaka import HironakaSettings

GAME = Game(HironakaSettings(scale_observation=False, max_rounds=6, max_points=8))
PLAYERS = scripted("host", "random_all", 3), scripted("agent", "random", 3)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def played(
    role: Role, refill: bool = False, epsilon: float = 0.3, rounds: int = 8, players: tuple[Player, Player] = PLAYERS
) -> Transitions:
    return roll_out(GAME, *players, role, draw(), games=40, rounds=rounds, epsilon=epsilon, refill=refill)[0]


@pytest.mark.parametrize("refill", [False, True])
def test_an_agents_transitions_are_moves_of_the_game(refill: bool) -> None:
    """Points, choice and answer of each row give, by the rules, its next points, its pay and its end."""
    kept = played("agent", refill)
    assert kept.choice_ND is not None
    assert kept.mask_NK.gather(1, kept.action_N[:, None]).all()
    points = rules.minimal_ordered(rules.shift(kept.points_NMD, kept.choice_ND, kept.action_N))
    assert torch.equal(points, kept.next_points_NMD)
    assert torch.equal(rules.over(points), kept.terminated_N)
    assert torch.equal(kept.reward_N, -kept.terminated_N.float())
    assert torch.equal(kept.truncated_N, (kept.round_N == 5) & ~kept.terminated_N)
    assert (rules.count(kept.points_NMD) > 1).all()
    assert kept.terminated_N.any()
    assert kept.truncated_N.any()


@pytest.mark.parametrize("refill", [False, True])
def test_a_hosts_transitions_are_moves_of_the_game_under_one_of_the_agents_answers(refill: bool) -> None:
    kept = played("host", refill)
    choice_ND = GAME.choices_KD[kept.action_N]
    fits = torch.zeros_like(kept.terminated_N)
    for axis in range(3):
        moved = rules.minimal_ordered(rules.shift(kept.points_NMD, choice_ND, torch.full_like(kept.action_N, axis)))
        fits |= choice_ND[:, axis] & (moved == kept.next_points_NMD).all(-1).all(-1)
    assert fits.all()
    assert torch.equal(kept.reward_N, kept.terminated_N.float())
    assert kept.mask_NK.all()
    assert kept.mask_NK.shape == (len(kept), 4)


@pytest.mark.parametrize("role", ["host", "agent"])
@pytest.mark.parametrize("refill", [False, True])
def test_what_comes_next_is_what_is_seen_next(role: Role, refill: bool) -> None:
    """Game by game each row's next observation is the following row's observation, the host's choice included."""
    kept = played(role, refill)
    followed = 0
    for number in kept.game_N.unique().tolist():
        rows = (kept.game_N == number).nonzero()[:, 0]
        assert kept.round_N[rows].tolist() == list(range(len(rows)))
        assert not (kept.terminated_N | kept.truncated_N)[rows[:-1]].any()
        assert torch.equal(kept.next_points_NMD[rows[:-1]], kept.points_NMD[rows[1:]])
        if role == "agent":
            assert kept.next_choice_ND is not None
            assert kept.choice_ND is not None
            assert torch.equal(kept.next_choice_ND[rows[:-1]], kept.choice_ND[rows[1:]])
        followed += len(rows) - 1
    assert followed > 40


def test_the_next_mask_is_never_empty_and_everything_where_nothing_follows() -> None:
    kept = played("agent")
    assert (kept.next_mask_NK.sum(1) >= 2).all()
    assert kept.next_mask_NK[kept.terminated_N].all()
    assert not kept.next_mask_NK[kept.truncated_N].all()


def test_refilled_tables_are_always_full_and_thinning_ones_run_dry() -> None:
    full, thin = played("host", refill=True), played("host", rounds=50)
    assert len(full) == 40 * 8
    assert int(full.game_N.max()) > 39
    assert len(thin) < 40 * 6
    assert set(thin.game_N.tolist()) == set(range(40))
    ended = dict.fromkeys(range(40), 0)
    for number, over, cut in zip(thin.game_N.tolist(), thin.terminated_N.tolist(), thin.truncated_N.tolist()):
        ended[number] += over + cut
    assert set(ended.values()) == {1}


@pytest.mark.parametrize("role", ["host", "agent"])
def test_full_exploration_is_uniform_over_what_is_legal_and_leaves_the_other_player_alone(role: Role) -> None:
    players = scripted("host", "zeillinger", 3), scripted("agent", "choose_first", 3)
    kept = roll_out(GAME, *players, role, draw(), games=300, rounds=20, epsilon=1.0, refill=True)[0]
    if role == "host":
        share = torch.bincount(kept.action_N, minlength=4) / len(kept)
        assert (share - 0.25).abs().max() < 0.03
    else:
        assert kept.choice_ND is not None
        assert (kept.choice_ND.sum(1) == 2).all()  # Zeillinger's pairs, whatever the agent tries
        first_N = kept.choice_ND.int().argmax(1) == kept.action_N
        assert abs(float(first_N.float().mean()) - 0.5) < 0.03


def test_without_exploration_a_fixed_pair_plays_its_own_moves() -> None:
    players = scripted("host", "all_coordinates", 3), scripted("agent", "choose_last", 3)
    assert (played("host", epsilon=0.0, players=players).action_N == 3).all()
    assert (played("agent", epsilon=0.0, players=players).action_N == 2).all()


def test_a_generator_decides_everything_and_torchs_own_is_not_touched() -> None:
    before = torch.get_rng_state()
    first, second = played("agent", True), played("agent", True)
    assert torch.equal(torch.get_rng_state(), before)
    for field in fields(Transitions):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name))


def test_a_roll_out_goes_on_from_the_games_of_the_last_one() -> None:
    generator = draw()
    first, state = roll_out(GAME, *PLAYERS, "host", generator, games=30, rounds=2)
    assert state.open_B.all()
    second, state = roll_out(GAME, *PLAYERS, "host", generator, games=0, rounds=1, state=state)
    assert (second.round_N == 2).all()
    assert 0 < len(second) < len(first)
    third, state = roll_out(GAME, *PLAYERS, "host", generator, games=0, rounds=9, state=state)
    assert state.games == 0
    fourth, _ = roll_out(GAME, *PLAYERS, "host", generator, games=0, rounds=9, state=state)
    assert len(third) > 0
    assert len(fourth) == 0
    assert fourth.points_NMD.shape == (0, 8, 3)


@pytest.mark.parametrize("role", ["host", "agent"])
def test_networks_play_either_role(role: Role) -> None:
    host = NetworkPlayer(3, nn.Linear(24, 4))
    kept = played(role, players=(host, NetworkPlayer(3, nn.Linear(27, 3))), epsilon=0.0)
    assert not kept.points_NMD.requires_grad
    if role == "host":
        assert torch.equal(host.network(kept.points_NMD.flatten(1)).argmax(1), kept.action_N)


def test_a_rollout_of_no_rounds_is_refused() -> None:
    with pytest.raises(UserError, match="rounds: got 0, expected at least 1"):
        roll_out(GAME, *PLAYERS, "host", draw(), games=3, rounds=0)
