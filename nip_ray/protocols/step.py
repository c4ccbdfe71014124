"""The one step function of every single-verifier protocol: pure, batched over B copies, no Python loop over copies."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nip_ray.protocols.spec import ACCEPT, CONTINUE, NUM_SEEDS, REJECT, Protocol


@dataclass(frozen=True)
class ProtocolState:
    """Where B copies stand.

    round_B: (B,) int64, 0-based, the round about to be played. seed_B: (B,) int64 episode seeds. y_B: (B,) int64 labels.
    agent_done_BA: (B, A) bool. done_B: (B,) bool, decided. exhausted_B: (B,) bool, rounds ran out undecided.
    """

    round_B: Tensor
    seed_B: Tensor
    y_B: Tensor
    agent_done_BA: Tensor
    done_B: Tensor
    exhausted_B: Tensor

    @property
    def ended_B(self) -> Tensor:
        """(B,) bool: decided or exhausted; nothing more happens in these copies."""
        return self.done_B | self.exhausted_B


@dataclass(frozen=True)
class StepOutcome:
    """What one step paid and ended.

    reward_BA: (B, A) float32, zero for copies that had ended before. decided_B, exhausted_B: (B,) bool, ended in this very step.
    decision_B: (B,) int64, the decision that counted (CONTINUE where none did).
    """

    reward_BA: Tensor
    decided_B: Tensor
    exhausted_B: Tensor
    decision_B: Tensor


def start(protocol: Protocol, y_B: Tensor, seed_B: Tensor) -> ProtocolState:
    """Fresh copies with labels `y_B` and episode seeds `seed_B` (both (B,) int64, seeds in [0, 65536))."""
    batch = y_B.shape[0]
    false_B = torch.zeros(batch, dtype=torch.bool, device=y_B.device)
    false_BA = torch.zeros(batch, len(protocol.agents), dtype=torch.bool, device=y_B.device)
    return ProtocolState(torch.zeros_like(y_B), seed_B % NUM_SEEDS, y_B, false_BA, false_B, false_B)


def step(protocol: Protocol, state: ProtocolState, decision_BA: Tensor) -> tuple[ProtocolState, StepOutcome]:
    """Play one round.

    decision_BA: (B, A) int64; only the verifier's column is read, and only where it has a turn. Copies that had ended stay as
    they are and are paid nothing. A decision before round ``min_rounds - 1`` is ignored and counts as none.
    Returns the next state and what this round paid.
    """
    live_B = ~state.ended_B
    may_guess_B = live_B & protocol.may_guess(state.round_B, state.seed_B)
    wanted_B = forced_decision(protocol, decision_BA[:, protocol.verifier_index], state.y_B)
    counts_B = state.round_B >= protocol.min_rounds - 1
    decided_B = may_guess_B & counts_B & (wanted_B != CONTINUE)
    exhausted_B = live_B & ~decided_B & (state.round_B >= protocol.max_rounds - 1)
    decision_B = torch.where(decided_B, wanted_B, CONTINUE)
    outcome = StepOutcome(_rewards(protocol, state, decision_B, exhausted_B, may_guess_B), decided_B, exhausted_B, decision_B)
    after = replace(
        state,
        round_B=state.round_B + live_B.long(),
        agent_done_BA=state.agent_done_BA | decided_B[:, None],
        done_B=state.done_B | decided_B,
        exhausted_B=state.exhausted_B | exhausted_B,
    )
    return after, outcome


def forced_decision(protocol: Protocol, decision_B: Tensor, y_B: Tensor) -> Tensor:
    """`decision_B`, or what `force_guess` puts in its place everywhere: endings, correctness and payment then all follow it."""
    if protocol.force_guess is None:
        return decision_B
    if protocol.force_guess == "y":
        return y_B
    return torch.full_like(decision_B, ACCEPT if protocol.force_guess == "one" else REJECT)


def _rewards(protocol: Protocol, state: ProtocolState, decision_B: Tensor, exhausted_B: Tensor, may_guess_B: Tensor) -> Tensor:
    """(B, A) float32 rewards of one step; decision_B is CONTINUE where no decision counted."""
    pay = protocol.payment
    decided_B = decision_B != CONTINUE
    verifier_B = torch.zeros(decision_B.shape, dtype=torch.float32, device=decision_B.device)
    verifier_B = torch.where(decided_B & (decision_B == state.y_B), pay.verifier_reward, verifier_B)
    verifier_B = torch.where(decided_B & (decision_B != state.y_B), pay.verifier_incorrect_penalty, verifier_B)
    verifier_B = torch.where(exhausted_B, pay.verifier_terminated_penalty, verifier_B)
    verifier_B = torch.where(may_guess_B & ~decided_B & ~exhausted_B, pay.verifier_no_guess_reward, verifier_B)
    columns = []
    for agent in protocol.agents:
        if agent == protocol.verifier or pay.shared_reward:
            columns.append(verifier_B)
        elif agent in pay.goals:
            columns.append((decision_B == pay.goals[agent]).float() * pay.prover_reward)
        else:
            columns.append(torch.zeros_like(verifier_B))
    return torch.stack(columns, 1)
