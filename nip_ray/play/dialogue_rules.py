"""A protocol as language agents need it: who speaks in a round, and what a round pays and ends, as plain Python values.

Decisions that matter here:
- payment and endings come from the one step function (`nip_ray.protocols.batched_step`), called once over every round, seed class, label
  and decision; what it gives is remembered as plain floats, so that a round of a dialogue costs microseconds;
- whom a decision pays is part of the key: an item may give a prover another stance than the protocol's goal;
- a verdict with confidence c in (0, 1) pays c times what acceptance pays plus (1 - c) times what rejection pays: the expected payment
  of a verdict drawn with that probability, for verifier and provers alike. Under another `Payment.scoring` the share is another for
  those who are paid for being right. A payment function is given the confidence itself.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from nip_ray.play.dialogue import Turn
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Ends, Protocol, start, step
from nip_ray.protocols.batched_step import certainty, function_pays

Stances = tuple[tuple[str, int], ...]
"""Pairs of a prover and the decision that it is paid for."""
_MOST_KEPT = 256


@dataclass(frozen=True)
class Outcome:
    """What a round paid and ended. rewards: agent -> amount. verdict: where one counted, else `Protocol.undecided`.
    confidence: of the verdict, None without one. ended: with a verdict, or because the rounds ran out.
    """

    rewards: Mapping[str, float]
    verdict: int
    confidence: float | None
    ended: bool


class Rulebook:
    """The turns and payments of one protocol. Get it from `rulebook`, which makes it once."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._speakers = [[_speakers(protocol, table[r % len(table)]) for r in range(protocol.max_rounds)] for table in protocol.turns]
        self._outcomes: dict[Stances, list[Outcome]] = {}
        self._arguing: dict[Stances, Protocol] = {}

    def speakers(self, round: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Agent -> the channels that it writes to, for those with a turn in `round` (below max_rounds), in the protocol's order."""
        return self._speakers[seed % len(self._speakers)][round]

    def speaking(self, y: int, rounds: Sequence[Sequence[Turn]], seed: int) -> Mapping[str, tuple[str, ...]]:
        """`speakers` of the round after these, without members of a panel who have voted."""
        speakers = self.speakers(len(rounds), seed)
        if self.protocol.panel is None:
            return speakers
        voted = {agent for agent, grade in self.votes(y, rounds).items() if grade is not None}
        return {agent: channels for agent, channels in speakers.items() if agent not in voted}

    def rounds_of(self, agent: str, seed: int) -> list[int]:
        """The rounds in which `agent` has a turn under this episode seed."""
        return [r for r, speakers in enumerate(self._speakers[seed % len(self._speakers)]) if agent in speakers]

    def writes(self, agent: str) -> tuple[str, ...]:
        """The channels that `agent` ever writes to."""
        return tuple(self.protocol.channels[c] for c in self.protocol.writes[agent])

    def seed_after(self, round: int, seed: int, turns: Iterable[Turn]) -> int:
        """The episode seed after a round, which is another where an agent chose a role in it."""
        made = [turn.decision for turn in turns if turn.agent == self.protocol.chooser]
        return int(self.protocol.chosen(*torch.tensor([[round], [seed], made]))) if made else seed

    def votes(self, y: int, rounds: Sequence[Sequence[Turn]]) -> dict[str, float | None]:
        """Member of a panel -> the probability of acceptance that it voted with in these rounds, None where it has not; {} without a panel.

        The first that it gives from round ``min_rounds - 1`` on counts, or what `force_guess` puts in its place.
        """
        protocol, found = self.protocol, dict[str, float | None].fromkeys(self.protocol.verifiers if self.protocol.panel else ())
        forced = {"zero": 0.0, "one": 1.0, "y": float(y), None: None}[protocol.force_guess]
        for turn in (turn for turns in rounds[protocol.min_rounds - 1 :] for turn in turns if turn.agent in found):
            if found[turn.agent] is None:
                found[turn.agent] = turn.confidence if forced is None else forced
        return found

    def settle_votes(
        self, round: int, seed: int, y: int, before: Mapping[str, float | None], now: Mapping[str, float | None], stances: Stances
    ) -> Outcome:
        """The outcome of `round` where a panel decides. before, now: the `votes` before the round and after it."""
        if stances not in self._arguing:
            self._arguing[stances] = replace(self.protocol, payment=self.protocol.payment.arguing(dict(stances)))
        protocol = self._arguing[stances]
        grades = [[torch.nan if votes[agent] is None else votes[agent] for agent in protocol.verifiers] for votes in (before, now)]
        before_1M, now_1M = torch.tensor(grades, dtype=torch.float32)[:, None]
        decision_1A = torch.full((1, len(protocol.agents)), CONTINUE)
        decision_1A[:, protocol.verifier_indices] = torch.where(now_1M.isnan(), CONTINUE, ACCEPT)
        state = start(protocol, torch.tensor([y]), torch.tensor([seed]))
        state.agent_done_BA[:, protocol.verifier_indices] = ~before_1M.isnan()
        state = replace(state, round_B=torch.tensor([round]), grade_BM=before_1M)
        after, outcome = step(protocol, state, decision_1A, grade_BM=now_1M)
        ended = bool(after.ended_B)
        confidence = float(protocol.panel.confidence(after.grade_BM)) if protocol.panel is not None and ended else math.nan
        rewards = dict(zip(protocol.agents, outcome.reward_BA[0].tolist()))
        return Outcome(rewards, int(outcome.decision_B), None if math.isnan(confidence) else confidence, ended)

    def outcome(self, round: int, seed: int, y: int, decision: int, stances: Stances) -> Outcome:
        """What the step function says of `round` for label `y` when the verifier's decision is `decision`, by the tables alone."""
        if stances not in self._outcomes:
            self._outcomes[stances] = _all_outcomes(self.protocol, stances)
        seeds, count = self.protocol.seed_classes, self.protocol.undecided
        return self._outcomes[stances][((round * seeds + seed % seeds) * count + y) * (count + 1) + decision]

    def settle(self, round: int, seed: int, y: int, confidence: float | None, stances: Stances, decision: int | None = None) -> Outcome:
        """The outcome of `round` where the verifier gave acceptance this probability (None: it did not decide); with more than two
        verdicts, where it decided this.
        """
        if self.protocol.two_verdicts:
            outcome = self._by_tables(round, seed, y, confidence, stances)
        else:
            outcome = self.outcome(round, seed, y, self.protocol.undecided if decision is None else decision, stances)
        if self.protocol.payment.function is None or not outcome.ended:
            return outcome
        given = (
            certainty(self.protocol, torch.tensor([outcome.verdict])) if outcome.confidence is None else torch.tensor([outcome.confidence])
        )
        role_B = self.protocol.role_B(torch.tensor([seed]))
        ends = Ends(torch.tensor([y]), torch.tensor([outcome.verdict]), given, torch.tensor([round + 1]), role_B)
        more = function_pays(self.protocol, ends)[0].tolist()
        return replace(outcome, rewards={agent: paid + extra for (agent, paid), extra in zip(outcome.rewards.items(), more)})

    def _by_tables(self, round: int, seed: int, y: int, confidence: float | None, stances: Stances) -> Outcome:
        """`settle` without what the payment function pays."""
        if confidence is None:
            return self.outcome(round, seed, y, CONTINUE, stances)
        accept = self.outcome(round, seed, y, ACCEPT, stances)
        reject = self.outcome(round, seed, y, REJECT, stances)
        if accept.verdict == reject.verdict or confidence == 1:  # the decision does not count, or is forced
            return accept
        if confidence == 0:
            return reject
        payment = self.protocol.payment.of(self.protocol.role_of(seed))
        shares = {agent: payment.share(agent, y, confidence) for agent in accept.rewards}
        mixed = {agent: share * accept.rewards[agent] + (1 - share) * reject.rewards[agent] for agent, share in shares.items()}
        return Outcome(mixed, verdict_of(confidence), confidence, accept.ended)


def verdict_of(confidence: float) -> int:
    """ACCEPT above one half, REJECT below, and exactly at one half CONTINUE: neither side is favoured, the dialogue ends undecided."""
    return CONTINUE if confidence == 0.5 else ACCEPT if confidence > 0.5 else REJECT


def rulebook(protocol: Protocol) -> Rulebook:
    """The rulebook of `protocol`, made at the first call for this very object. It must have no zero knowledge; without a verifier it has
    no outcomes.
    """
    found = _RULEBOOKS.get(id(protocol))
    if found is None:
        if len(_RULEBOOKS) >= _MOST_KEPT:
            _RULEBOOKS.clear()
        found = _RULEBOOKS[id(protocol)] = Rulebook(protocol)
    return found


_RULEBOOKS: dict[int, Rulebook] = {}  # by id: a rulebook keeps its protocol alive, so no id here is ever used again


def _speakers(protocol: Protocol, turns: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    spoken = {agent: tuple(channel for channel in protocol.channels if (agent, channel) in turns) for agent in protocol.agents}
    return {agent: channels for agent, channels in spoken.items() if channels}


def _all_outcomes(protocol: Protocol, stances: Stances) -> list[Outcome]:
    """Outcomes over (round, seed class, label, decision), the last varying fastest."""
    paid = replace(protocol, payment=replace(protocol.payment.arguing(dict(stances)), function=None))
    none = protocol.undecided
    axes = (range(protocol.max_rounds), range(protocol.seed_classes), range(none), range(none + 1))
    round_B, seed_B, y_B, decision_B = torch.cartesian_prod(*(torch.tensor(list(axis)) for axis in axes)).T
    state = replace(start(paid, y_B, seed_B), round_B=round_B)
    after, outcome = step(paid, state, decision_B[:, None].expand(-1, len(paid.agents)))
    rows = zip(outcome.reward_BA.tolist(), outcome.decision_B.tolist(), after.ended_B.tolist())
    sure = [float(verdict) if protocol.two_verdicts else 1.0 for verdict in range(none)]
    return [
        Outcome(dict(zip(paid.agents, rewards)), verdict, None if verdict == none else sure[verdict], ended)
        for rewards, verdict, ended in rows
    ]
