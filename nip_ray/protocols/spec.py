"""A protocol: one frozen table of agents, channels, visibility, turns, limits and payment.

Decisions that matter here:
- turns are data: ``turns[seed class][round mod period]`` lists (agent, channel) pairs. A copy's episode seed picks its
  seed class, so "which prover speaks" can be random without any code;
- a verifier's turn has both a message in each of its channels and a decision: one of K verdicts, 0 to K - 1, or
  continue, K (`Protocol.undecided`). There are two unless a table differs: reject 0, accept 1, continue 2, with
  constants of these names;
- payment is data too: a table over label and verdict for each agent (`nip_ray.protocols.payment`);
- a role is a property of the seed class too: it has a name, may change payments, and is visible to the agents in
  `told`. All others observe the same in any role;
- a role that an agent chooses is written into the episode's seed, as if it had been drawn, so all code reads roles off
  seeds;
- a game without a verifier has the same turns; its scenario determines payments and the end (`Scenario.judge`);
- torch is imported on first use of a tensor, so that configs are checked against the same tables that are played.
Source: Hammond and Adam-Day, "Neural Interactive Proofs", ICLR 2025, sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from nip_ray.protocols.panel import Panel
from nip_ray.protocols.payment import Payment
from nip_ray.settings.protocol import ProtocolParams

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REJECT = 0
"""The code of the verdict reject, with two verdicts."""
ACCEPT = 1
"""The code of the verdict accept, with two verdicts."""
CONTINUE = 2
"""The code of no verdict yet, with two verdicts."""
TWO_VERDICTS = ("reject", "accept")
DECISIONS = (*TWO_VERDICTS, "continue")
"""The words for the three codes, with two verdicts."""
VERDICTS = (*TWO_VERDICTS, "undecided")
"""The words for the end of an episode, with two verdicts; CONTINUE means no decision."""
NUM_DECISIONS = 3
"""The number of these codes."""
NUM_SEEDS = 2**16
"""An episode's seed is uniform in [0, NUM_SEEDS)."""

Turn = tuple[str, str]  # (agent, channel)


@dataclass(frozen=True)
class ZeroKnowledge:
    """The additions of the zero-knowledge wrapper to a protocol; see `nip_ray.protocols.zero_knowledge`.

    adversary: the verifier that tries to learn more than the verdict. simulator: the agent that must reproduce its
    conversation alone. simulator_reward: paid to the simulator per unit of similarity; the adversary pays as much.
    prover_reward: paid to each prover per unit of the simulator's pay. legacy: as published: the simulator has no
    decision head, and illegal symbols are included in the similarity.
    """

    adversary: str
    simulator: str
    simulator_reward: float = 1.0
    prover_reward: float = 1.0
    legacy: bool = False

    @property
    def deciders(self) -> tuple[str, ...]:
        """Those of the two whose turns have a decision."""
        return (self.adversary,) if self.legacy else (self.adversary, self.simulator)


