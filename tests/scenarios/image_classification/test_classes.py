"""Which of three classes an image belongs to: labels, both doors, zero knowledge, a run with its attack, and its
pages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.evaluation.attack import AttackTarget, attacked
from nip_ray.play.core import BatchedPlay
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import build
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.image_classification.build import image_data
from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.image_classification import ImageDataSettings
from tests.builders import rollout_of, spread_heads
from tests.rllib import test_doors
from tests.scenarios.image_classification.files import TINY, image_scenario, random_images
from tests.scenarios.image_classification.test_rules import tiny

NAMES = ["nine", "three", "eight"]
CONSULTANCY: dict[str, Any] = dict(
    name="consultancy", one_prover=True, verdicts=NAMES, verifier_first=False, max_rounds=4, min_rounds=2
)
DEBATE: dict[str, Any] = dict(name="debate", verdicts=NAMES, verifier_first=False, max_rounds=4, min_rounds=2)
QUICK: dict[str, Any] = dict(seeds=1, sizes=[1], iterations=1, copies=16, continued=False, selection_instances=6)


def experiment(protocol: dict[str, Any], **changes: Any) -> ExperimentConfig:
    made = tiny(protocol, dict(name="ppo")).model_dump(mode="json")
    task: dict[str, Any] = dict(message_size=1, linear_symbols=0, num_block_groups=2)
    task["data"] = dict(num_train=30, num_test=12, binarisation="classes", selected_classes=[9, 3, 8])
    task["agents"] = {"_default": TINY, "verifier": {**TINY, "sight": "coarse"}}
    return ExperimentConfig.model_validate({**made, "scenario": {**made["scenario"], **task}, **changes})


def test_labels_are_places_of_classes() -> None:
    data = image_data(ImageDataSettings(num_train=31, num_test=12, binarisation="classes", selected_classes=(9, 3, 8)))
    assert data.images.class_I.tolist() == [(9, 3, 8)[label] for label in data.label_I.tolist()]
    assert data.label_I[: data.num_train].bincount().tolist() == [10, 10, 10]
    assert data.label_I[data.num_train :].bincount().tolist() == [4, 4, 4]


@pytest.mark.parametrize("protocol", [CONSULTANCY, DEBATE], ids=["consultancy", "debate"])
def test_both_doors(protocol: dict[str, Any]) -> None:
    test_doors.test_both_doors_give_the_same_episodes(experiment(protocol))
    test_doors.test_the_env_keeps_rllibs_contract(experiment(protocol))


def test_worst_messages_for_each_wrong_verdict() -> None:
    """The attack over all messages against every message played one by one; over all, whichever wrong verdict is argued
    for."""
    protocol = build("debate", verdicts=tuple(NAMES), verifier_first=False, max_rounds=2, min_rounds=2)
    scenario = image_scenario(protocol, random_images(24, num_classes=3))
    scenario.label_I = scenario.class_I
    networks = {agent: scenario.build_agent(agent, 2).eval() for agent in protocol.agents}
    spread_heads(networks["verifier"], 30.0)
    with torch.no_grad():
        list(networks["verifier"].decider.modules())[-1].bias[-1] = -99.0  # type: ignore[union-attr, index]  # it always decides
    fresh: Any = lambda agents, size, seed: {agent: scenario.build_agent(agent, seed) for agent in agents}  # noqa: E731
    target = AttackTarget(scenario, networks, fresh, {}, scenario.ids("test"), 0)
    found = attacked(target, AttackSettings(**QUICK))  # type: ignore[arg-type]
    ids, wrong, fooled = scenario.ids("test"), {}, {}
    for code in range(3):
        verdict_SB = torch.stack(
            [_verdicts(scenario, networks, code, said, ids) for said in range(-1, scenario.num_symbols)]
        )
        wrong[code], fooled[code] = (verdict_SB != scenario.label_I[ids]).any(0), (verdict_SB == code).any(0)
    any_wrong, any_fooled = torch.zeros(len(ids), dtype=torch.bool), torch.zeros(len(ids), dtype=torch.bool)
    for code, name in enumerate(NAMES):
        other_B, table = scenario.label_I[ids] != code, found["attack"][f"soundness/{name}"]
        assert table["every_message"]["estimate"] == pytest.approx(1 - float(wrong[code][other_B].float().mean()))
        assert found[f"soundness_error/{name}"]["estimate"] == pytest.approx(
            float(fooled[code][other_B].float().mean())
        )
        assert (table["agents"], found[f"soundness_error/{name}"]["n"]) == ([f"prover{code}"], int(other_B.sum()))
        any_wrong |= wrong[code] & other_B
        any_fooled |= fooled[code] & other_B
    assert found["soundness_error"]["estimate"] == pytest.approx(float(any_fooled.float().mean()))
    assert found["soundness_error"]["estimate"] > 0, "or this test shows little"
    assert found["attack"]["soundness"]["every_message"]["estimate"] == pytest.approx(
        1 - float(any_wrong.float().mean())
    )
    assert found["soundness_under_attack"]["estimate"] >= found["attack"]["soundness"]["every_message"]["estimate"]


def _verdicts(scenario: Any, networks: dict[str, Any], prover: int, said: int, ids: torch.Tensor) -> torch.Tensor:
    """What the verifier says when this prover says this, nothing for -1, and the others the likeliest."""
    play = BatchedPlay(scenario)
    play.reset(ids, torch.zeros_like(ids))
    while not play.finished:
        actions = {}
        for agent in scenario.protocol.agents:
            copy_N = play.turn_B(agent).nonzero().flatten()
            if len(copy_N):
                action = networks[agent](play.observe(agent, copy_N), True, False)[0].sample(None)
                if agent == f"prover{prover}":
                    action["message"] = torch.full_like(action["message"], said)
                actions[agent] = copy_N, action
        play.step(actions)
    return play.decision_B


def test_a_run_its_attack_and_its_page(tmp_path: Path) -> None:
    made = {"greedy": True, "sampled": True, "attack": {"enabled": True, **QUICK}, "worst_case_episodes": 2}
    run = run_experiment(experiment(CONSULTANCY, iterations=1, evaluation=made), tmp_path / "run", quiet=True).run_dir
    document = json.loads((run / "evaluation.json").read_text())
    greedy = document["greedy"]
    for label in NAMES:
        given = [greedy[f"verifier/confusion/{label}={verdict}"] for verdict in (*NAMES, "undecided")]
        assert sum(record["estimate"] for record in given) == pytest.approx(1)
        assert {record["n"] for record in given} == {4}
        assert greedy[f"verifier/accuracy/class={(9, 3, 8)[NAMES.index(label)]}"] == given[NAMES.index(label)]
    right = np.mean([greedy[f"verifier/confusion/{label}={label}"]["estimate"] for label in NAMES])
    assert greedy["verifier/accuracy"]["estimate"] == pytest.approx(right)
    assert document["attack"]["soundness"]["wanted"] == NAMES
    assert {"brier", "selective"} <= document["calibration"].keys()
    page = (run / "report.html").read_text()
    for words in (
        "to which class does an image belong: nine, three, eight?",
        "Confusion matrix",
        "soundness: eight",
        "chance (33.3",
    ):
        assert words in page
    record = json.loads((run / "transcripts" / "000001.jsonl").read_text().splitlines()[1])
    chances = [turn["probabilities"] for part in record["rounds"] for turn in part["turns"] if "probabilities" in turn]
    assert record["role"] in NAMES
    assert list(chances[0]) == [*NAMES, "continue"]


def test_zero_knowledge_is_played() -> None:
    scenario = image_scenario(
        build("debate", verdicts=tuple(NAMES), zero_knowledge=True, max_rounds=3), random_images(12, num_classes=3)
    )
    scenario.label_I = scenario.class_I
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    rollout: Rollout = rollout_of(scenario, networks)  # type: ignore[arg-type]
    assert rollout.simulation_BR2 is not None
    assert set(rollout.verdict_B.tolist()) <= {0, 1, 2, 3}
    assert bool(rollout.reward_BRA[:, :, scenario.protocol.agents.index("simulator")].any())
