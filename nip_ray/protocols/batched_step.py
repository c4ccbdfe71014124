"""The one step function of every protocol: pure, batched over B copies, no Python loop over copies."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from nip_ray.protocols.panel import Panel
from nip_ray.protocols.payment import LEAST, Ends
from nip_ray.protocols.spec import ACCEPT, CONTINUE, NUM_SEEDS, REJECT, Protocol
from nip_ray.protocols.zero_knowledge import pay


@dataclass(frozen=True)
class ProtocolState:
    """The state of B copies.

    round_B: (B,) int64, 0-based, the next round. seed_B: (B,) int64 episode seeds. y_B: (B,) int64 labels.
    agent_done_BA: (B, A) bool, the agent has no more turns. done_B: (B,) bool, over with a verdict. exhausted_B: (B,)
    bool, over without: the rounds ran out while the verifier was undecided, or cut a game off (`Protocol.cuts`). Under
    zero knowledge a verdict alone does not end a copy: the verifier is done, and `done_B` follows when the adversarial
    verifier has decided too, or when the rounds run out (which then costs no agent anything). vote_BM, grade_BM: (B, M)
    float32, the vote of each member of a panel and its probability of acceptance, NaN for none; without a panel they
    have no columns. They differ if votes are drawn from the probabilities.
    """

    round_B: Tensor
    seed_B: Tensor
    y_B: Tensor
    agent_done_BA: Tensor
    done_B: Tensor
    exhausted_B: Tensor
    vote_BM: Tensor
    grade_BM: Tensor

    @property
    def ended_B(self) -> Tensor:
        """(B,) bool: over with or without a verdict; these copies no longer change."""
        return self.done_B | self.exhausted_B


@dataclass(frozen=True)
class StepOutcome:
    """The payments and ends of one step.

    reward_BA: (B, A) float32, zero for copies that had ended before. decided_B: (B,) bool, the verifier gave its
    verdict in this step, or a game without one ended. exhausted_B: (B,) bool, the rounds ran out in this step without a
    verdict, or the game was cut off. decision_B: (B,) int64, the verdict given in this step (`Protocol.undecided` for
    none).
    """

    reward_BA: Tensor
    decided_B: Tensor
    exhausted_B: Tensor
    decision_B: Tensor


def start(protocol: Protocol, y_B: Tensor, seed_B: Tensor) -> ProtocolState:
    """New copies with labels `y_B` and episode seeds `seed_B` (both (B,) int64, seeds in [0, 65536))."""
    batch = y_B.shape[0]
    false_B = torch.zeros(batch, dtype=torch.bool, device=y_B.device)
    false_BA = torch.zeros(batch, len(protocol.agents), dtype=torch.bool, device=y_B.device)
    members = len(protocol.panel.members) if protocol.panel else 0
    no_BM = torch.full((batch, members), torch.nan, device=y_B.device)
    return ProtocolState(torch.zeros_like(y_B), seed_B % NUM_SEEDS, y_B, false_BA, false_B, false_B, no_BM, no_BM)


@dataclass(frozen=True)
class Judgement:
    """The scenario's judgement of a round in a game without a verifier: reward_BA (B, A) float32; over_B (B,) bool, the
    game is over."""

    reward_BA: Tensor
    over_B: Tensor


def step(
    protocol: Protocol,
    state: ProtocolState,
    decision_BA: Tensor,
    judged: Judgement | None = None,
    similarity_B: Tensor | None = None,
    grade_BM: Tensor | None = None,
    drawn: bool = False,
    error_B: Tensor | None = None,
    turn_BA: Tensor | None = None,
) -> tuple[ProtocolState, StepOutcome]:
    """Play one round.

    decision_BA: (B, A) int64; only deciders' columns are read, and only where they have a turn. Copies that had ended
    keep their state and are paid nothing, and so does a verifier that has decided. A decision before round
    ``min_rounds - 1`` is ignored, unless `turn_BA` is given. judged: the scenario's judgement of this round, in a game
    without a verifier. similarity_B: under zero knowledge, the similarity of the choices of the simulator and the
    adversarial verifier in this round (`nip_ray.learning.similarity`). grade_BM: (B, M) the probability of acceptance
    that each member of a panel, or the one verifier, gives with its decision (None: 0 or 1, by the decision); a
    verifier's counts if `Protocol.graded`. drawn: its decision was drawn with that probability, see `score`. error_B:
    the scenario's error of the estimates in episodes that end now, paid for by `Payment.per_error` (None: none).
    turn_BA: the turns, if the caller knows them; it has then replaced every decision of the verifier that does not
    count by undecided. Returns the next state and the payments of this round. Raises ValueError if a required argument
    is missing.
    """
    after, outcome = _step(protocol, state, decision_BA, judged, similarity_B, grade_BM, drawn, turn_BA)
    if error_B is not None:
        amount_A = torch.tensor(
            [protocol.payment.per_error.get(agent, 0.0) for agent in protocol.agents], device=error_B.device
        )
        paid_BA = torch.where((outcome.decided_B | outcome.exhausted_B)[:, None], error_B[:, None] * amount_A, 0.0)
        outcome = replace(outcome, reward_BA=outcome.reward_BA + paid_BA)
    if protocol.chooser is not None:
        seed_B = protocol.chosen(state.round_B, state.seed_B, decision_BA[:, protocol.agents.index(protocol.chooser)])
        after = replace(after, seed_B=torch.where(state.ended_B, state.seed_B, seed_B))
    return after, outcome


def _step(
    protocol: Protocol,
    state: ProtocolState,
    decision_BA: Tensor,
    judged: Judgement | None,
    similarity_B: Tensor | None,
    grade_BM: Tensor | None,
    drawn: bool,
    turn_BA: Tensor | None,
) -> tuple[ProtocolState, StepOutcome]:
    """`step` without the choice of a role."""
    live_B = ~state.ended_B
    if protocol.verifier is None:
        return _judged_step(protocol, state, live_B, judged)
    counted = turn_BA is not None and protocol.force_guess is None
    if turn_BA is None:
        turn_BA = protocol.active(state.round_B, state.seed_B).any(-1) & live_B[:, None] & ~state.agent_done_BA
    last_B = state.round_B >= protocol.max_rounds - 1
    if protocol.panel is not None:
        return _panel_step(protocol, protocol.panel, state, decision_BA, turn_BA, live_B, last_B, grade_BM, drawn)
    verifier = protocol.verifier_index
    decision_B = decision_BA[:, verifier] if counted else _counted(protocol, state, decision_BA, turn_BA, verifier)
    decided_B = decision_B != protocol.undecided
    agent_done_BA, over_B = state.agent_done_BA | decided_B[:, None], decided_B
    exhausted_B = live_B & last_B & ~agent_done_BA[:, verifier]
    reward_BA = _rewards(protocol, state, decision_B, decided_B | exhausted_B, turn_BA, grade_BM, drawn)
    if protocol.zero_knowledge is not None:
        if similarity_B is None:
            raise ValueError(
                f"protocol {protocol.name!r} pays for similarity: play it where all logits are seen (`play_rollout`)"
            )
        reward_BA = pay(protocol, reward_BA, similarity_B * live_B)
        adversary = protocol.agents.index(protocol.zero_knowledge.adversary)
        adversary_B = _counted(protocol, state, decision_BA, turn_BA, adversary) != protocol.undecided
        own_done = {verifier: decided_B, adversary: adversary_B}
        agent_done_BA, over_B = _two_ends(state, own_done, live_B, last_B)
    after = replace(
        state,
        round_B=state.round_B + live_B,
        agent_done_BA=agent_done_BA,
        done_B=state.done_B | over_B,
        exhausted_B=state.exhausted_B | exhausted_B,
    )
    return after, StepOutcome(reward_BA, decided_B, exhausted_B, decision_B)


def _panel_step(
    protocol: Protocol,
    panel: Panel,
    state: ProtocolState,
    decision_BA: Tensor,
    turn_BA: Tensor,
    live_B: Tensor,
    last_B: Tensor,
    given_BM: Tensor | None,
    drawn: bool,
) -> tuple[ProtocolState, StepOutcome]:
    """Members vote once, and then have no turns. The verdict comes with the last vote, or when the rounds run out."""
    places = protocol.verifier_indices
    code_BM = torch.stack([_counted(protocol, state, decision_BA, turn_BA, place) for place in places], 1)
    if given_BM is None or protocol.force_guess is not None:
        given_BM, drawn = code_BM.float(), False
    now_BM = code_BM != CONTINUE
    grade_BM = torch.where(now_BM, given_BM, state.grade_BM)
    vote_BM = torch.where(now_BM, code_BM.float() if drawn else given_BM, state.vote_BM)
    voted_BM = ~vote_BM.isnan()
    over_B = live_B & (voted_BM.all(1) | last_B)
    confidence_B = panel.confidence(grade_BM if panel.rule == "mean" else vote_BM)
    decided_B = over_B & ~confidence_B.isnan()
    decision_B = torch.where(decided_B, verdict_of(confidence_B), CONTINUE)
    counts_BA = turn_BA.clone()
    counts_BA[:, places] &= ~now_BM & ~over_B[:, None]
    paid_BA = torch.where(over_B[:, None], _panel_pays(protocol, panel, state, vote_BM, grade_BM, confidence_B), 0.0)
    excess_BM = _excess_of_mean(vote_BM, grade_BM) if drawn and protocol.payment.graded else None
    reward_BA = _with_more(protocol, state, paid_BA, counts_BA, over_B, decision_B, confidence_B, excess_BM)
    agent_done_BA = state.agent_done_BA | over_B[:, None]
    agent_done_BA[:, places] |= voted_BM
    after = replace(
        state,
        round_B=state.round_B + live_B.long(),
        agent_done_BA=agent_done_BA,
        done_B=state.done_B | decided_B,
        exhausted_B=state.exhausted_B | (over_B & ~decided_B),
        vote_BM=vote_BM,
        grade_BM=grade_BM,
    )
    return after, StepOutcome(reward_BA, decided_B, over_B & ~decided_B, decision_B)


def verdict_of(confidence_B: Tensor) -> Tensor:
    """(B,) int64: ACCEPT above one half, REJECT below, CONTINUE at one half and without a verdict (NaN)."""
    return torch.where(confidence_B > 0.5, ACCEPT, torch.where(confidence_B < 0.5, REJECT, CONTINUE))


def _panel_pays(
    protocol: Protocol, panel: Panel, state: ProtocolState, vote_BM: Tensor, grade_BM: Tensor, confidence_B: Tensor
) -> Tensor:
    """(B, A) table payments for an end with these votes and this verdict: probabilities pay a share of each.

    If votes are drawn with the members' probabilities, a member is also paid for the excess of its draw over them,
    times the dependence of the share on it, as in `score`.
    """
    payoff_KYVA, _ = protocol.amounts_on(confidence_B.device)
    amount_BVA = payoff_KYVA[protocol.role_B(state.seed_B), state.y_B]
    places, own_BA = protocol.verifier_indices, confidence_B[:, None].repeat(1, len(protocol.agents))
    excess_BA = torch.zeros_like(own_BA)
    if panel.paid_for == "vote":
        own_BA[:, places], excess_BA[:, places] = grade_BM, (vote_BM - grade_BM).nan_to_num(0.0)
    elif panel.rule == "mean":
        excess_BA[:, places] = _excess_of_mean(vote_BM, grade_BM)
    share_BA = own_BA.nan_to_num(0.0)
    paid_BA, scoring = share_BA + excess_BA, protocol.payment.scoring
    if scoring != "linear":
        true_B1 = state.y_B[:, None] == ACCEPT
        right_BA, slope_BA = score(scoring, torch.where(true_B1, share_BA, 1 - share_BA))
        right_BA = right_BA + torch.where(true_B1, excess_BA, -excess_BA) * slope_BA
        paid_BA = torch.where(_honest(protocol, state), torch.where(true_B1, right_BA, 1 - right_BA), paid_BA)
    mixed_BA = paid_BA * amount_BVA[:, ACCEPT] + (1 - paid_BA) * amount_BVA[:, REJECT]
    return torch.where(own_BA.isnan(), amount_BVA[:, CONTINUE], mixed_BA)


def _excess_of_mean(vote_BM: Tensor, grade_BM: Tensor) -> Tensor:
    """(B, M) the effect of each member's draw on the mean of the votes cast, relative to the mean of the probabilities;
    0 without a vote."""
    return (vote_BM - grade_BM).nan_to_num(0.0) / (~vote_BM.isnan()).sum(1, keepdim=True).clamp_min(1)


def score(scoring: str, truth: Tensor) -> tuple[Tensor, Tensor]:
    """(score, slope) of the probability given to the truth: the Brier or logarithmic score, 1 if certain, 0 at least.

    An agent that draws its decision from its stated probability c cannot learn from a payment of the score, which does
    not depend on the draw. So such a draw is paid score(c) + (1 - c) slope(c) if it is right and score(c) - c slope(c)
    if it is wrong. That is the score in the mean, and its score-function gradient is the slope: policy gradients then
    ascend the score itself.
    """
    if scoring == "brier":
        return 1 - (1 - truth) ** 2, 2 * (1 - truth)
    kept = truth.clamp_min(LEAST)
    return 1 - kept.log() / log(LEAST), torch.where(truth < LEAST, 0.0, -1 / (kept * log(LEAST)))


def _honest(protocol: Protocol, state: ProtocolState) -> Tensor:
    """(B, A) bool: the agent is paid for being right."""
    parts = [protocol.payment.of(role) for role in protocol.roles or (None,)]
    honest_KA = torch.tensor(
        [[part.wants_truth(agent) for agent in protocol.agents] for part in parts], device=state.y_B.device
    )
    return honest_KA[protocol.role_B(state.seed_B)]


def _scored(
    protocol: Protocol, state: ProtocolState, paid_BA: Tensor, decision_B: Tensor, grade_B: Tensor, drawn: bool
) -> Tensor:
    """(B, A) `paid_BA`, where agents paid for being right get the score of the verifier's stated probability."""
    payoff_KYVA, _ = protocol.amounts_on(decision_B.device)
    amount_BVA = payoff_KYVA[protocol.role_B(state.seed_B), state.y_B]
    true_B = state.y_B == ACCEPT
    truth_B = torch.where(true_B, grade_B, 1 - grade_B)
    share_B, slope_B = score(protocol.payment.scoring, truth_B)
    if drawn:
        share_B = share_B + ((decision_B == state.y_B).float() - truth_B) * slope_B
    accept_BA, reject_BA = amount_BVA[:, ACCEPT], amount_BVA[:, REJECT]
    right_BA, wrong_BA = (
        torch.where(true_B[:, None], *pair) for pair in ((accept_BA, reject_BA), (reject_BA, accept_BA))
    )
    given_BA = _honest(protocol, state) & (decision_B != CONTINUE)[:, None]
    return torch.where(given_BA, wrong_BA + share_B[:, None] * (right_BA - wrong_BA), paid_BA)


