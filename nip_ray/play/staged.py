"""Play for evaluation: greedy and sampled agents together, replaced messages, and the verifier's confidence.

`nip_ray.play.core` plays; a `Player` there has its own noise, may observe another instance than the judged one, and its
message may be replaced before it is sent. Here the probabilities of the verifier's decisions are kept too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nip_ray.play.core import BatchedPlay, Player, Turn, play_episodes
from nip_ray.play.panels import chances_of_panel, judged
from nip_ray.play.rollout import Rollout, concatenate
from nip_ray.protocols import ACCEPT, Protocol

BATCH = 512
"""Copies at once: keeps memory flat on large splits."""


@dataclass(frozen=True)
class Staged:
    """rollout: the rollout. chance_BRD: (B, R, D) the verifier's probabilities of each verdict and of continuing, 0
    where no decision could count; for a panel, its verdict's. members: the same of each member of a panel by its own
    vote. stated_B: under a panel's mean, the mean of the members' probabilities, NaN without any; else None."""

    rollout: Rollout
    chance_BRD: Tensor
    members: Mapping[str, Tensor] = field(default_factory=dict)
    stated_B: Tensor | None = None

    def copies(self, index: slice | Tensor) -> "Staged":
        """Some copies."""
        members = {name: part[index] for name, part in self.members.items()}
        stated_B = None if self.stated_B is None else self.stated_B[index]
        return Staged(self.rollout.copies(index), self.chance_BRD[index], members, stated_B)

    def towards_BR(self, verdict: int) -> Tensor:
        """(B, R) the probabilities of a verdict in each round. Under a panel's mean, half of them plus half of the mean
        for that side in the last round: the verdict flips at one half, and its probability alone would not show
        progress towards it."""
        chance_BR = self.chance_BRD[:, :, verdict]
        if self.stated_B is None:
            return chance_BR
        share_B1 = (self.stated_B if verdict == ACCEPT else 1 - self.stated_B).nan_to_num(0.0)[:, None]
        return (chance_BR + torch.zeros_like(chance_BR).scatter(1, self.rollout.length_B[:, None] - 1, share_B1)) / 2

    def by(self, protocol: Protocol) -> dict[str, "Staged"]:
        """Judge -> the same by its judgement; see `judged`."""
        seen = judged(protocol, self.rollout)
        whole, own = replace(self, members={}), self.members
        return {who: Staged(rollout, own[who]) if who in own else whole for who, rollout in seen.items()}


def stage(
    play: BatchedPlay,
    players: Mapping[str, Player],
    id_B: Tensor,
    seed_B: Tensor,
    begin: tuple[Tensor, int] | None = None,
) -> Staged:
    """Play one episode on each of the instances `id_B` (all at once), under episode seeds `seed_B`, both (B,) int64.

    Networks keep their mode. begin: see `play_episodes`.
    """
    protocol, shape = play.protocol, (len(id_B), play.protocol.max_rounds, play.protocol.undecided + 1)
    chances = {agent: torch.zeros(shape, device=play.device) for agent in protocol.verifiers}

    def record(turn: Turn) -> None:
        policy = turn.policy
        if turn.agent in chances and policy.decision is not None and policy.may_decide is not None:
            chances[turn.agent][turn.copy_N, turn.round] = (
                torch.softmax(policy.decision, -1) * policy.may_decide[:, None]
            )

    rollout = play_episodes(play, players, id_B, seed_B, record=record, begin=begin)
    if protocol.panel is not None:
        chance_BR3, stated_B = chances_of_panel(protocol, rollout, chances)
        return Staged(rollout, chance_BR3, chances, stated_B)
    return Staged(rollout, next(iter(chances.values()), torch.zeros(shape, device=play.device)))


def stage_all(
    play: BatchedPlay, players: Mapping[str, Player], id_B: Tensor, seed_B: Tensor, batch: int = BATCH
) -> Staged:
    """`stage`, in batches and with all networks in evaluation mode meanwhile. Edits see one batch at a time."""
    mode = {agent: player.network.training for agent, player in players.items()}
    for player in players.values():
        player.network.eval()
    parts = []
    for first in range(0, len(id_B), batch):
        here = slice(first, first + batch)
        parts.append(
            stage(play, {agent: part_of(player, here) for agent, player in players.items()}, id_B[here], seed_B[here])
        )
    for agent, player in players.items():
        player.network.train(mode[agent])
    return joined(parts)


def joined(parts: Sequence[Staged]) -> Staged:
    """All copies of several, in order."""
    members = {name: torch.cat([part.members[name] for part in parts]) for name in parts[0].members}
    stated = [part.stated_B for part in parts if part.stated_B is not None]
    whole = concatenate([part.rollout for part in parts]), torch.cat([part.chance_BRD for part in parts])
    return Staged(*whole, members, torch.cat(stated) if stated else None)


def part_of(player: Player, here: slice | Tensor) -> Player:
    """The player in some copies."""
    parts = {name: getattr(player, name) for name in ("shown_B", "version_B")}
    return replace(player, **{name: None if part is None else part[here] for name, part in parts.items()})
