"""Proper scores of what networks state with their verdicts: paid in the mean, and climbed by policy gradients."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from nip_ray.environments.single import SinglePlay
from nip_ray.errors import UserError
from nip_ray.play.core import BatchedPlay, Player
from nip_ray.play.staged import stage
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Protocol, build, check, start, step
from nip_ray.protocols.payment import Ends, PaymentFunction
from nip_ray.seeding import generator
from nip_ray.settings.protocol import PayoffSettings
from tests.builders import graph_scenario
from tests.protocols.scores import share_of

SCORINGS = ("brier", "log")
COSTS: dict[str, Any] = dict(verifier_reward=2.0, verifier_incorrect_penalty=-1.0)


def paid(scoring: str, y: int, decision: int, grade: float, drawn: bool) -> dict[str, float]:
    protocol = build("adp", verifier_scoring=scoring, **COSTS)
    state = replace(start(protocol, torch.tensor([y]), torch.tensor([0])), round_B=torch.tensor([1]))
    outcome = step(
        protocol, state, torch.tensor([[CONTINUE, decision]]), grade_BM=torch.tensor([[grade]]), drawn=drawn
    )[1]
    return dict(zip(protocol.agents, outcome.reward_BA[0].tolist()))


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("y", [REJECT, ACCEPT])
@pytest.mark.parametrize("grade", [0.01, 0.2, 0.5, 0.9])
def test_draws_are_paid_the_score_and_its_slope(scoring: str, y: int, grade: float) -> None:
    """The score is that of language models; the prover is paid for the verdict that is drawn."""
    payment = build("adp", verifier_scoring=scoring, **COSTS).payment

    def amount(c: float) -> float:
        share = share_of(payment, "verifier", y, c)
        row = payment.payoff["verifier"][y]
        return share * row[1] + (1 - share) * row[0]

    reject, accept = (paid(scoring, y, decision, grade, drawn=True) for decision in (REJECT, ACCEPT))
    assert (reject["prover"], accept["prover"]) == (0, 1)
    mean = grade * accept["verifier"] + (1 - grade) * reject["verifier"]
    assert mean == pytest.approx(amount(grade), abs=1e-5)
    slope = (amount(grade + 1e-4) - amount(grade - 1e-4)) / 2e-4
    assert accept["verifier"] - reject["verifier"] == pytest.approx(slope, rel=1e-3), (
        "d/dc of c accept + (1 - c) reject, both held"
    )
    assert paid(scoring, y, int(grade > 0.5), grade, drawn=False)["verifier"] == pytest.approx(amount(grade), abs=1e-5)
    assert paid(scoring, y, CONTINUE, grade, drawn=True)["verifier"] == -1, "undecided is no stated verdict"


@pytest.mark.parametrize("scoring", SCORINGS)
def test_policy_gradients_find_what_is_believed(scoring: str) -> None:
    """Seven of ten claims are true, and nothing else is known: the gradient of sampled decisions vanishes at 0.7 and
    points there."""
    for grade, direction in ((0.4, 1), (0.6, 1), (0.7, 0), (0.8, -1), (0.95, -1)):
        gain = [
            paid(scoring, y, ACCEPT, grade, True)["verifier"] - paid(scoring, y, REJECT, grade, True)["verifier"]
            for y in (0, 1)
        ]
        slope = 0.3 * gain[0] + 0.7 * gain[1]
        assert abs(slope) < 1e-4 if direction == 0 else slope * direction > 0.05


@pytest.mark.parametrize("greedy", [True, False])
def test_in_play(greedy: bool) -> None:
    """What is stated is the verifier's probability at its verdict."""
    scenario = graph_scenario(build("nip", max_rounds=4, verifier_scoring="brier"))
    networks = {agent: scenario.build_agent(agent, 1).eval() for agent in scenario.protocol.agents}
    players = {agent: Player(network, None if greedy else generator(0, agent)) for agent, network in networks.items()}
    id_B = scenario.ids("test").repeat(8)
    staged = stage(BatchedPlay(scenario), players, id_B, torch.arange(len(id_B)))
    rollout = staged.rollout
    decided_B = rollout.verdict_B != CONTINUE
    assert bool(decided_B.any()) or greedy
    last_B = rollout.length_B - 1
    chance_B3 = staged.chance_BRD[torch.arange(len(id_B)), last_B]
    stated_B = chance_B3[:, ACCEPT] / chance_B3[:, :2].sum(1)
    truth_B = torch.where(rollout.y_B == ACCEPT, stated_B, 1 - stated_B)
    share_B = 1 - (1 - truth_B) ** 2
    if not greedy:
        share_B = share_B + ((rollout.verdict_B == rollout.y_B).float() - truth_B) * 2 * (1 - truth_B)
    expected_B = torch.where(decided_B, 2 * share_B - 1, -1.0)
    verifier = scenario.protocol.verifier_index
    assert torch.allclose(rollout.reward_BRA[:, :, verifier].sum(1), expected_B, atol=1e-4)


