"""The one step function of every single-verifier protocol: pure, batched over B copies, no Python loop over copies."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nip_ray.protocols.payment import Ends
from nip_ray.protocols.spec import ACCEPT, CONTINUE, NUM_SEEDS, REJECT, Protocol
from nip_ray.protocols.zero_knowledge import pay


@dataclass(frozen=True)
class ProtocolState:
    """Where B copies stand.

    round_B: (B,) int64, 0-based, the round about to be played. seed_B: (B,) int64 episode seeds. y_B: (B,) int64 labels.
    agent_done_BA: (B, A) bool, who has no more turns. done_B: (B,) bool, over with a verdict. exhausted_B: (B,) bool, over without: the
    rounds ran out while the verifier was undecided, or cut a game off (`Protocol.cuts`). Under zero knowledge a verdict alone does not
    end a copy: the verifier is done, and `done_B` follows when the adversarial verifier has decided as well, or when the rounds run out
    (which then costs nobody anything).
    """

    round_B: Tensor
    seed_B: Tensor
    y_B: Tensor
    agent_done_BA: Tensor
    done_B: Tensor
    exhausted_B: Tensor

    @property
    def ended_B(self) -> Tensor:
        """(B,) bool: over with or without a verdict; nothing more happens in these copies."""
        return self.done_B | self.exhausted_B


@dataclass(frozen=True)
class StepOutcome:
    """What one step paid and ended.

    reward_BA: (B, A) float32, zero for copies that had ended before. decided_B: (B,) bool, the verifier gave its verdict in this very
    step, or a game without one came to its end. exhausted_B: (B,) bool, the rounds ran out in this very step, and the verifier had given
    none, or the game was cut off. decision_B: (B,) int64, the
    verdict given in this step (CONTINUE where there was none).
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


@dataclass(frozen=True)
class Judgement:
    """What the scenario of a game without a verifier says of a round: reward_BA (B, A) float32; over_B (B,) bool, the game is over."""

    reward_BA: Tensor
    over_B: Tensor


def step(
    protocol: Protocol,
    state: ProtocolState,
    decision_BA: Tensor,
    judged: Judgement | None = None,
    similarity_B: Tensor | None = None,
) -> tuple[ProtocolState, StepOutcome]:
    """Play one round.

    decision_BA: (B, A) int64; only the verifier's column is read (and the adversarial verifier's), and only where it has a turn.
    Copies that had ended stay as they are and are paid nothing, and so does a verifier that has decided. A decision before round
    ``min_rounds - 1`` is ignored and counts as none.
    judged: what the scenario says of this round, in a game without a verifier. similarity_B: under zero knowledge, how alike the
    simulator and the adversarial verifier chose in this round (`nip_ray.learning.similarity`).
    Returns the next state and what this round paid. Raises ValueError where one of the two is needed and not given.
    """
    live_B = ~state.ended_B
    if protocol.verifier is None:
        return _judged_step(protocol, state, live_B, judged)
    turn_BA = protocol.active(state.round_B, state.seed_B).any(-1) & live_B[:, None] & ~state.agent_done_BA
    verifier = protocol.verifier_index
    last_B = state.round_B >= protocol.max_rounds - 1
    decision_B = _counted(protocol, state, decision_BA, turn_BA, verifier)
    decided_B = decision_B != CONTINUE
    exhausted_B = live_B & ~state.agent_done_BA[:, verifier] & ~decided_B & last_B
    reward_BA = _rewards(protocol, state, decision_B, exhausted_B, turn_BA)
    agent_done_BA, over_B = state.agent_done_BA | decided_B[:, None], decided_B
    if protocol.zero_knowledge is not None:
        if similarity_B is None:
            raise ValueError(f"protocol {protocol.name!r} pays for similarity: play it where all logits are seen (`play_rollout`)")
        reward_BA = pay(protocol, reward_BA, similarity_B * live_B)
        adversary = protocol.agents.index(protocol.zero_knowledge.adversary)
        adversary_B = _counted(protocol, state, decision_BA, turn_BA, adversary) != CONTINUE
        own_done = {verifier: decided_B, adversary: adversary_B}
        agent_done_BA, over_B = _two_ends(state, own_done, live_B, last_B)
    after = replace(
        state,
        round_B=state.round_B + live_B.long(),
        agent_done_BA=agent_done_BA,
        done_B=state.done_B | over_B,
        exhausted_B=state.exhausted_B | exhausted_B,
    )
    return after, StepOutcome(reward_BA, decided_B, exhausted_B, decision_B)


