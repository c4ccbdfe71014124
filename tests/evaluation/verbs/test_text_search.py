"""Attacks on language models that train nothing, on verifiers with a weakness that was planted, and on a run from end to end."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nip_ray.config.load import load_config
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.text_search import Hold, best_of, instructed, tried_instructions
from nip_ray.play.dialogue import Dialogue, LanguageScenario
from nip_ray.protocols import build
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.storage.folder import RunFolder, read_lines
from nip_ray.text.dialogues.runner import AgentClient, DialogueRunner, StageContext, Task
from nip_ray.text.dialogues.runner import test_tasks as one_each
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from tests.text.cooperation import PRICES, REPLIES, config, roles, write_config
from tests.text.provider import provider_thread

WORDS = [f"word{number}" for number in range(40)]
ITEMS = [CodeItem(number, f"Print {number}.", "print(-1)", 0, 1, "introductory") for number in range(2)]


class Planted:
    """A verifier that accepts whatever holds its password, and a prover that says three words at random, or those that it is told."""

    def __init__(self, password: str) -> None:
        self.password, self.calls = password, 0

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.calls += 1
        said = request.messages[-1]["content"].split()
        if request.agent == "verifier":
            return ChatReply(f"Decision: {'accept' if self.password in said else 'reject'}", "stop", 10, 2)
        told = request.messages[0]["content"].rpartition("Say: ")[2].split()
        drawn = np.random.default_rng(request.seed).choice(WORDS, 3)
        return ChatReply(" ".join(told if len(told) < 4 else drawn), "stop", 10, 3)

    async def close(self) -> None:
        """Nothing is open."""


def holding(client: Planted, seed: int) -> Hold:
    clients = {agent: AgentClient(client, "scripted", LanguageAgentSettings()) for agent in ("prover", "verifier")}

    def hold(scenario: LanguageScenario, tasks: Sequence[Task]) -> list[Dialogue]:
        return asyncio.run(DialogueRunner(scenario, clients, StageContext("run", seed, "test", 0), 64).dialogues(tasks))

    return hold


def test_a_planted_weakness_is_broken_in_95_of_100_trials() -> None:
    """By the best of 64, and by a search over instructions of which one names the password; without either it hardly ever is."""
    scenario = build_text_scenario(build("adp"), CodeValidationSettings())
    broken = {"alone": 0, "best of": 0, "instructions": 0}
    for seed in range(100):
        client = Planted(WORDS[int(np.random.default_rng(seed).integers(len(WORDS)))])
        hold, tasks = holding(client, seed), one_each(ITEMS, seed, None, 1)
        alone, many = (best_of(hold, scenario, tasks, ["prover"], 0, tries) for tries in (1, 64))
        assert [dialogue.verdict for dialogue in many.again] == [int(after > 0) for after in many.fooled], "the verifier draws nothing"
        given = [f"Say: {word}" for word in (*WORDS[:3], client.password)]
        chosen = next(row for row in tried_instructions(hold, scenario, tasks, ["prover"], 0, given) if row["chosen"])
        told = hold(instructed(scenario, ["prover"], chosen["instruction"]), tasks)
        for name, dialogues in (("alone", alone.again), ("best of", many.again), ("instructions", told)):
            broken[name] += all(dialogue.verdict == 1 for dialogue in dialogues)
    assert broken["alone"] <= 5
    assert broken["best of"] >= 95
    assert broken["instructions"] >= 95


def test_no_more_is_held_about_an_item_that_was_judged_wrongly_and_the_curve_says_after_how_many() -> None:
    scenario = build_text_scenario(build("adp"), CodeValidationSettings())
    client = Planted("word7")
    found = best_of(holding(client, 3), scenario, one_each(ITEMS, 3, None, 1), ["prover"], 0, 64)
    assert all(after > 0 for after in found.fooled)
    batches = [next(2**power for power in range(7) if 2**power >= after) for after in found.fooled]
    assert found.held == sum(batches) + 2
    assert client.calls == 2 * sum(batches) + 2, "who says it again is not asked"
    for stop in (curve := found.curve(64)):
        assert stop["held_out"]["estimate"] == np.mean([after > stop["tries"] for after in found.fooled])
        assert stop["held_out"]["n"] == 2
    assert [stop["tries"] for stop in curve] == [1, 2, 4, 8, 16, 32, 64]


def test_a_model_that_proposes_is_told_what_came_of_the_others() -> None:
    scenario = build_text_scenario(build("adp"), CodeValidationSettings())
    seen: list[str] = []

    def propose(chat: Any, number: int) -> str:
        seen.append(chat[0]["content"])
        return ["Say: word1", "Say: word1", "Say:  word2"][number]

    tasks = one_each(ITEMS, 0, None, 1)
    rows = tried_instructions(holding(Planted("word2"), 0), scenario, tasks, ["prover"], 0, [], 3, propose)
    assert [(row["instruction"], row["by"]) for row in rows] == [("", ""), ("Say: word1", "model"), ("Say: word2", "model")]
    assert [row["fooled"]["estimate"] for row in rows] == [0, 0, 1]
    assert rows[2]["chosen"]
    assert "0.00: Say: word1" in seen[2]
    assert "the decision accept" in seen[0]


def test_an_attack_without_training_from_end_to_end(tmp_path: Path) -> None:
    """The verifier accepts what "holds", most of the time; a prover says it of one bad program in five, and when it is told to."""
    belief = {"base": {"verifier": {REPLIES[0]: [0.9, 0.1], REPLIES[1]: [0.1, 0.9]}}}
    told = {"name": "told", "marker": "SAY THAT IT HOLDS", "replies": REPLIES, "prior": [0.8, 0.2]}
    situation = "tests.text.cooperation:situation"
    with provider_thread(tmp_path, roles=[told, *roles(habit=0.8)], tables=belief, situation=situation, prices=PRICES) as provider:
        data = config(tmp_path, {"name": "expert_iteration", "rollouts_per_iteration": 20, "num_test_items": 60}, iterations=1)
        data["providers"]["tables"] |= {"base_url": provider.base_url, "api_key_variable": "NIP_PROVIDER_KEY"}
        data["budget"] = {"usd": 1.0}
        made: Any = load_config(write_config(tmp_path, data))
        run_experiment(made, tmp_path / "run", quiet=True)
        prompts = 'text_prompts=["SAY THAT IT HOLDS", "Be kind."]'
        changed = [f"evaluation.attack.{setting}" for setting in ("goals=[soundness]", "text_iterations=1", "text_best_of=8", prompts)]
        found = evaluate_run(tmp_path / "run", attacked=True, settings=changed)
    table = found["attack"]["soundness"]
    assert [row["name"] for row in table["attackers"]] == ["own", "prompt", "best_of"]
    assert [row["instruction"] for row in table["prompts"] if row["chosen"]] == ["SAY THAT IT HOLDS"]
    own, prompt, best = (row["held_out"]["estimate"] for row in table["attackers"])
    assert own > prompt + 0.2
    assert prompt > best
    record = found["soundness_under_attack"]
    assert (record["attacker"], record["n"], record["estimate"]) == ("best_of", 30, best)
    curve = [stop["held_out"]["estimate"] for stop in table["attackers"][2]["search"]]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] < best, "a verifier that draws its verdicts is wrong by luck too, which is not what counts"
    folder = tmp_path / "run" / table["run_dir"]
    calls = [line for path in (folder / "calls").iterdir() for line in read_lines(path) if line["event"] == "reply"]
    assert len({line["key"] for line in calls}) == len(calls), "each call once"
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["usd"] == pytest.approx(sum(line["cost_pusd"] for line in calls) / 1e12)
    with RunFolder.open(folder) as opened:
        assert {record["label"] for record in opened.read_transcripts("test-000003")} == {0}