def _counted(protocol: Protocol, state: ProtocolState, decision_BA: Tensor, turn_BA: Tensor, agent: int) -> Tensor:
    """(B,) int64: the decision of agent number `agent` in this round, `Protocol.undecided` if it does not count."""
    counts_B = turn_BA[:, agent] & (state.round_B >= protocol.min_rounds - 1)
    return torch.where(counts_B, forced_decision(protocol, decision_BA[:, agent], state.y_B), protocol.undecided)


def _two_ends(
    state: ProtocolState, own_done: Mapping[int, Tensor], live_B: Tensor, last_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The agents that are done, and the copies that are over with a verdict, if the verifier and the adversary each end
    their own conversation.

    own_done: index of the verifier, then of the adversary -> (B,) bool, it decided in this round.
    """
    done = {index: state.agent_done_BA[:, index] | now_B for index, now_B in own_done.items()}
    verdict_B, adversary_B = done.values()
    over_B = live_B & verdict_B & (adversary_B | last_B)
    others_B = state.done_B | over_B
    columns = [done.get(index, others_B) for index in range(state.agent_done_BA.shape[1])]
    return torch.stack(columns, 1), over_B


def _judged_step(
    protocol: Protocol, state: ProtocolState, live_B: Tensor, judged: Judgement | None
) -> tuple[ProtocolState, StepOutcome]:
    if judged is None:
        raise ValueError(
            f"protocol {protocol.name!r} has no verifier, so its scenario must judge every round (`Scenario.judge`)"
        )
    last_B = state.round_B >= protocol.max_rounds - 1
    over_B = live_B & (judged.over_B if protocol.cuts else judged.over_B | last_B)
    cut_B = live_B & last_B & ~over_B
    outcome = StepOutcome(
        judged.reward_BA * live_B[:, None], over_B, cut_B, torch.full_like(state.y_B, protocol.undecided)
    )
    after = replace(
        state,
        round_B=state.round_B + live_B.long(),
        agent_done_BA=state.agent_done_BA | over_B[:, None],
        done_B=state.done_B | over_B,
        exhausted_B=state.exhausted_B | cut_B,
    )
    return after, outcome


def forced_decision(protocol: Protocol, decision_B: Tensor, y_B: Tensor) -> Tensor:
    """`decision_B`, or its replacement by `force_guess`: endings, correctness and payment then all use it."""
    if protocol.force_guess is None:
        return decision_B
    if protocol.force_guess == "y":
        return y_B
    return torch.full_like(decision_B, ACCEPT if protocol.force_guess == "one" else REJECT)


def _rewards(
    protocol: Protocol,
    state: ProtocolState,
    decision_B: Tensor,
    over_B: Tensor,
    turn_BA: Tensor,
    grade_BM: Tensor | None,
    drawn: bool,
) -> Tensor:
    """(B, A) float32 rewards of one step; decision_B is `Protocol.undecided` if no decision counted, over_B: ended."""
    payoff_KYVA, turns_AA = protocol.amounts_on(decision_B.device)
    end = (state.y_B, decision_B)
    paid_BA = payoff_KYVA[protocol.role_B(state.seed_B), *end] if protocol.roles else payoff_KYVA[0][end]
    grade_B = None if grade_BM is None or protocol.force_guess is not None else grade_BM[:, 0]
    if grade_B is not None and protocol.payment.scoring != "linear":
        paid_BA = _scored(protocol, state, paid_BA, decision_B, grade_B, drawn)
    reward_BA = torch.where(over_B[:, None], paid_BA, 0.0)
    counts_BA = turn_BA
    if turns_AA is not None:
        counts_BA = turn_BA.clone()
        counts_BA[:, protocol.verifier_index] &= ~over_B
    if grade_B is None or not protocol.payment.graded:
        return _with_more(protocol, state, reward_BA, counts_BA, over_B, decision_B, None)
    none_B = decision_B == CONTINUE
    excess_B1 = torch.where(none_B, 0.0, decision_B - grade_B)[:, None] if drawn else None
    return _with_more(
        protocol, state, reward_BA, counts_BA, over_B, decision_B, grade_B.masked_fill(none_B, torch.nan), excess_B1
    )


def _with_more(
    protocol: Protocol,
    state: ProtocolState,
    reward_BA: Tensor,
    counts_BA: Tensor,
    over_B: Tensor,
    decision_B: Tensor,
    confidence_B: Tensor | None,
    excess_BM: Tensor | None = None,
) -> Tensor:
    """(B, A) with the payments of turns that count (B, A), and of the payment function at an end. confidence_B: of a
    graded verdict, NaN for none (None: without grades). excess_BM: the effect of each decider's draw on it (None:
    none)."""
    turns_AA = protocol.amounts_on(decision_B.device)[1]
    if turns_AA is not None:
        for_turns_BA = (counts_BA[:, None] * turns_AA).sum(-1)
        reward_BA = reward_BA + torch.where(state.agent_done_BA, 0.0, for_turns_BA)
    if protocol.payment.function is not None:
        given_B = certainty(protocol, decision_B) if confidence_B is None else confidence_B.nan_to_num(0.5)
        ends = Ends(state.y_B, decision_B, given_B, state.round_B + 1, protocol.role_B(state.seed_B))
        paid_BA = function_pays(protocol, ends)
        if excess_BM is not None:
            slope_BM = slopes(protocol, ends)[:, protocol.verifier_indices]
            paid_BA[:, protocol.verifier_indices] += torch.where(excess_BM == 0, 0.0, excess_BM * slope_BM)
        reward_BA = reward_BA + torch.where(over_B[:, None], paid_BA, 0.0)
    return reward_BA


def slopes(protocol: Protocol, ends: Ends) -> Tensor:
    """(B, A) the derivative of the payment function by the confidence. The verdict of a single verifier is also drawn
    with that confidence, so it is the mean over both verdicts: times the excess of the draw over the confidence, it
    adds nothing in the mean, and makes the score-function gradient that of the mean payment."""
    if protocol.panel is not None:
        return _slope(protocol, ends, ends.verdict_B)
    accept_BA, reject_BA = (
        _slope(protocol, ends, torch.full_like(ends.verdict_B, verdict)) for verdict in (ACCEPT, REJECT)
    )
    return ends.confidence_B[:, None] * accept_BA + (1 - ends.confidence_B[:, None]) * reject_BA


def _slope(protocol: Protocol, ends: Ends, verdict_B: Tensor) -> Tensor:
    """(B, A) the derivative of the payment function by the confidence, at these verdicts; 0 if it has none."""
    with torch.enable_grad():
        confidence_B = ends.confidence_B.detach().clone().requires_grad_()
        paid_BA = function_pays(protocol, replace(ends, verdict_B=verdict_B, confidence_B=confidence_B))
        if not paid_BA.requires_grad:
            return torch.zeros_like(paid_BA)
        columns = [
            torch.autograd.grad(paid_B.sum(), confidence_B, retain_graph=True)[0] for paid_B in paid_BA.unbind(1)
        ]
    return torch.stack(columns, 1)


def certainty(protocol: Protocol, decision_B: Tensor) -> Tensor:
    """(B,) float32: the probability of acceptance of a verdict without a grade; see `Ends`."""
    if not protocol.two_verdicts:
        return (decision_B != protocol.undecided).float()
    return torch.where(decision_B == CONTINUE, 0.5, decision_B.float())


def function_pays(protocol: Protocol, ends: Ends) -> Tensor:
    """(B, A) float32: the payments of the payment function of `protocol` for these ends; zero for others."""
    assert protocol.payment.function is not None
    paid = protocol.payment.function(ends)
    nothing_B = torch.zeros_like(ends.confidence_B)
    return torch.stack([paid.get(agent, nothing_B).to(nothing_B) for agent in protocol.agents], 1)
