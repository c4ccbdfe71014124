"""The pool of earlier checkpoints as opponents: which are kept, an agent's results against each, and its next ones.

Decisions that matter here:
- a snapshot is identified by its iteration: the number of iterations its agents had learned. The player keeps the
  weights, the pool keeps the books;
- draws are a function of seed, purpose (iteration, share) and books, and the books are plain JSON: a resumed run is
  identical;
- a win rate is a mean return on the scale between the least and the greatest that the agent has had in an episode: the
  share of wins where episodes are won or lost, without a definition of a win per game. A snapshot that was never met
  counts as one half, by one imagined episode;
- kept snapshots stay spread over all of training: see `thinned`.

Source of the priorities: Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning",
2019 (prioritised fictitious self-play).
"""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from nip_ray.seeding import stable_seed
from nip_ray.settings.opponents import OpponentSettings


@dataclass(frozen=True)
class Block:
    """Episodes in which `agent` learns, against the snapshot of this iteration."""

    agent: str
    snapshot: int
    episodes: int


class OpponentPool:
    """snapshots: iterations of the kept ones, oldest first. seed: of all draws."""

    def __init__(self, settings: OpponentSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.snapshots: list[int] = []
        # agent -> snapshot -> (decayed number of episodes, of returns)
        self._results: dict[str, dict[int, tuple[float, float]]] = {}
        self._range: dict[str, tuple[float, float]] = {}  # agent -> least and greatest return of an episode

    def due(self, iteration: int) -> bool:
        """True if a snapshot is due after this many iterations. Untrained weights are not a snapshot."""
        newest = self.snapshots[-1] if self.snapshots else 0
        return iteration > newest and iteration % self.settings.every == 0

    def add(self, iteration: int) -> list[int]:
        """Add the snapshot of `iteration`, later than all others; returns those dropped."""
        if self.snapshots and iteration <= self.snapshots[-1]:
            raise ValueError(f"a snapshot of iteration {iteration} after one of {self.snapshots[-1]}")
        everything = [*self.snapshots, iteration]
        self.snapshots = thinned(everything, self.settings.size)
        dropped = [number for number in everything if number not in self.snapshots]
        for results in self._results.values():
            for number in dropped:
                results.pop(number, None)
        return dropped

    def draw(self, agent: str, count: int, *purpose: str | int) -> list[int]:
        """`count` snapshots for `agent`, drawn with replacement. purpose: distinguishes draws. Empty if none."""
        if not self.snapshots:
            return []
        chances = random.Random(stable_seed(self.seed, "opponents", agent, *purpose))
        bounds = list(accumulate(self.weights(agent)))
        last = len(bounds) - 1
        return [self.snapshots[min(bisect_right(bounds, chances.random() * bounds[-1]), last)] for _ in range(count)]

    def blocks(self, agents: Sequence[str], episodes: int, *purpose: str | int) -> list[Block]:
        """The pairings of `agents` with snapshots in a number of episodes; the rest are among the current agents.

        Empty if there is no snapshot yet, or no agent to meet one. purpose: iteration and share.
        """
        past, draws = round((1 - self.settings.latest) * episodes), self.settings.draws
        drawn = [(agent, snapshot) for agent in agents for snapshot in self.draw(agent, draws, *purpose)]
        counts: dict[tuple[str, int], int] = {}
        for position, pair in enumerate(drawn):
            share = (position + 1) * past // len(drawn) - position * past // len(drawn)
            counts[pair] = counts.get(pair, 0) + share
        return [Block(agent, snapshot, count) for (agent, snapshot), count in counts.items() if count]

    def weights(self, agent: str) -> list[float]:
        """The weight of each snapshot in the draws of `agent`; none is negative, and not all are 0."""
        if self.settings.sampling == "uniform":
            return [1.0] * len(self.snapshots)
        weights = [priority(self.win_rate(agent, number), self.settings) for number in self.snapshots]
        return weights if sum(weights) > 0 else [1.0] * len(self.snapshots)

    def record(self, agent: str, snapshot: int, returns: Sequence[float]) -> None:
        """Record the returns of `agent` in its episodes against a snapshot (ignored if no longer kept)."""
        self.saw(agent, returns)
        if snapshot not in self.snapshots or not returns:
            return
        own, decay = self._results.setdefault(agent, {}), self.settings.win_rate_decay
        count, total = own.get(snapshot, (0.0, 0.0))
        own[snapshot] = decay * count + len(returns), decay * total + sum(returns)

    def record_all(self, met: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[str, Any]:
        """`record` for each agent and snapshot of an iteration; returns the iteration's metrics (docs/metrics.md)."""
        figures: dict[str, Any] = {"opponents/snapshots": len(self.snapshots)}
        for agent, own in met.items():
            for number in sorted(own):
                self.record(agent, number, own[number])
            episodes = {number: len(own[number]) for number in sorted(own)}
            total = sum(episodes.values())
            figures |= {
                f"opponents/{agent}/episodes": total,
                f"opponents/{agent}/return": sum(map(sum, own.values())) / total,
                f"opponents/{agent}/win_rate": sum(self.win_rate(agent, number) * n for number, n in episodes.items())
                / total,
                f"opponents/{agent}/met": " ".join(f"{number}:{n}" for number, n in episodes.items()),
            }
        return figures

    def saw(self, agent: str, returns: Sequence[float]) -> None:
        """Record the returns of `agent` in all episodes: they set the scale of its win rates."""
        if returns:
            low, high = self._range.get(agent, (returns[0], returns[0]))
            self._range[agent] = min(low, *returns), max(high, *returns)

    def win_rate(self, agent: str, snapshot: int) -> float:
        """The recent win rate of `agent` against a snapshot, between 0 and 1; near 1/2 with few episodes."""
        count, total = self._results.get(agent, {}).get(snapshot, (0.0, 0.0))
        low, high = self._range.get(agent, (0.0, 0.0))
        won = (total - count * low) / (high - low) if high > low else count / 2
        return (won + 0.5) / (count + 1)

    def state(self) -> dict[str, Any]:
        """The state of the draws, as plain JSON."""
        results = {
            agent: {str(number): list(pair) for number, pair in own.items()} for agent, own in self._results.items()
        }
        return {
            "snapshots": list(self.snapshots),
            "results": results,
            "range": {agent: list(pair) for agent, pair in self._range.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.snapshots = [int(number) for number in state["snapshots"]]
        self._results = {
            agent: {int(number): (float(count), float(total)) for number, (count, total) in own.items()}
            for agent, own in state["results"].items()
        }
        self._range = {agent: (float(low), float(high)) for agent, (low, high) in state["range"].items()}


def thinned(iterations: Sequence[int], size: int) -> list[int]:
    """At most `size` (2 or more) of increasing iterations, spread over all of them: as long as there are more, the one
    whose neighbours are closest to each other goes (of several the oldest), so the first and the last stay.

    Called at each addition, at even intervals, this leaves no gap of more than twice the mean one.
    """
    kept = list(iterations)
    while len(kept) > size:
        kept.pop(min(range(1, len(kept) - 1), key=lambda i: kept[i + 1] - kept[i - 1]))
    return kept


def priority(win_rate: float, settings: OpponentSettings) -> float:
    """The weight f(win rate) in prioritised draws."""
    if settings.priority == "even":
        return win_rate * (1 - win_rate)
    return (1 - win_rate) ** settings.priority_exponent
