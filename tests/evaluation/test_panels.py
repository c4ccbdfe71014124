"""Chances of a panel's verdicts: against a sum over all votes, and in plays of several rounds against what was
voted."""

import math
from itertools import product
from typing import Any

import pytest
import torch

from nip_ray.evaluation.calibration import graded_verdicts
from nip_ray.play.core import BatchedPlay, Player
from nip_ray.play.panels import judged, panel_chances
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import Staged, stage
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Panel, build
from nip_ray.protocols.batched_step import verdict_of
from nip_ray.seeding import generator
from tests.builders import graph_scenario


@pytest.mark.parametrize("rule", ["majority", "unanimous", "veto", "mean"])
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_against_a_sum_over_all_votes(rule: Any, members: int) -> None:
    panel = Panel(tuple(map(str, range(members))), rule)
    chance_BM3 = torch.rand(8, members, 3, generator=torch.Generator().manual_seed(members)).softmax(-1)
    last_B = torch.arange(8) % 2 == 0
    expected = torch.zeros(8, 3)
    grade_BM = chance_BM3[..., ACCEPT] / chance_BM3[..., :2].sum(-1)
    for votes in product(range(3), repeat=members):
        chance_B = torch.stack([chance_BM3[:, place, vote] for place, vote in enumerate(votes)]).prod(0)
        for copy in range(8):
            cast = [(0.0, 1.0, math.nan)[vote] for vote in votes]
            if rule == "mean":  # what is drawn says only who votes
                cast = [float(grade_BM[copy, place]) + 0 * vote for place, vote in enumerate(cast)]
            verdict = int(verdict_of(panel.confidence(torch.tensor([cast])))[0])
            expected[copy, verdict if bool(last_B[copy]) or CONTINUE not in votes else CONTINUE] += chance_B[copy]
    assert torch.allclose(panel_chances(panel, chance_BM3, last_B, grade_BM), expected, atol=1e-6)


def drawn_play(scenario: Scenario, repeats: int) -> Staged:
    """Sampled play of untrained networks on all held-out pairs."""
    networks = {
        agent: scenario.build_agent(agent, number).eval() for number, agent in enumerate(scenario.protocol.agents)
    }
    id_B = scenario.ids("test").repeat(repeats)
    players = {agent: Player(network, generator(1, agent)) for agent, network in networks.items()}
    return stage(BatchedPlay(scenario), players, id_B, torch.arange(len(id_B)))


def test_votes_decide_in_the_last_turn_of_the_judges_whoever_speaks_after_it() -> None:
    scenario = graph_scenario(build("judge_panel", judges=2, max_rounds=3, panel_rule="majority"))
    staged = drawn_play(scenario, 100)
    assert not bool(scenario.protocol.turn_table_SKAC[:, -1, scenario.protocol.verifier_indices].any()), "the prover's"
    drawn = (staged.rollout.verdict_B[:, None] == torch.arange(3)).float().mean(0)
    stated = staged.chance_BRD.sum(1)[:, :2].mean(0)
    assert torch.allclose(stated, drawn[:2], atol=4 * 0.5 / math.sqrt(staged.rollout.num_copies))


def test_in_play_of_several_rounds() -> None:
    """Two judges, four rounds: the first vote is known when the second is cast."""
    scenario = graph_scenario(build("judge_panel", judges=2, max_rounds=4, panel_rule="veto"))
    staged = drawn_play(scenario, 60)
    rollout, chance_BRD = staged.rollout, staged.chance_BRD
    assert rollout.vote_BM is not None
    first, second = (staged.members[judge] for judge in ("judge0", "judge1"))
    assert torch.allclose(chance_BRD[:, 1, 1], first[:, 1, 1] * second[:, 1, 1], atol=1e-6), (
        "accepted at once if both accept"
    )
    assert torch.allclose(chance_BRD[:, 1, 2], 1 - (1 - first[:, 1, 2]) * (1 - second[:, 1, 2]), atol=1e-6)
    voted_B = (rollout.decision_BRA[:, 1, 1] == 0) & (rollout.decision_BRA[:, 1, 2] == CONTINUE)
    assert bool(voted_B.any())
    assert torch.allclose(chance_BRD[voted_B, 3, 0], torch.ones(int(voted_B.sum()))), (
        "one has rejected, whatever the other does"
    )
    over_B = rollout.length_B == 2
    assert bool(over_B.any())
    assert not bool(chance_BRD[over_B, 2:].any())
    drawn = (rollout.verdict_B[:, None] == torch.arange(3)).float().mean(0)
    expected = chance_BRD[:, 1].mean(0)[:2] + chance_BRD[:, 3].mean(0)[:2]
    assert torch.allclose(drawn[:2], expected, atol=4 * 0.5 / math.sqrt(rollout.num_copies))
    grades, labels, _ = graded_verdicts(staged)
    assert len(grades) == len(labels) == int((rollout.verdict_B != CONTINUE).sum())
    by = judged(scenario.protocol, rollout)
    assert [by[judge].verdict_B.tolist() for judge in ("judge0", "judge1")] == rollout.vote_BM.T.tolist()


