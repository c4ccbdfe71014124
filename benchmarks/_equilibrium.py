"""The exact distance of agents from an equilibrium, in games small enough to enumerate every dialogue.

Decisions that matter here:
- the tree has a node for every dialogue so far, of every instance and seed class. An agent's observations (the rows of
  `Scenario.observe`) and its earlier observations and actions form its information sets: a best response knows exactly
  these, and forgets nothing;
- a regret is an agent's gain from its best response to the others: computed from the last round to the first, each
  information set weighted by the probability that the others lead there. All regrets are 0 exactly in a Nash
  equilibrium;
- messages of the last round are read by no agent, and not branched over.
Source: Zinkevich, Johanson, Bowling and Piccione, "Regret minimization in games with incomplete information", NIPS 2007
(best responses by counterfactual reach); Nash, "Non-cooperative games", Annals of Mathematics 1951.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.learning.policy import FORBIDDEN_BELOW, Policy
from nip_ray.play.core import BatchedPlay, Player, policies
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import CONTINUE, ProtocolState

_MOST_CHOICES = 10_000  # of one turn


@dataclass(frozen=True)
class _Level:
    """The N nodes at the beginning of a round, and the way to each.

    parent_N: its node one round before. choice_NA: the number of each agent's action there, 0 without a turn.
    chance_NA: the probability of that choice. reward_NA: of the round. reach_NA: the probability that the agent takes
    all its actions on the way. luck_N: the probability of instance and seed class. set_NA: the number of the agent's
    current information set, -1 without a turn.
    """

    parent_N: Tensor
    choice_NA: Tensor
    chance_NA: Tensor
    reward_NA: Tensor
    reach_NA: Tensor
    luck_N: Tensor
    set_NA: Tensor


@dataclass(frozen=True)
class GameTree:
    """All dialogues of `networks` (agent -> network) about some instances; see `grow`."""

    agents: tuple[str, ...]
    levels: Sequence[_Level]

    def values(self) -> dict[str, float]:
        """Agent -> its expected return."""
        return {agent: self._value(a, None) for a, agent in enumerate(self.agents)}

    def best_values(self) -> dict[str, float]:
        """Agent -> its expected return under its best response to the others."""
        return {agent: self._value(a, a) for a, agent in enumerate(self.agents)}

    def regrets(self) -> dict[str, float]:
        """Agent -> its possible gain alone, in units of reward: 0 for all in an equilibrium."""
        values, best = self.values(), self.best_values()
        return {agent: max(0.0, best[agent] - values[agent]) for agent in self.agents}

    def _value(self, a: int, free: int | None) -> float:
        """The expected return of agent number `a`. free: the agent that chooses best in place of its network (`a`
        itself, or none)."""
        value_N = torch.zeros(len(self.levels[-1].luck_N), dtype=torch.float64)
        for level, before in zip(self.levels[:0:-1], self.levels[-2::-1]):
            weight_NA = level.chance_NA.clone()
            if free is not None:
                weight_NA[:, free] = 1
            part_N = weight_NA.prod(1) * (level.reward_NA[:, a] + value_N)
            count, width = len(before.luck_N), int(level.choice_NA.max()) + 1
            choice_N = level.choice_NA[:, a] if free is not None else torch.zeros_like(level.parent_N)
            worth_PK = torch.zeros(count, width, dtype=torch.float64)
            worth_PK.index_put_((level.parent_N, choice_N), part_N, accumulate=True)
            if free is None:
                value_N = worth_PK[:, 0]
                continue
            there_PK = torch.zeros(count, width, dtype=torch.bool)
            there_PK[level.parent_N, choice_N] = True
            own_P = before.set_NA[:, a]
            others_PA = before.reach_NA.clone()
            others_PA[:, a] = 1
            weighed_PK = (before.luck_N * others_PA.prod(1))[:, None] * worth_PK
            sets = torch.zeros(int(own_P.max()) + 2, width, dtype=torch.float64)
            sets.index_add_(0, own_P + 1, weighed_PK)
            open_ = torch.zeros_like(sets)
            open_.index_add_(0, own_P + 1, there_PK.double())
            best_P = sets.masked_fill(open_ == 0, -torch.inf).argmax(1)[own_P + 1].masked_fill(own_P < 0, 0)
            value_N = worth_PK[torch.arange(count), best_P]
        return float((self.levels[0].luck_N * value_N).sum())

    def pure_equilibria(self, most: int = 2_000_000) -> Tensor:
        """(E, A): the expected returns in every equilibrium in pure strategies, independent of networks.

        Raises UserError for more than `most` combinations of strategies.
        """
        made = [self._strategies(a) for a in range(len(self.agents))]
        if (count := torch.tensor([len(match_SL) for match_SL in made]).double().prod()) > most:
            raise UserError(
                f"{count:.3g} combinations of pure strategies are more than {most}; take a smaller game, or look at"
                " regrets"
            )
        pay_LA, luck_L = self._leaves()
        letters = "abcdefghijk"[: len(made)]
        form = ",".join(["l", *(f"{letter}l" for letter in letters)]) + "->" + letters
        returns = [torch.einsum(form, luck_L * pay_LA[:, a], *made) for a in range(len(made))]
        stable = torch.ones_like(returns[0], dtype=torch.bool)
        for a, value in enumerate(returns):
            stable &= value >= value.amax(a, keepdim=True) - 1e-9
        return torch.stack([value[stable] for value in returns], 1)

    def _leaves(self) -> tuple[Tensor, Tensor]:
        """(returns (L, A), luck (L,)) of whole dialogues."""
        total = torch.zeros_like(self.levels[0].reward_NA)
        for level in self.levels[1:]:
            total = total[level.parent_N] + level.reward_NA
        return total, self.levels[-1].luck_N

    def _strategies(self, a: int) -> Tensor:
        """(S, L) float64: 1 if pure strategy s of agent number `a` may lead to leaf l. Strategies that differ only at
        unreachable choices are merged."""
        path: list[tuple[Tensor, Tensor]] = []  # of an information set: leaves that pass it, the choice there
        up = torch.arange(len(self.levels[-1].luck_N))
        for number in range(len(self.levels) - 1, 0, -1):
            choice_L, up = self.levels[number].choice_NA[up, a], self.levels[number].parent_N[up]
            set_L = self.levels[number - 1].set_NA[up, a]
            path += [(set_L == one, choice_L) for one in set_L.unique().tolist() if one >= 0]
        found_SL = torch.ones(1, len(up), dtype=torch.bool)
        for passes_L, choice_L in reversed(path):
            agrees_OL = torch.stack([~passes_L | (choice_L == one) for one in choice_L[passes_L].unique()])
            found_SL = torch.unique((found_SL[:, None] & agrees_OL).flatten(0, 1), dim=0)
        return found_SL.double()


@torch.no_grad()
def grow(
    scenario: Scenario,
    networks: Mapping[str, nn.Module],
    id_K: Tensor,
    weight_K: Tensor,
    *,
    decisive: bool = False,
    max_nodes: int = 200_000,
) -> GameTree:
    """Dialogues about the instances `id_K`, with probabilities `weight_K` (which sum to 1), and uniform seed classes.

    decisive: leave out that an agent continues where its decision counts, for strategies that always decide. Raises
    UserError for a game with more than `max_nodes` dialogues in a round, and for unsupported games: linear messages,
    zero knowledge, graded verdicts, and games with positions.
    """
    protocol = scenario.protocol
    if scenario.linear_symbols or protocol.zero_knowledge is not None or scenario.rules is not None or protocol.graded:
        raise UserError(
            "exact regrets are for messages and plain verdicts; leave out linear messages, zero knowledge and graded"
            " verdicts"
        )
    classes = torch.arange(protocol.seed_classes)
    play = BatchedPlay(scenario)
    play.reset(id_K.repeat_interleave(len(classes)), classes.repeat(len(id_K)))
    luck_N = weight_K.double().repeat_interleave(len(classes)) / len(classes)
    shape = (len(luck_N), len(protocol.agents))
    none, one = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.float64)
    levels, past_NA = [_Level(torch.arange(shape[0]), none, one, one * 0, one, luck_N, none - 1)], none
    while not play.finished:
        players = {agent: Player(network.eval()) for agent, network in networks.items()}
        asked = policies(play, players)
        levels[-1] = before = replace(levels[-1], set_NA=_information_sets(play, asked, past_NA))
        last = play.round == protocol.max_rounds - 1
        node_J = torch.arange(len(before.luck_N))
        taken: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for agent, (copy_N, policy) in asked.items():
            heard = replace(policy, speaks=torch.zeros_like(policy.speaks)) if last else policy
            symbol_OF, decision_O, legal_NO, chance_NO = _options(heard, decisive)
            row_N = torch.full((len(before.luck_N),), -1)
            row_N[copy_N] = torch.arange(len(copy_N))
            row_J = row_N[node_J]
            silent_O = torch.arange(len(decision_O)) == 0
            j_J, o_J = torch.where((row_J >= 0)[:, None], legal_NO[row_J], silent_O).nonzero(as_tuple=True)
            node_J, row_J = node_J[j_J], row_J[j_J]
            taken = {name: (c[j_J], p[j_J], a[j_J]) for name, (c, p, a) in taken.items()}
            chance_J = torch.where(row_J >= 0, chance_NO[row_J, o_J], 1.0)
            taken[agent] = o_J, chance_J, torch.cat([symbol_OF[o_J], decision_O[o_J, None]], 1)
            if len(node_J) > max_nodes:
                raise UserError(f"more than {max_nodes} dialogues in round {play.round}; take a smaller game")
        branched = _branched(play, node_J)
        actions = {}
        for agent, (_, _, action_JF) in taken.items():
            copy_C = branched.turn_B(agent).nonzero().flatten()
            actions[agent] = copy_C, {"message": action_JF[copy_C, :-1], "decision": action_JF[copy_C, -1]}
        reward_JA = branched.step(actions).reward_BA.double()
        nothing, sure = torch.zeros(len(node_J), dtype=torch.int64), torch.ones(len(node_J), dtype=torch.float64)
        choice_JA = torch.stack([taken[agent][0] if agent in taken else nothing for agent in protocol.agents], 1)
        chance_JA = torch.stack([taken[agent][1] if agent in taken else sure for agent in protocol.agents], 1)
        set_JA = before.set_NA[node_J]
        own_JA = ((play.round + 1) * max_nodes + set_JA) * _MOST_CHOICES + choice_JA
        past_NA = torch.where(set_JA >= 0, own_JA, past_NA[node_J])
        reach_JA = before.reach_NA[node_J] * chance_JA
        levels.append(
            _Level(
                node_J, choice_JA, chance_JA, reward_JA, reach_JA, before.luck_N[node_J], torch.full_like(choice_JA, -1)
            )
        )
        play = branched
    return GameTree(protocol.agents, levels)


def _options(policy: Policy, decisive: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(symbols (O, F), decisions (O,), possible (N, O), probability (N, O)) of N turns."""
    count, factors, symbols = policy.message.shape
    decisions = (CONTINUE,) if policy.decision is None else range(policy.undecided + 1)
    if symbols**factors * len(decisions) > _MOST_CHOICES:
        raise UserError(f"a turn has {symbols**factors} messages; exact regrets are for games with a few")
    rows = torch.tensor(list(product(*[range(symbols)] * factors, decisions)))
    symbol_OF, decision_O = rows[:, :-1], rows[:, -1]
    said_NOF = (policy.message > FORBIDDEN_BELOW)[:, torch.arange(factors), symbol_OF]
    first_OF = symbol_OF == 0
    legal_NO = torch.where(policy.speaks[:, None], said_NOF, first_OF).all(-1)
    if policy.may_decide is not None:
        undecided_O = decision_O == policy.undecided
        counts_O = ~undecided_O if decisive else torch.ones_like(undecided_O)
        legal_NO &= torch.where(policy.may_decide[:, None], counts_O, undecided_O)
    repeated = policy.rows(torch.arange(count).repeat_interleave(len(rows)))
    action = {"message": symbol_OF.repeat(count, 1), "decision": decision_O.repeat(count)}
    return symbol_OF, decision_O, legal_NO, repeated.log_prob(action).double().exp().view(count, len(rows))


