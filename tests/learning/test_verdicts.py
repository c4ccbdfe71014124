"""What is learned beside drawn actions, against enumeration: expected pay over all decisions, the label's score, and
imitation."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Action, LogPolicy, Policy
from nip_ray.learning.policy_gradient import returns_to_go, score_loss
from nip_ray.learning.verdicts import Verdicts, expected_objective, imitation, label_loss, stakes, taught_turns
from nip_ray.play.core import BatchedPlay, Player, Turn, play_episodes
from nip_ray.play.rollout import AgentRows, Rollout, own_rows
from nip_ray.protocols import Protocol, build
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.settings.protocol import PayoffSettings
from tests.builders import copies, graph_agents, graph_scenario, spread_heads

GAMES: dict[str, Protocol] = {
    "one decision": build("nip", max_rounds=3, min_rounds=3, payoff={"verifier": PayoffSettings(false_accept=-5.0)}),
    "decides or goes on": build(
        "nip", max_rounds=5, min_rounds=1, verifier_no_guess_reward=0.3, verifier_terminated_penalty=-2.0
    ),
    "a proper score": build("nip", max_rounds=3, min_rounds=1, verifier_scoring="brier"),
    "the members of a panel": build("judge_panel", judges=2, judges_paid_for="verdict"),
    "a panel's mean": build(
        "judge_panel", judges=2, panel_rule="mean", judges_paid_for="verdict", verifier_scoring="log"
    ),
    "a debate": build("debate", max_rounds=3, min_rounds=1),
}


@pytest.mark.parametrize("name", GAMES)
def test_the_gradient_is_that_of_the_expected_pay(name: str) -> None:
    """Of one decider, averaged over all that it could decide, everybody's words and the others' decisions being as they
    are.

    The mean pay is a polynomial in the chances of all paths of decisions, which are played one by one.
    """
    protocol = GAMES[name]
    scenario = graph_scenario(protocol)
    agents = graph_agents(scenario, 1)
    for network in agents.values():
        spread_heads(network)
    decider = protocol.verifiers[0]
    turns = int(protocol.turn_table_SKAC[0, :, protocol.agents.index(decider)].any(-1).sum())
    weights = [p for p in agents[decider].parameters() if p.requires_grad]
    enumerated, estimated = None, None
    for path in product(range(protocol.undecided + 1), repeat=turns):
        rollout = played(scenario, agents, decider, path)
        rows = own_rows(scenario, rollout, decider)
        policy, _ = agents[decider](rows.obs, True, False)
        chance_B, pay_B = (
            chances(policy, rows, rollout, protocol, decider),
            rollout.reward_BRA[:, :, protocol.agents.index(decider)].sum(1),
        )
        share_B = chance_B / repeats(rollout, protocol, path, decider)
        enumerated = added(enumerated, gradient((share_B * pay_B).sum(), weights))
        loss_N = estimator(policy, rows, rollout, protocol, decider)
        estimated = added(estimated, gradient(-(share_B.detach()[rows.copy_N] * loss_N).sum(), weights))
    scale = float(torch.cat([g.flatten() for g in enumerated]).abs().max())
    assert scale > 1e-4
    for mine, its in zip(estimated, enumerated, strict=True):
        torch.testing.assert_close(mine, its, atol=2e-4 * scale, rtol=1e-3)


def played(scenario: GraphIsomorphism, agents: dict[str, nn.Module], decider: str, path: tuple[int, ...]) -> Rollout:
    """One episode on each instance in which `decider` decides as `path` says, turn by turn; all else is likeliest."""
    turns_R = scenario.protocol.turn_table_SKAC[0, :, scenario.protocol.agents.index(decider)].any(-1).cumsum(0) - 1

    def edit(turn: Turn) -> Action:
        return {**turn.action, "decision": torch.full_like(turn.action["decision"], path[int(turns_R[turn.round])])}

    # verdicts of a graded protocol are paid as drawn ones, whoever else is greedy
    players = {agent: Player(network) for agent, network in agents.items()}
    players[decider] = replace(
        players[decider], edit=edit, noise=torch.Generator().manual_seed(0) if scenario.protocol.graded else None
    )
    if scenario.protocol.graded:
        players[decider] = replace(
            players[decider], edit=lambda turn: {**edit(turn), "message": turn.policy.message.argmax(-1)}
        )
    id_B, seed_B = copies(scenario, 6)
    return play_episodes(BatchedPlay(scenario), players, id_B, seed_B, every_verdict=True)


def chances(policy: Policy, rows: AgentRows, rollout: Rollout, protocol: Protocol, decider: str) -> Tensor:
    """(B,) the probability of the decisions that were taken, with its graph."""
    chosen_N = rollout.decision_BRA[rows.copy_N, rows.round_N, protocol.agents.index(decider)]
    log_prob_N = torch.log_softmax(policy.decision, -1).gather(1, chosen_N[:, None]).squeeze(1)  # type: ignore[arg-type]
    return (
        torch.zeros(rollout.num_copies).index_add(0, rows.copy_N, torch.where(policy.may_decide, log_prob_N, 0.0)).exp()
    )  # type: ignore[arg-type]


def repeats(rollout: Rollout, protocol: Protocol, path: tuple[int, ...], decider: str) -> Tensor:
    """(B,) how many of the paths come to this episode: what they say after its end, and where no decision counts, makes
    no difference."""
    index = protocol.agents.index(decider)
    counts_BR = rollout.turn_BRA[:, :, index] & (torch.arange(rollout.num_rounds) >= protocol.min_rounds - 1)
    return (protocol.undecided + 1.0) ** (len(path) - counts_BR.sum(1))


def estimator(policy: Policy, rows: AgentRows, rollout: Rollout, protocol: Protocol, decider: str) -> Tensor:
    """(N,) the loss of each turn: exact where the pay of what was decided is known, else the score function's."""
    assert rows.pay_ND is not None
    chosen_N = rollout.decision_BRA[rows.copy_N, rows.round_N, protocol.agents.index(decider)]
    log_policy = policy.normalised()
    known = Verdicts(rows.pay_ND, log_policy.decision.detach(), chosen_N)  # type: ignore[union-attr]
    return_N = returns_to_go(rollout.reward_BRA[:, :, protocol.agents.index(decider)], 1.0)[rows.copy_N, rows.round_N]
    log_prob_N = log_policy.decision.gather(1, chosen_N[:, None]).squeeze(1) * policy.may_decide  # type: ignore[union-attr]
    sampled_N = torch.where(known.settled_N, 0.0, -log_prob_N * return_N)
    return expected_objective(log_policy, known, known.pay_ND, None) + sampled_N


