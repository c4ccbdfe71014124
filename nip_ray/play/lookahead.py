"""Provers that search in play: each message is tried against the current networks before one is sent.

Decisions that matter here:
- the value of a message is computed, not sampled: after it all agents send their most likely messages, deciders
  postpone every decision, and their probabilities of each verdict in each round give the expected pay. Later turns of
  the same prover follow its network;
- provers that speak in one round choose together: their pay over all combinations is a matrix game, whose equilibrium
  they play;
- all legal messages are tried, or the most likely if there are more than `SearchSettings.candidates`; and silence, by
  provers that a wrong verdict pays best: an attacker may be silent, and an honest prover, whose network always speaks,
  must not rely on it;
- the result is a distribution, and the network is taught all of it, not the drawn message, weighted by the stake.

Sources: expert iteration, Anthony, Tian and Barber, "Thinking fast and slow with deep learning and tree search", 2017;
optimistic multiplicative weights, Rakhlin and Sridharan, "Optimization, learning, and games with predictable
sequences", 2013, whose average strategies converge to an equilibrium of a zero-sum game at the rate 1 / steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nip_ray.learning.policy import FORBIDDEN_BELOW, Action, Policy
from nip_ray.play.core import Asked, BatchedPlay, Edit, Player, Searched, Turn
from nip_ray.play.staged import part_of, stage
from nip_ray.seeding import generator
from nip_ray.settings.search import SearchSettings

_BATCH = 2048  # dialogues tried at once
_STEPS = 60  # of multiplicative weights
_RATE = 2.0  # of a step, of pay scaled to span 1
_TRACE = 1e-6  # minimal stake: distinguishes taught turns, which are above 0


@dataclass(frozen=True)
class Lookahead:
    """The search of one share of an iteration; called by `play_round`.

    play: for tried messages, of the same scenario. searches_B: (B,) bool, the copies in which `agents` search. noise:
    of draws from the results.
    """

    play: BatchedPlay
    agents: Sequence[str]
    searches_B: Tensor
    noise: torch.Generator
    settings: SearchSettings

    def __call__(self, play: BatchedPlay, players: Mapping[str, Player], asked: Asked) -> dict[str, Searched]:
        """The messages of those of `agents` with a turn now, in copies where they search with their current network."""
        speakers = [agent for agent in self.agents if agent in asked]
        if not speakers or play.round + 1 >= play.protocol.max_rounds:  # no agent would read it
            return {}
        at_once = int(torch.stack([play.turn_B(agent) for agent in speakers]).sum(0).max())
        each = max(2, int(self.settings.candidates ** (1 / at_once) + 1e-9)) - 1  # and silence
        options = {agent: self._options(play, agent, players[agent], *asked[agent], each) for agent in speakers}
        valid_BX = options[speakers[0]].valid_BC
        for agent in speakers[1:]:
            valid_BX = valid_BX[..., None] & options[agent].valid_BC.view(
                len(valid_BX), *[1] * (valid_BX.dim() - 1), -1
            )
        searched_B = torch.stack([options[agent].searches_B for agent in speakers]).any(0)
        if not bool(searched_B.any()):
            return {}
        copy_K, *option_AK = (valid_BX & searched_B.view(-1, *[1] * (valid_BX.dim() - 1))).nonzero(as_tuple=True)
        said_BACM = torch.full_like(play.main_BRACM[:, play.round], -1)
        for agent, (copy_N, policy) in asked.items():  # the most likely messages: others' draws are unknown
            own_NACM = said_BACM[copy_N]
            self._write(play, agent, own_NACM, policy.sample(None)["message"])
            said_BACM[copy_N] = own_NACM
        said_KACM = said_BACM[copy_K]  # `_pay` leaves out silent channels
        for agent, option_K in zip(speakers, option_AK, strict=True):
            self._write(play, agent, said_KACM, options[agent].message_BCF[copy_K, option_K])
        pay_KA = self._pay(play, players, copy_K, said_KACM)
        pays = [pay_KA[:, play.protocol.agents.index(agent)] for agent in speakers]
        chances = equilibrium(
            pays, copy_K, option_AK, [options[agent].valid_BC for agent in speakers], self.settings.temperature
        )
        found = {}
        for player, (agent, chance_BC) in enumerate(zip(speakers, chances, strict=True)):
            pay_BC = _expected(player, pays[player], copy_K, option_AK, chances)
            stake_B = stake(pay_BC[:, :-1], options[agent].valid_BC[:, :-1])
            found[agent] = self._found(play, asked[agent], options[agent], chance_BC, stake_B)
        return found

    def _options(
        self, play: BatchedPlay, agent: str, player: Player, copy_N: Tensor, policy: Policy, most: int
    ) -> "_Options":
        """The messages that an agent tries: legal ones, most likely first, and silence if a wrong verdict pays it best;
        only the most likely where it does not search."""
        message_NCF, valid_NC = likeliest(policy, most)
        message_NCF = torch.cat([message_NCF, torch.full_like(message_NCF[:, :1], -1)], 1)
        seed_N, y_N = play.state.seed_B[copy_N], play.state.y_B[copy_N]
        amount_YVA = play.protocol.amounts_on(play.device)[0]
        paid_NV = amount_YVA[play.protocol.role_B(seed_N), y_N, :-1, play.protocol.agents.index(agent)]
        valid_NC = torch.cat([valid_NC, paid_NV.gather(1, y_N[:, None]) < paid_NV.amax(1, keepdim=True)], 1)
        searches_N = self.searches_B[copy_N]
        if player.version_B is not None:
            searches_N = searches_N & (player.version_B[copy_N] < 0)
        valid_NC[~searches_N] = False
        valid_NC[~searches_N, 0] = True
        count, options = len(play.id_B), message_NCF.shape[1]
        message_BCF = message_NCF.new_zeros(count, options, message_NCF.shape[2])
        valid_BC = torch.zeros(count, options, dtype=torch.bool, device=valid_NC.device)
        valid_BC[:, 0] = True  # one without a turn has no choice
        searches_B = torch.zeros_like(valid_BC[:, 0])
        message_BCF[copy_N], valid_BC[copy_N], searches_B[copy_N] = message_NCF, valid_NC, searches_N
        return _Options(message_BCF, valid_BC, searches_B)

    def _write(self, play: BatchedPlay, agent: str, said_KACM: Tensor, message_KF: Tensor) -> None:
        writes = play.writes[agent]
        said_KACM[:, play.protocol.agents.index(agent), writes] = message_KF.view(len(message_KF), len(writes), -1)

    def _pay(self, play: BatchedPlay, players: Mapping[str, Player], copy_K: Tensor, said_KACM: Tensor) -> Tensor:
        """(K, A): the expected pay of all agents if this is sent now in the copies `copy_K`."""
        protocol, parts = play.protocol, []
        amount_YVA = protocol.amounts_on(play.device)[0]
        silent = {
            agent: replace(player, noise=None, edit=_undecided(protocol.undecided)) for agent, player in players.items()
        }
        active_BAC1 = play.active_BAC[..., None]
        for copy_L, said_LACM in zip(copy_K.split(_BATCH), said_KACM.split(_BATCH), strict=True):
            main_LRACM = play.main_BRACM[copy_L]
            main_LRACM[:, play.round] = torch.where(active_BAC1[copy_L], said_LACM, -1)
            own = {agent: part_of(player, copy_L) for agent, player in silent.items()}
            seed_L, y_L = play.state.seed_B[copy_L], play.state.y_B[copy_L]
            staged = stage(self.play, own, play.id_B[copy_L], seed_L, (main_LRACM, play.round + 1))
            paid_LVA = amount_YVA[protocol.role_B(seed_L), y_L]
            pay_LA = torch.einsum("lv,lva->la", ends(staged.chance_BRD), paid_LVA)
            if protocol.zero_knowledge is not None:  # and the pay for likeness while undecided
                pay_LA += staged.rollout.reward_BRA.sum(1) - paid_LVA[:, protocol.undecided]
            parts.append(pay_LA)
        return torch.cat(parts)

    def _found(
        self, play: BatchedPlay, asked: tuple[Tensor, Policy], options: "_Options", chance_BC: Tensor, stake_B: Tensor
    ) -> Searched:
        """Draw one of the options by these chances, and teach all of them, weighted by the stake."""
        copy_N, policy = asked
        uniform_B = torch.rand(len(play.id_B), generator=self.noise, device=self.noise.device).to(chance_BC.device)
        sum_BC = chance_BC.cumsum(1)
        reached_BC = sum_BC <= uniform_B[:, None] * sum_BC[:, -1:]
        option_N = reached_BC.sum(1).clamp_max(chance_BC.shape[1] - 1)[copy_N]
        searches_N = options.searches_B[copy_N]
        message_NCF, chance_NC = options.message_BCF[copy_N], chance_BC[copy_N]
        message_NF = message_NCF[torch.arange(len(copy_N), device=copy_N.device), option_N]
        silent_N = searches_N & options.valid_BC[copy_N, -1] & (option_N == message_NCF.shape[1] - 1)
        spoken_NCF, valid_NC = message_NCF[:, :-1], options.valid_BC[copy_N, :-1]
        spoken_NC = torch.where(valid_NC, chance_NC[:, :-1].clamp_min(_TRACE**2), 0.0)
        spoken_NC = spoken_NC / spoken_NC.sum(1, keepdim=True)
        taught_NFS = torch.zeros_like(policy.message)
        taught_NFS.scatter_add_(
            2, spoken_NCF.transpose(1, 2), spoken_NC[:, None].expand(-1, spoken_NCF.shape[2], -1).contiguous()
        )
        taught_NFS *= (policy.speaks & searches_N[:, None])[..., None] * stake_B[copy_N, None, None]
        return Searched(torch.where(searches_N[:, None], message_NF, -1), silent_N, taught_NFS)


@dataclass(frozen=True)
class _Options:
    """message_BCF: up to C messages in each copy, the last of them silence, of which those in `valid_BC` are legal.
    searches_B: where the agent chooses among them."""

    message_BCF: Tensor
    valid_BC: Tensor
    searches_B: Tensor


def lookahead(
    play: BatchedPlay,
    settings: SearchSettings,
    agents: Sequence[str],
    share: float,
    copies: int,
    seed: int,
    iteration: int,
    worker: int,
) -> Lookahead:
    """The search of one worker's share of an iteration; its draws depend on `seed`, iteration and worker."""
    uniform_B = torch.rand(copies, generator=generator(seed, "who searches", iteration, worker))
    noise = generator(seed, "search", iteration, worker, device=play.device)
    return Lookahead(
        BatchedPlay(play.scenario, str(play.device)), agents, (uniform_B < share).to(play.device), noise, settings
    )


