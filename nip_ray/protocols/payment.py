"""Payments as data: a table for each agent over label and verdict, prices of turns, and a function for everything else.

Decisions that matter here:
- a table has a row for each label and in it an amount for each end: every verdict, and undecided when the rounds ran
  out. Two labels and verdicts (reject, accept) unless `Payment.verdicts` differs;
- the parameters of a config (`prover_reward`, `shared_reward` ...) are names for entries of these tables, so there is
  one way to pay;
- a prover's side (`goals`) is stored beside the tables: prompts and attacks need it, and an item may set another one;
- if the episode draws a role (`Protocol.roles`), `by_role` has its changes, and `Payment.of` returns the payment of one
  role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from nip_ray.settings.protocol import PayoffEntries, PayoffSettings, ProtocolParams

if TYPE_CHECKING:
    from torch import Tensor

Row = tuple[float, ...]
Table = tuple[Row, ...]
"""``table[label][verdict]``: an agent's pay at the end; the last column, of the code for continuing, is for an end
without a verdict."""
Scoring = Literal["linear", "brier", "log"]
LEAST = 0.001
"""Probabilities of the truth at or below this are paid a wrong verdict's amount by the logarithmic score."""
NO_ENTRIES = PayoffEntries()
ENTRIES = {"true_reject": (0, 0), "false_accept": (0, 1), "false_reject": (1, 0), "true_accept": (1, 1)}


@dataclass(frozen=True)
class Ends:
    """B episodes at their ends, for a payment function.

    y_B: (B,) int64 labels. verdict_B: (B,) int64 codes of verdicts; `Protocol.undecided` if the rounds ran out or no
    side was favoured. confidence_B: (B,) float32, the verifier's probability of acceptance: 0 or 1 unless its verdict
    is graded, 0.5 without one. Graded are the verdicts of one network if `Payment.graded`, and those of a panel of
    networks under its mean. Of a panel both are the panel's, not a member's. With more than two verdicts: 1 with a
    verdict, 0 without. rounds_B: (B,) int64, rounds played. role_B: (B,) int64, the index of the drawn role in
    `Protocol.roles`; 0 if none is drawn.
    """

    y_B: Tensor
    verdict_B: Tensor
    confidence_B: Tensor
    rounds_B: Tensor
    role_B: Tensor


PaymentFunction = Callable[[Ends], Mapping[str, "Tensor"]]
"""Agent -> (B,) its pay at the end, in addition to its table; pure, and independent for each copy."""


@dataclass(frozen=True)
class Stake:
    """The effect of a role on an agent. table: its pay at the end. goal: the verdict that it argues for, or None."""

    table: Table
    goal: int | None = None