def gradient(value: Tensor, weights: list[nn.Parameter]) -> list[Tensor]:
    found = torch.autograd.grad(value, weights, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]


def added(total: list[Tensor] | None, more: list[Tensor]) -> list[Tensor]:
    return more if total is None else [a + b for a, b in zip(total, more, strict=True)]


def decided(logits: Any, may_decide: list[bool] | None = None) -> Policy:
    """A policy of so many turns with nothing to say."""
    decision = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    count = len(decision)
    may = torch.tensor(may_decide or [True] * count)
    return Policy(torch.zeros(count, 1, 2), None, decision, torch.zeros(count, 1, dtype=torch.bool), may)


def test_clipping_is_that_of_each_decision() -> None:
    policy, old = (
        decided([[0.3, -0.2, 0.1], [2.0, 0.0, -1.0]]),
        torch.log_softmax(torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double(), -1),
    )
    pay = torch.tensor([[1.0, -1.0, math.nan], [0.5, -2.0, 3.0]]).double()
    found = expected_objective(policy.normalised(), Verdicts(pay, old, torch.tensor([0, 2])), pay, 0.2)
    for row in range(2):
        total = 0.0
        for code in range(3):
            if not math.isnan(float(pay[row, code])):
                before = math.exp(float(old[row, code]))
                ratio = math.exp(float(policy.normalised().decision.detach()[row, code])) / before  # type: ignore[index]
                bounded = min(max(ratio, 0.8), 1.2)
                total += before * min(ratio * float(pay[row, code]), bounded * float(pay[row, code]))
        assert float(found.detach()[row]) == pytest.approx(-total)