def _counted(protocol: Protocol, state: ProtocolState, decision_BA: Tensor, turn_BA: Tensor, agent: int) -> Tensor:
    """(B,) int64: what agent number `agent` decided in this round, CONTINUE where that does not count."""
    counts_B = turn_BA[:, agent] & (state.round_B >= protocol.min_rounds - 1)
    return torch.where(counts_B, forced_decision(protocol, decision_BA[:, agent], state.y_B), CONTINUE)


def _two_ends(state: ProtocolState, own_done: Mapping[int, Tensor], live_B: Tensor, last_B: Tensor) -> tuple[Tensor, Tensor]:
    """Who is done, and which copies are over with a verdict, where the verifier and the adversary each end their own conversation.

    own_done: index of the verifier, then of the adversary -> (B,) bool, it decided in this round.
    """
    done = {index: state.agent_done_BA[:, index] | now_B for index, now_B in own_done.items()}
    verdict_B, adversary_B = done.values()
    over_B = live_B & verdict_B & (adversary_B | last_B)
    others_B = state.done_B | over_B
    columns = [done.get(index, others_B) for index in range(state.agent_done_BA.shape[1])]
    return torch.stack(columns, 1), over_B


def _judged_step(protocol: Protocol, state: ProtocolState, live_B: Tensor, judged: Judgement | None) -> tuple[ProtocolState, StepOutcome]:
    if judged is None:
        raise ValueError(f"protocol {protocol.name!r} has no verifier, so its scenario must judge every round (`Scenario.judge`)")
    last_B = state.round_B >= protocol.max_rounds - 1
    over_B = live_B & (judged.over_B if protocol.cuts else judged.over_B | last_B)
    cut_B = live_B & last_B & ~over_B
    outcome = StepOutcome(judged.reward_BA * live_B[:, None], over_B, cut_B, torch.full_like(state.y_B, CONTINUE))
    after = replace(
        state,
        round_B=state.round_B + live_B.long(),
        agent_done_BA=state.agent_done_BA | over_B[:, None],
        done_B=state.done_B | over_B,
        exhausted_B=state.exhausted_B | cut_B,
    )
    return after, outcome


def forced_decision(protocol: Protocol, decision_B: Tensor, y_B: Tensor) -> Tensor:
    """`decision_B`, or what `force_guess` puts in its place everywhere: endings, correctness and payment then all follow it."""
    if protocol.force_guess is None:
        return decision_B
    if protocol.force_guess == "y":
        return y_B
    return torch.full_like(decision_B, ACCEPT if protocol.force_guess == "one" else REJECT)


def _rewards(protocol: Protocol, state: ProtocolState, decision_B: Tensor, exhausted_B: Tensor, turn_BA: Tensor) -> Tensor:
    """(B, A) float32 rewards of one step; decision_B is CONTINUE where no decision counted."""
    payoff_KYVA, turns_AA = protocol.amounts_on(decision_B.device)
    over_B = (decision_B != CONTINUE) | exhausted_B
    end = (state.y_B, decision_B)
    paid_BA = payoff_KYVA[protocol.role_B(state.seed_B), *end] if protocol.roles else payoff_KYVA[0][end]
    reward_BA = torch.where(over_B[:, None], paid_BA, 0.0)
    if turns_AA is not None:
        counts_BA = turn_BA.clone()
        counts_BA[:, protocol.verifier_index] &= ~over_B
        for_turns_BA = (counts_BA[:, None] * turns_AA).sum(-1)
        reward_BA = reward_BA + torch.where(state.agent_done_BA, 0.0, for_turns_BA)
    if protocol.payment.function is not None:
        ends = Ends(state.y_B, decision_B, certainty(decision_B), state.round_B + 1, protocol.role_B(state.seed_B))
        reward_BA = reward_BA + torch.where(over_B[:, None], function_pays(protocol, ends), 0.0)
    return reward_BA


def certainty(decision_B: Tensor) -> Tensor:
    """(B,) float32: the probability of acceptance that a verdict without a grade stands for."""
    return torch.where(decision_B == CONTINUE, 0.5, decision_B.float())


def function_pays(protocol: Protocol, ends: Ends) -> Tensor:
    """(B, A) float32: what the payment function of `protocol` pays for these ends; zero for whom it does not name."""
    assert protocol.payment.function is not None
    paid = protocol.payment.function(ends)
    nothing_B = torch.zeros_like(ends.confidence_B)
    return torch.stack([paid.get(agent, nothing_B).to(nothing_B) for agent in protocol.agents], 1)
