"""The exact worst case over provers, computed over the tree of dialogues instead of approximated by training.

Decisions that matter here:
- in every round the attacking provers choose together and know all earlier messages, also in channels that they do not
  read. So this is an upper bound, and it is tight for a single prover that sees everything. They maximise; the verifier
  plays as trained;
- a node is an undecided dialogue so far. Only legal messages (or silence) are tried, and a node is evaluated once, for
  all four ways in which the verifier may play (`WAYS`). Its most likely message is a function of the dialogue, so with
  greedy play alone (``ways=("greedy",)``) only provers branch;
- an attacker who chooses its side (`Protocol.chooser`) takes the better one; there is a tree for each;
- two probabilities are maximised separately: of the wanted verdict, and of any outcome but the right one (including
  none).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nip_ray.learning.policy import FORBIDDEN_BELOW, Policy
from nip_ray.play.core import BatchedPlay, Player, policies, stated
from nip_ray.play.panels import panel_chances
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol

WAYS = ("greedy", "sampled", "random questions", "best questions")
"""Most likely messages and verdicts; sampled ones; likeliest verdict after random questions; after the best."""

_BATCH = 2048  # nodes at once


class TooManyNodes(Exception):
    """The tree exceeds its maximum number of nodes."""


def exact_for(protocol: Protocol) -> bool:
    """True if the tree is exact: a panel must vote in the last round alone, since nodes do not record earlier votes,
    and an attacker that chooses its side must do so in the first round, and be the only attacker."""
    if protocol.chooser is not None and {agent for agent, _ in protocol.turns[0][0]} != {protocol.chooser}:
        return False
    if protocol.panel is None:
        return True
    return not bool(protocol.turn_table_SKAC[:, protocol.min_rounds - 1 : -1, protocol.verifier_indices].any())


@dataclass
class MessageTree:
    """The dialogues of `networks` (agent -> network, in evaluation mode) in which `attackers` choose their messages.

    wanted: a verdict. ways: of `WAYS`. max_nodes: of all instances together. who: the member of a panel whose vote
    counts ("": the verdict counts).
    """

    scenario: Scenario
    networks: Mapping[str, nn.Module]
    attackers: Sequence[str]
    wanted: int
    ways: Sequence[str] = WAYS
    max_nodes: int = 0
    nodes: int = 0
    who: str | None = None

    @torch.no_grad()
    def values(self, id_B: Tensor, seed_B: Tensor) -> Tensor:
        """(B, W, 2) for each instance and way: the probability of the wanted verdict, and of any but the right one,
        under the best messages.

        Raises TooManyNodes as soon as the limit is certain to be exceeded.
        """
        found = []
        for first in range(0, len(id_B), 16):
            before, here = self.nodes, slice(first, first + 16)
            play = BatchedPlay(self.scenario, str(self.scenario.label_I.device))
            play.reset(id_B[here], seed_B[here])
            protocol = self.scenario.protocol
            seeds = (
                [protocol.seeds_within((side,), seed_B[here]) for side in protocol.roles]
                if protocol.chooser
                else [seed_B[here]]
            )
            sides = [self._values(id_B[here], seeds_B, play.main_BRACM, 0) for seeds_B in seeds]
            found.append(torch.stack(sides).amax(0))
            if first == 0 and self.nodes * len(id_B) / len(found[0]) > 2 * self.max_nodes:
                raise TooManyNodes(before)
        return torch.cat(found)

    def _values(self, id_N: Tensor, seed_N: Tensor, main_NRACM: Tensor, round_: int) -> Tensor:
        """`values` of nodes at the start of a round."""
        if len(id_N) > _BATCH:
            parts = [slice(first, first + _BATCH) for first in range(0, len(id_N), _BATCH)]
            return torch.cat([self._values(id_N[part], seed_N[part], main_NRACM[part], round_) for part in parts])
        self.nodes += len(id_N)
        if self.nodes > self.max_nodes:
            raise TooManyNodes(self.nodes)
        play = BatchedPlay(self.scenario, str(main_NRACM.device))
        play.go_on(id_N, seed_N, main_NRACM, round_)
        decided_NW2, on_NW, asked = self._round(play)
        if round_ + 1 == self.scenario.protocol.max_rounds:  # these messages would not be read
            decided_NW2[:, :, 1] += on_NW
            return decided_NW2
        # All possible messages of this round; raises TooManyNodes where they alone exceed the limit.
        children = _Children(play.main_BRACM[:, play.round], len(self.ways))
        # attackers first
        order = [*self.attackers, *(agent for agent in play.protocol.agents if agent not in self.attackers)]
        for agent in order:
            if agent in asked:
                self._say(children, play, agent, *asked[agent])
        open_K = (on_NW[children.parent_K] > 0).any(1).nonzero().flatten()
        value_KW2 = torch.zeros(len(children.parent_K), len(self.ways), 2, device=main_NRACM.device)
        if len(open_K):
            parent_O = children.parent_K[open_K]
            said = main_NRACM[parent_O]
            said[:, round_] = children.said_KACM[open_K]
            value_KW2[open_K] = self._values(id_N[parent_O], seed_N[parent_O], said, round_ + 1)
        return decided_NW2 + on_NW[:, :, None] * children.joined(value_KW2, self.ways, len(id_N))

    def _round(self, play: BatchedPlay) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, Policy]]]:
        """((N, W, 2) chances that the round brings the two, (N, W) of no verdict, allowed messages: see `policies`)."""
        protocol, count = play.protocol, len(play.id_B)
        decided_NW2 = torch.zeros(count, len(self.ways), 2, device=play.device)
        on_NW = torch.ones(count, len(self.ways), device=play.device)
        players = {agent: Player(network) for agent, network in self.networks.items()}
        asked = policies(play, players)
        deciders = (self.who,) if self.who else protocol.verifiers
        chances = {who: self._chances(play, *asked[who]) for who in deciders if who in asked}
        if chances:
            chance_NWD = next(iter(chances.values()))
            if protocol.panel is not None and not self.who:
                last = torch.ones(count * len(self.ways), dtype=torch.bool, device=play.device)  # see `exact_for`
                voted = torch.stack(list(chances.values()), 2).flatten(0, 1)
                by_mean = protocol.panel.rule == "mean"
                grade_KM = stated(play, asked, players)[0].repeat_interleave(len(self.ways), 0) if by_mean else None
                chance_NWD = panel_chances(protocol.panel, voted, last, grade_KM).view(chance_NWD.shape)
            on_NW = chance_NWD[:, :, protocol.undecided].clone()
            wrong_NV = torch.arange(protocol.undecided, device=play.device) != play.state.y_B[:, None]
            decided_NW2 = torch.stack(
                [chance_NWD[:, :, self.wanted], (chance_NWD[:, :, :-1] * wrong_NV[:, None]).sum(-1)], -1
            )
        return decided_NW2, on_NW, asked

    def _chances(self, play: BatchedPlay, copy_N: Tensor, policy: Policy) -> Tensor:
        """(all copies, W, D) of a decider: its chances of each verdict and of continuing (1 where it has no turn)."""
        assert policy.decision is not None
        assert policy.may_decide is not None
        chance_ND = torch.softmax(policy.decision.double(), -1).float()
        sure_ND = torch.nn.functional.one_hot(policy.decision.argmax(-1), chance_ND.shape[1]).float()
        never = torch.eye(chance_ND.shape[1], device=play.device)[policy.undecided]
        chance_NWD = torch.stack([chance_ND if way == "sampled" else sure_ND for way in self.ways], 1)
        found_NWD = never.repeat(len(play.id_B), len(self.ways), 1)
        found_NWD[copy_N] = torch.where(policy.may_decide[:, None, None], chance_NWD, never)
        return found_NWD

    def _say(self, children: "_Children", play: BatchedPlay, agent: str, copy_N: Tensor, policy: Policy) -> None:
        """Add one agent's message, symbol by symbol."""
        protocol, size = play.protocol, self.scenario.message_size
        index = protocol.agents.index(agent)
        row_N = torch.full((len(play.id_B),), -1, device=play.device)
        row_N[copy_N] = torch.arange(len(copy_N), device=play.device)
        attacks = agent in self.attackers
        for factor in range(policy.message.shape[1]):
            channel = protocol.writes[agent][factor // size]
            logits_NS, speaks_N = policy.message[:, factor].float(), policy.speaks[:, factor]
            legal_NS = logits_NS > FORBIDDEN_BELOW
            silent_N1 = torch.zeros_like(legal_NS[:, :1])
            if attacks:
                option_NS = torch.cat([legal_NS, ~silent_N1], 1)
                weight_NWS = option_NS[:, None].float().expand(-1, len(self.ways), -1)
            else:
                likeliest_NS = torch.nn.functional.one_hot(logits_NS.argmax(-1), logits_NS.shape[1]).float()
                asks = agent in protocol.verifiers
                even_NS = legal_NS / legal_NS.sum(1, keepdim=True)
                by_way = {
                    "greedy": likeliest_NS,
                    "sampled": torch.softmax(logits_NS.double(), -1).float(),
                    "random questions": even_NS if asks else likeliest_NS,
                    "best questions": legal_NS.float() if asks else likeliest_NS,
                }
                weight_NWS = torch.stack([torch.cat([by_way[way], silent_N1.float()], 1) for way in self.ways], 1)
                option_NS = (weight_NWS > 0).any(1)
            # only silence
            option_NS = torch.where(
                speaks_N[:, None], option_NS, torch.eye(option_NS.shape[1], device=play.device)[-1].bool()
            )
            weight_NWS = torch.where(
                speaks_N[:, None, None], weight_NWS, torch.eye(option_NS.shape[1], device=play.device)[-1]
            )
            children.add(row_N, option_NS, weight_NWS, (index, channel, factor % size), attacks)
            # not all become nodes: a verdict may have come before
            if len(children.parent_K) > max(4 * self.max_nodes, _BATCH):
                raise TooManyNodes(self.nodes + len(children.parent_K))


class _Children:
    """The messages of a round. parent_K: parent of each child. said_KACM: the round's messages. group_K: children of
    one choice of the attackers share a number. weight_KW: in each way, the probability of the others' messages (for the
    best questions: whether they are possible)."""

    def __init__(self, said_NACM: Tensor, ways: int) -> None:
        self.said_KACM = torch.full_like(said_NACM, -1)
        self.parent_K = self.group_K = torch.arange(len(said_NACM), device=said_NACM.device)
        self.owner_G = self.parent_K
        self.weight_KW = torch.ones(len(said_NACM), ways, device=said_NACM.device)

    def add(
        self, row_N: Tensor, option_RS: Tensor, weight_RWS: Tensor, place: tuple[int, int, int], attacks: bool
    ) -> None:
        """Extend every child by each of its parent's options at `place` (agent, channel, position). row_N: row of a
        parent, -1 for none."""
        row_K = row_N[self.parent_K]
        option_KS = option_RS[row_K.clamp_min(0)]
        option_KS[row_K < 0] = torch.eye(option_KS.shape[1], device=row_K.device)[-1].bool()
        child_J, symbol_J = option_KS.nonzero(as_tuple=True)
        weight_JW = weight_RWS[row_K.clamp_min(0)[child_J], :, symbol_J]
        weight_JW[row_K[child_J] < 0] = 1
        said = self.said_KACM[child_J]
        said[:, *place] = torch.where(symbol_J == option_KS.shape[1] - 1, -1, symbol_J)
        self.said_KACM, self.parent_K, self.weight_KW = (
            said,
            self.parent_K[child_J],
            self.weight_KW[child_J] * weight_JW,
        )
        if attacks:  # each choice is a group of its own
            self.group_K = torch.arange(len(child_J), device=row_K.device)
            self.owner_G = self.parent_K
        else:
            self.group_K = self.group_K[child_J]

    def joined(self, value_KW2: Tensor, ways: Sequence[str], count: int) -> Tensor:
        """(count, W, 2) of the parents: the mean over the others' messages (for the best questions the minimum), then
        the attackers' maximum."""
        groups, parts = len(self.owner_G), []
        group_K2 = self.group_K[:, None].expand(-1, 2)
        for number, way in enumerate(ways):
            value_K2, weight_K1 = value_KW2[:, number], self.weight_KW[:, number, None]
            start_G2 = torch.zeros(groups, 2, device=value_K2.device)
            if way == "best questions":
                value_K2 = torch.where(weight_K1 > 0, value_K2, torch.inf)
                parts.append((start_G2 + torch.inf).scatter_reduce(0, group_K2, value_K2, "amin"))
            else:
                parts.append(start_G2.scatter_add(0, group_K2, weight_K1 * value_K2))
        value_GW2 = torch.stack(parts, 1)
        owner_GW2 = self.owner_G[:, None, None].expand_as(value_GW2)
        return torch.zeros(count, *value_GW2.shape[1:], device=value_GW2.device).scatter_reduce(
            0, owner_GW2, value_GW2, "amax"
        )