def _undecided(code: int) -> Edit:
    """Postpone every decision. code: of the decision to continue."""

    def edit(turn: Turn) -> Action:
        return {name: torch.full_like(part, code) if name == "decision" else part for name, part in turn.action.items()}

    return edit


def likeliest(policy: Policy, most: int) -> tuple[Tensor, Tensor]:
    """((N, C, F) the `most` most likely messages of each of N turns, or all, most likely first; (N, C) whether legal).

    A factor that is not in play has one symbol, 0. Exact: a message is no more likely than any prefix of it.
    """
    count, factors, symbols = policy.message.shape
    score_NC = policy.message.new_zeros(count, 1)
    message_NCF = torch.zeros(count, 1, 0, dtype=torch.int64, device=policy.message.device)
    only_first_S = torch.full_like(policy.message[0, 0], -torch.inf)
    only_first_S[0] = 0.0
    for factor in range(factors):
        legal_NS = policy.message[:, factor] > FORBIDDEN_BELOW
        log_prob_NS = torch.log_softmax(policy.message[:, factor], -1).masked_fill(~legal_NS, -torch.inf)
        log_prob_NS = torch.where(policy.speaks[:, factor, None], log_prob_NS, only_first_S)
        total_NX = (score_NC[:, :, None] + log_prob_NS[:, None]).flatten(1)
        score_NC, place_NC = total_NX.topk(min(most, total_NX.shape[1]), dim=1)
        before_NCF = message_NCF.gather(1, (place_NC // symbols)[..., None].expand(-1, -1, factor))
        message_NCF = torch.cat([before_NCF, (place_NC % symbols)[..., None]], 2)
    return message_NCF, score_NC > -torch.inf


def ends(chance_BRD: Tensor) -> Tensor:
    """(B, D) the chances of each verdict and, last, of none over all rounds. chance_BRD: those of each round given no
    earlier decision, 0 where no decision could count."""
    on_BR = torch.where(chance_BRD.sum(-1) > 0, chance_BRD[..., -1], 1.0).cumprod(1)
    before_BR = torch.cat([torch.ones_like(on_BR[:, :1]), on_BR[:, :-1]], 1)
    return torch.cat([(before_BR[..., None] * chance_BRD[..., :-1]).sum(1), on_BR[:, -1:]], 1)


def equilibrium(
    pays: Sequence[Tensor], copy_K: Tensor, options: Sequence[Tensor], valids: Sequence[Tensor], temperature: float
) -> list[Tensor]:
    """The chances (B, C) with which each player chooses among its options in B games.

    pays: player -> (K,) its pay at each combination; copy_K: the game of each; options: player -> (K,) its option
    there; valids: player -> (B, C) bool, its legal options. If only one player has a choice: the softmax of pay /
    temperature. If several have: the average of optimistic multiplicative weights after the first third of the steps,
    where each step also draws strategies towards the uniform one, near what that temperature does.
    """
    choices_PB = torch.stack([valid.sum(1) for valid in valids])
    alone_B = (choices_PB > 1).sum(0) <= 1
    if bool(alone_B.all()):
        return [_softmax(*own, copy_K, temperature) for own in zip(pays, options, valids, strict=True)]
    steps = [_RATE / _span(pay_K, copy_K, len(valids[0])) for pay_K in pays]
    log_BC = [torch.where(valid, 0.0, -torch.inf) for valid in valids]
    before = [torch.zeros_like(valid, dtype=torch.float32) for valid in valids]
    total = [torch.zeros_like(gain) for gain in before]
    for step in range(_STEPS):
        chances = [torch.softmax(own, 1) for own in log_BC]
        for player, (pay_K, step_B1) in enumerate(zip(pays, steps, strict=True)):
            gain_BC = _expected(player, pay_K, copy_K, options, chances)
            log_BC[player] = (log_BC[player] + step_B1 * (2 * gain_BC - before[player])) / (1 + step_B1 * temperature)
            before[player] = gain_BC
            total[player] = total[player] + chances[player] * (step >= _STEPS // 3)
    averages = [own / own.sum(1, keepdim=True) for own in total]
    softmaxes = [_softmax(*own, copy_K, temperature) for own in zip(pays, options, valids, strict=True)]
    return [torch.where(alone_B[:, None], lone, own) for lone, own in zip(softmaxes, averages, strict=True)]


def _expected(
    player: int, pay_K: Tensor, copy_K: Tensor, options: Sequence[Tensor], chances: Sequence[Tensor]
) -> Tensor:
    """(B, C) the expected pay of `player` for each of its options if the others choose by `chances`."""
    weight_K = torch.ones_like(pay_K)
    for other, option_K in enumerate(options):
        if other != player:
            weight_K = weight_K * chances[other][copy_K, option_K]
    return torch.zeros_like(chances[player]).index_put_((copy_K, options[player]), weight_K * pay_K, accumulate=True)


def stake(pay_BC: Tensor, valid_BC: Tensor) -> Tensor:
    """(B,) the pay of the best option less the mean, at least a trace."""
    best_B = pay_BC.masked_fill(~valid_BC, -torch.inf).amax(1)
    return (best_B - (pay_BC * valid_BC).sum(1) / valid_BC.sum(1)).clamp_min(_TRACE)


def _softmax(pay_K: Tensor, option_K: Tensor, valid_BC: Tensor, copy_K: Tensor, temperature: float) -> Tensor:
    """(B, C) of the pay of each option over the temperature, in games with one player's choice."""
    logit_BC = torch.where(valid_BC, 0.0, -torch.inf)
    logit_BC[copy_K, option_K] = pay_K / temperature
    return torch.softmax(logit_BC, 1)


def _span(pay_K: Tensor, copy_K: Tensor, count: int) -> Tensor:
    """(B, 1): the range of a player's pay over the combinations of each game."""
    most_and_least = [
        torch.zeros(count, device=pay_K.device).scatter_reduce(0, copy_K, pay_K, how, include_self=False)
        for how in ("amax", "amin")
    ]
    return (most_and_least[0] - most_and_least[1]).clamp_min(1e-9)[:, None]
