"""The parts of all kinds of cross-play: entrants, the games of a pair, and tables of their results.

Decisions that matter here:
- runs that differ only in seed and name are a group. For each pair of groups: the interquartile mean over all pairs of
  seeds, except those trained together, with an interval by resampling verifiers and provers (`crossed_interval`);
- verifiers and provers are rated separately (`nip_ray.evaluation.elo`): an instance is a game, which the verifier wins
  by a right verdict.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nip_ray.evaluation.aggregates import crossed_interval, stratified_interval
from nip_ray.evaluation.claims import shares
from nip_ray.evaluation.elo import ratings, records
from nip_ray.evaluation.enumerated import as_exact
from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.protocols import Protocol
from nip_ray.seeding import generator


@dataclass(frozen=True)
class Entrant:
    """A run that takes part. group: the name of all runs that differ from it only in their seed."""

    name: str
    group: str
    seed: int
    iteration: int


@dataclass(frozen=True)
class Games:
    """Results of B games. y_B: labels. verdict_B: 2 for none. return_BA: each agent's return. seed_B: episode seeds."""

    y_B: Tensor
    verdict_B: Tensor
    return_BA: Tensor
    seed_B: Tensor


Cells = dict[tuple[str, str], dict[str, tuple[int, int]]]
"""(verifier, prover) -> name -> (successes, trials); see `shares`."""
Play = Callable[[int, int], Games]
"""The games of a row with a column, by number."""


@dataclass(frozen=True)
class Contest:
    """Entrants and how a pair of them plays. count: of instances. exact: see `table`."""

    runs: Sequence[Entrant]
    protocol: Protocol
    play: Play
    count: int
    exact: bool = False


def places(count: int, most: int | None, seed: int) -> Tensor:
    """The places of the instances that are played, the same in all runs: all, or a random sample of `most`."""
    if most is None or most >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=generator(seed, "cross play", "instances"))[:most].sort().values


def table(protocol: Protocol, names: Sequence[str], play: Play, *, exact: bool) -> tuple[dict[str, Any], Cells]:
    """The entries "roles", "matrix" and "elo", and the counts of a verifier's cells. exact: the games are those of
    every situation, once."""
    roles = ("verifier", "prover") if protocol.verifier is not None else protocol.agents[:2]
    matrix, scores, cells = [], [], {}
    for row, own in enumerate(names):
        scores.append([])
        for column, other in enumerate(names):
            games = play(row, column)
            if protocol.verifier is not None:
                score_B = (games.verdict_B == games.y_B).double()
                found = shares(
                    protocol, *(part_B.cpu().numpy() for part_B in (games.verdict_B, games.y_B, games.seed_B))
                )
                counts = {name: (int(hit_B.sum()), int(of_B.sum())) for name, (hit_B, of_B) in found.items()}
                cells[own, other], figures = (
                    counts,
                    {name: proportion(*count).record() for name, count in counts.items()},
                )
            else:
                score_B = (1 + torch.sign(games.return_BA[:, 0] - games.return_BA[:, 1:].mean(1))) / 2
                figures = {
                    "score": mean(score_B.numpy()).record(),
                    "return": mean(games.return_BA[:, 0].numpy()).record(),
                }
            scores[-1].append(score_B)
            matrix.append({roles[0]: own, roles[1]: other, **as_exact(figures, 1.0 if exact else None)})
    rated = ratings(torch.stack([torch.stack(own) for own in scores]).numpy())
    elo = {role: records(names, found) for role, found in zip(roles, rated, strict=True)}
    return {"roles": list(roles), "matrix": matrix, "elo": elo}, cells


def groups_of(runs: Sequence[Entrant]) -> dict[str, list[Entrant]]:
    """Group -> its runs."""
    found: dict[str, list[Entrant]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    return found


def by_group(runs: Sequence[Entrant], cells: Cells, seed: int) -> Iterator[dict[str, Any]]:
    """For each pair of groups the interquartile means; within a group also of those trained together."""
    groups = groups_of(runs)
    for verifiers, first in groups.items():
        for provers, second in groups.items():
            row: dict[str, Any] = {"verifiers": verifiers, "provers": provers}
            for name in (key for key in next(iter(cells.values())) if key != "undecided"):
                counts = [[cells[v.name, p.name][name] if v is not p else (0, 0) for p in second] for v in first]
                score = [[hits / tried if tried else math.nan for hits, tried in row_of] for row_of in counts]
                trials = [[tried for _, tried in row_of] for row_of in counts]
                row[name] = crossed_interval(score, seed, n_VP=trials).record()
                if verifiers == provers:
                    known = [
                        (hits, tried) for run in first for hits, tried in [cells[run.name, run.name][name]] if tried
                    ]
                    together = stratified_interval(
                        [[hits / tried for hits, tried in known]], seed, n_KL=[[tried for _, tried in known]]
                    )
                    row[f"{name}_trained_together"] = together.record()
            yield row
