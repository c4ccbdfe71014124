"""Play for an examination: agents that are greedy beside agents that are not, messages that are replaced, and how sure
the verifier was.

`nip_ray.play.core` plays; a `Player` there has its own noise, may be shown another instance than the one that is
judged, and what it says may be replaced before anybody hears it. Here the probabilities of the verifier's decisions are
kept as well.
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
    """rollout: what was played. chance_BRD: (B, R, D) the verifier's probabilities of each verdict and of continuing, 0
    where no decision of it could count; where a panel decides, its verdict's. members: the same of each member of a
    panel by its own vote. stated_B: under a panel's mean, the mean of what the members stated, NaN where none did; else
    None."""

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
        """(B, R) the probabilities of a verdict in each round. Under a panel's mean, half of them, and half of the mean
        for that side in the last round: the verdict goes over at one half, and its probability alone would not tell who
        comes nearer to it."""
        chance_BR = self.chance_BRD[:, :, verdict]
        if self.stated_B is None:
            return chance_BR
        share_B1 = (self.stated_B if verdict == ACCEPT else 1 - self.stated_B).nan_to_num(0.0)[:, None]
        return (chance_BR + torch.zeros_like(chance_BR).scatter(1, self.rollout.length_B[:, None] - 1, share_B1)) / 2

    def by(self, protocol: Protocol) -> dict[str, "Staged"]:
        """Who judges -> the same as judged by it; see `judged`."""
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
    """Play one episode on each of the instances `id_B` (all at once), under the episode seeds `seed_B`, both (B,)
    int64.

    Networks stay in the mode they are in. begin: see `play_episodes`.
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
    """`stage`, in batches and with all networks in evaluation mode, which is put back. Copies of different batches are
    edited apart."""
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
