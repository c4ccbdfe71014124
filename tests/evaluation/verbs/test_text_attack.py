"""Liars among language models: a prover that learns what a verifier, whose habits are known, believes; and attacks that
train nothing."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import config_from_dict, config_to_yaml, load_config
from nip_ray.config.text_rules import language_agents
from nip_ray.errors import UserError
from nip_ray.evaluation.attack_table import paid_agents
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.text_attack import attack_config
from nip_ray.evaluation.verbs.text_search import Hold, best_of, instructed, tried_instructions
from nip_ray.play.dialogue import Dialogue, LanguageScenario
from nip_ray.protocols import build, from_settings
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.storage.folder import RunFolder, read_lines
from nip_ray.text.dialogues.runner import AgentClient, DialogueRunner, StageContext, Task
from nip_ray.text.dialogues.runner import test_tasks as one_each
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from tests.text.cooperation import PRICES, REPLIES, config, roles, write_config
from tests.text.provider import provider_thread

OPTIONS: dict[str, Any] = {"situation": "tests.text.cooperation:situation", "prices": PRICES}
ALONE = {"provider": "nobody", "model": "none"}


def experiment(folder: Path, protocol: str = "adp", **changes: Any) -> dict[str, Any]:
    rule = {
        "name": "expert_iteration",
        "rollouts_per_iteration": 40,
        "num_test_items": 40,
        "fine_tuning": {"min_examples": 1},
    }
    paid = {"shared_reward": True} if protocol in ("adp", "debate") else {}
    made = config(folder, rule, iterations=1, protocol={"name": protocol, **paid})
    made["scenario"]["agents"] = {"_default": dict(ALONE)}
    made["providers"] = {"nobody": {"name": "dummy"}}
    return {**made, **changes}


def played(folder: Path, data: dict[str, Any]) -> Path:
    made: Any = load_config(write_config(folder, data))
    run_experiment(made, folder / "run", quiet=True)
    return folder / "run"


def test_a_prover_learns_what_the_verifier_believes(tmp_path: Path) -> None:
    """The verifier accepts whatever "holds". An honest prover says so of good programs; a liar learns to say it of bad
    ones."""
    belief = {"base": {"verifier": {REPLIES[0]: [0.9, 0.1], REPLIES[1]: [0.1, 0.9]}}}
    with provider_thread(tmp_path, roles=roles(habit=0.8), tables=belief, seed=1, **OPTIONS) as provider:
        tuning = {"num_epochs": 3, "min_examples": 1}
        rule = {"name": "expert_iteration", "rollouts_per_iteration": 60, "num_test_items": 60, "fine_tuning": tuning}
        data = config(tmp_path, rule, iterations=2)
        data["providers"]["tables"] |= {"base_url": provider.base_url, "api_key_variable": "NIP_PROVIDER_KEY"}
        run = played(tmp_path, data)
        before = RunFolder.open(run).read_json("evaluation.json")
        found = evaluate_run(
            run, attacked=True, settings=["evaluation.attack.goals=[soundness]", "evaluation.attack.text_iterations=6"]
        )
    honest = before["sampled"]["verifier/soundness"]["estimate"]
    record = found["soundness_under_attack"]
    assert record["attacker"] == "continued"
    assert record["n"] == 30, "half of the 60 items are bad"
    assert record["estimate"] < honest - 0.3
    assert record["lower"] <= record["estimate"] <= record["upper"]
    rows = found["attack"]["soundness"]["attackers"]
    assert rows[0]["held_out"]["estimate"] == pytest.approx(honest, abs=0.25), (
        "the run's own prover continues as it was"
    )
    after = RunFolder.open(run).read_json("evaluation.json")
    assert after["soundness_under_attack"] == record
    assert after["sampled"] == before["sampled"]


@pytest.mark.slow
def test_an_attack_is_a_run_of_its_own_about_one_label(tmp_path: Path) -> None:
    run = played(tmp_path, experiment(tmp_path))
    found = evaluate_run(run, attacked=True, settings=["evaluation.attack.text_iterations=2"])
    assert "completeness_under_attack" not in found, "no prover of adp is paid for rejection"
    folder = run / found["attack"]["soundness"]["run_dir"]
    assert folder == run / "attack" / "soundness"
    with RunFolder.open(folder) as opened:
        assert [row["iteration"] for row in opened.metrics()] == [1, 2]
        assert {record["label"] for record in opened.read_transcripts(opened.transcript_names()[-1])} == {0}
    again = evaluate_run(run, attacked=True, settings=["evaluation.attack.text_iterations=2"])
    assert again["attack"]["soundness"]["run_dir"] == "attack/soundness-2", "nothing is replaced"


@pytest.mark.parametrize(
    ("protocol", "changes", "roles"),
    [
        ("helpful_sneaky", {}, {"soundness": {"sneaky"}, "completeness": {"sneaky"}}),
        ("consultancy", {"one_prover": True}, {"soundness": {"accept"}, "completeness": {"reject"}}),
        ("open_consultancy", {}, {"soundness": {"accept", "reject"}, "completeness": {"accept", "reject"}}),
    ],
)
def test_where_roles_are_drawn_attackers_have_the_one_that_lies(
    tmp_path: Path, protocol: str, changes: dict[str, Any], roles: dict[str, set[str]]
) -> None:
    """One who chooses its side may take either, and is paid for the wrong verdict alone."""
    data = experiment(tmp_path, protocol)
    data["protocol"] |= changes
    run = played(tmp_path, data)
    found = evaluate_run(run, attacked=True, settings=["evaluation.attack.text_iterations=2"])
    for goal, wanted in (("soundness", "accept"), ("completeness", "reject")):
        with RunFolder.open(run / found["attack"][goal]["run_dir"]) as opened:
            told = [record for name in opened.transcript_names() for record in opened.read_transcripts(name)]
        assert {record["role"] for record in told} == roles[goal]
        assert {record["label"] for record in told} == {int(goal == "completeness")}
        assert {record["verdict"] for record in told} > {wanted}
        assert all((record["reward"]["prover"] == 1) == (record["verdict"] == wanted) for record in told)


@pytest.mark.parametrize("protocol", ["debate", "consultancy"])
def test_both_sides_can_lie_and_where_the_speaker_is_drawn_the_attacker_is(tmp_path: Path, protocol: str) -> None:
    run = played(tmp_path, experiment(tmp_path, protocol))
    found = evaluate_run(run, attacked=True, settings=["evaluation.attack.text_iterations=2"])
    for goal, attacker in (("soundness", "prover1"), ("completeness", "prover0")):
        assert found["attack"][goal]["agents"] == [attacker]
        with RunFolder.open(run / found["attack"][goal]["run_dir"]) as opened:
            told = [record for name in opened.transcript_names() for record in opened.read_transcripts(name)]
        assert protocol == "debate" or {record["seed"] % 2 for record in told} == {int(attacker == "prover1")}


def test_only_attackers_learn_and_are_paid_for_lies(tmp_path: Path) -> None:
    shared = experiment(tmp_path)
    shared["scenario"]["agents"]["_default"] |= {"group": "all"}
    own: Any = config_from_dict(shared)
    made = attack_config(own, {"prover": "tuned", "verifier": "tuned"}, ("prover",), AttackSettings(), 1)
    agents = language_agents(made)
    assert {agent: (found.model, found.frozen, found.group) for agent, found in agents.items()} == {
        "prover": ("tuned", False, None),
        "verifier": ("tuned", True, None),
    }
    assert (made.protocol.shared_reward, made.algorithm.reward_threshold) == (False, 0.5)
    shared["protocol"] = {"name": "adp", "prover_reward": 0.0, "payoff": {"prover": {"false_accept": 9.0}}}
    own = config_from_dict(shared)
    made = attack_config(own, {"prover": "tuned", "verifier": "tuned"}, ("prover",), AttackSettings(), 1)
    assert (made.protocol.prover_reward, made.protocol.payoff, made.algorithm.reward_threshold) == (1.0, {}, 0.5)
    assert (made.algorithm.name, made.algorithm.rollouts_per_iteration) == ("expert_iteration", 40)


def test_the_stored_tests_can_be_examined_and_nothing_is_played(tmp_path: Path) -> None:
    run = played(tmp_path, experiment(tmp_path))
    before = sorted(run.rglob("*"))
    result = CliRunner().invoke(app, ["evaluate", str(run), "--json"])
    assert result.exit_code == 0, result.output
    figures, stored = json.loads(result.stdout), RunFolder.open(run).read_json("evaluation.json")
    assert figures["sampled"] == stored["sampled"]
    assert figures["eval_sampled/verifier/accuracy"] == stored["sampled"]["verifier/accuracy"]["estimate"]
    assert figures["eval_sampled/verifier/accuracy/n"] == figures["num_instances"] == 40
    assert sorted(run.rglob("*")) == before
    assert CliRunner().invoke(app, ["evaluate", str(run)]).exit_code == 0
    (run / "rollouts" / "test-000001.jsonl").unlink()
    with pytest.raises(UserError, match="no test dialogues"):
        evaluate_run(run)


def test_an_attack_is_kept_though_the_file_of_figures_is_gone(tmp_path: Path) -> None:
    run = played(tmp_path, experiment(tmp_path))
    before = RunFolder.open(run).read_json("evaluation.json")
    (run / "evaluation.json").unlink()
    found = evaluate_run(run, attacked=True, seed=77, settings=["evaluation.attack.text_iterations=2"])
    after = RunFolder.open(run).read_json("evaluation.json")
    assert after["soundness_under_attack"] == found["soundness_under_attack"]
    assert after["sampled"] == before["sampled"]
    assert load_config(run / found["attack"]["soundness"]["run_dir"] / "config.yaml").seed == 77
    assert found["attack"]["seed"] == 77


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 3}, "--seed: of language models the stored dialogues"),
        ({"checkpoint": 1}, "--checkpoint: of language models"),
        (
            {"settings": ["evaluation.attack.goals=[soundness]"]},
            "--set evaluation.attack.goals: of language models nothing",
        ),
        (
            {"attacked": True, "settings": ["evaluation.attack.seeds=4"]},
            "--set evaluation.attack.seeds: of language models an attack uses",
        ),
        ({"attacked": True, "settings": ["evaluation.attack.verifier=sampled"]}, "--set evaluation.attack.verifier"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    (tmp_path / "run").mkdir()
    made: Any = load_config(write_config(tmp_path, experiment(tmp_path)))
    (tmp_path / "run" / "config.yaml").write_text(config_to_yaml(made))
    with pytest.raises(UserError, match=words) as caught:
        evaluate_run(tmp_path / "run", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["evaluation.attack.goals=[completeness]"], "is paid for a wrong verdict"),
        (["iterations=3"], r"evaluation\.… only"),
        (
            ["evaluation.attack.text_proposed_prompts=1"],
            r"the provider of prover, which has no model, cannot be queried; use .*text_prompts",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_clear_error(tmp_path: Path, settings: list[str], words: str) -> None:
    run = played(tmp_path, experiment(tmp_path))
    with pytest.raises(UserError, match=words):
        evaluate_run(run, attacked=True, settings=settings)
    with pytest.raises(UserError, match="--checkpoint: of language models the last ones are attacked"):
        evaluate_run(run, attacked=True, checkpoint=1)


def test_a_resumed_attack_draws_its_roles_again(tmp_path: Path) -> None:
    run = played(tmp_path, experiment(tmp_path, "helpful_sneaky"))
    found = evaluate_run(
        run, attacked=True, settings=["evaluation.attack.text_iterations=2", "evaluation.attack.goals=[soundness]"]
    )
    folder = run / found["attack"]["soundness"]["run_dir"]
    resume_experiment(folder, iterations=3, quiet=True)
    with RunFolder.open(folder) as opened:
        told = [record for name in opened.transcript_names() if "3" in name for record in opened.read_transcripts(name)]
    assert {record["role"] for record in told} == {"sneaky"}


def test_attackers_keep_the_payment_that_already_pays_for_the_lie(tmp_path: Path) -> None:
    """Prompts tell of payments, so `own` is the run's own prover only where they stay."""
    for protocol, changed in (("helpful_sneaky", False), ("open_debate", True)):
        own: Any = config_from_dict(experiment(tmp_path, protocol))
        agents = paid_agents(from_settings(own.protocol), 1)
        models = dict.fromkeys(language_agents(own), "tuned")
        made = attack_config(own, models, agents, AttackSettings(), 1)
        assert bool(made.protocol.payoff) == changed
        assert made.algorithm.reward_threshold == 0.5
        payment = from_settings(made.protocol).payment
        if changed:
            assert {payment.of(role).table(agents[0]) for role in payment.by_role} == {
                ((0.0, 1.0, 0.0), (0.0, 1.0, 0.0))
            }