@dataclass(frozen=True)
class Protocol:
    """A protocol as data. Axes used throughout: B copies, A agents, C channels, R rounds, Y labels and V = Y verdicts.

    name: its name in configs. agents, channels: names, in index order. verdicts: names of the classes of an instance,
    in the order of the labels. sees: agent -> the channels that it reads (it may write only to these). turns:
    ``turns[seed % len(turns)][round % len(turns[.])]`` is the tuple of (agent, channel) pairs active in that round.
    max_rounds: an episode undecided after this many rounds is exhausted. min_rounds: a decision counts from round
    min_rounds - 1. payment: the rewards. verifier: the agent whose decision ends the episode, None in a game judged by
    its scenario. panel: several deciders in its place; `verifier` is then not an agent but the name of them all. roles:
    names of the seed classes, if the episode draws roles; () if it draws at most turns. There is then one table of
    turns for all, or one for each. told: the agents that see the drawn role, in their observation ("told") or prompt.
    chooser: the prover whose decision in its first turn (`choice_round`) is the role, in place of the drawn one;
    continuing keeps that one. Roles are then the verdicts, and the agents in `told` see the role from the next round
    on. force_guess: see `ProtocolParams`. cuts: in a game without a verifier, running out of rounds cuts it off instead
    of ending it: its value continues, and learners bootstrap there. zero_knowledge: the two agents and the amounts that
    the wrapper adds, None without it.
    """

    name: str
    agents: tuple[str, ...]
    channels: tuple[str, ...]
    sees: Mapping[str, tuple[str, ...]]
    turns: tuple[tuple[tuple[Turn, ...], ...], ...]
    max_rounds: int
    min_rounds: int
    payment: Payment
    verifier: str | None = "verifier"
    force_guess: Literal["zero", "one", "y"] | None = None
    zero_knowledge: ZeroKnowledge | None = None
    cuts: bool = False
    roles: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    panel: Panel | None = None
    chooser: str | None = None
    verdicts: tuple[str, ...] = TWO_VERDICTS

    @property
    def undecided(self) -> int:
        """The code of the decision to continue, and of no verdict: the one after those of the verdicts."""
        return len(self.verdicts)

    @property
    def two_verdicts(self) -> bool:
        """True if the verifier accepts or rejects, so that there is a claim; else it names one of several classes."""
        return len(self.verdicts) == 2

    @property
    def graded(self) -> bool:
        """True if payments depend on the probability of acceptance of the verifier, or of a panel's members, not only
        on the verdict."""
        mean = self.panel is not None and self.panel.rule == "mean"
        return self.verifier is not None and (mean or self.payment.scoring != "linear" or self.payment.graded)

    @property
    def decision_words(self) -> tuple[str, ...]:
        """The words for the codes of decisions."""
        return (*self.verdicts, DECISIONS[CONTINUE])

    @property
    def verdict_words(self) -> tuple[str, ...]:
        """The words for the end of an episode."""
        return (*self.verdicts, VERDICTS[CONTINUE])

    @property
    def seed_classes(self) -> int:
        """The period of episode seeds; `seed % seed_classes` is an episode's class."""
        return len(self.roles) or len(self.turns)

    def role_of(self, seed: int) -> str | None:
        """The role of an episode with this seed; None if none is drawn."""
        return self.roles[seed % len(self.roles)] if self.roles else None

    def role_B(self, seed_B: Tensor) -> Tensor:
        """(B,) int64: the indices of the drawn roles in `roles`; 0 if none is drawn."""
        return seed_B % max(1, len(self.roles))

    def told_NW(self, round_N: Tensor, seed_N: Tensor) -> Tensor:
        """(N, roles) float: the visible role, one-hot; 0 until it is chosen."""
        import torch

        told_NW = torch.eye(len(self.roles), device=seed_N.device)[self.role_B(seed_N)]
        return told_NW if self.chooser is None else told_NW * (round_N > self.choice_round)[:, None]

    def told_of(self, agent: str) -> tuple[str | None, ...]:
        """The roles that `agent` may see at the beginning of an episode; (None,) if it sees none."""
        return self.roles if agent in self.told and self.chooser is None else (None,)

    def told_role(self, agent: str, round: int, seed: int) -> str | None:
        """The role that `agent` knows in its turn in `round`; None if it sees none, or none is chosen yet."""
        return self.role_of(seed) if agent in self.told and round > self.choice_round else None

    @cached_property
    def choice_round(self) -> int:
        """The round in which the chooser chooses, -1 without one."""
        if self.chooser is None:
            return -1
        return next(
            r
            for r in range(self.max_rounds)
            if any(agent == self.chooser for agent, _ in self.turns[0][r % len(self.turns[0])])
        )

    def chosen(self, round_B: Tensor, seed_B: Tensor, decision_B: Tensor) -> Tensor:
        """(B,) int64: the episode seeds after a round with this decision of the chooser."""
        chooses_B, count = (round_B == self.choice_round) & (decision_B != self.undecided), len(self.verdicts)
        block_B = (seed_B // count).clamp(max=NUM_SEEDS // count - 1)
        return seed_B.where(~chooses_B, block_B * count + decision_B)

    def decides_in(self, agent: str, round_N: Tensor) -> Tensor:
        """(N,) bool: True if a decision of `agent` in a turn of this round counts."""
        return round_N == self.choice_round if agent == self.chooser else round_N >= self.min_rounds - 1

    def wanted_by(self, prover: str, label: int) -> dict[int, tuple[str, ...]]:
        """The verdicts that `prover` wants on instances of `label` -> the roles where it does (() if none are drawn).

        It wants the verdict that it argues for. If it argues for none and the role determines its pay: the best paid
        ones.
        """
        found: dict[int, tuple[str, ...]] = {}
        for role in self.roles or (None,):
            payment = self.payment.of(role)
            goal, amounts = payment.goals.get(prover), payment.table(prover)[label][:-1]
            wanted = [] if goal is None else [goal]
            if goal is None and role is not None and min(amounts) < max(amounts):
                wanted = [verdict for verdict, amount in enumerate(amounts) if amount == max(amounts)]
            for verdict in wanted:
                found[verdict] = (*found.get(verdict, ()), *([] if role is None else [role]))
        return found

    def speaks_in(self, agent: str) -> tuple[bool, ...]:
        """For each table of turns, True if `agent` has a turn in it."""
        return tuple(any(name == agent for turns in table for name, _ in turns) for table in self.turns)

    def seeds_within(self, roles: Collection[str], seed_B: Tensor, speakers: Collection[str] = ()) -> Tensor:
        """(B,) int64: episode seeds like these that draw one of `roles` and give one of `speakers` a turn, each class
        of them equally often; unchanged if all episodes do. Empty arguments do not restrict."""
        tables = [self.speaks_in(agent) for agent in speakers]
        places = [self.roles.index(role) for role in roles] or list(range(self.seed_classes))
        heard = [place for place in places if any(table[place % len(table)] for table in tables)] or places
        count = self.seed_classes
        if not roles and len(heard) == count:
            return seed_B
        import torch

        place_K = torch.tensor(heard, device=seed_B.device)
        block_B = (seed_B // count).clamp(max=NUM_SEEDS // count - 1)
        return block_B * count + place_K[block_B % len(place_K)]

    @cached_property
    def provers(self) -> tuple[str, ...]:
        """All agents except deciders and those that zero knowledge adds."""
        added = () if self.zero_knowledge is None else (self.zero_knowledge.adversary, self.zero_knowledge.simulator)
        return tuple(agent for agent in self.agents if agent not in (*self.verifiers, *added))

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The agents whose decisions make the verdict: the verifier, or the members of the panel; none in a game
        without a verdict."""
        if self.panel is not None:
            return self.panel.members
        return () if self.verifier is None else (self.verifier,)

    @property
    def viewpoint(self) -> str:
        """The agent whose view of a play is shown: the (first) decider, or the first player."""
        return (*self.verifiers, *self.agents)[0]

    @cached_property
    def verifier_index(self) -> int:
        """Index of the one verifier on the agent axis. Raises ValueError if there is none, or several."""
        return self.agents.index(self.verifier or "")

    @cached_property
    def verifier_indices(self) -> list[int]:
        """Indices of `verifiers` on the agent axis."""
        return [self.agents.index(agent) for agent in self.verifiers]

    @property
    def fixed_stances(self) -> bool:
        """True if the protocol itself fixes the provers' sides: not if each prover is paid for acceptance alone."""
        return (
            bool(self.roles)
            or not self.provers
            or any(self.payment.goals.get(agent) != ACCEPT for agent in self.provers)
        )

    @cached_property
    def deciders(self) -> tuple[str, ...]:
        """The agents whose turns have a decision in addition to messages."""
        extra = () if self.zero_knowledge is None else self.zero_knowledge.deciders
        return tuple(agent for agent in self.agents if agent in (*self.verifiers, *extra, self.chooser))

    @cached_property
    def turn_table_SKAC(self) -> Tensor:
        """(seed classes, rounds until max_rounds, A, C) bool: the turns of `turns`, unrolled over the rounds."""
        import torch

        rows = [
            [
                [[(a, c) in table[r % len(table)] for c in self.channels] for a in self.agents]
                for r in range(self.max_rounds)
            ]
            for table in self.turns
        ]
        return torch.tensor(rows)

    @cached_property
    def _tables(self) -> dict[torch.device, Tensor]:
        """The turn table by device, so that play does not copy it in every round."""
        return {}

    @cached_property
    def writes(self) -> dict[str, tuple[int, ...]]:
        """Agent -> indices of the channels that it ever writes to."""
        ever_AC = self.turn_table_SKAC.any(0).any(0)
        return {agent: tuple(ever_AC[a].nonzero().flatten().tolist()) for a, agent in enumerate(self.agents)}

    def active(self, round_B: Tensor, seed_B: Tensor) -> Tensor:
        """(B, A, C) bool: the agents and channels of turns in round `round_B` of copies with episode seeds `seed_B`
        (both (B,) int64)."""
        table = self._tables.get(round_B.device)
        if table is None:
            table = self._tables[round_B.device] = self.turn_table_SKAC.to(round_B.device)
        at_B = round_B.clamp(0, self.max_rounds - 1)
        return table[0][at_B] if len(table) == 1 else table[seed_B % len(table), at_B]

    def would_act(self, agent: str, round_B: Tensor, seed_B: Tensor) -> Tensor:
        """(B,) bool: by the schedule the turn in `round_B` is this agent's, also beyond the last round."""
        import torch

        whose = [[any(name == agent for name, _ in turns) for turns in table] for table in self.turns]
        found_B = torch.zeros_like(round_B, dtype=torch.bool)
        for number, row in enumerate(whose):
            row_K = torch.tensor(row, device=round_B.device)
            found_B = torch.where(seed_B % len(whose) == number, row_K[round_B % len(row)], found_B)
        return found_B

    @cached_property
    def verifier_rounds(self) -> tuple[int, ...]:
        """The rounds, from 0, in which a decider has a turn under every seed; none in a game without a verdict."""
        speaks = [[any(agent in self.verifiers for agent, _ in turns) for turns in table] for table in self.turns]
        return tuple(r for r in range(self.max_rounds) if all(row[r % len(row)] for row in speaks))

    @cached_property
    def verifier_turns(self) -> int:
        """The number of turns of the verifier before the rounds run out (the minimum over seeds and members)."""
        return int(self.turn_table_SKAC[:, :, self.verifier_indices].any(-1).sum(1).min())

    def amounts_on(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """(role, label, verdict, A) float32: the pay at an end; and (A, speaker) float32: for a turn, or None."""
        found = self._amounts.get(device)
        if found is None:
            import torch

            parts = [self.payment.of(role) for role in self.roles or (None,)]
            codes = range(self.undecided + 1)
            payoff = [
                [[[part.table(a)[y][v] for a in self.agents] for v in codes] for y in codes[:-1]] for part in parts
            ]
            turns = [
                [self.payment.turns.get(agent, {}).get(speaker, 0.0) for speaker in self.agents]
                for agent in self.agents
            ]
            turns_AA = torch.tensor(turns, device=device) if any(map(any, turns)) else None
            found = self._amounts[device] = torch.tensor(payoff, device=device), turns_AA
        return found

    @cached_property
    def _amounts(self) -> dict[torch.device, tuple[Tensor, Tensor | None]]:
        """The tables of `amounts_on` by device."""
        return {}

    def reward_mid_point(self, agent: str, role: str | None = None) -> float:
        """The threshold between positive and negative examples of an agent in `role`, or in all roles if it knows none,
        see `Payment.mid_point`; 0 in a game without a verifier."""
        payment = self.payment if role is None else self.payment.of(role)
        return 0.0 if self.verifier is None else payment.mid_point(agent)


ProtocolBuilder = Callable[[ProtocolParams], Protocol]
