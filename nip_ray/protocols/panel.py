"""Several deciders with one verdict: the members, and the rule that combines their votes.

Decisions that matter here:
- a vote is a probability of acceptance: 0 or 1, anything between where votes are graded, NaN for none. Networks draw a
  vote of 0 or 1, and under the mean also give the probability of that draw;
- a vote of exactly one half favours neither side: it is cast, and counts for neither. Only the mean uses the confidence
  of votes;
- imports no torch: tables of protocols name panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

Rule = Literal["majority", "unanimous", "veto", "mean"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True)
class Panel:
    """Deciders whose votes make the verdict, once all have voted or the rounds have run out.

    members: the deciders, each an agent. rule: "majority", more than half of all members, else undecided; "unanimous",
    accepted if every member accepts, else rejected; "veto", rejected if some member rejects, else accepted; "mean", the
    mean of the members' probabilities of acceptance, undecided at one half. Without any vote for a side all are
    undecided. paid_for: the column of a member's table, by its own vote or by the panel's verdict.
    """

    members: tuple[str, ...]
    rule: Rule = "majority"
    paid_for: Literal["vote", "verdict"] = "vote"

    def confidence(self, grade_BM: Tensor) -> Tensor:
        """(B,) the verdict as a probability of acceptance, NaN for undecided. grade_BM: (B, M) votes, NaN for none."""
        if self.rule == "mean":
            return grade_BM.nanmean(1)
        accept_B, reject_B, count = (grade_BM > 0.5).sum(1), (grade_BM < 0.5).sum(1), len(self.members)
        voted_B = accept_B + reject_B > 0
        if self.rule == "majority":
            accepted_B, rejected_B = 2 * accept_B > count, 2 * reject_B > count
        else:
            accepted_B = accept_B == count if self.rule == "unanimous" else reject_B == 0
            accepted_B, rejected_B = accepted_B & voted_B, ~accepted_B & voted_B
        return accepted_B.float().masked_fill(~(accepted_B | rejected_B), float("nan"))
