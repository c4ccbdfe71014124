"""Attack by search: a prover tries its messages against the frozen verifier on the instance before it sends one.

Decisions that matter here:
- a plan is the attackers' symbols, place by place (agent, round, symbol). For one place after the other all legal
  symbols are tried, and the plans that bring the verifier nearest to the wanted verdict are kept, as many as the
  remaining tries allow (a beam search); then all places again, while it helps. So with enough tries the search is
  exhaustive;
- a try is a dialogue with the frozen verifier; tries are counted for each instance. The first that fools it ends the
  search there;
- unplanned places follow the attackers' most likely messages. So the search starts from a trained attacker, and tries
  its likely messages first;
- an attacker that chooses its side (`Protocol.chooser`) tries both, as one more place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nip_ray.learning.policy import FORBIDDEN_BELOW, Action
from nip_ray.play.core import BatchedPlay, Edit, Player, Turn
from nip_ray.play.staged import BATCH, Staged, joined, stage_all
from nip_ray.protocols import Protocol

_FREE, _SILENT = -2, -1  # in a plan: the network's choice, silence


@dataclass(frozen=True)
class Place:
    """A place of a symbol: agent, round, and factor of the message (None: the side that it chooses)."""

    agent: str
    round: int
    factor: int | None


@dataclass(frozen=True)
class Found:
    """plan_BP: the best plans. wrong_B, fooled_B: (B,) int64, the number of tries until the verdict was not the right
    one, and was the wanted one; 0 if never."""

    plan_BP: Tensor
    wrong_B: Tensor
    fooled_B: Tensor


def _places(protocol: Protocol, attackers: Sequence[str], message_size: int) -> Iterator[Place]:
    """All choices of attackers, from the first round to the last, without messages that no agent would read."""
    for round_ in range(protocol.max_rounds):
        for agent in attackers:
            turn_C = protocol.turn_table_SKAC[:, round_, protocol.agents.index(agent)].any(0)
            if agent == protocol.chooser and round_ == protocol.choice_round:
                yield Place(agent, round_, None)
            if round_ == protocol.max_rounds - 1:
                continue
            for number, channel in enumerate(protocol.writes[agent]):
                if turn_C[channel]:
                    yield from (Place(agent, round_, number * message_size + part) for part in range(message_size))


@dataclass
class _Progress:
    """The state of the search. used_B: tries so far. wrong_B, fooled_B: see `Found`. K plans are kept, those of an
    instance next to each other, best first: copy_K: the instance. plan_KP: the symbol at each place. score_K: the
    score."""

    id_B: Tensor
    seed_B: Tensor
    used_B: Tensor
    wrong_B: Tensor
    fooled_B: Tensor
    copy_K: Tensor
    plan_KP: Tensor
    score_K: Tensor


@dataclass
class MessageSearch:
    """Attackers that search. attackers: agent -> network. defenders: makes the other players again for each play.

    wanted: verdict. tries: maximum per instance. sampled: verdicts are drawn, so only their chances count.
    """

    play: BatchedPlay
    attackers: Mapping[str, nn.Module]
    defenders: Callable[[], Mapping[str, Player]]
    wanted: int
    tries: int
    sampled: bool = False

    def __post_init__(self) -> None:
        self.places = tuple(_places(self.play.protocol, tuple(self.attackers), self.play.scenario.message_size))

    def search(self, id_B: Tensor, seed_B: Tensor) -> Found:
        """The best plans about the instances `id_B` under the episode seeds `seed_B`, both (B,) int64."""
        id_B, seed_B = id_B.to(self.play.device), seed_B.to(self.play.device)
        plan_BP = torch.full((len(id_B), len(self.places)), _FREE, device=id_B.device)
        staged, _ = self._played(plan_BP, id_B, seed_B)
        wrong_B, fooled_B = (reached_B.long() for reached_B in self._reached(staged))
        copy_B = torch.arange(len(id_B), device=id_B.device)
        now = _Progress(id_B, seed_B, torch.ones_like(id_B), wrong_B, fooled_B, copy_B, plan_BP, self._score(staged))
        while True:
            before_B = now.score_K[_firsts(now.copy_K)]
            for number in range(len(self.places)):
                self._try(now, number)
            first_B = _firsts(now.copy_K)
            if len(self.places) == 1 or not bool((now.score_K[first_B] > before_B).any()):
                return Found(now.plan_KP[first_B], now.wrong_B, now.fooled_B)

    def _try(self, now: _Progress, number: int) -> None:
        """Try all symbols at one place of the kept plans, where the verifier is not fooled yet and tries are left, and
        keep the best."""
        open_N = ((now.fooled_B == 0) & (now.used_B < self.tries))[now.copy_K].nonzero().flatten()
        if not len(open_N):
            return
        copy_N, plan_NP = now.copy_K[open_N], now.plan_KP[open_N]
        _, option_NO = self._played(plan_NP, now.id_B[copy_N], now.seed_B[copy_N], self.places[number])
        # the network's own choice comes first
        said_N = torch.where(plan_NP[:, number] == _FREE, option_NO[:, 0], plan_NP[:, number])
        new_NO = (option_NO != _FREE) & (option_NO != said_N[:, None])
        row_L, column_L = new_NO.nonzero(as_tuple=True)
        after_L = now.used_B[copy_N[row_L]] + 1 + _ranks(copy_N[row_L])
        left_L = after_L <= self.tries
        row_L, column_L, after_L = row_L[left_L], column_L[left_L], after_L[left_L]
        if not len(row_L):
            return
        copy_L, plan_LP = copy_N[row_L], plan_NP[row_L]
        plan_LP[:, number] = option_NO[row_L, column_L]
        staged, _ = self._played(plan_LP, now.id_B[copy_L], now.seed_B[copy_L])
        for first_B, reached_L in zip((now.wrong_B, now.fooled_B), self._reached(staged), strict=True):
            never = self.tries + 1
            found_B = torch.full_like(first_B, never).scatter_reduce(0, copy_L[reached_L], after_L[reached_L], "amin")
            first_B[:] = torch.where((first_B == 0) & (found_B < never), found_B, first_B)
        now.used_B.index_add_(0, copy_L, torch.ones_like(copy_L))
        self._keep(now, number, copy_L, plan_LP, self._score(staged))

    def _keep(self, now: _Progress, number: int, copy_L: Tensor, plan_LP: Tensor, score_L: Tensor) -> None:
        """Keep the best of the old and new plans of each instance: as many as the next places have tries."""
        copy_K, score_K = torch.cat([now.copy_K, copy_L]), torch.cat([now.score_K, score_L])
        order_K = score_K.argsort(dim=0, descending=True, stable=True)
        order_K = order_K[copy_K[order_K].argsort(dim=0, stable=True)]
        ahead = len(self.places) - 1 - number
        width_B = (
            (self.tries - now.used_B) // max(1, ahead * self.play.scenario.num_symbols)
            if ahead
            else torch.ones_like(now.used_B)
        )
        order_K = order_K[_ranks(copy_K[order_K]) < width_B.clamp_min(1)[copy_K[order_K]]]
        now.copy_K, now.score_K = copy_K[order_K], score_K[order_K]
        now.plan_KP = torch.cat([now.plan_KP, plan_LP])[order_K]

    def said(self, plan_BP: Tensor, id_B: Tensor, seed_B: Tensor) -> Staged:
        """The dialogues in which attackers follow these plans."""
        return self._played(plan_BP, id_B.to(self.play.device), seed_B.to(self.play.device))[0]

    def _played(
        self, plan_NP: Tensor, id_N: Tensor, seed_N: Tensor, asked: Place | None = None
    ) -> tuple[Staged, Tensor]:
        """(dialogues by these plans, (N, O) legal symbols at `asked`: most likely first, silence last, padded with
        `_FREE`)."""
        parts, options, defenders = [], [], self.defenders()
        for first in range(0, len(id_N), BATCH):
            here = slice(first, first + BATCH)
            edit, option_NO = self._edit(plan_NP[here], asked)
            players = {agent: Player(network, edit=edit) for agent, network in self.attackers.items()}
            parts.append(stage_all(self.play, {**defenders, **players}, id_N[here], seed_N[here]))
            options.append(option_NO)
        return joined(parts), torch.cat(options)

    def _edit(self, plan_NP: Tensor, asked: Place | None) -> tuple[Edit, Tensor]:
        """Makes attackers follow their plans, and records the legal symbols at `asked`."""
        width = (
            self.play.protocol.undecided + 1
            if asked is None or asked.factor is None
            else self.play.scenario.num_symbols + 1
        )
        option_NO = torch.full((len(plan_NP), width), _FREE, device=plan_NP.device)

        def edit(turn: Turn) -> Action:
            action = {name: part.clone() for name, part in turn.action.items()}
            for number, place in enumerate(self.places):
                if (place.agent, place.round) != (turn.agent, turn.round):
                    continue
                planned_K = plan_NP[turn.copy_N, number]
                free_K = planned_K == _FREE
                if place.factor is None:
                    likely_K = turn.action["decision"]
                    if place == asked:
                        others = [
                            torch.where(likely_K == side, _FREE, side) for side in range(self.play.protocol.undecided)
                        ]
                        option_NO[turn.copy_N] = torch.stack([likely_K, *others], 1)
                    action["decision"] = torch.where(free_K, likely_K, planned_K)
                    continue
                logit_KS = turn.policy.message[:, place.factor]
                if place == asked:
                    option_NO[turn.copy_N] = _options(logit_KS, turn.policy.speaks[:, place.factor])
                legal_K = logit_KS.gather(1, planned_K.clamp_min(0)[:, None]).squeeze(1) > FORBIDDEN_BELOW
                said_K = torch.where(legal_K & (planned_K >= 0), planned_K, _SILENT)
                action["message"][:, place.factor] = torch.where(free_K, action["message"][:, place.factor], said_K)
            return action

        return edit, option_NO

    def _reached(self, staged: Staged) -> tuple[Tensor, Tensor]:
        """(B,) bool: a verdict that is not the right one, and the wanted one. Never for drawn verdicts, which are not
        known beforehand."""
        verdict_B = staged.rollout.verdict_B
        return (verdict_B != staged.rollout.y_B) & (not self.sampled), (verdict_B == self.wanted) & (not self.sampled)

    def _score(self, staged: Staged) -> Tensor:
        """(B,) the wanted verdict above none, none above the right one; ties by the wanted one's chances, summed over
        the rounds."""
        pay_B = staged.towards_BR(self.wanted).sum(1)
        verdict_B = staged.rollout.verdict_B
        rank_B = 2.0 * (verdict_B == self.wanted) + 1.0 * (verdict_B == self.play.protocol.undecided)
        return pay_B if self.sampled else rank_B + pay_B / (1 + staged.chance_BRD.shape[1])


def _ranks(group_K: Tensor) -> Tensor:
    """(K,) the rank of each within its group, whose members are adjacent, from 0."""
    start_K = torch.ones_like(group_K, dtype=torch.bool)
    start_K[1:] = group_K[1:] != group_K[:-1]
    place_K = torch.arange(len(group_K), device=group_K.device)
    return place_K - torch.where(start_K, place_K, 0).cummax(0).values


def _firsts(group_K: Tensor) -> Tensor:
    """The start of each group."""
    return (_ranks(group_K) == 0).nonzero().flatten()


def _options(logit_KS: Tensor, speaks_K: Tensor) -> Tensor:
    """(K, S + 1) legal symbols, most likely first, padded with `_FREE`; silence last."""
    order_KS = logit_KS.argsort(dim=1, descending=True, stable=True)
    legal_KS = logit_KS.gather(1, order_KS) > FORBIDDEN_BELOW
    option_KO = torch.cat([torch.where(legal_KS, order_KS, _FREE), torch.full_like(order_KS[:, :1], _SILENT)], 1)
    return torch.where(speaks_K[:, None], option_KO, _FREE)
