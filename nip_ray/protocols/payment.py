"""Who is paid for what, as data: a table for each agent over label and verdict, prices of turns, and a function where no table will do.

Decisions that matter here:
- a table has a row for each label (reject, accept) and in it an amount for each end: rejected, accepted, undecided when the rounds ran out;
- the parameters of a config (`prover_reward`, `shared_reward` ...) are names for entries of these tables, so there is one way to pay;
- whom a prover argues for (`goals`) is told beside the tables: prompts and attacks ask for it, and an item may give another side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import log
from typing import TYPE_CHECKING, Literal

from nip_ray.settings.protocol import PayoffSettings, ProtocolParams

if TYPE_CHECKING:
    from torch import Tensor

Row = tuple[float, float, float]
Table = tuple[Row, Row]
"""``table[label][verdict]``: what an agent is paid at the end; verdict 2 (CONTINUE) stands for an end without one."""
NOTHING: Table = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
Scoring = Literal["linear", "brier", "log"]
LEAST = 0.001
"""The probability of the truth from which downwards the logarithmic score pays a wrong verdict's amount."""
_ENTRIES = {"true_reject": (0, 0), "false_accept": (0, 1), "false_reject": (1, 0), "true_accept": (1, 1)}


@dataclass(frozen=True)
class Ends:
    """B episodes at their ends, for a payment function.

    y_B: (B,) int64 labels. verdict_B: (B,) int64, REJECT or ACCEPT; CONTINUE where the rounds ran out or neither side was favoured.
    confidence_B: (B,) float32, the probability that the verifier gave to acceptance: 0 or 1 unless its verdict is graded, 0.5 without one.
    rounds_B: (B,) int64, rounds played.
    """

    y_B: Tensor
    verdict_B: Tensor
    confidence_B: Tensor
    rounds_B: Tensor


PaymentFunction = Callable[[Ends], Mapping[str, "Tensor"]]
"""Agent -> (B,) what it is paid at the end, besides what its table says; pure, and each copy for itself."""


@dataclass(frozen=True)
class Payment:
    """Who is paid for what.

    payoff: agent -> its table; who is left out gets nothing at the end. turns: agent -> speaker -> paid to the agent for each turn of the
    speaker; of the verifier's turns those count that neither decide nor come last. goals: prover -> the verdict (REJECT or ACCEPT) that it
    argues for; a prover left out argues for none. function: pays at the end what no table says. scoring: what a graded verdict pays those
    who are paid for being right, between their two amounts; everybody else's share of acceptance is its confidence.
    """

    payoff: Mapping[str, Table] = field(default_factory=dict)
    turns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    goals: Mapping[str, int] = field(default_factory=dict)
    function: PaymentFunction | None = None
    scoring: Scoring = "linear"

    @classmethod
    def from_params(cls, params: ProtocolParams, goals: Mapping[str, int | None], verifier: str = "verifier") -> Payment:
        """The tables that `params` describe: the verifier is paid for being right, provers for their goals.

        goals: every prover -> the verdict that it is paid for, None for one who wants nothing. With `shared_reward` all provers have the
        verifier's table. Entries of `params.payoff` stand above all that.
        """
        judged = for_being_right(params.verifier_reward, params.verifier_incorrect_penalty, params.verifier_terminated_penalty)
        asking = {verifier: params.verifier_no_guess_reward} if params.verifier_no_guess_reward else {}
        payoff, turns = {verifier: judged}, {verifier: asking} if asking else {}
        for prover, goal in goals.items():
            if params.shared_reward:
                payoff[prover] = judged
                turns |= {prover: asking} if asking else {}
            elif goal is not None:
                payoff[prover] = for_verdict(goal, params.prover_reward)
        for agent, entries in params.payoff.items():
            if agent in (*goals, verifier):
                payoff[agent] = _laid_over(payoff.get(agent, NOTHING), entries)
                if entries.turns:
                    turns[agent] = {**turns.get(agent, {}), **entries.turns}
        stated = {prover: goal for prover, goal in goals.items() if goal is not None}
        return cls(payoff, turns, stated, scoring=params.verifier_scoring)

    def grants(self, agent: str, entries: PayoffSettings) -> bool:
        """Whether the agent is paid what these entries of a config say."""
        table = self.payoff.get(agent, NOTHING)
        return _laid_over(table, entries) == table and entries.turns.items() <= self.turns.get(agent, {}).items()

    def arguing(self, goals: Mapping[str, int]) -> Payment:
        """The same where provers argue for these verdicts. One who argues for another than here, and is paid for a verdict whatever the
        label, is paid for that one instead; whoever is paid for being right stays so.
        """
        turned = {
            agent: (_mirrored(table[0]), _mirrored(table[1]))
            for agent, table in self.payoff.items()
            if agent in goals and goals[agent] != self.goals.get(agent, goals[agent]) and table[0] == table[1]
        }
        return replace(self, payoff={**self.payoff, **turned}, goals=dict(goals))

    def share(self, agent: str, label: int, confidence: float) -> float:
        """How much of what acceptance pays this agent a verdict of this confidence pays; the rest is of what rejection pays."""
        if self.scoring == "linear" or not self.wants_truth(agent):
            return confidence
        truth = confidence if label else 1 - confidence
        right = 1 - (1 - truth) ** 2 if self.scoring == "brier" else 1 - log(max(truth, LEAST)) / log(LEAST)
        return right if label else 1 - right

    def wants_truth(self, agent: str) -> bool:
        """Whether the right verdict pays this agent more than the wrong one, whatever the label."""
        table = self.payoff.get(agent, NOTHING)
        return all(table[label][label] > table[label][1 - label] for label in (0, 1))

    def is_paid(self, agent: str) -> bool:
        """Whether anything that happens makes a difference to what this agent is paid."""
        amounts = {amount for row in self.payoff.get(agent, NOTHING) for amount in row}
        return len(amounts) > 1 or any(self.turns.get(agent, {}).values()) or agent in self._of_function()

    def _of_function(self) -> Set[str]:
        """Whom the payment function names."""
        if self.function is None:
            return set()
        import torch

        one_B = torch.ones(1, dtype=torch.int64)
        return set(self.function(Ends(one_B, one_B, one_B.float(), one_B)))

    def mid_point(self, agent: str) -> float:
        """Half way between an agent's good and bad ends: between the least of the labels' better verdicts and the most of the worse."""
        table = self.payoff.get(agent, NOTHING)
        return (min(max(row[:2]) for row in table) + max(min(row[:2]) for row in table)) / 2


def for_verdict(verdict: int, amount: float) -> Table:
    """`amount` for this verdict, right or wrong, and nothing for anything else."""
    row = (0.0, float(amount), 0.0) if verdict else (float(amount), 0.0, 0.0)
    return row, row


def for_being_right(right: float, wrong: float, undecided: float) -> Table:
    """These amounts for a right verdict, a wrong one, and none."""
    return (float(right), float(wrong), float(undecided)), (float(wrong), float(right), float(undecided))


def _mirrored(row: Row) -> Row:
    return row[1], row[0], row[2]


def _laid_over(table: Table, entries: PayoffSettings) -> Table:
    rows = [list(row) for row in table]
    for name, (label, verdict) in _ENTRIES.items():
        if (amount := getattr(entries, name)) is not None:
            rows[label][verdict] = float(amount)
    if entries.undecided is not None:
        rows[0][2] = rows[1][2] = float(entries.undecided)
    (a, b, c), (d, e, f) = rows
    return (a, b, c), (d, e, f)