@dataclass(frozen=True)
class Payment:
    """The payments of a protocol.

    payoff: agent -> its table; agents without one get nothing at the end. turns: agent -> speaker -> the agent's pay
    for each turn of the speaker; of the verifier's turns those count that neither decide nor are last. goals: prover ->
    the verdict that it argues for; other provers argue for none. function: further payments at the end. scoring: the
    pay for a graded verdict of agents that are paid for being right, between their two amounts; all others' share of
    acceptance is its confidence. by_role: role -> agent -> its entries of payoff and goals in episodes of that role.
    per_error: agent -> pay at the end per unit of the scenario's error of the estimates (`Scenario.estimate_error`).
    verdicts: their number. graded: the function reads a network's confidence in its verdict, and torch can
    differentiate its payments by that.
    """

    payoff: Mapping[str, Table] = field(default_factory=dict)
    turns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    goals: Mapping[str, int] = field(default_factory=dict)
    function: PaymentFunction | None = None
    scoring: Scoring = "linear"
    by_role: Mapping[str, Mapping[str, Stake]] = field(default_factory=dict)
    per_error: Mapping[str, float] = field(default_factory=dict)
    verdicts: int = 2
    graded: bool = False

    @classmethod
    def from_params(
        cls,
        params: ProtocolParams,
        goals: Mapping[str, int | None],
        verifier: str | Sequence[str] = "verifier",
        by_role: Mapping[str, Mapping[str, Stake]] | None = None,
    ) -> Payment:
        """The tables that `params` describe: the verifier is paid for being right, provers for their goals.

        goals: every prover -> the verdict that it is paid for, or None. verifier: its name, or those of all members of
        a panel. With `shared_reward` all provers have the verifier's table. by_role: every role that the episode may
        draw -> agent -> its stake in it, which overrides the above. Entries of `params.payoff` override all, those of a
        role the agent's own.
        """
        count = len(params.verdicts)
        judged = for_being_right(
            params.verifier_reward, params.verifier_incorrect_penalty, params.verifier_terminated_penalty, count
        )
        deciders = (verifier,) if isinstance(verifier, str) else tuple(verifier)
        asking = dict.fromkeys(deciders, params.verifier_no_guess_reward) if params.verifier_no_guess_reward else {}
        payoff = dict.fromkeys(deciders, judged)
        turns = {agent: {agent: amount} for agent, amount in asking.items()}
        for prover, goal in goals.items():
            if params.shared_reward:
                payoff[prover] = judged
                turns |= {prover: asking} if asking else {}
            elif goal is not None:
                payoff[prover] = for_verdict(goal, params.prover_reward, count)
        for agent, entries in params.payoff.items():
            if agent in (*goals, *deciders):
                payoff[agent] = _laid_over(payoff.get(agent, nothing(count)), entries)
                if entries.turns:
                    turns[agent] = {**turns.get(agent, {}), **entries.turns}
        stated = {prover: goal for prover, goal in goals.items() if goal is not None}
        stakes = {role: _stakes(params, role, given, payoff, stated) for role, given in (by_role or {}).items()}
        return cls(payoff, turns, stated, scoring=params.verifier_scoring, by_role=stakes, verdicts=count)

    def table(self, agent: str) -> Table:
        """The pay of an agent at the end, for any drawn role."""
        return self.payoff.get(agent) or nothing(self.verdicts)

    def of(self, role: str | None) -> Payment:
        """The payment in episodes of `role`; for None (none drawn, or not known) without the changes of roles."""
        stakes = self.by_role.get(role or "", {})
        if not stakes:
            return replace(self, by_role={}) if self.by_role else self
        payoff = {**self.payoff, **{agent: stake.table for agent, stake in stakes.items()}}
        goals = {agent: goal for agent, goal in self.goals.items() if agent not in stakes}
        goals |= {agent: stake.goal for agent, stake in stakes.items() if stake.goal is not None}
        return replace(self, payoff=payoff, goals=goals, by_role={})

    def tables(self, agent: str) -> tuple[Table, ...]:
        """All tables that an agent may have: one for each role, or the one."""
        return tuple(self.of(role).table(agent) for role in self.by_role or (None,))

    def grants(self, agent: str, entries: PayoffSettings) -> bool:
        """Return True if the agent is paid by these entries of a config."""
        if entries.by_role.keys() - self.by_role.keys():
            return False
        for role in self.by_role or (None,):
            table = self.of(role).table(agent)
            if _laid_over(_laid_over(table, entries), entries.by_role.get(role or "", NO_ENTRIES)) != table:
                return False
        return entries.turns.items() <= self.turns.get(agent, {}).items()

    def arguing(self, goals: Mapping[str, int]) -> Payment:
        """The same with provers that argue for these verdicts. A prover that argued for another one, and is paid for a
        verdict under every label, is paid for the new one; agents paid for being right stay so. In every role, if roles
        are drawn."""
        if self.by_role:
            parts = {role: self.of(role).arguing(goals) for role in self.by_role}
            stakes = {
                role: {agent: Stake(table, part.goals.get(agent)) for agent, table in part.payoff.items()}
                for role, part in parts.items()
            }
            return replace(self, by_role=stakes)
        turned = {
            agent: tuple(_exchanged(row, self.goals[agent], goals[agent]) for row in table)
            for agent, table in self.payoff.items()
            if agent in goals and goals[agent] != self.goals.get(agent, goals[agent]) and len(set(table)) == 1
        }
        return replace(self, payoff={**self.payoff, **turned}, goals=dict(goals))

    def wants_truth(self, agent: str) -> bool:
        """Return True if the right verdict pays this agent more than the wrong one, under every label."""
        return all(row[label] > max(row[:label] + row[label + 1 : -1]) for label, row in enumerate(self.table(agent)))

    def is_paid(self, agent: str) -> bool:
        """Return True if this agent's pay depends on anything."""
        several = any(len({amount for row in table for amount in row}) > 1 for table in self.tables(agent))
        return (
            several
            or any(self.turns.get(agent, {}).values())
            or bool(self.per_error.get(agent))
            or agent in self._of_function()
        )

    def _of_function(self) -> Set[str]:
        """The agents that the payment function names."""
        if self.function is None:
            return set()
        import torch

        one_B = torch.ones(1, dtype=torch.int64)
        return set(self.function(Ends(one_B, one_B, one_B.float(), one_B, torch.zeros_like(one_B))))

    def mid_point(self, agent: str) -> float:
        """Half way between an agent's good and bad ends: between the minimum over labels (and roles) of the better
        verdicts and the maximum of the worse."""
        rows = [row for table in self.tables(agent) for row in table]
        return (min(max(row[:-1]) for row in rows) + max(min(row[:-1]) for row in rows)) / 2


def nothing(verdicts: int = 2) -> Table:
    """A table of zeros."""
    return ((0.0,) * (verdicts + 1),) * verdicts


def for_verdict(verdict: int, amount: float, verdicts: int = 2) -> Table:
    """`amount` for this verdict, right or wrong, and 0 for anything else."""
    return (tuple(float(amount) if code == verdict else 0.0 for code in range(verdicts + 1)),) * verdicts


def for_being_right(right: float, wrong: float, undecided: float, verdicts: int = 2) -> Table:
    """These amounts for a right verdict, a wrong one, and none."""
    codes = range(verdicts)
    return tuple(
        (*(float(right) if code == label else float(wrong) for code in codes), float(undecided)) for label in codes
    )


def _exchanged(row: Row, one: int, other: int) -> Row:
    order = {one: other, other: one}
    return tuple(row[order.get(code, code)] for code in range(len(row)))


def _stakes(
    params: ProtocolParams, role: str, given: Mapping[str, Stake], payoff: Mapping[str, Table], goals: Mapping[str, int]
) -> dict[str, Stake]:
    """Every agent's stake in a role: as `given`, else its own, overridden by the entries of a config."""
    stakes = dict(given)
    for agent, entries in params.payoff.items():
        if agent in given:
            stakes[agent] = replace(given[agent], table=_laid_over(given[agent].table, entries))
        if role in entries.by_role:
            stake = stakes.get(agent) or Stake(payoff.get(agent, nothing(len(params.verdicts))), goals.get(agent))
            stakes[agent] = replace(stake, table=_laid_over(stake.table, entries.by_role[role]))
    return stakes


def _laid_over(table: Table, entries: PayoffEntries) -> Table:
    rows = [list(map(float, row)) for row in (table if entries.table is None else entries.table)]
    for name, (label, verdict) in ENTRIES.items():
        if (amount := getattr(entries, name)) is not None:
            rows[label][verdict] = float(amount)
    if entries.undecided is not None:
        rows = [[*row[:-1], float(entries.undecided)] for row in rows]
    return tuple(map(tuple, rows))
