"""The attack on verifiers whose weak spot is known: it is found, it is measured exactly, and nothing is claimed that is
not so."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

from nip_ray.evaluation.attack import AttackTarget, _Attack, attacked
from nip_ray.evaluation.attack_table import attacking_agents
from nip_ray.protocols import ACCEPT, REJECT, build
from nip_ray.settings.attack import AttackSettings
from tests.builders import graph_scenario
from tests.evaluation.gullible import Gullible, attack_target, message_game, prover

QUICK = AttackSettings(
    goals=("soundness", "completeness"), seeds=1, sizes=(1,), iterations=20, copies=64, lr=0.02, minibatch_size=64
)


@pytest.fixture(scope="module")
def fooled() -> dict[str, Any]:
    """The attack on a verifier that believes whoever knows the password."""
    return attacked(attack_target(Gullible(), prover()), QUICK)


def by_name(document: dict[str, Any], goal: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["attack"][goal]["attackers"]}


def test_a_password_is_found(fooled: dict[str, Any]) -> None:
    found = fooled["soundness_under_attack"]
    assert found["estimate"] == 0
    assert found["attacker"] in ("fresh/size=1/seed=0", "continued/seed=0")
    curve = by_name(fooled, "soundness")["fresh/size=1/seed=0"]["curve"]
    assert len(curve) == QUICK.iterations
    assert curve[-1] > curve[0] + 0.3, "it was learned"


def test_whoever_is_believed_for_a_password_is_rejected_without_one(fooled: dict[str, Any]) -> None:
    assert fooled["refusal"]["estimate"] == 0
    assert "is paid for a rejection" in fooled["refusal"]["reason"]
    assert "completeness_under_attack" not in fooled


def test_the_interval_is_the_exact_one_of_the_held_out_instances(fooled: dict[str, Any]) -> None:
    for goal, name, label in (("soundness", "soundness_under_attack", 0), ("refusal", "refusal", 1)):
        record = fooled[name]
        assert record["n"] == 50, "as many as have that label"
        exact = stats.binomtest(round(record["estimate"] * 50), 50).proportion_ci(method="exact")
        assert (record["lower"], record["upper"]) == pytest.approx((exact.low, exact.high))
        assert fooled["attack"][goal]["label"] == label


def test_one_attacker_counts_and_it_was_the_strongest_in_training(fooled: dict[str, Any]) -> None:
    for goal, name in (("soundness", "soundness_under_attack"), ("refusal", "refusal")):
        rows = fooled["attack"][goal]["attackers"]
        chosen = [row for row in rows if row["chosen"]]
        assert len(chosen) == 1
        assert chosen[0]["selection"]["estimate"] == min(row["selection"]["estimate"] for row in rows)
        record = fooled[name]
        assert {key: record[key] for key in chosen[0]["held_out"]} == chosen[0]["held_out"]


def test_a_deaf_verifier_is_fooled_by_nobody() -> None:
    found = attacked(attack_target(Gullible(deaf=True)), replace(QUICK, iterations=3))
    assert found["soundness_under_attack"]["estimate"] == 1
    assert found["soundness_error"].items() >= {"estimate": 0, "lower": 0, "n": 50, "by": "every_message"}.items()
    assert found["refusal"]["estimate"] == 0, "it accepts nothing: that is no attacker's doing"
    assert found["attack"]["soundness"]["every_message"]["estimate"] == 1
    assert "continued/seed=0" not in by_name(found, "soundness"), (
        "a prover without weights has nothing to continue from"
    )


def test_every_message_finds_what_training_did_not() -> None:
    found = attacked(
        attack_target(Gullible()), replace(QUICK, iterations=1, continued=False, lr=1e-6, goals=("soundness",))
    )
    assert found["attack"]["soundness"]["every_message"]["estimate"] == 0
    assert found["soundness_error"]["estimate"] == 1
    assert "refusal" not in found
    searched = by_name(found, "soundness")["search"]
    assert searched["chosen"]
    assert searched["held_out"]["estimate"] == 0
    assert (searched["search"][0]["tries"], searched["search"][0]["held_out"]["estimate"]) == (1, 1), (
        "as whom it goes on from"
    )
    off = attacked(attack_target(Gullible()), replace(QUICK, iterations=1, max_nodes=0, goals=("soundness",)))
    assert off["attack"]["soundness"]["every_message"] is None


def test_training_goes_on_while_it_helps_and_the_best_is_kept() -> None:
    short = replace(QUICK, iterations=2, continued=False, goals=("soundness",))
    once = attacked(attack_target(Gullible()), short)
    found = attacked(attack_target(Gullible()), replace(short, extensions=12))
    row, before = (by_name(document, "soundness")["fresh/size=1/seed=0"] for document in (found, once))
    assert "budget" not in before
    assert row["curve"][:2] == before["curve"], "extensions change nothing of what comes before"
    assert [stop["iterations"] for stop in row["budget"]] == list(range(2, row["iterations"] + 1, 2))
    assert row["budget"][0]["held_out"] == before["held_out"]
    shares = [stop["selection"]["estimate"] for stop in row["budget"]]
    assert len(shares) < 13, "it stopped where more did not help"
    assert shares[-1] >= shares[-2]
    assert all(later < earlier for earlier, later in pairwise(shares[:-1]))
    assert row["selection"]["estimate"] == min(shares), "the best is kept"
    assert found["attack"]["soundness"]["every_message"]["estimate"] <= row["held_out"]["estimate"]


def test_only_attackers_learn() -> None:
    scenario = message_game()
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    before = {
        agent: {name: part.clone() for name, part in network.state_dict().items()}
        for agent, network in networks.items()
    }
    attacked(replace(attack_target(networks["verifier"]), networks=networks), replace(QUICK, iterations=2, max_nodes=0))
    for agent, state in before.items():
        assert all(torch.equal(part, networks[agent].state_dict()[name]) for name, part in state.items())
        assert all(parameter.grad is None for parameter in networks[agent].parameters())


def test_the_same_seed_gives_the_same_attack() -> None:
    found = [
        attacked(
            replace(attack_target(Gullible()), seed=seed),
            replace(QUICK, iterations=2, goals=("soundness",), max_nodes=0),
        )
        for seed in (1, 1, 2)
    ]
    for document in found:
        assert document["attack"]["soundness"]["seed"] == document["attack"].pop("seed")
        del document["attack"]["seconds"], document["attack"]["soundness"]["seed"]
    assert found[0] == found[1] != found[2]


def test_a_sampled_verifier_is_fooled_as_often_as_it_doubts() -> None:
    """With log-odds 2 it believes a stranger in one case of eight."""
    made = attack_target(Gullible(deaf=True), count=1000)
    found = attacked(made, replace(QUICK, verifier="sampled", iterations=1, goals=("soundness",)))
    assert found["soundness_under_attack"]["estimate"] == pytest.approx(0.88, abs=0.05)
    table, reject = found["attack"]["soundness"], 1 / (1 + math.exp(-2))
    assert (
        table["every_message"]["estimate"]
        == table["every_message_sampled"]["estimate"]
        == pytest.approx(reject, abs=1e-5)
    )
    assert found["soundness_error"]["estimate"] == pytest.approx(1 - reject, abs=1e-5)


def test_those_attack_who_are_paid_for_it() -> None:
    assert attacking_agents(build("nip"), ACCEPT) == ("prover",)
    assert attacking_agents(build("nip"), REJECT) == ("prover",), "nobody is paid for rejection, so all do"
    assert attacking_agents(build("debate"), ACCEPT) == ("prover1",)
    assert attacking_agents(build("debate"), REJECT) == ("prover0",)
    assert attacking_agents(build("mnip"), ACCEPT) == ("prover0", "prover1")


@pytest.mark.parametrize(
    ("protocol", "zero_knowledge"),
    [
        ("nip", False),
        ("adp", False),
        ("debate", False),
        ("mnip", False),
        ("merlin_arthur", False),
        ("nip", True),
        ("judge_panel", False),
    ],
)
def test_every_protocol_can_be_attacked(protocol: str, zero_knowledge: bool) -> None:
    scenario = graph_scenario(build(protocol, zero_knowledge=zero_knowledge))
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}

    def fresh(agents: Any, size: int, seed: int) -> dict[str, nn.Module]:
        return {agent: scenario.build_agent(agent, seed) for agent in agents}

    made = AttackTarget(scenario, networks, fresh, {}, scenario.ids("test"), seed=0)
    found = attacked(made, AttackSettings(seeds=1, sizes=(1,), iterations=1, copies=6, minibatch_size=4, max_nodes=500))
    paid = REJECT in build(protocol).payment.goals.values()
    assert ("completeness_under_attack" in found) == paid, "where some prover is paid for a rejection"
    assert found["soundness_error"]["n"] == 3
    for table in (found["attack"][goal] for goal in ("soundness", "completeness")[: 1 + paid]):
        assert [row["kind"] for row in table["attackers"]] == [
            "fresh",
            "continued",
            "own",
            "random",
            "silent",
            "search",
        ]
        assert table["every_message"] is None or table["every_message"]["estimate"] <= table["any_attacker"]["estimate"]
    assert set(found.get("deciders_under_attack", {})) == set(
        scenario.protocol.panel.members if scenario.protocol.panel else ()
    )


def test_attackers_are_chosen_on_instances_that_none_of_them_learned_from() -> None:
    attack = _Attack(attack_target(Gullible()), QUICK, "soundness")
    learned, kept = set(attack.train.tolist()), set(attack.selection.tolist())
    assert learned
    assert kept
    assert not learned & kept


def test_a_goal_without_held_out_instances_is_left_out() -> None:
    made = attack_target(Gullible())
    positive = made.held_out[made.scenario.label_I[made.held_out] == 1]
    found = attacked(replace(made, held_out=positive), replace(QUICK, iterations=1))
    assert not {"soundness_under_attack", "soundness_error"} & found.keys()
    assert found["refusal"]["n"] == len(positive)
