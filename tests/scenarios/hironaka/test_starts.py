"""Random starts by number."""

from itertools import combinations

import pytest
import sympy
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.starts import mixed, start, start_points
from nip_ray.settings.hironaka import HironakaSettings


def reference_mix(x: int) -> int:
    """splitmix64 on whole numbers, as published."""
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_hash_is_the_published_one() -> None:
    numbers = [0, 1, 2, 12345, 2**62, -1, -(2**63)]
    found = mixed(torch.tensor(numbers)).tolist()
    assert [x % 2**64 for x in found] == [reference_mix(x % 2**64) for x in numbers]


def test_a_start_depends_on_seed_and_number_alone() -> None:
    game = Game(HironakaSettings())
    together = start_points(game, 3, torch.arange(50))
    alone = torch.cat([start_points(game, 3, torch.tensor([i])) for i in range(50)])
    assert torch.equal(together, alone)
    assert not torch.equal(together, start_points(game, 4, torch.arange(50)))
    assert len({tuple(points.flatten().tolist()) for points in together}) == 50


def test_coordinates_are_whole_uniform_and_unrelated() -> None:
    game = Game(HironakaSettings(max_value=9))
    points = start_points(game, 0, torch.arange(5000))
    assert torch.equal(points, points.round())
    counts = torch.bincount(points.long().flatten(), minlength=10)
    assert len(counts) == 10
    expected = points.numel() / 10
    assert float((counts - expected).abs().max()) < 5 * expected**0.5
    flat = points.flatten(1).double()
    correlation = torch.corrcoef(flat.T) - torch.eye(flat.shape[1])
    assert float(correlation.abs().max()) < 6 / 5000**0.5


def test_no_start_is_over_though_many_drawn_ones_are() -> None:
    game = Game(HironakaSettings(max_points=2, max_value=2, dimension=2))
    ids = torch.arange(2000)
    drawn = game.start(start_points(game, 0, ids))
    assert int(drawn.over_B.sum()) > 500
    state = start(game, 0, ids)
    assert bool(state.open_B.all())
    alone = start(game, 0, ids[7:8])
    assert torch.equal(state.points[7, : alone.points.shape[1]], alone.points[0])
    kept = ~drawn.over_B
    assert torch.equal(state.points[kept], drawn.points[kept])


def test_settings_with_which_every_start_is_over_are_refused() -> None:
    game = Game(HironakaSettings(max_points=200, max_value=1))
    with pytest.raises(UserError, match="almost every random start is over at once"):
        start(game, 0, torch.arange(2))


@pytest.mark.parametrize(("order", "dimension"), [(3, 4), (4, 7)])
def test_thom_starts_are_the_monomials_of_the_minors(order: int, dimension: int) -> None:
    """Computed again by sympy, as the source defines them."""
    b = [[sympy.Symbol(f"b{i}{j}") if j >= i and (i or not j) else sympy.Integer(0) for i in range(order)] for j in range(order)]
    pairs = [(i, j) for i in range(order) for j in range(i, order) if i + j < order - 1]
    column = {}  # of the quadratic part: entry s is the coefficient of e_i e_j in the sum of the products of rows that add up to s - 1
    for i, j in pairs:
        entries = [
            sum((b[t][i] * b[s - 1 - t][j] + int(i != j) * b[t][j] * b[s - 1 - t][i] for t in range(s)), sympy.Integer(0))
            for s in range(order)
        ]
        column[i, j] = entries
    minors = []
    for linear in range(2, order + 1):
        for chosen in combinations(range(order), linear):
            for quadratic in combinations(pairs, order - linear):
                columns = [[b[s][k] for s in range(order)] for k in chosen] + [column[pair] for pair in quadratic]
                minors.append(sympy.Matrix(columns).det())
    symbols = [sympy.Symbol("b00"), *(sympy.Symbol(f"b{i}{j}") for i in range(1, order) for j in range(i, order))]
    expected = {tuple(m) for m in sympy.Poly(minors[0] + sum(minors), *symbols).monoms()}
    game = Game(HironakaSettings(starts="thom", dimension=dimension))
    assert {tuple(point) for point in game.same_points(1)[0].long().tolist()} == expected
    homogeneous = Game(HironakaSettings(starts="thom_homogeneous", dimension=dimension))
    points = start(homogeneous, 3, torch.arange(5)).points
    assert set(points[points[..., 0] >= 0].sum(-1).tolist()) == {max(sum(point[1:]) for point in expected)}
    with pytest.raises(UserError, match="starts: thom needs dimension 4 with max_points of at least 4 or"):
        Game(HironakaSettings(starts="thom", dimension=3))