def test_plays_by_actions_alone_are_refused() -> None:
    play = SinglePlay(graph_scenario(build("nip", verifier_scoring="log")))
    with pytest.raises(UserError, match=r"protocol.verifier_scoring: got log, but actions carry no confidence"):
        play.reset()


def panel(**params: Any) -> Protocol:
    return build(
        "judge_panel", judges=2, payoff={"judge0": PayoffSettings(false_accept=-2.0, false_reject=-2.0)}, **params
    )


def sure(protocol: Protocol) -> Protocol:
    """The same with a payment of confidences that depends on the verdict, too."""

    def bent(ends: Ends) -> dict[str, torch.Tensor]:
        bent_B = (1 + ends.verdict_B) * ends.confidence_B**2
        return {
            "prover": ends.confidence_B,
            **dict.fromkeys(protocol.verifiers, bent_B),
            protocol.verifiers[0]: -bent_B,
        }

    return replace(protocol, payment=replace(protocol.payment, function=bent, graded=True))


DRAWN = [
    *(panel(panel_rule="mean", judges_paid_for=paid_for, verifier_scoring=scoring)
      for paid_for in ("vote", "verdict") for scoring in ("linear", *SCORINGS)),
    *(panel(panel_rule="majority", verifier_scoring=scoring) for scoring in ("linear", *SCORINGS)),
    panel(panel_rule="majority", judges_paid_for="verdict"),
    sure(panel(panel_rule="mean")),
    sure(build("adp")),
]  # fmt: skip


