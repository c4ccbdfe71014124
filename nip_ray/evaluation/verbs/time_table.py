"""The table of those who were trained at one time against those of another: how games ended, what rows scored, ratings.

Decisions that matter here:
- rows are the verifiers of all checkpoints, columns everybody else of all: a verifier that has forgotten an earlier prover shows
  it below the diagonal. In a game without a verifier rows are the first player;
- a game is an instance: the verifier wins it by a right verdict, a player by being paid more than the others (as much: a draw).
  So a prover's rating says how often verifiers err in its company, whether it deceives them or does not help;
- all pairs are asked about the same instances under the same seeds; so intervals of ratings are over instances.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.evaluation.elo import ratings, records
from nip_ray.evaluation.enumerated import as_exact
from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.verbs.cross_play import figures_of
from nip_ray.play.opponent_pool import thinned
from nip_ray.progress import say
from nip_ray.protocols import Protocol

MOST = 40
"""Checkpoints that are played; of more, so many spread over all of training."""


@dataclass(frozen=True)
class Games:
    """How B games ended. y_B: labels. verdict_B: 2 where there is none. return_BA: what each agent was paid in all. seed_B: episode
    seeds.
    """

    y_B: Tensor
    verdict_B: Tensor
    return_BA: Tensor
    seed_B: Tensor


def spread(kept: Sequence[int], run_dir: Path, how: str) -> list[int]:
    """The iterations that are played, of those whose weights are there. how: to have more of them. Raises UserError for fewer than two."""
    if len(kept) < 2:
        raise UserError(f"cross-play --checkpoints: {run_dir} has {len(kept)}, and needs two; {how}")
    if len(kept) > MOST:
        say(f"warning: {run_dir} has {len(kept)} checkpoints; {MOST} of them, spread over all of training, are played")
    return thinned(kept, MOST)


def table(protocol: Protocol, names: Sequence[str], play: Callable[[int, int], Games], distinct: float | None = None) -> dict[str, Any]:
    """ "roles", "matrix" and "elo". play: gives the games of a row, by its number, with a column. distinct: of `distinct_part`, of greedy
    games.
    """
    roles = ("verifier", "prover") if protocol.verifier is not None else protocol.agents[:2]
    matrix, scores = [], []
    for row, own in enumerate(names):
        scores.append([])
        for column, other in enumerate(names):
            games = play(row, column)
            score_B = _scores(protocol, games)
            scores[-1].append(score_B)
            matrix.append({roles[0]: own, roles[1]: other, **as_exact(_records(protocol, games, score_B), distinct)})
    of_rows, of_columns = ratings(torch.stack([torch.stack(own) for own in scores]).numpy())
    elo = {role: records(names, found) for role, found in zip(roles, (of_rows, of_columns), strict=True)}
    return {"roles": list(roles), "matrix": matrix, "elo": elo}


def name_of(iteration: int) -> str:
    """What a checkpoint is called."""
    return f"{iteration:06d}"


def _scores(protocol: Protocol, games: Games) -> Tensor:
    """(B,) float64: what the row scored in each game."""
    if protocol.verifier is not None:
        return (games.verdict_B == games.y_B).double()
    return (1 + torch.sign(games.return_BA[:, 0] - games.return_BA[:, 1:].mean(1))) / 2


def _records(protocol: Protocol, games: Games, score_B: Tensor) -> dict[str, Any]:
    if protocol.verifier is not None:
        return {name: proportion(*count).record() for name, count in figures_of(protocol, games.verdict_B, games.y_B, games.seed_B).items()}
    return {"score": mean(score_B.numpy()).record(), "return": mean(games.return_BA[:, 0].numpy()).record()}
