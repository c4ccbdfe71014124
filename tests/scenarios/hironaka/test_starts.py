"""Random starts by number."""

import pytest
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


def test_thom_starts_are_the_monomials_of_the_minors() -> None:
    """As computer algebra expands them for order 3."""
    expected = {(1, 1, 0, 1), (2, 2, 0, 0), (3, 0, 0, 1), (3, 0, 1, 0)}
    game = Game(HironakaSettings(starts="thom", dimension=4))
    assert {tuple(point) for point in game.same_points(1)[0].long().tolist()} == expected
    points = start(Game(HironakaSettings(starts="thom_homogeneous", dimension=4)), 3, torch.arange(5)).points
    assert set(points[points[..., 0] >= 0].sum(-1).tolist()) == {max(sum(point[1:]) for point in expected)}
    with pytest.raises(UserError, match="starts: thom needs dimension 4 with max_points of at least 4 or"):
        Game(HironakaSettings(starts="thom", dimension=3))