def _information_sets(play: BatchedPlay, asked: Mapping[str, tuple[Tensor, Policy]], past_NA: Tensor) -> Tensor:
    """(N, A): numbers of information sets, equal for equal observations of an agent, -1 without a turn. past_NA: its
    earlier observations and actions, by number."""
    set_NA = torch.full((len(play.id_B), len(play.protocol.agents)), -1)
    for agent, (copy_N, _) in asked.items():
        a = play.protocol.agents.index(agent)
        obs = {**play.observe(agent, copy_N), "past": past_NA[copy_N, a]}
        seen = torch.cat(
            [value.double().flatten(1) if value.ndim > 1 else value.double()[:, None] for value in obs.values()], 1
        )
        set_NA[copy_N, a] = torch.unique(seen, dim=0, return_inverse=True)[1]
    return set_NA


def _branched(play: BatchedPlay, node_J: Tensor) -> BatchedPlay:
    """A play of copies of these nodes; repeats are allowed."""
    made = BatchedPlay(play.scenario)
    made.reset(play.id_B[node_J], play.state.seed_B[node_J])
    made.state = ProtocolState(
        **{field.name: getattr(play.state, field.name)[node_J] for field in fields(ProtocolState)}
    )
    made.main_BRACM, made.decision_BRA = play.main_BRACM[node_J], play.decision_BRA[node_J]
    made.decision_B, made.round, made.active_BAC = play.decision_B[node_J], play.round, play.active_BAC[node_J]
    return made
