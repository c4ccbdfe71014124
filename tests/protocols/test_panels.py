"""Panels: the step against a plain reference, the equilibria of a small one, the same of language agents, and what is
refused."""

import math
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Turn
from nip_ray.play.dialogues import rulebook
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Panel, Protocol, build, check, start, step
from nip_ray.protocols.batched_step import verdict_of
from nip_ray.protocols.panel import RULES
from nip_ray.settings.protocol import PayoffSettings
from tests.protocols.scores import share_of


def by_rule(rule: str, votes: list[float | None]) -> float | None:
    """The verdict of these votes as a probability of acceptance, None for undecided: as docs/tutorials/own-protocol.md
    has it."""
    cast = [vote for vote in votes if vote is not None]
    accepts, rejects = sum(vote > 0.5 for vote in cast), sum(vote < 0.5 for vote in cast)
    if rule == "mean":
        return sum(cast) / len(cast) if cast else None
    if rule == "majority":
        return 1.0 if accepts > len(votes) / 2 else 0.0 if rejects > len(votes) / 2 else None
    if not accepts + rejects:
        return None
    return float(accepts == len(votes) if rule == "unanimous" else not rejects)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_rules(rule: Any, members: int) -> None:
    panel = Panel(tuple(f"judge{number}" for number in range(members)), rule)
    every = list(product((None, 0.0, 0.2, 0.5, 0.9, 1.0), repeat=members))
    grades = torch.tensor([[math.nan if vote is None else vote for vote in votes] for votes in every])
    expected = torch.tensor([math.nan if (found := by_rule(rule, list(votes))) is None else found for votes in every])
    assert torch.allclose(panel.confidence(grades), expected, equal_nan=True, atol=1e-6)


def amounts(protocol: Protocol, agent: str, y: int, given: float | None) -> float:
    """What the agent's table pays for a vote or verdict."""
    row = protocol.payment.payoff.get(agent, ((0.0,) * 3,) * 2)[y]
    share = 0.0 if given is None else share_of(protocol.payment, agent, y, given)
    return row[2] if given is None else share * row[1] + (1 - share) * row[0]


def reference(
    protocol: Protocol, y: int, said: list[dict[str, float | None]]
) -> tuple[list[dict[str, float]], float | None, int]:
    """(rewards by round, verdict, rounds) of an episode in which the judges say this, None for no vote; plain
    Python."""
    assert protocol.panel is not None
    votes: dict[str, float] = {}
    rewards = []
    for r, round_ in enumerate(said):
        speakers = {agent for agent, _ in protocol.turns[0][r % len(protocol.turns[0])]} - set(votes)
        now = {a: g for a, g in round_.items() if g is not None and a in speakers and r >= protocol.min_rounds - 1}
        done, votes = set(votes), {**votes, **now}
        over = len(votes) == len(protocol.panel.members) or r == protocol.max_rounds - 1
        verdict = (
            by_rule(protocol.panel.rule, [votes.get(member) for member in protocol.panel.members]) if over else None
        )
        paid = dict.fromkeys(protocol.agents, 0.0)
        for agent in protocol.agents:
            if agent not in done:
                counted = [s for s in speakers if s not in protocol.panel.members or (s not in now and not over)]
                paid[agent] += sum(protocol.payment.turns.get(agent, {}).get(speaker, 0.0) for speaker in counted)
            if over:
                own = protocol.panel.paid_for == "vote" and agent in protocol.panel.members
                paid[agent] += amounts(protocol, agent, y, votes.get(agent) if own else verdict)
        rewards.append(paid)
        if over:
            return rewards, verdict, r + 1
    raise AssertionError("rounds ran out")


def panels() -> list[Protocol]:
    costs = {
        "judge0": PayoffSettings(false_accept=-5, undecided=-0.3, turns={"prover": -0.01}),
        "prover": PayoffSettings(undecided=-0.5),
    }
    given: list[dict[str, Any]] = [
        dict(judges=3),
        dict(judges=2, max_rounds=6, min_rounds=2, verifier_no_guess_reward=0.1),
    ]
    made = [
        build("judge_panel", panel_rule=rule, judges_paid_for=paid_for, payoff=costs, **params)
        for rule, paid_for, params in product(RULES, ("vote", "verdict"), given)
    ]
    plain = build("judge_panel", panel_rule="mean", max_rounds=6, verifier_scoring="brier")
    return [*made, plain, replace(plain, payment=replace(plain.payment, scoring="log"))]


