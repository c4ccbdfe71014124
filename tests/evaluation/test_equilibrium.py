"""Regrets and equilibria of haystacks of two places, against what is found by hand and by trying all strategies another
way."""

from itertools import product
from typing import Any

import pytest
import torch
from _equilibrium import grow
from _two_steps import TwoSteps, TwoStepsSettings
from own_scenario import Haystack, HaystackSettings
from torch import nn

from nip_ray.errors import UserError
from nip_ray.learning.policy import Policy
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.protocols import ACCEPT, REJECT, build

KINDS = torch.tensor([0.5, 0.25, 0.25])  # without a needle, at the first place, at the second


def haystack(name: str, **params: Any) -> tuple[Haystack, torch.Tensor]:
    """(the scenario, a haystack of each kind)."""
    scenario = Haystack(build(name, **params), HaystackSettings(num_places=2, num_instances=64))
    kind_I = (scenario.hay_IP * torch.tensor([1.0, 2.0])).sum(1)
    return scenario, torch.stack([(kind_I == kind).nonzero()[0, 0] for kind in range(3)])


class Scripted(nn.Module):
    """Says what a rule says. rule: features (F,) -> (symbol, decision), or logits."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, obs: Any, want_policy: bool = True, want_value: bool = True) -> Any:
        symbols, decisions = zip(*(self.rule(row) for row in obs["features"]))
        message = torch.full((len(symbols), 1, 2), -50.0)
        message[torch.arange(len(symbols)), 0, torch.tensor(symbols)] = 0
        decision = torch.full((len(symbols), 3), -50.0)
        decision[torch.arange(len(symbols)), torch.tensor(decisions)] = 0
        return Policy(
            message,
            None,
            decision if self.decides else None,
            obs["speaks"],
            obs["may_decide"] if self.decides else None,
        ), None

    decides = False


class Judge(Scripted):
    """One that decides."""

    decides = True


def pointing(row: torch.Tensor) -> tuple[int, int]:
    """Under adp: names the needle's place, the second where there is none."""
    return (0 if row[4] > 0 else 1), 2


def needle_seen(row: torch.Tensor) -> tuple[int, int]:
    """Accepts if what was named in the first round is a needle."""
    return 0, ACCEPT if row[2] > 0 else REJECT


def test_regrets_found_by_hand() -> None:
    scenario, ids = haystack("adp")
    found = grow(scenario, {"prover": Scripted(pointing), "verifier": Judge(needle_seen)}, ids, KINDS)
    assert found.values() == pytest.approx({"prover": 0.5, "verifier": 1.0})
    assert found.regrets() == pytest.approx({"prover": 0, "verifier": 0})
    believing = Judge(lambda row: (0, ACCEPT))
    found = grow(scenario, {"prover": Scripted(pointing), "verifier": believing}, ids, KINDS)
    assert found.values() == pytest.approx({"prover": 1.0, "verifier": 0.0})
    assert found.regrets() == pytest.approx({"prover": 0, "verifier": 1.0}), "it could look"
    hiding = Scripted(lambda row: (1 if row[4] > 0 else 0, 2))
    found = grow(scenario, {"prover": hiding, "verifier": Judge(needle_seen)}, ids, KINDS)
    assert found.values() == pytest.approx({"prover": 0.0, "verifier": 0.0})
    assert found.regrets() == pytest.approx({"prover": 0.5, "verifier": 0}), (
        "the verifier is shown hay, whatever there is"
    )


@pytest.mark.parametrize(
    ("name", "params"), [("open_debate", dict(max_rounds=3)), ("judge_panel", {}), ("nip", dict(max_rounds=4))]
)
def test_values_are_those_of_play(name: str, params: dict[str, Any]) -> None:
    scenario, ids = haystack(name, **params)
    networks = {agent: scenario.build_agent(agent, seed) for seed, agent in enumerate(scenario.protocol.agents)}
    exact = grow(scenario, networks, ids, KINDS)
    draw = torch.Generator().manual_seed(0)
    id_B = ids[torch.multinomial(KINDS, 40_000, True, generator=draw)]
    rollout = play_rollout(
        BatchedPlay(scenario), networks, id_B, torch.randint(2**16, id_B.shape, generator=draw), draw
    )
    sampled = rollout.reward_BRA.sum(1).double()
    error_A = 4 * sampled.std(0) / len(id_B) ** 0.5
    assert ((sampled.mean(0) - torch.tensor(list(exact.values().values()))).abs() < error_A).all()
    assert all(best >= value for best, value in zip(exact.best_values().values(), exact.values().values()))


