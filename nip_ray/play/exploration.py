"""Roll-outs for learning from values: all agents play the best move, and one role of each copy explores; its turns
become transitions.

Decisions that matter here:
- roll-outs of several roles at the same time are one batch, in which each copy has its explorer: half the passes
  through two networks;
- an explorer's observations are stored while it plays, so positions need not be replayed;
- a roll-out is a function of (seed, step, attempt, weights): starts, luck and exploration are drawn for all its copies
  before a share of them is played, so that any number of players, each with its share, play the same copies;
- an agent without trainable parameters is a policy, not values: its moves are sampled. All other agents play the most
  likely ones;
- an agent's last turn before a cut whose turn would not be next is left out: its next observation is unknown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import explored, legal_moves, only
from nip_ray.learning.policy import Policy, gumbel_noise
from nip_ray.learning.transitions import n_step_rows, own_transitions
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import Rollout, Rows
from nip_ray.protocols import NUM_SEEDS
from nip_ray.seeding import generator


@dataclass(frozen=True)
class Explorer:
    """A role of a roll-out. copies: the number in which it explores. epsilon: its share of random moves. gamma: its
    discount per round."""

    copies: int
    epsilon: float
    gamma: float


@dataclass(frozen=True)
class Exploration:
    """A roll-out. step: the gradient step it precedes. attempt: number of the roll-out among those of this step.
    explorers: by role.

    n_step: number of combined transitions. bootstrap_cutoffs: see `DQNSettings`.
    """

    step: int
    attempt: int
    explorers: Mapping[str, Explorer]
    n_step: int = 1
    bootstrap_cutoffs: bool = True

    @property
    def copies(self) -> int:
        """The copies of all explorers together."""
        return sum(explorer.copies for explorer in self.explorers.values())


class _Seat:
    """An agent's place in a roll-out: turns its network's output into moves, and stores an explorer's observations."""

    def __init__(
        self,
        agent: str,
        network: nn.Module,
        play: BatchedPlay,
        epsilon_B: Tensor | None,
        uniform_B2: Callable[[int], Tensor],
        gumbel_BW: Callable[[str, int, int], Tensor],
    ) -> None:
        """epsilon_B: its share of random moves in the copies in which it explores, -1 elsewhere; None if it never does.

        uniform_B2: round -> random numbers of exploration. gumbel_BW: agent, round, width -> noise for sampled moves.
        """
        self.agent, self.network, self.play = agent, network, play
        self.epsilon_B, self.uniform_B2, self.gumbel_BW = epsilon_B, uniform_B2, gumbel_BW
        self.draws = not network.groups()  # type: ignore[operator]
        self.kept: list[tuple[Tensor, Tensor, dict[str, Tensor], Tensor]] = []  # (copies, round, observations, moves)

    def __call__(self, obs: dict[str, Tensor], want_policy: bool, want_value: bool) -> tuple[Policy, None]:
        policy: Policy = self.network(obs, True, False)[0]
        if self.epsilon_B is not None:
            return self._explore(obs, policy), None
        if self.draws:
            policy = policy.perturbed(self.gumbel_BW(self.agent, self.play.round, policy.noise_width)[self._copies()])
        return policy, None

    def _explore(self, obs: dict[str, Tensor], policy: Policy) -> Policy:
        assert self.epsilon_B is not None
        copy_N = self._copies()
        q_NK = policy.message[:, 0]
        epsilon_N = self.epsilon_B[copy_N]
        action_N = explored(q_NK, legal_moves(obs, q_NK), epsilon_N, self.uniform_B2(self.play.round)[copy_N])
        own_K = (epsilon_N >= 0).nonzero().flatten()
        if len(own_K):
            seen = {name: part[own_K] for name, part in obs.items()}
            copy_K = copy_N[own_K]
            self.kept.append((copy_K, torch.full_like(copy_K, self.play.round), seen, action_N[own_K]))
        return replace(policy, message=only(action_N, q_NK)[:, None])

    def _copies(self) -> Tensor:
        """The copies whose turns `play_rollout` requests now."""
        return self.play.turn_B(self.agent).nonzero().flatten()