def test_of_the_mean_in_play_of_several_rounds() -> None:
    """A vote stands with the probability it was cast with; the verdict, its chances and its confidence are those of the
    mean."""
    scenario = graph_scenario(build("judge_panel", judges=2, max_rounds=4, panel_rule="mean", verifier_scoring="brier"))
    networks = {
        agent: scenario.build_agent(agent, number).eval() for number, agent in enumerate(scenario.protocol.agents)
    }
    id_B = scenario.ids("test").repeat(20)
    for noise in (None, 1):
        players = {agent: Player(network, noise and generator(noise, agent)) for agent, network in networks.items()}
        staged = stage(BatchedPlay(scenario), players, id_B, torch.arange(len(id_B)))
        rollout, drawn = staged.rollout, 0
        stated: list[tuple[float, float]] = []
        for copy in range(len(id_B)):
            grades, own = [], []
            for place, judge in enumerate(scenario.protocol.verifiers):
                for r in (1, 3):
                    if (code := int(rollout.decision_BRA[copy, r, 1 + place])) != CONTINUE and len(own) == place:
                        chance_3 = staged.members[judge][copy, r]
                        grades.append(float(chance_3[ACCEPT] / chance_3[:2].sum()))
                        own.append(code)
                own += [CONTINUE] * (place + 1 - len(own))
            mean = sum(grades) / len(grades) if grades else math.nan
            verdict = CONTINUE if not grades or mean == 0.5 else int(mean > 0.5)
            assert int(rollout.verdict_B[copy]) == verdict
            assert rollout.vote_BM is not None
            assert rollout.vote_BM[copy].tolist() == own
            last = int(rollout.length_B[copy]) - 1
            if noise is not None:
                assert float(staged.chance_BRD[copy, last, verdict]) > 0, "what came could come"
            if verdict != CONTINUE:
                stated.append((mean, float(rollout.y_B[copy])))
                drawn += len(set(own)) == 2 and CONTINUE not in own
        assert noise is None or drawn > 0, "judges that disagree"
        graded, labels, _ = graded_verdicts(staged.copies(slice(None)))
        assert list(zip(graded, labels, strict=True)) == [(pytest.approx(p, abs=1e-6), y) for p, y in stated]


def test_what_attackers_are_paid_grows_with_the_mean() -> None:
    """Half for the verdict, which goes over at one half, and half for how near it is; of other rules the verdict's
    probability alone."""
    for rule in ("mean", "majority"):
        scenario = graph_scenario(build("judge_panel", panel_rule=rule))
        networks = {
            agent: scenario.build_agent(agent, number).eval() for number, agent in enumerate(scenario.protocol.agents)
        }
        id_B = scenario.ids("test")
        staged = stage(
            BatchedPlay(scenario), {agent: Player(network) for agent, network in networks.items()}, id_B, id_B
        )
        for verdict in (REJECT, ACCEPT):
            pay_B = staged.towards_BR(verdict).sum(1)
            if staged.stated_B is None:
                assert pay_B.equal(staged.chance_BRD[:, :, verdict].sum(1))
            else:
                share_B = staged.stated_B if verdict else 1 - staged.stated_B
                assert torch.allclose(
                    pay_B, (share_B.nan_to_num(0.0) + staged.chance_BRD[:, :, verdict].sum(1)) / 2, atol=1e-6
                )
                assert len(set(pay_B.tolist())) > 5


def test_a_forced_verdict_has_no_confidence() -> None:
    scenario = graph_scenario(
        build("judge_panel", judges=2, max_rounds=4, min_rounds=1, panel_rule="mean", force_guess="y")
    )
    networks = {
        agent: scenario.build_agent(agent, number).eval() for number, agent in enumerate(scenario.protocol.agents)
    }
    id_B = scenario.ids("test")
    staged = stage(BatchedPlay(scenario), {agent: Player(network) for agent, network in networks.items()}, id_B, id_B)
    assert staged.rollout.verdict_B.equal(staged.rollout.y_B)
    assert not any(map(math.isnan, graded_verdicts(staged)[0]))
