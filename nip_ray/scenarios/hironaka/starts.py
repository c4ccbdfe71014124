"""Random starts by number: the points of instance i depend on (seed, i) alone, on every device and process.

Decisions that matter here:
- numbers are hashed, not drawn from a stream: there is no table of instances, and one start costs as much as any other;
- a start that is already over is replaced by the next one in the instance's own sequence.
Source of the hash: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (the finaliser of
splitmix64).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka.game import Game, State
from nip_ray.seeding import stable_seed

# the published constants, as signed numbers
_GAMMA, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


ATTEMPTS = 1000  # after this many starts that were already over, give up


def mixed(x: Tensor) -> Tensor:
    """int64 of any shape: hashes, as random as 64-bit random numbers. A bijection."""
    x = x + _GAMMA
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted right, filled with zeros: torch's own shift repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniform(x: Tensor) -> Tensor:
    """Double precision in [0, 1): the first 53 bits of `mixed`."""
    return _shifted(mixed(x), 11).double() * 2.0**-53


def start_points(game: Game, seed: int, id_N: Tensor, attempt: int = 0) -> Tensor:
    """(N, max_points, d) of the game's number type: whole numbers from 0 to `max_value`, uniform and independent, or
    the same for all."""
    settings = game.settings
    if settings.starts != "random":
        return game.same_points(len(id_N))
    shape = (settings.max_points, settings.dimension)
    key_N = mixed(mixed(id_N + stable_seed(seed, "hironaka", attempt)))
    place_M = torch.arange(shape[0] * shape[1], device=id_N.device)
    number_NM = (uniform(key_N[:, None] + place_M * _SECOND) * (settings.max_value + 1)).floor()
    return number_NM.view(-1, *shape).to(game.dtype)


def start(game: Game, seed: int, id_N: Tensor) -> State:
    """The games of instances `id_N` ((N,) int64), none of them over. Raises UserError if `ATTEMPTS` starts of an
    instance were over."""
    return _opened(
        lambda over_K, attempt: game.start(start_points(game, seed, id_N[over_K], attempt)), len(id_N), id_N.device
    )


def open_start(game: Game, games: int, generator: torch.Generator) -> State:
    """Random starts, none of them over. Raises UserError if `ATTEMPTS` draws of one were over."""
    return _opened(lambda over_K, attempt: game.random_start(len(over_K), generator).trimmed(), games, game.device)


def _opened(draw: Callable[[Tensor, int], State], games: int, device: torch.device) -> State:
    """The results of `draw` for the games with these numbers in this attempt, repeated for those already over."""
    state = draw(torch.arange(games, device=device), 0)
    for attempt in range(1, ATTEMPTS):
        if not len(over_K := (~state.open_B).nonzero()[:, 0]):
            return state.trimmed()
        state = state.put(over_K, draw(over_K, attempt))
    raise UserError(
        "max_points and max_value: almost every random start is over at once, take fewer points or a larger value"
    )