@torch.no_grad()
def explore(
    play: BatchedPlay, networks: Mapping[str, nn.Module], plan: Exploration, seed: int, share: int = 0, shares: int = 1
) -> tuple[Rollout, dict[str, Rows]]:
    """Play share number `share` of `shares` of a roll-out; returns it, and the transitions of each exploring role.

    networks: agent -> network, in its mode of play. Rows are in the order of copies and rounds: those of all shares
    concatenated are those of the whole. A role without a turn has none.
    """
    total, device = plan.copies, play.device
    first, last = total * share // shares, total * (share + 1) // shares
    ids = play.scenario.ids("train").cpu()
    draw = generator(seed, "roll-out", plan.step, plan.attempt)
    id_B = ids[torch.randint(len(ids), (total,), generator=draw)][first:last]
    seed_B = torch.randint(NUM_SEEDS, (total,), generator=draw)[first:last]
    uniform: list[Tensor] = []

    def uniform_B2(round: int) -> Tensor:
        while len(uniform) <= round:
            uniform.append(torch.rand(total, 2, generator=draw)[first:last].to(device))
        return uniform[round]

    def gumbel_BW(agent: str, round: int, width: int) -> Tensor:
        source = generator(seed, "drawn moves", agent, plan.step, plan.attempt, round)
        return gumbel_noise((total, width), source)[first:last].to(device)

    seats = {
        agent: _Seat(agent, networks[agent], play, _epsilons(plan, agent, first, last, device), uniform_B2, gumbel_BW)
        for agent in play.protocol.agents
    }
    rollout = play_rollout(play, seats, id_B, seed_B, None)  # type: ignore[arg-type]
    found = {role: _transitions(play, rollout, seats[role], plan) for role in plan.explorers}
    return rollout, {role: rows for role, rows in found.items() if rows is not None}


def _epsilons(plan: Exploration, agent: str, first: int, last: int, device: torch.device) -> Tensor | None:
    """(B,): the share of random moves of `agent` in the copies of a share, -1 where another role explores."""
    if agent not in plan.explorers:
        return None
    parts = [torch.full((own.copies,), own.epsilon if role == agent else -1.0) for role, own in plan.explorers.items()]
    return torch.cat(parts)[first:last].to(device)


def _transitions(play: BatchedPlay, rollout: Rollout, seat: _Seat, plan: Exploration) -> Rows | None:
    """The transitions of the role of `seat`: its turns in the copies in which it explored. None if it had none."""
    if not seat.kept or seat.epsilon_B is None:
        return None
    agent, gamma = seat.agent, plan.explorers[seat.agent].gamma
    index = play.protocol.agents.index(agent)
    turn_BR = rollout.turn_BRA[:, :, index] & (seat.epsilon_B >= 0)[:, None]
    cut_B = (
        rollout.cut_B
        if rollout.cut_B is not None and plan.bootstrap_cutoffs
        else torch.zeros_like(seat.epsilon_B, dtype=torch.bool)
    )
    own = own_transitions(rollout.reward_BRA[:, :, index], turn_BR, rollout.length_B, ~cut_B, gamma)
    # stored by rounds, needed in the order of copies, then rounds
    copies, when, seen, moves = zip(*seat.kept, strict=True)
    order_N = (torch.cat(copies) * rollout.num_rounds + torch.cat(when)).argsort()
    obs = {name: torch.cat([part[name] for part in seen])[order_N] for name in seen[0]}
    action_N = torch.cat(moves)[order_N]
    open_N = cut_B[own.copy_N] & (own.next_N < 0)  # last turns before a cut
    sees_N = open_N & play.protocol.would_act(agent, rollout.length_B, rollout.seed_B)[own.copy_N]
    after_obs, place_N = _after(play, agent, obs, own.next_N, own.copy_N, sees_N)
    rows: dict[str, Any] = {f"obs_{name}": part for name, part in obs.items()}
    rows |= {"action": action_N, "reward": own.reward_N, "discount": own.discount_N}
    rows |= {f"next_obs_{name}": part[place_N] for name, part in after_obs.items()}
    kept_N = ~open_N | sees_N
    number_N = torch.where(kept_N, kept_N.cumsum(0) - 1, -1)
    next_N = torch.where(own.next_N < 0, -1, number_N[own.next_N.clamp_min(0)])[kept_N]
    return n_step_rows({name: part[kept_N] for name, part in rows.items()}, next_N, plan.n_step)


def _after(
    play: BatchedPlay, agent: str, obs: Mapping[str, Tensor], next_N: Tensor, copy_N: Tensor, sees_N: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Next observations: those of own turns, those after a cut where `sees_N`, zeros for the rest; and each row's."""
    cut_K = copy_N[sees_N]
    last = play.observe(agent, cut_K) if len(cut_K) else {}
    parts = {name: [part, *([last[name]] if last else []), torch.zeros_like(part[:1])] for name, part in obs.items()}
    place_N = torch.where(next_N >= 0, next_N, len(next_N) + len(cut_K))
    place_N[sees_N] = len(next_N) + torch.arange(len(cut_K), device=next_N.device)
    return {name: torch.cat(part) for name, part in parts.items()}, place_N