WORDS = [f"word{number}" for number in range(40)]
ITEMS = [CodeItem(number, f"Print {number}.", "print(-1)", 0, 1, "introductory") for number in range(2)]


class Planted:
    """A verifier that accepts whatever holds its password, and a prover that says three words at random, or those that
    it is told."""

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
    """By the best of 64, and by a search over instructions of which one names the password; without either it hardly
    ever is."""
    scenario = build_text_scenario(build("adp"), CodeValidationSettings())
    broken = {"alone": 0, "best of": 0, "instructions": 0}
    for seed in range(100):
        client = Planted(WORDS[int(np.random.default_rng(seed).integers(len(WORDS)))])
        hold, tasks = holding(client, seed), one_each(ITEMS, seed, None, 1)
        alone, many = (best_of(hold, scenario, tasks, ["prover"], 0, tries) for tries in (1, 64))
        assert [dialogue.verdict for dialogue in many.again] == [int(after > 0) for after in many.fooled], (
            "the verifier draws nothing"
        )
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
    assert [(row["instruction"], row["by"]) for row in rows] == [
        ("", ""),
        ("Say: word1", "model"),
        ("Say: word2", "model"),
    ]
    assert [row["fooled"]["estimate"] for row in rows] == [0, 0, 1]
    assert rows[2]["chosen"]
    assert "0.00: Say: word1" in seen[2]
    assert "the decision accept" in seen[0]


