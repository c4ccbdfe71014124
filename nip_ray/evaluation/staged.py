"""Play that is staged for an examination: agents that are greedy beside agents that are not, and messages that are meddled with.

`nip_ray.play.core.play_rollout` plays what an experiment plays. Here each agent has its own noise, may be shown another instance than the
one that is judged, and what it says may be replaced before anybody hears it. Who decided how surely is kept as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Action, Policy, gumbel_noise
from nip_ray.play.core import BatchedPlay, noise_width
from nip_ray.play.rollout import Rollout, concatenate
from nip_ray.play.scenario import Dialogue, Scenario
from nip_ray.protocols import NUM_DECISIONS

BATCH = 512
"""Copies at once: keeps memory flat on large splits."""


@dataclass(frozen=True)
class Turn:
    """What an agent is about to say in N copies. copy_N: which. id_N: on which instances. action: what. policy: out of what."""

    agent: str
    round: int
    copy_N: Tensor
    id_N: Tensor
    action: Action
    policy: Policy


Meddle = Callable[[Turn], Action]
"""What is said instead: an action like the turn's, -1 for a symbol that nobody is to hear."""


@dataclass(frozen=True)
class Player:
    """One agent's part.

    network: who plays. noise: of sampled actions, None for the most likely ones. shown_B: the instances that it is shown (None: those that
    are judged). meddle: what becomes of its turns. scenario: through whose eyes it sees (None: the play's own).
    """

    network: nn.Module
    noise: torch.Generator | None = None
    shown_B: Tensor | None = None
    meddle: Meddle | None = None
    scenario: Scenario | None = None


@dataclass(frozen=True)
class Staged:
    """rollout: what was played. chance_BR3: (B, R, 3) the verifier's probabilities of reject, accept and going on, 0 where no decision of
    it could count.
    """

    rollout: Rollout
    chance_BR3: Tensor


@dataclass
class _Kept:
    """What is filled in round by round."""

    turn_BRA: Tensor
    reward_BRA: Tensor
    log_prob_BRA: Tensor
    chance_BR3: Tensor
    actions: dict[str, tuple[Tensor, Action]] = field(default_factory=dict)


@torch.no_grad()
def stage(play: BatchedPlay, players: Mapping[str, Player], id_B: Tensor, seed_B: Tensor) -> Staged:
    """Play one episode on each of the instances `id_B` (all at once), under the episode seeds `seed_B`, both (B,) int64.

    Rewards are the protocol's, but for what zero knowledge pays: nothing here asks for it. Networks stay in the mode they are in.
    """
    protocol = play.protocol
    play.reset(id_B, seed_B)
    shape = (len(id_B), protocol.max_rounds, len(protocol.agents))
    zeros = torch.zeros(shape, device=play.device)
    chance_BR3 = torch.zeros(*shape[:2], NUM_DECISIONS, device=play.device)
    kept = _Kept(zeros.bool(), zeros.clone(), zeros.clone(), chance_BR3)
    no_similarity_B = None if protocol.zero_knowledge is None else torch.zeros(len(id_B), device=play.device)
    while not play.finished:
        r, kept.actions = play.round, {}
        for agent in protocol.agents:
            _take_turn(play, agent, players[agent], kept)
        kept.reward_BRA[:, r] = play.step(kept.actions, no_similarity_B).reward_BA
    rollout = play.rollout(kept.turn_BRA, kept.reward_BRA, kept.log_prob_BRA)
    return Staged(rollout, chance_BR3)


def stage_all(play: BatchedPlay, players: Mapping[str, Player], id_B: Tensor, seed_B: Tensor, batch: int = BATCH) -> Staged:
    """`stage`, in batches and with all networks in evaluation mode, which is put back. Copies of different batches cannot meddle."""
    mode = {agent: player.network.training for agent, player in players.items()}
    for player in players.values():
        player.network.eval()
    parts = []
    for first in range(0, len(id_B), batch):
        here = slice(first, first + batch)
        parts.append(stage(play, {agent: _part(player, here) for agent, player in players.items()}, id_B[here], seed_B[here]))
    for agent, player in players.items():
        player.network.train(mode[agent])
    return Staged(concatenate([part.rollout for part in parts]), torch.cat([part.chance_BR3 for part in parts]))


def _part(player: Player, here: slice) -> Player:
    if player.shown_B is None:
        return player
    return Player(player.network, player.noise, player.shown_B[here], player.meddle, player.scenario)


def _take_turn(play: BatchedPlay, agent: str, player: Player, kept: _Kept) -> None:
    protocol, r = play.protocol, play.round
    index, turn_B = protocol.agents.index(agent), play.turn_B(agent)
    copy_N = turn_B.nonzero().flatten()
    if len(copy_N) == 0:
        return
    policy, _ = player.network(_seen(play, agent, player, copy_N), True, False)
    width = noise_width(policy)
    draw = None if player.noise is None else gumbel_noise((len(turn_B), width), player.noise)[copy_N]
    action: Action = policy.sample(draw)
    kept.turn_BRA[:, r, index] = turn_B
    kept.log_prob_BRA[copy_N, r, index] = policy.log_prob(action)
    if agent == protocol.verifier and policy.decision is not None and policy.may_decide is not None:
        kept.chance_BR3[copy_N, r] = torch.softmax(policy.decision, -1) * policy.may_decide[:, None]
    if player.meddle is not None:
        action = player.meddle(Turn(agent, r, copy_N, play.id_B[copy_N], action, policy))
    kept.actions[agent] = (copy_N, action)


def _seen(play: BatchedPlay, agent: str, player: Player, copy_N: Tensor) -> dict[str, Tensor]:
    """What the player sees before its turn."""
    if player.shown_B is None and player.scenario is None:
        return play.observe(agent, copy_N)
    scenario = player.scenario or play.scenario
    id_B = play.id_B if player.shown_B is None else player.shown_B.to(play.device)
    said = Dialogue(play.main_BRACM, play.linear_BRACM).rows(copy_N)
    return scenario.observe(agent, id_B[copy_N], said, play.state.round_B[copy_N], play.state.seed_B[copy_N])