def test_equilibria_are_those_of_the_matrix() -> None:
    """adp as a bimatrix of 8 x 4 strategies, written down without the tree."""
    scenario, ids = haystack("adp")
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    found = grow(scenario, networks, ids, KINDS, decisive=True).pure_equilibria()
    scripts, verdicts = list(product((0, 1), repeat=3)), list(product((0, 1), repeat=2))
    paid = torch.zeros(2, len(scripts), len(verdicts), dtype=torch.float64)
    for (s, script), (v, verdict) in product(enumerate(scripts), enumerate(verdicts)):
        for kind, place in enumerate(script):
            said = verdict[int(kind == place + 1)]
            paid[:, s, v] += KINDS[kind] * torch.tensor([said, 1.0 if said == (kind > 0) else -1.0])
    stable = (paid[0] >= paid[0].amax(0) - 1e-9) & (paid[1] >= paid[1].amax(1, keepdim=True) - 1e-9)
    expected = torch.stack([paid[0][stable], paid[1][stable]], 1)
    order = [torch.tensor(sorted(returns.tolist())) for returns in (found, expected)]
    assert torch.allclose(*order)
    assert {0.0, 1.0} == {round(one, 6) for one in found[:, 1].tolist()}, (
        "a verifier that heeds nothing, and one that looks"
    )


EQUILIBRIA: dict[str, tuple[dict[str, Any], set[tuple[float, ...]]]] = {
    "helpful_sneaky": ({}, {(0.5, 0.0), (0.75, 0.5)}),
    "merlin_arthur": ({}, {(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.75, 0.25, 0.5)}),
    "debate": (
        dict(max_rounds=2, min_rounds=2, verifier_first=False),
        {(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.5, 1.0)},
    ),
    "critique": ({}, {(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.5, 1.0)}),
    "open_consultancy": (
        dict(max_rounds=2),
        {(0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.5, 1.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0)},
    ),
}
"""Protocol -> (parameters, returns of the agents in its equilibria in pure strategies)."""


@pytest.mark.parametrize(
    ("name", "params", "returns"), [(name, *rest) for name, rest in EQUILIBRIA.items()], ids=EQUILIBRIA.keys()
)
def test_what_equilibria_pay(name: str, params: dict[str, Any], returns: set[tuple[float, ...]]) -> None:
    scenario, ids = haystack(name, **params)
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    found = grow(scenario, networks, ids, KINDS, decisive=True).pure_equilibria(1_000_000)
    assert {tuple(round(one, 6) + 0.0 for one in row) for row in found.tolist()} == returns


@pytest.mark.parametrize(("name", "rounds"), [("bisection", 3), ("prover_estimator", 4)])
def test_a_claim_of_two_steps(name: str, rounds: int) -> None:
    """Nobody is heeded, and one verdict is given to all; or the verifier looks, and is always right: half of the claims
    are true."""
    scenario = TwoSteps(build(name, max_rounds=rounds), TwoStepsSettings())
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    found = grow(scenario, networks, torch.arange(2), torch.full((2,), 0.5), decisive=True).pure_equilibria(20_000_000)
    other = name == "bisection"  # who is paid for rejection, where an estimator is paid for nothing but its estimates
    paid = (
        {(0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.5, 1.0)}
        if other
        else {(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.0, 1.0)}
    )
    assert {tuple(round(one, 6) + 0.0 for one in row) for row in torch.unique(found, dim=0).tolist()} == paid


def test_what_is_refused() -> None:
    scenario, ids = haystack("open_debate", max_rounds=3)
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    with pytest.raises(UserError, match="combinations of pure strategies are more than"):
        grow(scenario, networks, ids, KINDS, decisive=True).pure_equilibria()
    with pytest.raises(UserError, match="more than 50 dialogues in round 1"):
        grow(scenario, networks, ids, KINDS, max_nodes=50)
    scored, ids = haystack("adp", verifier_scoring="brier")
    with pytest.raises(UserError, match="leave out linear messages, zero knowledge and graded verdicts"):
        grow(scored, networks, ids, KINDS)
