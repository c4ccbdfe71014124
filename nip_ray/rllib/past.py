"""Opponents from the past: the pool with its weights, its messages to env runners, and their results.

Decisions that matter here:
- an env runner's copies are split: most are played among the current networks; in each of the blocks at their end one
  agent learns, and all other learners are one snapshot. So an iteration plays no more than without a pool, and learns
  from fewer turns;
- a snapshot has all learning agents after one iteration: opponents are met in the combination in which they trained;
- an agent that rests by its schedule has no block; its episodes are among the current networks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.play.opponent_pool import Block, OpponentPool
from nip_ray.play.rollout import RolloutSamples
from nip_ray.protocols import Protocol
from nip_ray.settings.opponents import OpponentSettings

Weights = Mapping[str, Mapping[str, Tensor]]  # agent -> the state of its network


@dataclass(frozen=True)
class PastPlay:
    """The past opponents of one share. weights: snapshot -> its weights, or, to a remote runner, [their reference]."""

    blocks: Sequence[Block]
    weights: Mapping[int, Any]

    def here(self) -> "PastPlay":
        """The same with the weights themselves, in a remote runner."""
        return PastPlay(self.blocks, {number: ray.get(place[0]) for number, place in self.weights.items()})

    def versions(self, agents: Sequence[str], copies: int) -> Tensor:
        """(B, A) int64: the snapshot that plays each agent in each copy, -1 for its current network. The blocks are the
        last copies."""
        version_BA = torch.full((copies, len(agents)), -1)
        first = copies - sum(block.episodes for block in self.blocks)
        for block in self.blocks:
            for index, agent in enumerate(agents):
                if agent != block.agent and agent in self.weights[block.snapshot]:
                    version_BA[first : first + block.episodes, index] = block.snapshot
            first += block.episodes
        return version_BA


class PastOpponents:
    """The opponents of a run. learners: the agents with trainable parameters."""

    def __init__(self, settings: OpponentSettings, seed: int, protocol: Protocol, learners: Sequence[str]) -> None:
        self.pool, self.agents, self.payment = OpponentPool(settings, seed), protocol.agents, protocol.payment
        self.meet = tuple(agent for agent in learners if settings.agents is None or agent in settings.agents)
        self.frozen = tuple(agent for agent in learners if any(agent != other for other in self.meet))
        self.weights: dict[int, Weights] = {}
        self.places: dict[int, list[ray.ObjectRef]] = {}
        for agent in settings.agents or learners:
            if agent not in learners or not any(agent != other for other in learners):
                raise UserError(
                    f"opponents.agents: {agent} does not learn, or no other agent does; learners are"
                    f" {', '.join(learners)}"
                )

    def take(self, iteration: int, current: Callable[[], Weights]) -> None:
        """Take a snapshot if one is due. current: returns all current weights."""
        if not self.pool.due(iteration):
            return
        everyone = current()
        self.weights[iteration] = {agent: everyone[agent] for agent in self.frozen}
        for dropped in self.pool.add(iteration):
            self.weights.pop(dropped)
            self.places.pop(dropped, None)

    def play(self, learning: Sequence[str], copies: int, iteration: int, share: int, remote: bool) -> PastPlay | None:
        """The play of this env runner's share against the past; None if there is none.

        learning: the agents that learn in this iteration. remote: the runner is another process.
        """
        blocks = self.pool.blocks([agent for agent in self.meet if agent in learning], copies, iteration, share)
        if not blocks:
            return None
        drawn = {block.snapshot for block in blocks}
        for number in drawn if remote else ():
            if number not in self.places:
                self.places[number] = [ray.put(self.weights[number])]
        held = self.places if remote else self.weights
        return PastPlay(blocks, {number: held[number] for number in sorted(drawn)})

    def record(self, samples: Sequence[RolloutSamples], plays: Mapping[int, PastPlay | None]) -> dict[str, Any]:
        """Record the results. plays: worker -> its play. Returns the metrics of the iteration; see docs/metrics.md."""
        met: dict[str, dict[int, list[float]]] = {}
        for sample in samples:
            rollout = sample.rollout.to("cpu")
            return_BA = self._on_a_scale(rollout.reward_BRA.sum(1, dtype=torch.float64))
            blocks = _blocks(plays.get(sample.worker))
            first = rollout.num_copies - sum(block.episodes for block in blocks)
            current_BA = return_BA[:first]
            for agent in self.meet if len(current_BA) else ():
                own_B = current_BA[:, self.agents.index(agent)]
                self.pool.saw(agent, [float(own_B.min()), float(own_B.max())])
            for block in blocks:
                returns = return_BA[first : first + block.episodes, self.agents.index(block.agent)].tolist()
                first += block.episodes
                met.setdefault(block.agent, {}).setdefault(block.snapshot, []).extend(returns)
        return self.pool.record_all(met)

    def _on_a_scale(self, return_BA: Tensor) -> Tensor:
        """Returns for win rates. A draw that is paid by a score (`batched_step.score`) can be paid far more, or less,
        than any verdict."""
        if self.payment.scoring == "linear" or self.payment.function is not None or any(self.payment.turns.values()):
            return return_BA
        amounts = [
            [amount for table in self.payment.tables(agent) for row in table for amount in row] for agent in self.agents
        ]
        least_A, most_A = (torch.tensor([bound(own) for own in amounts], dtype=return_BA.dtype) for bound in (min, max))
        return return_BA.clamp(least_A, most_A)

    def stored_weights(self) -> dict[str, Weights]:
        """The weights of all snapshots, for checkpoints; the rest is in `pool.state`."""
        return {str(number): own for number, own in self.weights.items()}

    def load(self, books: Mapping[str, Any], weights: Mapping[str, Weights]) -> None:
        """Continue from `pool.state()` and `stored_weights()`. Raises KeyError for missing weights."""
        self.pool.load_state(books)
        self.weights = {number: weights[str(number)] for number in self.pool.snapshots}
        self.places = {}


def _blocks(play: PastPlay | None) -> Sequence[Block]:
    return () if play is None else play.blocks
