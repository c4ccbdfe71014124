"""Games step by step against plain lists; what they pay; how they end."""

from dataclasses import fields, replace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from nip_ray.scenarios.hironaka import encode
from nip_ray.scenarios.hironaka.game import Game, State
from nip_ray.scenarios.hironaka.players import scripted
from nip_ray.settings.hironaka import HironakaSettings
from tests.scenarios.hironaka import lists
from tests.scenarios.hironaka.lists import plain, tensor

SMALL = HironakaSettings(max_points=8, max_value=6, max_rounds=12)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def legal_moves(game: Game, games: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    class_B = torch.randint(len(game.choices_KD), (games,), generator=generator)
    noise = torch.rand(games, game.settings.dimension, generator=generator)
    return class_B, encode.masked(noise, game.choices_KD[class_B]).argmax(1)


def same(a: State, b: State) -> bool:
    return all(torch.equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(State))


@pytest.mark.parametrize("dimension", [2, 3, 5])
@pytest.mark.parametrize("reduce_start", [True, False])
def test_a_game_is_what_plain_lists_play(dimension: int, reduce_start: bool) -> None:
    game, generator = Game(replace(SMALL, dimension=dimension, reduce_start=reduce_start)), draw()
    start = game.random_points(30, generator)
    state, expected = game.start(start), plain(start)
    expected = [lists.minimal(g) if reduce_start else sorted(g, reverse=True) for g in expected]
    finished = [len(g) <= 1 for g in expected]
    for rounds in range(12):
        assert plain(state.points) == expected
        class_B, axis_B = legal_moves(game, 30, generator)
        state, outcome = game.step(state, class_B, axis_B)
        for b, (k, axis) in enumerate(zip(class_B.tolist(), axis_B.tolist())):
            if finished[b]:
                assert not outcome.moved_B[b]
                assert outcome.host_reward_B[b] == outcome.agent_reward_B[b] == 0
                continue
            expected[b] = lists.minimal(
                lists.shift(expected[b], tuple(game.choices_KD[k].nonzero().flatten().tolist()), axis)
            )
            finished[b] = len(expected[b]) == 1
            assert bool(outcome.terminated_B[b]) is finished[b]
            assert (float(outcome.host_reward_B[b]), float(outcome.agent_reward_B[b])) == (
                (1, -1) if finished[b] else (0, 0)
            )
            assert int(state.round_B[b]) == rounds + 1
        assert state.over_B.tolist() == finished
        assert state.count_B.tolist() == [len(g) for g in expected]
    assert any(finished)


def test_games_that_have_ended_stay_as_they_are_to_the_last_bit() -> None:
    game, generator = Game(replace(SMALL, reposition=True, max_rounds=4)), draw(1)
    state = game.random_start(60, generator)
    for _ in range(4):
        state, _ = game.step(state, *legal_moves(game, 60, generator))
    assert state.over_B.any()
    assert state.cut_B.any()
    assert not state.open_B.any()
    after, outcome = game.step(state, *legal_moves(game, 60, generator))
    assert same(after, state)
    assert not any(getattr(outcome, field.name).any() for field in fields(outcome))


def test_the_step_limit_truncates_and_does_not_terminate() -> None:
    game = Game(HironakaSettings(max_rounds=3))
    state = game.start(tensor([[(0, 0, 5), (1, 0, 4)], [(0, 1, 0), (1, 0, 0)]]))
    both, first = torch.tensor([0, 0]), torch.tensor([0, 0])  # the first game's last coordinate is never touched
    seen = []
    for _ in range(3):
        state, outcome = game.step(state, both, first)
        seen.append((outcome.terminated_B.tolist(), outcome.truncated_B.tolist()))
    assert seen == [([False, True], [False, False]), ([False, False], [False, False]), ([False, False], [True, False])]
    assert (state.over_B.tolist(), state.cut_B.tolist(), state.round_B.tolist()) == (
        [False, True],
        [True, False],
        [3, 1],
    )


def test_rewards_by_points_and_by_survival() -> None:
    game = Game(HironakaSettings(host_reward="win_and_points", agent_reward="survive"))
    state = game.start(tensor([[(0, 0, 5), (1, 0, 4), (2, 0, 3)], [(0, 1, 0), (1, 0, 0)], [(0, 1, 1), (1, 0, 1)]]))
    everything, last = torch.tensor([3, 3, 0]), torch.tensor([2, 0, 2])
    state, outcome = game.step(state, everything, last)
    assert state.count_B.tolist() == [1, 1, 2]
    assert outcome.host_reward_B.tolist() == [3, 2, 0]
    assert outcome.agent_reward_B.tolist() == [0, 0, 1]


def test_repositioned_and_exact_games_are_the_same_game() -> None:
    """They end in the same rounds under the same moves, whatever points are carried along."""
    settings = replace(SMALL, max_points=6)
    variants = [Game(settings), Game(replace(settings, reposition=True)), Game(replace(settings, polytope="exact"))]
    start = variants[0].random_points(8, draw(3))
    states, generator = [game.start(start) for game in variants], draw(4)
    for _ in range(6):
        class_B, axis_B = legal_moves(variants[0], 8, generator)
        states = [game.step(state, class_B, axis_B)[0] for game, state in zip(variants, states)]
        assert all(torch.equal(state.over_B, states[0].over_B) for state in states)
        assert (states[2].count_B <= states[0].count_B).all()
        for repositioned in plain(states[1].points):
            if len(repositioned) > 1:
                assert all(min(column) == 0 for column in zip(*repositioned))
    assert states[0].over_B.any()
    assert not states[0].over_B.all()


@pytest.mark.parametrize("reposition", [False, True])
def test_a_step_and_the_players_read_nothing_back_from_the_device(reposition: bool) -> None:
    """Fake tensors have no values: whatever would have to wait for a number raises."""
    game = Game(replace(SMALL, reposition=reposition))
    state, moves = game.random_start(20, draw()), legal_moves(game, 20, draw())
    players = [scripted("host", name, 3) for name in ("all_coordinates", "zeillinger", "weak_spivakovsky")]
    players += [scripted("agent", name, 3) for name in ("choose_first", "choose_last")]
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        state = State(*(fake.from_tensor(getattr(state, field.name)) for field in fields(State)))
        after, _ = game.step(state, *map(fake.from_tensor, moves))
        for player in players:
            player(after.points, None, None).argmax(1)
        with pytest.raises(DataDependentOutputException):
            after.trimmed()


def test_trimming_selecting_and_putting_back_lose_nothing() -> None:
    game = Game(SMALL)
    state = game.random_start(20, draw())
    index = torch.tensor([3, 11, 4])
    part = state.select(index).trimmed()
    assert part.points.shape[1] == int(part.count_B.max())
    assert plain(part.points) == [plain(state.points)[i] for i in index.tolist()]
    assert same(state.put(index, part), state)
    assert plain(part.put(torch.tensor([1]), state.select(torch.tensor([0]))).points)[1] == plain(state.points)[0]


def test_a_number_that_is_no_class_is_an_illegal_move() -> None:
    game = Game(HironakaSettings())
    state = game.start(torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]]).expand(3, -1, -1))
    after, outcome = game.step(state, torch.tensor([-1, 99, 0]), torch.tensor([0, 0, 0]))
    assert outcome.moved_B.tolist() == [False, False, True]
    assert torch.equal(after.points[:2], state.points[:2])