def test_a_decision_that_is_known_settles_a_turn() -> None:
    pay = torch.tensor([[1.0, -1.0, math.nan], [1.0, -1.0, math.nan], [math.nan] * 3])
    known = Verdicts(pay, torch.zeros(3, 3), torch.tensor([1, 2, 2]))
    assert known.settled_N.tolist() == [True, False, False]
    assert known.rows(torch.tensor([2, 0])).settled_N.tolist() == [False, True]


def test_the_labels_score_leaves_out_going_on_and_turns_without_a_decision() -> None:
    policy = decided([[1.0, 0.0, 5.0], [0.0, 2.0, 0.0]], [True, False])
    loss = label_loss(policy, torch.tensor([1, 1]))
    assert loss.tolist() == pytest.approx([math.log(1 + math.e), 0.0])


def test_imitation_is_the_divergence_from_what_was_found() -> None:
    logits = torch.tensor([[[0.0, 1.0, -1e9]], [[0.5, 0.5, 0.0]]], requires_grad=True)
    taught = torch.tensor([[[0.25, 0.75, 0.0]], [[0.0, 0.0, 0.0]]])
    log_policy = LogPolicy(torch.log_softmax(logits, -1), None, None, torch.ones(2, 1, dtype=torch.bool), None)
    found = imitation(log_policy, taught)
    chance = torch.softmax(logits[0, 0, :2], -1)
    assert float(found.detach()[0]) == pytest.approx(
        float((taught[0, 0, :2] * (taught[0, 0, :2] / chance).log()).sum()), abs=1e-6
    )
    torch.testing.assert_close(imitation(log_policy, 3 * taught), found)
    assert taught_turns(taught).tolist() == [True, False]
    assert stakes(3 * taught).tolist() == [3.0, 0.0]
    assert float(found[1]) == 0.0
    (slope,) = torch.autograd.grad(found.sum(), logits)
    torch.testing.assert_close(slope[0, 0, :2], chance.detach() - taught[0, 0, :2])
    assert slope[1].abs().sum() == 0


def test_the_score_function_agrees_where_everything_was_drawn() -> None:
    """Over all draws the sampled loss has the same gradient, so that the two forms differ in variance alone."""
    pay = torch.tensor([[1.0, -0.5, 0.2]]).double()
    policy = decided([[0.3, -0.4, 0.9]])
    log_policy = policy.normalised()
    assert log_policy.decision is not None
    known = Verdicts(pay, log_policy.decision.detach(), torch.tensor([0]))
    loss = expected_objective(log_policy, known, pay, None).sum()
    exact = torch.autograd.grad(loss, policy.decision, retain_graph=True)[0]  # type: ignore[arg-type]
    total = torch.zeros_like(exact)
    for code in range(3):
        log_prob = log_policy.decision[:, code]
        loss = score_loss(log_prob, log_prob.detach(), pay[:, code], None)
        total += log_prob.detach().exp() * torch.autograd.grad(loss, policy.decision, retain_graph=True)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(exact, total)


def test_earlier_turns_learn_from_the_expected_pay() -> None:
    """Where every decision's pay is known; elsewhere what was drawn was paid."""
    chance = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    pay = torch.tensor([[1.0, -1.0, 0.4], [1.0, -1.0, math.nan]])
    found = Verdicts(pay, chance.log(), torch.tensor([0, 1])).expected_pay(torch.tensor([9.0, -1.0]))
    assert found.tolist() == pytest.approx([0.2 - 0.3 + 0.2, -1.0])
