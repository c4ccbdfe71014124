"""Runs of language agents: where dialogues are held, Tune, base runs, judges, the command line, and what is refused at
the start."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.runner import test_tasks as held_out_tasks
from nip_ray.text.dialogues.runner import training_tasks
from nip_ray.text.judging.judge_run import judge_run
from nip_ray.text.parts import first_state, load_state, save_state
from tests.text.cooperation import PRICES, config, dummy, roles, write_config
from tests.text.provider import API_KEY, provider_thread

OPTIONS: dict[str, Any] = {"situation": "tests.text.cooperation:situation", "prices": PRICES}
ALONE = {"provider": "nobody"}
JUDGE = {"name": "judge", "marker": "judge|transcript|question", "replies": ["Yes.", "No."], "prior": [0.8, 0.2]}


def played(tmp_path: Path, data: dict[str, Any], name: str = "run") -> Path:
    run_experiment(load_config(write_config(tmp_path, data)), tmp_path / name, quiet=True)
    return tmp_path / name


def rollouts(run_dir: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((run_dir / "rollouts").iterdir())}


def test_items_are_taken_in_passes_without_gaps() -> None:
    items = list("abcdefg")
    for count in (3, 7, 20):
        taken = [task.item for iteration in range(7) for task in training_tasks(items, 5, iteration, count)]
        passes = [taken[start : start + 7] for start in range(0, len(taken) - 6, 7)]
        assert all(sorted(one) == items for one in passes)
        assert len({tuple(one) for one in passes}) > 1, "each pass has its own order"
    seeds = [task.seed for iteration in range(5) for task in training_tasks(items, 5, iteration, 20)]
    assert len(set(seeds)) > 95
    assert [task.number for task in held_out_tasks(items, 0, 3, 2)] == list(range(6))


@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier"])
def test_every_protocol_is_played_and_runs_are_reproducible(tmp_path: Path, protocol: str) -> None:
    first = played(tmp_path, dummy(tmp_path, protocol))
    assert rollouts(first) == rollouts(played(tmp_path, dummy(tmp_path, protocol), "again"))
    for name in ("evaluation.json", "cost.json", "report.html", "state.json", "environment.json"):
        assert (first / name).is_file()
    with RunFolder.open(first) as folder:
        assert load_state(folder).over
        rows = folder.metrics()
    assert [row["iteration"] for row in rows] == [1, 2]
    assert {"train/verifier/accuracy", "eval_sampled/verifier/soundness", "cost/usd"} <= set(rows[0])


def test_talkers_hold_the_same_dialogues(tmp_path: Path, ray_session: None) -> None:
    data = dummy(tmp_path, "mnip")
    here = played(tmp_path, data)
    there = played(tmp_path, {**data, "talk": {"num_talkers": 2, "num_cpus_per_talker": 0.5}}, "talkers")
    assert rollouts(here) == rollouts(there)


def test_talkers_share_budget_and_records(tmp_path: Path, ray_session: None) -> None:
    """Over HTTP by two actors: the books agree, and the dialogues are those of a single process."""
    data = config(
        tmp_path, {"name": "malt", "rollouts_per_iteration": 12, "num_test_items": 6}, iterations=1, budget={"usd": 5}
    )
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider:
        data["providers"]["tables"] |= {"base_url": provider.base_url, "api_key_variable": "NIP_PROVIDER_KEY"}
        run_dir = played(tmp_path, {**data, "talk": {"num_talkers": 2, "num_cpus_per_talker": 0.5, "max_in_flight": 8}})
        cost = json.loads((run_dir / "cost.json").read_text())
        assert round(cost["usd"] * 1e12) == sum(row["pusd"] for row in provider.ledger()) > 0
    assert len(list((run_dir / "calls").iterdir())) == 2


def test_a_tune_trial_is_the_same_run(tmp_path: Path) -> None:
    from nip_ray.sweeps.text_trainable import TextTrainable

    experiment = load_config(write_config(tmp_path, dummy(tmp_path)))
    told = {"experiment": experiment.model_dump(mode="json"), "run_root": str(tmp_path / "root")}
    trial = TextTrainable(told)
    stages = [trial.train()["stage"] for _ in range(4)]
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    trial.save_checkpoint(str(checkpoint))
    trial.stop()
    again = TextTrainable(told)  # as on another node
    again.load_checkpoint(str(checkpoint))
    result: dict[str, Any] = {"done": False}
    while not result["done"]:
        result = again.train()
        stages.append(result["stage"])
    again.stop()
    one = ["sample", "log", "test", "create_jobs", "await_jobs"]
    assert stages == [*one, *one[:3]]
    assert result["text_iteration"] == 2
    (run_dir,) = (tmp_path / "root").iterdir()
    assert rollouts(run_dir) == rollouts(played(tmp_path, dummy(tmp_path)))


def test_a_run_can_start_from_another_and_test_it_again(tmp_path: Path) -> None:
    first = played(tmp_path, dummy(tmp_path, "adp"))
    with RunFolder.open(first) as folder:
        state = load_state(folder)
    assert state.history[0] == {"prover": "none", "verifier": "none"}
    assert state.models()["verifier"] == "none-ft"
    base = {"run_dir": str(first), "kind": "models"}
    with RunFolder.open(played(tmp_path, dummy(tmp_path, "adp", base_run=base, iterations=1), "next")) as folder:
        assert load_state(folder).history[0] == state.models()
    base["kind"] = "rerun_tests"
    again = played(tmp_path, dummy(tmp_path, "adp", base_run=base), "rerun")
    assert sorted(rollouts(again)) == ["test-000001.jsonl", "test-000002.jsonl"]
    with RunFolder.open(again) as folder:
        assert load_state(folder).history == state.history


def test_agents_of_one_group_share_a_model_and_its_fine_tuning_set(tmp_path: Path) -> None:
    data = dummy(tmp_path, "debate", iterations=3)
    data["scenario"]["agents"] = {
        "_default": ALONE,
        "prover0": {**ALONE, "group": "experts"},
        "prover1": {**ALONE, "group": "experts"},
    }
    data["algorithm"]["fine_tune_on_all_previous_rollouts"] = True
    with RunFolder.open(played(tmp_path, data)) as folder:
        state, rows = load_state(folder), folder.metrics()
    assert set(state.groups) == {"experts", "verifier"}
    counts = [row["learn/prover0/examples"] + row["learn/prover1/examples"] for row in rows]
    assert counts == sorted(counts), "examples of earlier iterations stay"
    assert counts[0] < counts[-1]
    assert {model["experts"] for model in state.history} == {"default", "default-ft"}


def test_items_stay_with_the_run(tmp_path: Path) -> None:
    data = dummy(tmp_path)
    run_dir = played(tmp_path, {**data, "iterations": 1})
    for split in ("train", "test"):
        Path(data["scenario"]["data"][split]).write_text("")  # moved away or changed since
    with pytest.raises(UserError, match=r"train\.jsonl"):
        played(tmp_path, data, "new")
    shutil.copytree(run_dir, tmp_path / "copy")
    resume_experiment(tmp_path / "copy", iterations=2, quiet=True)
    assert len(rollouts(tmp_path / "copy")) == 4


def test_judging_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = config(tmp_path, {"name": "expert_iteration", "rollouts_per_iteration": 12}, iterations=1)
    told = ["prover_role_conformance", "verifier_format_conformance"]
    with provider_thread(tmp_path, roles=[*roles(), JUDGE], **OPTIONS) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
        run_dir = played(tmp_path, data)
        before = len(provider.ledger("chat"))
        planned = judge_run(run_dir, told, dry_run=True)
        assert planned["calls"] == 12
        assert len(provider.ledger("chat")) == before
        found = judge_run(run_dir, told)
        assert 0 < found["prover_role_conformance/prover/main"] < 1
        assert found["verifier_format_conformance/verifier"] == 1.0
        after = len(provider.ledger("chat"))
        assert after == before + 12
        assert judge_run(run_dir, told) == found
        assert len(provider.ledger("chat")) == after, "answered questions are not paid for again"
        cost = json.loads((run_dir / "cost.json").read_text())
        assert round(cost["usd"] * 1e12) == sum(row["pusd"] for row in provider.ledger())
    with pytest.raises(UserError, match="--iteration 7"):
        judge_run(run_dir, told, iteration=7, dry_run=True)


def test_the_command_line(tmp_path: Path) -> None:
    path, run_dir = write_config(tmp_path, dummy(tmp_path)), tmp_path / "cli"
    runner = CliRunner()
    assert runner.invoke(app, ["train", str(path), "--run-dir", str(run_dir), "-q", "--iterations", "1"]).exit_code == 0
    refused = runner.invoke(app, ["resume", str(run_dir), "--set", "scenario.verdict_scale=percent"])
    assert refused.exit_code == 2
    assert "budget" in refused.output
    done = runner.invoke(app, ["resume", str(run_dir), "--iterations", "2", "--set", "budget.tokens=100000000"])
    assert done.exit_code == 0
    assert "eval_sampled/verifier/accuracy" in done.output
    file = tmp_path / "instances.jsonl"
    evaluated = runner.invoke(app, ["evaluate", str(run_dir), "--instances", str(file), "--json"])
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == len({(line["id"], line["mode"], number) for number, line in enumerate(lines)}) > 0
    right = sum(line["correct"] for line in lines) / len(lines)
    assert right == pytest.approx(json.loads(evaluated.stdout)["eval_sampled/verifier/accuracy"])
    assert all(
        line["correct"] == (line["label"] == line["verdict"]) and line["rounds"] > 0 and line["returns"]
        for line in lines
    )
    shown = runner.invoke(
        app, ["judge", str(run_dir), "--judges", "verifier_format_conformance", "--dry-run", "--json"]
    )
    assert json.loads(shown.stdout)["calls"] == 0


def changed(folder: Path, **dotted: Any) -> dict[str, Any]:
    data = dummy(folder)
    for path, value in dotted.items():
        *parents, last = path.split("__")
        at = data
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return data


HOSTED = {"scenario__agents": {"_default": {"provider": "o", "model": "m"}}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget__usd": 0.0}, "budget.usd"),
        ({"scenario__agents": {"verifier": {"provider": "nowhere"}, "_default": ALONE}}, "verifier.provider"),
        (
            {
                "scenario__agents": {
                    "_default": {**ALONE, "group": "all"},
                    "prover": {**ALONE, "group": "all", "frozen": True},
                }
            },
            "frozen",
        ),
        ({"scenario__agents": {"_default": {**ALONE, "frozen": True}}}, "no agent learns"),
        ({"scenario__prompts": "/no/such/folder"}, "scenario.prompts"),
        ({"scenario__data__train": "/no/such.jsonl"}, "scenario.data.train"),
        ({"scenario__randomize_prover_stance": True, "protocol": {"name": "debate"}}, "randomize_prover_stance"),
        ({"protocol": {"name": "multi_channel_test"}}, "protocol.name"),
        ({"protocol": {"name": "nip", "zero_knowledge": True}}, "zero_knowledge"),
        ({"algorithm": {"name": "malt", "num_responses": 9}, "protocol": {"name": "nip"}}, "num_responses"),
        ({"algorithm": {"name": "malt", "warmup_agents": ["verifier"]}}, "warmup_agents: format_warmup is 0"),
        (
            {"algorithm": {"name": "malt", "format_warmup": 1, "warmup_agents": ["provr"]}},
            "warmup_agents: no agent 'provr' of nip, did",
        ),
        (
            {"algorithm": {"name": "malt", "test_scheme": "none", "test_while_fine_tuning": True}},
            "test_while_fine_tuning: test_scheme",
        ),
        (
            {"algorithm": {"name": "malt", "guess_replacement_rate": 0.2}},
            "guess_replacement_rate: got 0.2, but malt learns from pairs",
        ),
        (
            {"algorithm": {"name": "malt", "reward_threshold": math.nan}},
            "algorithm.reward_threshold: got nan, expected finite number or null",
        ),
        (
            {"algorithm": {"fine_tuning": {"learning_rate": math.inf}}},
            "algorithm.fine_tuning.learning_rate: got inf, expected finite number > 0",
        ),
        (
            {"algorithm": {"fine_tuning": {"learning_rate": 1, "learning_rate_multiplier": 1}}},
            "fine_tuning.learning_rate_multiplier: l",
        ),
        ({"algorithm": {"fine_tuning": {"beta": 1}}}, "algorithm.fine_tuning.beta: is for preferences"),
        (
            {"algorithm": {"format_warmup": 1, "format_warmup_tuning": {"beta": 1}}},
            "format_warmup_tuning.beta: not for the warm-up",
        ),
        ({"algorithm": {"sample_size_factor": 1}}, "algorithm.sample_size_factor: is not for selection threshold"),
        (
            {"algorithm": {"selection": "weighted_sampling", "reward_threshold": 1}},
            "reward_threshold: is not for selection weighted",
        ),
        ({"base_run": {"run_dir": "/no/run"}}, "base_run.run_dir"),
        (
            {
                "scenario__agents": {"_default": {"provider": "l", "model": "/no/model"}},
                "providers": {"l": {"name": "local"}},
            },
            "model",
        ),
        ({**HOSTED, "providers": {"o": {"name": "openai", "fine_tuning": False}}}, "frozen"),
        ({**HOSTED, "providers": {"o": {"name": "openai"}}, "budget": {"usd": 1}}, "prices"),
        (
            {
                **HOSTED,
                "providers": {"o": {"name": "openai"}},
                "algorithm": {"name": "malt", "fine_tuning": {"learning_rate": 1e-4}},
            },
            "algorithm.fine_tuning.learning_rate: o takes none",
        ),
        (
            {
                **HOSTED,
                "providers": {"o": {"name": "openai"}},
                "algorithm": {"name": "malt", "fine_tuning": {"nll_coefficient": 0.1}},
            },
            "algorithm.fine_tuning.nll_coefficient: o takes none, leave it out",
        ),
        (
            {"algorithm": {"fine_tuning": {"nll_coefficient": 1}}},
            "algorithm.fine_tuning.nll_coefficient: is for preferences",
        ),
        (
            {
                "scenario": {"name": "state_tracking", "agents": {"_default": {**ALONE, "max_tokens": 2}}},
                "protocol": {"name": "nip"},
            },
            (
                "scenario.agents._default.max_tokens: room for 2 tokens, but prover replies with 15 states, use at"
                " least 16"
            ),
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)):
        check(config_from_dict(changed(tmp_path, **change)))


def hosted(folder: Path, **provider: Any) -> dict[str, Any]:
    data = config(folder, {"name": "malt"})
    data["providers"]["tables"] |= provider
    return data


def test_providers_are_asked_before_anything_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with provider_thread(tmp_path, roles=roles(), has_fine_tuning=False, **OPTIONS) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        with pytest.raises(UserError, match="OPENAI_API_KEY"):
            played(tmp_path, hosted(tmp_path))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-canary-1234567890")
        with pytest.raises(UserError, match="OPENAI_API_KEY") as caught:
            played(tmp_path, hosted(tmp_path))
        assert "canary" not in str(caught.value)
        monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
        with pytest.raises(UserError, match="fine_tuning"):
            played(tmp_path, hosted(tmp_path))
        data = hosted(tmp_path)
        data["scenario"]["agents"]["_default"]["model"] = "bse"
        with pytest.raises(UserError, match=r"bse.*base"):
            played(tmp_path, data)
        assert provider.ledger() == []
    with provider_thread(tmp_path / "other", roles=roles(), methods=["supervised"], **OPTIONS) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        with pytest.raises(UserError, match=r"dpo.*choose another provider"):
            played(tmp_path, hosted(tmp_path))
        assert provider.ledger() == []
        assert provider.jobs() == []
    assert not (tmp_path / "run").exists()


def test_a_state_with_a_changed_digit_is_damaged(tmp_path: Path) -> None:
    """Another `run_id` would have every call and job paid again."""
    with RunFolder.create(tmp_path / "run", "name: a\n") as folder:
        state = first_state({"verifier": "m"})
        save_state(folder, state)
        assert load_state(folder) == state
        path = folder.path / "state.json"
        path.write_text(
            path.read_text().replace(state.run_id, state.run_id[:-1] + ("0" if state.run_id[-1] != "0" else "1"))
        )
        with pytest.raises(UserError, match=r"state\.json is damaged: its checksum is another"):
            load_state(folder)
