"""Figures of a panel: of its verdict, and of each member by its own vote."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nip_ray.play.rollout import Rollout
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Panel, Protocol
from nip_ray.protocols.batched_step import verdict_of

VERDICT = "verifier"
"""Under which name figures of the verdict stand, whoever gives it."""


def judged(protocol: Protocol, rollout: Rollout) -> dict[str, Rollout]:
    """Who judges -> the rollout as judged by it: by `VERDICT` as it is, by each member of a panel as if its vote were the verdict."""
    members = protocol.panel.members if protocol.panel is not None else ()
    assert not members or rollout.vote_BM is not None
    return {VERDICT: rollout} | {
        member: replace(rollout, verdict_B=rollout.vote_BM[:, place])  # type: ignore[index]
        for place, member in enumerate(members)
    }


def panel_chances(panel: Panel, chance_BM3: Tensor, last_B: Tensor) -> Tensor:
    """(B, 3) the chances of the verdicts reject and accept, and of none, in a round in which members vote independently of one another.

    chance_BM3: of each member's reject, accept and continue; certain of one that has voted before. last_B: (B,) bool, whether the rounds
    run out. Exact: the chances of all numbers of votes for either side, added one member at a time.
    """
    batch, members, _ = chance_BM3.shape
    table_BKL = chance_BM3.new_zeros(batch, members + 1, members + 1)  # by votes to accept and to reject
    table_BKL[:, 0, 0] = 1
    for place in range(members):
        reject_B11, accept_B11, none_B11 = (chance_BM3[:, place, code, None, None] for code in (REJECT, ACCEPT, CONTINUE))
        more_BKL = table_BKL * none_B11
        more_BKL[:, 1:] += table_BKL[:, :-1] * accept_B11
        more_BKL[:, :, 1:] += table_BKL[:, :, :-1] * reject_B11
        table_BKL = more_BKL
    found_B3 = chance_BM3.new_zeros(batch, 3)
    for accepts in range(members + 1):
        for rejects in range(members + 1 - accepts):
            cast = [1.0] * accepts + [0.0] * rejects + [torch.nan] * (members - accepts - rejects)
            verdict = int(verdict_of(panel.confidence(torch.tensor([cast])))[0])
            chance_B = table_BKL[:, accepts, rejects]
            whole_B = last_B | (accepts + rejects == members)
            found_B3[:, verdict] += chance_B * whole_B
            found_B3[:, CONTINUE] += chance_B * ~whole_B
    return found_B3


def chances_of_panel(protocol: Protocol, rollout: Rollout, chance_BR3: Mapping[str, Tensor]) -> Tensor:
    """(B, R, 3) the chances of the panel's verdicts in each round, given who had voted what before; 0 where nobody could vote.

    chance_BR3: member -> its chances in each round, 0 where it could not vote.
    """
    panel = protocol.panel
    assert panel is not None
    chance_BRM3 = torch.stack([chance_BR3[member] for member in panel.members], 2)
    found_BR3 = torch.zeros_like(chance_BRM3[:, :, 0])
    before_BM3 = torch.nn.functional.one_hot(torch.full_like(rollout.turn_BRA[:, 0, protocol.verifier_indices].long(), CONTINUE), 3).float()
    for r in range(rollout.num_rounds):
        may_BM1 = (chance_BRM3[:, r].sum(-1) > 0)[..., None]
        now_BM3 = torch.where(may_BM1, chance_BRM3[:, r], before_BM3)
        last_B = torch.full_like(rollout.id_B, r == rollout.num_rounds - 1, dtype=torch.bool)
        found_BR3[:, r] = panel_chances(panel, now_BM3, last_B) * may_BM1.any(1)
        decided_BM = rollout.decision_BRA[:, r, protocol.verifier_indices]
        before_BM3 = torch.where(may_BM1, torch.nn.functional.one_hot(decided_BM, 3).float(), before_BM3)
    return found_BR3
