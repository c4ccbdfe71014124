"""Leduc hold'em: random games beside rules written out plainly, and values and best responses beside known ones."""

import random

import pytest
import torch

from nip_ray.play.core import BatchedPlay
from nip_ray.protocols import build
from nip_ray.scenarios.matrix_games.games import Tables
from nip_ray.scenarios.matrix_games.poker import LEDUC, Poker
from nip_ray.scenarios.matrix_games.scenario import MatrixGame, build_matrix_game
from nip_ray.settings.matrix_games import MatrixGameSettings

FOLD, CALL, RAISE = range(3)


class Table:
    """One game: both ante 1, raises of 2 and then of 4, at most two a round; a pair wins, else the higher card."""

    def __init__(self, cards: tuple[int, ...]) -> None:
        self.cards, self.paid, self.betting, self.raises, self.calls = cards, [1, 1], 0, 0, 0
        self.slot, self.pay = 0, None

    @property
    def player(self) -> int:
        return self.slot % 2

    @property
    def waits(self) -> bool:
        """Betting has ended early, and the public card comes in the fifth round."""
        return self.betting == 1 and self.slot < 4

    def legal(self) -> list[int]:
        if self.waits:
            return [CALL]
        facing = self.paid[1 - self.player] > self.paid[self.player]
        return ([FOLD] if facing else []) + [CALL] + ([RAISE] if self.raises < 2 else [])

    def move(self, move: int) -> None:
        player, other = self.player, 1 - self.player
        if not self.waits:
            if move == FOLD:
                self.pay = self.paid[1] if player == 1 else -self.paid[0]
            elif move == RAISE:
                self.paid[player] = self.paid[other] + (2, 4)[self.betting]
                self.raises += 1
                self.calls = 1
            else:
                self.paid[player] = self.paid[other]
                self.calls += 1
            if self.calls == 2 and self.pay is None:
                if self.betting == 1:
                    self.pay = self.paid[0] * self.better()
                self.betting, self.raises, self.calls = 1, 0, 0
        self.slot += 1

    def better(self) -> int:
        hands = [10 * (card == self.cards[2]) + card for card in self.cards[:2]]
        return (hands[0] > hands[1]) - (hands[0] < hands[1])

    def seen(self) -> tuple[object, ...]:
        """What the player knows, apart from the moves."""
        return self.cards[self.player], self.cards[2] if self.betting == 1 and not self.waits else None


def poker() -> MatrixGame:
    return build_matrix_game(build("leduc_poker"), MatrixGameSettings(game="leduc_poker"))


def test_games_are_played_by_the_rules() -> None:
    scenario, chance, known = poker(), random.Random(0), dict[object, int]()
    play, ends = BatchedPlay(scenario), set()
    for game in range(400):
        deal = chance.randrange(120)
        table, said = Table(LEDUC.deal_DC[deal]), []
        play.reset(torch.tensor([deal]), torch.tensor([game]))
        while table.pay is None:
            agent, copy = f"player{table.player}", torch.zeros(1, dtype=torch.int64)
            assert bool(play.turn_B(agent)[0])
            obs = play.observe(agent, copy)
            legal = scenario.legal_symbols(agent, obs)[0, 0].nonzero().flatten().tolist()
            assert legal == table.legal()
            if not table.waits:
                state = int(obs["features"].argmax())
                moves = tuple(move for move, waited in said if not waited)
                assert known.setdefault((agent, table.seen(), moves), state) == state
            move = chance.choice(legal)
            said.append((move, table.waits))
            table.move(move)
            outcome = play.step({agent: (copy, {"message": torch.tensor([[move]])})})
            expected = [0, 0] if table.pay is None else [table.pay, -table.pay]
            assert outcome.reward_BA[0].tolist() == expected
            assert play.finished == (table.pay is not None)
        ends.add((table.betting, abs(table.pay)))
    by_player = [{state for (agent, *_), state in known.items() if agent == f"player{p}"} for p in (0, 1)]
    assert all(len(states) > 50 for states in by_player)
    assert len(set(known)) == len({(key[0], state) for key, state in known.items()}), "no two situations are one state"
    assert {1, 3, 5, 7, 9, 13} & {pay for _, pay in ends} >= {1, 3, 5, 13}


def uniform() -> Tables:
    game = Poker(LEDUC)
    first, second = (game.legal(p).double() / game.legal(p).sum(1, keepdim=True) for p in (0, 1))
    return first, second


def test_values_are_those_of_other_implementations() -> None:
    """Of uniform players, as OpenSpiel computes them: NashConv 4.747222, value -0.078125."""
    figures = Poker(LEDUC).figures(uniform())
    assert 2 * figures["exploitability"] == pytest.approx(4.747222, abs=1e-6)
    assert figures["player0/value"] == pytest.approx(-0.078125, abs=1e-6)


def test_a_best_response_is_found_by_playing_it() -> None:
    """Against uniform players, and none of many other policies does better."""
    game, generator = Poker(LEDUC), torch.Generator().manual_seed(0)
    tables = uniform()
    for player in (0, 1):
        best = game.best_response_value(player, tables[1 - player])
        for _ in range(5):
            noise = torch.rand(game.legal(player).shape, generator=generator).double() ** 4 * game.legal(player)
            own = noise / noise.sum(1, keepdim=True)
            pair = (own, tables[1]) if player == 0 else (tables[0], own)
            assert float(game.values(pair).mean()) * (1 - 2 * player) < best


def test_a_network_never_moves_illegally() -> None:
    scenario = poker()
    for agent in ("player0", "player1"):
        table = scenario.policy_table(agent, scenario.build_agent(agent, 0))
        legal = scenario.game.legal(int(agent[-1]))
        assert table[~legal].max() < 1e-6
        assert torch.allclose(table.sum(1), torch.ones(145).double())