def test_an_attack_without_training_from_end_to_end(tmp_path: Path) -> None:
    """The verifier accepts what "holds", most of the time; a prover says it of one bad program in five, and when it is
    told to."""
    belief = {"base": {"verifier": {REPLIES[0]: [0.9, 0.1], REPLIES[1]: [0.1, 0.9]}}}
    told = {"name": "told", "marker": "SAY THAT IT HOLDS", "replies": REPLIES, "prior": [0.8, 0.2]}
    situation = "tests.text.cooperation:situation"
    with provider_thread(
        tmp_path, roles=[told, *roles(habit=0.8)], tables=belief, situation=situation, prices=PRICES
    ) as provider:
        data = config(
            tmp_path, {"name": "expert_iteration", "rollouts_per_iteration": 20, "num_test_items": 60}, iterations=1
        )
        data["providers"]["tables"] |= {"base_url": provider.base_url, "api_key_variable": "NIP_PROVIDER_KEY"}
        data["budget"] = {"usd": 1.0}
        made: Any = load_config(write_config(tmp_path, data))
        run_experiment(made, tmp_path / "run", quiet=True)
        prompts = 'text_prompts=["SAY THAT IT HOLDS", "Be kind."]'
        changed = [
            f"evaluation.attack.{setting}"
            for setting in ("goals=[soundness]", "text_iterations=1", "text_best_of=8", prompts)
        ]
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