@pytest.mark.parametrize("number", range(len(panels())))
def test_step_and_dialogues_against_the_reference(number: int) -> None:
    """Votes of networks are 0 or 1, those of language agents any probability."""
    protocol, draw = panels()[number], random.Random(number)
    assert protocol.panel is not None
    rules, judges = rulebook(protocol), protocol.panel.members
    for _ in range(15):
        y, graded = draw.randrange(2), draw.random() < 0.5
        grades = [None, None, 0.0, 1.0, *([0.25, 0.5, 0.75] if graded else [])]
        said = [{judge: draw.choice(grades) for judge in judges} for _ in range(protocol.max_rounds)]
        rewards, verdict, length = reference(protocol, y, said)
        state = start(protocol, torch.tensor([y]), torch.tensor([0]))
        rounds: list[tuple[Turn, ...]] = []
        for r, expected in enumerate(rewards):
            assert not bool(state.ended_B)
            codes = torch.full((1, len(protocol.agents)), CONTINUE)
            for judge, grade in said[r].items():
                codes[0, protocol.agents.index(judge)] = (
                    CONTINUE if grade is None else REJECT if grade < 0.5 else ACCEPT
                )
            given = torch.tensor([[math.nan if said[r][judge] is None else said[r][judge] for judge in judges]])
            state, outcome = step(protocol, state, codes, grade_BM=given if graded else None)
            assert outcome.reward_BA[0].tolist() == pytest.approx(
                [expected[agent] for agent in protocol.agents], abs=1e-5
            )
            speakers = rules.speaking(y, rounds, 0)
            turns = [Turn(a, "", {}, CONTINUE, said[r].get(a)) for a in speakers]
            before, now = (rules.votes(y, played) for played in (rounds, [*rounds, turns]))
            told = rules.settle_votes(r, 0, y, before, now, (("prover", ACCEPT),))
            assert told.rewards == pytest.approx(expected, abs=1e-5)
            rounds.append(tuple(turns))
        assert bool(state.ended_B)
        assert (len(rewards), told.ended) == (length, True)
        assert told.confidence == (None if verdict is None else pytest.approx(verdict, abs=1e-6))
        code = int(verdict_of(torch.tensor([math.nan if verdict is None else verdict]))[0])
        assert int(outcome.decision_B) == told.verdict == code
        assert bool(outcome.decided_B) == (verdict is not None) != bool(outcome.exhausted_B)


def profits(protocol: Protocol, prior: float, votes: tuple[int, ...]) -> list[float]:
    """What each judge earns when nobody knows more than that a share `prior` of claims is true."""
    decision_BA = torch.tensor([[CONTINUE, *votes]] * 2)
    state = replace(start(protocol, torch.tensor([0, 1]), torch.tensor([0, 0])), round_B=torch.tensor([1, 1]))
    reward_BA = step(protocol, state, decision_BA)[1].reward_BA
    return (torch.tensor([1 - prior, prior]) @ reward_BA)[1:].tolist()


def equilibria(protocol: Protocol, prior: float) -> set[tuple[int, ...]]:
    """The votes from which no judge gains by departing alone."""
    found = set()
    for votes in product((REJECT, ACCEPT), repeat=3):
        earned = profits(protocol, prior, votes)
        others = [profits(protocol, prior, (*votes[:j], 1 - votes[j], *votes[j + 1 :]))[j] for j in range(3)]
        if all(other <= own + 1e-6 for own, other in zip(earned, others)):
            found.add(votes)
    return found


def test_equilibria_of_a_small_panel() -> None:
    """Messages that cannot be checked say nothing, and 7 of 10 claims are true: whoever pays 5 for a false acceptance
    rejects them.

    A judge that is paid for its own vote has one best vote, whatever the others do. Paid for the verdict, it does not
    care once it is not pivotal, so that a majority may agree on either side; where all must accept, the careful judge
    alone can keep the panel from it.
    """
    careful = {"judge0": PayoffSettings(false_accept=-5)}
    for rule in ("majority", "unanimous"):
        assert equilibria(build("judge_panel", panel_rule=rule, payoff=careful), 0.7) == {(0, 1, 1)}
    majority = equilibria(build("judge_panel", judges_paid_for="verdict", payoff=careful), 0.7)
    assert majority == {(0, 0, 0), (1, 1, 1), (0, 1, 1)}
    unanimous = equilibria(build("judge_panel", judges_paid_for="verdict", panel_rule="unanimous", payoff=careful), 0.7)
    assert (1, 1, 1) not in unanimous
    assert (0, 1, 1) in unanimous


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (dict(panel=Panel(())), "panel.members must name agents"),
        (dict(panel=Panel(("judge0", "nobody"))), "panel.members must name agents"),
        (dict(panel=Panel(("judge0",), "most")), "rule must be one of majority"),  # type: ignore[arg-type]
        (dict(verifier=None), "`verifier` is the name of all members together"),
        (dict(verifier="judge0"), "`verifier` is the name of all members together"),
        (dict(turns=(((("prover", "main"),), (("judge0", "main"),)),)), "'judge1' has no turn from round 0 on"),
    ],
)
def test_panels_that_make_no_sense(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word.replace("(", r"\(")):
        check(replace(build("judge_panel"), **change))


def test_zero_knowledge_is_not_defined() -> None:
    with pytest.raises(
        UserError, match=r"protocol.zero_knowledge: not defined with several deciders, as in 'judge_panel'"
    ):
        build("judge_panel", zero_knowledge=True)


def test_who_is_who() -> None:
    made = build("judge_panel", judges=2)
    assert (made.verifiers, made.provers, made.deciders) == (("judge0", "judge1"), ("prover",), ("judge0", "judge1"))
    assert made.viewpoint == "judge0"
    assert made.verifier not in made.agents
    with pytest.raises(ValueError, match="not in"):
        _ = made.verifier_index
