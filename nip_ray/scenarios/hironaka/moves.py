"""A player's moves in a batch of games, and starts of which none is over."""

import torch
from torch import Tensor

from nip_ray.scenarios.hironaka import encode
from nip_ray.scenarios.hironaka.game import Game, State
from nip_ray.scenarios.hironaka.players import Player
from nip_ray.scenarios.hironaka.starts import ATTEMPTS, no_open_start


def choose(
    player: Player,
    game: Game,
    state: State,
    seen: Tensor | None,
    choice_BD: Tensor | None,
    generator: torch.Generator,
) -> Tensor:
    """(B,) int64: the player's best legal moves.

    seen: the features of the state, for players that want them (None: made here). choice_BD: what the host chose, None for the host.
    """
    if player.sees == "features":
        score_BK = player(game.features(state) if seen is None else seen, choice_BD, generator)
    else:
        score_BK = player(state.points, choice_BD, generator)
    return encode.masked(score_BK, choice_BD).argmax(1)


def open_start(game: Game, games: int, generator: torch.Generator) -> State:
    """Random starts of which none is over: those that are, are drawn again, up to `ATTEMPTS` times; then UserError is raised."""
    state = game.random_start(games, generator).trimmed()
    attempt = 0
    while len(over_N := (~state.open_B).nonzero()[:, 0]):
        attempt += 1
        if attempt == ATTEMPTS:
            raise no_open_start()
        state = state.put(over_N, game.random_start(len(over_N), generator).trimmed())
    return state