def all_draws(protocol: Protocol, y: int, stated: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """(probability of each draw, (draws, A) what it pays) where those who decide state this."""
    codes = torch.tensor(list(product((REJECT, ACCEPT), repeat=len(stated))))
    grade_BM = torch.tensor(stated).expand(len(codes), -1)
    decision_BA = torch.full((len(codes), len(protocol.agents)), CONTINUE)
    decision_BA[:, protocol.verifier_indices] = codes
    begun = start(protocol, torch.full((len(codes),), y), torch.zeros(len(codes), dtype=torch.int64))
    outcome = step(protocol, replace(begun, round_B=begun.round_B + 1), decision_BA, grade_BM=grade_BM, drawn=True)[1]
    return torch.where(codes == ACCEPT, grade_BM, 1 - grade_BM).double().prod(1), outcome.reward_BA.double()


@pytest.mark.parametrize("number", range(len(DRAWN)))
@pytest.mark.parametrize("y", [REJECT, ACCEPT])
def test_sampled_decisions_climb_the_mean_payment(number: int, y: int) -> None:
    """The score-function gradient, which holds payments fixed, is the slope of the mean payment, which depends on what
    is stated; where grades alone count, that mean is what is paid for the grades.
    """
    protocol, step_ = DRAWN[number], 0.002
    check(protocol)
    places = protocol.verifier_indices
    for stated in ((0.3, 0.6), (0.8, 0.9), (0.2, 0.35))[:: 1 if protocol.panel else 2]:
        stated = stated[: len(places)]
        chance_B, paid_BA = all_draws(protocol, y, stated)
        for member, place in enumerate(places):
            up, down = (tuple(c + change * (m == member) for m, c in enumerate(stated)) for change in (step_, -step_))
            (above_B, more_BA), (below_B, less_BA) = all_draws(protocol, y, up), all_draws(protocol, y, down)
            slope = (above_B @ more_BA[:, place] - below_B @ less_BA[:, place]) / (2 * step_)
            gradient = (above_B - below_B) @ paid_BA[:, place] / (2 * step_)
            assert float(gradient) == pytest.approx(float(slope), abs=2e-3)
        if protocol.panel and protocol.panel.rule == "mean" and protocol.payment.function is None:
            begun = start(protocol, torch.tensor([y]), torch.tensor([0]))
            decision_1A = torch.full((1, len(protocol.agents)), CONTINUE)
            decision_1A[:, places] = ACCEPT
            known = step(
                protocol, replace(begun, round_B=begun.round_B + 1), decision_1A, grade_BM=torch.tensor([stated])
            )[1]
            assert torch.allclose(chance_B @ paid_BA, known.reward_BA[0].double(), atol=1e-5)


def test_a_graded_function_is_given_what_a_network_states() -> None:
    given: list[Ends] = []

    def seen(ends: Ends) -> dict[str, torch.Tensor]:
        given.append(ends)
        return {"prover": ends.confidence_B}

    made = build("adp")
    for graded in (True, False):
        given.clear()
        scenario = graph_scenario(replace(made, payment=replace(made.payment, payoff={}, function=seen, graded=graded)))
        networks = {agent: scenario.build_agent(agent, 1).eval() for agent in made.agents}
        players = {agent: Player(network, generator(0, agent)) for agent, network in networks.items()}
        staged = stage(BatchedPlay(scenario), players, scenario.ids("test"), torch.arange(len(scenario.ids("test"))))
        chance_B3, decided_B = staged.chance_BRD[:, 1], staged.rollout.verdict_B != CONTINUE
        stated_B = chance_B3[:, ACCEPT] / chance_B3[:, :2].sum(1) if graded else staged.rollout.verdict_B.float()
        assert torch.allclose(given[-1].confidence_B, torch.where(decided_B, stated_B, 0.5), atol=1e-6)
        assert torch.allclose(staged.rollout.reward_BRA[:, 1, 0], given[-1].confidence_B.detach(), atol=1e-6)
    SinglePlay(scenario).reset()  # one that reads no confidences can be played by actions
    with pytest.raises(UserError, match="has a payment function of confidences, but actions"):
        SinglePlay(graph_scenario(replace(made, payment=replace(made.payment, function=seen, graded=True)))).reset()


def test_what_a_graded_function_cannot_be_is_refused() -> None:
    def by_numpy(ends: Ends) -> dict[str, torch.Tensor]:
        return {"prover": torch.from_numpy(ends.confidence_B.numpy() ** 2)}

    def with_a_corner(ends: Ends) -> dict[str, torch.Tensor]:
        return {"prover": ((ends.confidence_B - 0.5) ** 2).sqrt()}

    def fine(ends: Ends) -> dict[str, torch.Tensor]:
        return {"prover": ends.confidence_B}

    for protocol, function, said in (
        (build("adp"), None, "says that a payment function reads confidences"),
        (build("debate", verdicts=list("abc")), lambda ends: {"prover0": ends.confidence_B}, "of two verdicts"),
        (panel(panel_rule="veto"), fine, "a panel's under its mean"),
        (build("adp"), by_numpy, "torch cannot differentiate what the function pays by the confidence"),
        (build("adp"), with_a_corner, "must have a finite derivative"),
    ):
        with pytest.raises(UserError, match=said):
            check(replace(protocol, payment=replace(protocol.payment, function=function, graded=True)))
    check(replace(build("adp"), payment=replace(build("adp").payment, function=by_numpy)))
    with pytest.raises(UserError, match="has no use where members are paid for a verdict that veto makes"):
        panel(panel_rule="veto", judges_paid_for="verdict", verifier_scoring="log")


def test_one_networks_scored_verdict_is_whole_to_a_function_that_does_not_ask() -> None:
    made = build("adp", verifier_scoring="brier", **COSTS)
    function: PaymentFunction = lambda ends: {"prover": ends.confidence_B}  # noqa: E731
    with_function = replace(made, payment=replace(made.payment, payoff={}, function=function))
    for graded, expected in ((False, [0.0, 1.0]), (True, [0.3, 0.3])):
        protocol = replace(with_function, payment=replace(with_function.payment, graded=graded))
        assert all_draws(protocol, ACCEPT, (0.3,))[1][:, 0].tolist() == pytest.approx(expected)
