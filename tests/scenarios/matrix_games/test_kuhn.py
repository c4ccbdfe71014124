"""Kuhn poker: every line of play in every deal, and exploitability against known equilibria, hand values and
enumeration."""

from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from nip_ray.play.core import BatchedPlay
from nip_ray.protocols import build
from nip_ray.scenarios.matrix_games.games import Tables
from nip_ray.scenarios.matrix_games.poker import DEALS, KUHN, Poker
from nip_ray.scenarios.matrix_games.scenario import MatrixGame, build_matrix_game
from nip_ray.settings.matrix_games import MatrixGameSettings

LINES: dict[str, tuple[int, bool]] = {
    "pp": (1, True),
    "pbp": (-1, False),
    "pbb": (2, True),
    "bp": (1, False),
    "bb": (2, True),
}
"""Passes and bets in order -> (what player0 gets, whether only with the higher card, else it pays as much)."""


def pay(line: str, cards: tuple[int, int]) -> int:
    amount, by_cards = LINES[line]
    return amount if not by_cards or cards[0] > cards[1] else -amount


def poker() -> MatrixGame:
    return build_matrix_game(build("kuhn_poker"), MatrixGameSettings(game="kuhn_poker"))


def policy(bets: list[float]) -> Tensor:
    """(6, 2) from probabilities of betting: jack, queen, king, in each the first situation and the second."""
    bet = torch.tensor(bets, dtype=torch.float64)
    return torch.stack([1 - bet, bet], -1)


def equilibrium(alpha: float) -> Tables:
    """Kuhn's family: player0 bluffs with the jack at `alpha`, up to a third."""
    return policy([alpha, 0, 0, alpha + 1 / 3, 3 * alpha, 1]), policy([1 / 3, 0, 0, 1 / 3, 1, 1])


def random_policy(seed: int) -> Tensor:
    return policy(torch.rand(6, generator=torch.Generator().manual_seed(seed)).tolist())


def slow_value(tables: Tables) -> float:
    """What player0 expects, over deals and lines of play."""
    total = 0.0
    for cards in permutations(range(3), 2):
        for line in LINES:
            moves = ["pb".index(letter) for letter in line]
            chance = float(tables[0][2 * cards[0], moves[0]] * tables[1][2 * cards[1] + moves[0], moves[1]])
            if len(moves) == 3:
                chance *= float(tables[0][2 * cards[0] + 1, moves[2]])
            total += chance * pay(line, cards) / 6
    return total


def test_every_line_in_every_deal() -> None:
    """All thirty games at once: whose turn it is, what is seen, what is paid and when it ends."""
    cases = list(product(range(6), LINES))
    play = BatchedPlay(poker())
    play.reset(torch.tensor([deal for deal, _ in cases]), torch.zeros(len(cases), dtype=torch.int64))
    total = torch.zeros(len(cases), 2)
    for r in range(3):
        player, name = r % 2, f"player{r % 2}"
        open_ = [len(line) > r for _, line in cases]
        assert play.turn_B(name).tolist() == open_
        assert not play.turn_B(f"player{1 - player}").any()
        copy_N = torch.tensor(open_).nonzero().flatten()
        obs = play.observe(name, copy_N)
        situation = [r // 2 if player == 0 else "pb".index(cases[i][1][0]) for i in copy_N.tolist()]
        cards = [DEALS[cases[i][0]][player] for i in copy_N.tolist()]
        assert obs["features"].argmax(-1).tolist() == [2 * card + where for card, where in zip(cards, situation)]
        assert obs["features"].sum(-1).eq(1).all()
        move_N = torch.tensor([["pb".index(cases[i][1][r])] for i in copy_N.tolist()])
        outcome = play.step({name: (copy_N, {"message": move_N})})
        total += outcome.reward_BA
        assert outcome.reward_BA.sum(1).eq(0).all(), "what one wins the other loses"
        ends = [len(line) == r + 1 for _, line in cases]
        assert outcome.decided_B.tolist() == ends
        assert not outcome.reward_BA[~torch.tensor(ends)].any(), "nothing is paid before the end"
    assert play.finished
    assert play.state.round_B.tolist() == [len(line) for _, line in cases]
    assert total[:, 0].tolist() == [pay(line, DEALS[deal]) for deal, line in cases]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1 / 3])
def test_equilibria_cannot_be_exploited(alpha: float) -> None:
    figures = Poker(KUHN).figures(equilibrium(alpha))
    assert figures == pytest.approx(
        {"player0/value": -1 / 18, "player1/value": 1 / 18, "exploitability": 0.0}, abs=1e-12
    )


@pytest.mark.parametrize("seed", range(4))
def test_against_enumeration(seed: int) -> None:
    """Values over all lines; best responses over all 64 pure strategies."""
    tables = (random_policy(2 * seed), random_policy(2 * seed + 1))
    value = slow_value(tables)
    assert float(Poker(KUHN).values(tables).mean()) == pytest.approx(value)
    pure = [policy(list(map(float, bets))) for bets in product((0, 1), repeat=6)]
    best = (max(slow_value((own, tables[1])) for own in pure), max(-slow_value((tables[0], own)) for own in pure))
    assert Poker(KUHN).best_response_value(0, tables[1]) == pytest.approx(best[0])
    assert Poker(KUHN).best_response_value(1, tables[0]) == pytest.approx(best[1])
    figures = Poker(KUHN).figures(tables)
    assert figures["exploitability"] == pytest.approx((best[0] - value + best[1] + value) / 2)
    assert figures["player0/value"] == -figures["player1/value"] == pytest.approx(value)
