"""Metrics of a panel: of its verdict, and of each member by its own vote."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nip_ray.play.rollout import Rollout
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Panel, Protocol
from nip_ray.protocols.batched_step import verdict_of

VERDICT = "verifier"
"""The name of metrics of the verdict, for every decider."""
_TINY = 1e-30


def judged(protocol: Protocol, rollout: Rollout) -> dict[str, Rollout]:
    """Judge -> the rollout by its judgement: for `VERDICT` unchanged, for each member of a panel as if its vote were
    the verdict."""
    members = protocol.panel.members if protocol.panel is not None else ()
    assert not members or rollout.vote_BM is not None
    return {VERDICT: rollout} | {
        member: replace(rollout, verdict_B=rollout.vote_BM[:, place])  # type: ignore[index]
        for place, member in enumerate(members)
    }


def panel_chances(panel: Panel, chance_BM3: Tensor, last_B: Tensor, grade_BM: Tensor | None = None) -> Tensor:
    """(B, 3) the chances of the verdicts reject and accept, and of none, in a round where members vote independently.

    chance_BM3: of each member's reject, accept and continue; certain for one that has voted before. last_B: (B,) bool,
    the rounds run out. grade_BM: each member's probability of acceptance if it votes, for the rule "mean". Exact: under
    the mean the chances of all sets of voting members, else of all numbers of votes for either side, added one member
    at a time.
    """
    found_B3 = torch.zeros_like(chance_BM3[:, 0])
    if panel.rule == "mean":
        assert grade_BM is not None
        none_BM = chance_BM3[..., CONTINUE]
        for votes in product((False, True), repeat=grade_BM.shape[1]):
            votes_M = torch.tensor(votes, device=grade_BM.device)
            chance_B = torch.where(votes_M, chance_BM3[..., :CONTINUE].sum(-1), none_BM).prod(1)
            verdict_B = verdict_of(panel.confidence(grade_BM.masked_fill(~votes_M, torch.nan)))
            counted_B = torch.where(last_B | all(votes), verdict_B, CONTINUE)
            found_B3.scatter_add_(1, counted_B[:, None], chance_B[:, None])
        return found_B3
    batch, members, _ = chance_BM3.shape
    table_BKL = chance_BM3.new_zeros(batch, members + 1, members + 1)  # by votes to accept and to reject
    table_BKL[:, 0, 0] = 1
    for place in range(members):
        reject_B11, accept_B11, none_B11 = (
            chance_BM3[:, place, code, None, None] for code in (REJECT, ACCEPT, CONTINUE)
        )
        more_BKL = table_BKL * none_B11
        more_BKL[:, 1:] += table_BKL[:, :-1] * accept_B11
        more_BKL[:, :, 1:] += table_BKL[:, :, :-1] * reject_B11
        table_BKL = more_BKL
    for accepts in range(members + 1):
        for rejects in range(members + 1 - accepts):
            cast = [1.0] * accepts + [0.0] * rejects + [torch.nan] * (members - accepts - rejects)
            verdict = int(verdict_of(panel.confidence(torch.tensor([cast])))[0])
            chance_B = table_BKL[:, accepts, rejects]
            whole_B = last_B | (accepts + rejects == members)
            found_B3[:, verdict] += chance_B * whole_B
            found_B3[:, CONTINUE] += chance_B * ~whole_B
    return found_B3


def chances_of_panel(
    protocol: Protocol, rollout: Rollout, chance_BR3: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor | None]:
    """((B, R, 3) the chances of the panel's verdicts in each round, given earlier votes, 0 where no vote was possible;
    and, under the mean, (B,) the verdict as a probability of acceptance, NaN without votes).

    chance_BR3: member -> its chances in each round, 0 where it could not vote.
    """
    panel = protocol.panel
    assert panel is not None
    # the last round in which a member can vote, by seed class: later ones add nothing, and votes so far decide
    votes_SR = protocol.turn_table_SKAC[:, : rollout.num_rounds, protocol.verifier_indices].any(-1).any(-1)
    last_S = votes_SR.long().cumsum(1).argmax(1).to(rollout.seed_B.device)
    last_of_B = last_S[rollout.seed_B % len(last_S)]
    chance_BRM3 = torch.stack([chance_BR3[member] for member in panel.members], 2)
    found_BR3 = torch.zeros_like(chance_BRM3[:, :, 0])
    before_BM3 = one_hot(torch.full_like(rollout.turn_BRA[:, 0, protocol.verifier_indices].long(), CONTINUE), 3).float()
    stated_BM = torch.full_like(before_BM3[..., 0], torch.nan)
    for r in range(rollout.num_rounds):
        may_BM = chance_BRM3[:, r].sum(-1) > 0
        now_BM3 = torch.where(may_BM[..., None], chance_BRM3[:, r], before_BM3)
        accept_BM = chance_BRM3[:, r, :, ACCEPT] / (
            chance_BRM3[:, r, :, ACCEPT] + chance_BRM3[:, r, :, REJECT]
        ).clamp_min(_TINY)
        grade_BM = torch.where(may_BM, accept_BM, stated_BM)
        found_BR3[:, r] = panel_chances(panel, now_BM3, last_of_B == r, grade_BM) * may_BM.any(1, keepdim=True)
        decided_BM = rollout.decision_BRA[:, r, protocol.verifier_indices]
        before_BM3 = torch.where(may_BM[..., None], one_hot(decided_BM, 3).float(), before_BM3)
        stated_BM = torch.where(may_BM & (decided_BM != CONTINUE), accept_BM, stated_BM)
    stated = panel.rule == "mean" and protocol.force_guess is None
    return found_BR3, panel.confidence(stated_BM) if stated else None
