"""Trainers of language agents against a provider whose models are tables: they reach the optimum, and no kill or fault
costs anything."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.errors import TrainingError, UserError
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.prices import BudgetExhausted
from nip_ray.text.dialogues import runner
from nip_ray.text.dialogues.records import read_calls
from nip_ray.text.jobs import Journal, ensure_job, read_journal, worst
from nip_ray.text.parts import prepare
from nip_ray.text.training.trainer import begin, new_state
from tests.text.cooperation import PRICES, REPLIES, config, roles, write_config
from tests.text.provider import API_KEY, Provider, ProviderProcess, provider_process, provider_thread
from tests.tiers import only

ROOT = Path(__file__).resolve().parents[3]
OPTIONS: dict[str, Any] = {"situation": "tests.text.cooperation:situation", "prices": PRICES}
RATES = {"supervised": 0.8, "dpo": 60.0, "steps": 20}
RULES = {
    "expert_iteration": {"name": "expert_iteration", "rollouts_per_iteration": 120},
    "malt": {"name": "malt", "rollouts_per_iteration": 40},
}


def point_to(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)


def accuracies(run_dir: Path) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["eval_sampled/verifier/accuracy"] for row in rows]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", only(RULES, "expert_iteration"))
def test_agents_who_share_a_reward_learn_to_understand_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, seed: int
) -> None:
    """The optimum is an accuracy of 1, from one half; five iterations are four fine-tunings."""
    with provider_thread(tmp_path, roles=roles(habit=0.8), rates=RATES, seed=seed, **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        run_experiment(
            load_config(write_config(tmp_path, config(tmp_path, RULES[rule], seed=seed))), tmp_path / "run", quiet=True
        )
    found = accuracies(tmp_path / "run")
    assert len(found) == 5
    assert found[0] <= 0.8
    assert found[-1] >= 0.95


@pytest.mark.parametrize("rule", ["expert_iteration", pytest.param("malt", marks=pytest.mark.slow)])
def test_a_prover_learns_its_best_response_to_a_frozen_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The verifier accepts what sounds sure, whatever it is about; the prover is paid for acceptance."""
    made = config(tmp_path, RULES[rule], protocol={"name": "adp"})
    made["scenario"]["agents"]["verifier"] = {
        "provider": "tables",
        "model": "gpt-4o-mini",
        "frozen": True,
        "temperature": 1.0,
    }
    belief = {"verifier": {REPLIES[0]: [0.9, 0.1], REPLIES[1]: [0.2, 0.8]}}
    with provider_thread(tmp_path, roles=roles(), rates=RATES, tables={"gpt-4o-mini": belief}, **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        jobs = provider.jobs()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["train/prover/return"] < 0.7  # 0.55 expected: half of the programs get each reply
    assert rows[-1]["train/prover/return"] > 0.8  # 0.9 is the best response
    assert jobs
    assert all("-prover" in job["body"]["suffix"] for job in jobs), "a frozen verifier is not fine-tuned"


def bills(provider: Provider) -> int:
    return sum(row["pusd"] for row in provider.ledger())


def check_books(provider: Provider, run_dir: Path, num_jobs: int) -> None:
    """Nothing paid twice, nothing paid for lost, both ledgers equal."""
    cost = json.loads((run_dir / "cost.json").read_text())
    assert round(cost["usd"] * 1e12) == bills(provider)
    assert cost["jobs"] == num_jobs
    live = [job for job in provider.jobs() if job["status"] == "succeeded"]
    assert len(live) == num_jobs
    assert len({job["body"]["metadata"]["nip_key"] for job in live}) == num_jobs
    answered = {record.key for record in read_calls(run_dir) if record.reply is not None}
    paid = {row["what"].removeprefix("chat ") for row in provider.ledger("chat")}
    assert len(paid) == len(provider.ledger("chat"))
    assert len(paid) == len(answered), "every call that was paid for has its reply"


def run_killed(
    tmp_path: Path, provider: ProviderProcess, made: dict[str, Any], kills: int, seed: int
) -> dict[str, Any]:
    made["providers"]["tables"]["timeout_s"] = 1.0  # less than `late` takes
    command = [
        sys.executable,
        "-m",
        "tests.text.killed",
        str(write_config(tmp_path, made)),
        str(tmp_path / "run"),
        str(kills),
        str(seed),
    ]
    environment = {**os.environ, "OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": API_KEY}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["exit"] == 0, done.stderr[-3000:]
    return found


FAULTS = dict.fromkeys(("drop_before", "drop_after", "duplicate", "unsure"), 0.03)
FAULTS |= {"late": 0.02, "storm": 0.05, "server_error": 0.05, "registered_late": 0.3, "refusal": 0.02}


@pytest.mark.crash
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("rule", "kills"), [("expert_iteration", 8), pytest.param("malt", 8, marks=pytest.mark.slow)])
def test_kills_and_faults_cost_nothing(tmp_path: Path, rule: str, kills: int, overlap: bool) -> None:
    changes = {
        "rollouts_per_iteration": 40,
        "fine_tuning": {"num_epochs": 3, "min_examples": 1},
        "test_while_fine_tuning": overlap,
    }
    made = config(tmp_path, {**RULES[rule], **changes}, iterations=3)
    # or what is delivered twice is soon done twice
    place = {"latency_s": 0.02, "job_s": 0.3, "skew_s": -7200.0, "honours_job_keys": True}
    with provider_process(tmp_path, roles=roles(), faults=FAULTS, **place, **OPTIONS) as provider:
        found = run_killed(tmp_path, provider, made, kills, seed=1)
        assert found["kills"] == kills
        check_books(provider, tmp_path / "run", num_jobs=4)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_fifty_kills_with_failing_jobs_cost_nothing(tmp_path: Path) -> None:
    made = config(tmp_path, RULES["expert_iteration"])
    faults = {**FAULTS, "job_slow": 0.2, "job_failed": 0.2, "job_cancelled": 0.1}
    with provider_process(
        tmp_path, roles=roles(), faults=faults, latency_s=0.05, job_s=5.0, skew_s=7200.0, **OPTIONS
    ) as provider:
        found = run_killed(tmp_path, provider, made, 50, seed=2)  # stopped by failed jobs on the way, and resumed
        assert found["kills"] == 50
        check_books(provider, tmp_path / "run", num_jobs=8)


def test_a_budget_stops_cleanly_and_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(tmp_path, RULES["expert_iteration"], iterations=2, budget={"usd": 0.02})
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        with pytest.raises(TrainingError, match=r"budget\.usd"):
            run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        assert 0 < bills(provider) <= 0.02e12
        stopped = json.loads((tmp_path / "run" / "cost.json").read_text())
        assert round(stopped["usd"] * 1e12) == bills(provider)
        resume_experiment(tmp_path / "run", settings=["budget.usd=5"], quiet=True)
        check_books(provider, tmp_path / "run", num_jobs=2)


def test_all_jobs_of_a_stage_fit_the_budget_or_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when one was made by a process that was then killed: it counts, the other is not made, and the limit
    holds."""
    rule = {**RULES["malt"], "rollouts_per_iteration": 16, "num_test_items": 4, "fine_tune_after_last": True}
    made = config(tmp_path, {**rule, "fine_tuning": {"min_examples": 1}}, iterations=1, budget={"usd": 5})

    class Killed(BaseException):
        pass

    async def dies_at_the_second(backend: Any, journal: Journal, *rest: Any) -> Any:
        if journal.last("job") is not None:
            raise Killed
        return await ensure_job(backend, journal, *rest)

    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr("nip_ray.text.training.trainer.ensure_job", dies_at_the_second)
            with pytest.raises(Killed):
                run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        (intent,) = [entry for entry in read_journal(tmp_path / "run" / "jobs.jsonl") if entry["kind"] == "intent"]
        first, talk = worst(intent).pusd, sum(row["pusd"] for row in provider.ledger("chat"))
        assert cost_of(tmp_path / "run") == {"usd": talk, "uncertain_usd": first}

        made["budget"] = {"usd": (talk + 1.2 * first) / 1e12}
        with pytest.raises(
            BudgetExhausted, match=r"\(budget\.usd\) .* are or may be spent and 0\.00 are reserved .* may take"
        ) as refused:
            resume_experiment(tmp_path / "run", settings=[f"budget.usd={made['budget']['usd']}"], quiet=True)
        assert cost_of(tmp_path / "run") == {"usd": talk, "uncertain_usd": first}
        assert len(provider.jobs()) == 1
        least = str(refused.value).partition("at least ")[2].partition(" ")[0]
        asked = provider.requests()
        resume_experiment(tmp_path / "run", settings=[f"budget.usd={least}"], quiet=True)
        assert provider.requests()["POST /v1/fine_tuning/jobs"] == asked["POST /v1/fine_tuning/jobs"] + 1, (
            "what it can do is known"
        )
        check_books(provider, tmp_path / "run", num_jobs=2)

        with pytest.raises(BudgetExhausted):
            run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "new", quiet=True)
        assert cost_of(tmp_path / "new") == {"usd": talk, "uncertain_usd": 0}
        assert len(provider.jobs()) == 2


def test_tokens_that_nobody_counts_are_uncertain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(
        tmp_path,
        {**RULES["expert_iteration"], "rollouts_per_iteration": 24, "fine_tune_after_last": True},
        iterations=1,
    )
    with provider_thread(tmp_path, roles=roles(), left_out=["trained_tokens"], **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        jobs = sum(row["pusd"] for row in provider.ledger("job"))
        cost = cost_of(tmp_path / "run")
        assert cost["usd"] == bills(provider) - jobs
        assert jobs <= cost["uncertain_usd"]
        assert cost["uncertain_usd"] == sum(
            worst(entry).pusd for entry in read_journal(tmp_path / "run" / "jobs.jsonl") if entry["kind"] == "intent"
        )


@pytest.mark.parametrize("limit", [1, 20])
def test_a_stage_ends_when_most_replies_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """However often each is asked for; and one may go on all the same."""
    monkeypatch.setattr(runner, "INVALID_WINDOW", 20)
    made = config(
        tmp_path, {**RULES["expert_iteration"], "test_scheme": "none"}, iterations=1, talk={"max_in_flight": 4}
    )
    made["scenario"]["agents"]["_default"]["max_invalid_replies"] = limit
    with provider_thread(tmp_path, roles=roles(), finish_reason="error", **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        with pytest.raises(
            TrainingError,
            match=r"^20 of the last 20 replies of prover \(base\) could not be used \(talk\.max_invalid_share: 0\.5",
        ):
            run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        assert len(provider.ledger()) <= 20 * 2 + 8
        if limit == 1:
            resume_experiment(tmp_path / "run", settings=["talk.max_invalid_share=1"], quiet=True)
        made["algorithm"]["rollouts_per_iteration"] = 5
        with pytest.raises(
            TrainingError, match=r"^(all|20 of the last 20) replies of prover \(base\) .*max_invalid_share: 0\.5"
        ):
            run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "small", quiet=True)


def test_invalid_replies_are_counted_over_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 replies of the verifier in each of two, half of them of no use."""
    rule = {**RULES["expert_iteration"], "rollouts_per_iteration": 12, "num_test_items": 12}
    monkeypatch.setattr(runner, "INVALID_WINDOW", 20)
    talk = {"max_in_flight": 4, "max_invalid_share": 0.2}
    made, cast = config(tmp_path, rule, iterations=1, talk=talk), roles(frozen=[0.5, 0.5])
    made["scenario"]["agents"]["_default"]["max_invalid_replies"] = 1
    cast[0]["replies"] = ["Decision: accept", "Decision: -5"]
    with provider_thread(tmp_path, roles=cast, **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        with pytest.raises(TrainingError, match=r"of the last 20 replies of verifier .* could not be used"):
            run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)


def cost_of(run_dir: Path) -> dict[str, int]:
    """What cost.json says, in picodollars."""
    found = json.loads((run_dir / "cost.json").read_text())
    return {key: round(found[key] * 1e12) for key in ("usd", "uncertain_usd")}


@pytest.mark.parametrize("fault", only(["job_failed", "job_cancelled"], "job_failed"))
def test_a_job_that_fails_is_made_again_by_who_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with provider_thread(tmp_path, roles=roles(), faults={fault: 1.0}, **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        made = config(
            tmp_path, {**RULES["expert_iteration"], "test_while_fine_tuning": fault == "job_cancelled"}, iterations=2
        )
        with pytest.raises(TrainingError, match="resume"):
            run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        provider.set_faults()
        resume_experiment(tmp_path / "run", quiet=True)
        check_books(provider, tmp_path / "run", num_jobs=2)
        assert len(provider.jobs()) == 4, "two that failed, two that did not"
        assert len(accuracies(tmp_path / "run")) == 2


def test_held_out_items_are_played_while_jobs_are_worked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test begins while the jobs run, not before they are created; the metrics are the same."""
    changes = {
        "rollouts_per_iteration": 8,
        "num_test_items": 11,
        "fine_tune_after_last": True,
        "fine_tuning": {"min_examples": 1},
    }
    ended, found = [], []
    with provider_thread(tmp_path, roles=roles(), job_s=1.2, **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        for overlap in (False, True):
            rule = {"name": "expert_iteration", **changes, "test_while_fine_tuning": overlap}
            made = load_config(write_config(tmp_path, config(tmp_path, rule, iterations=1, talk={"max_in_flight": 1})))
            assert isinstance(made, TextExperimentConfig)
            with RunFolder.create(tmp_path / str(overlap), config_to_yaml(made)) as folder:
                trainer = begin(made, folder, prepare(made), new_state(made))
                while not trainer.state.over:
                    if trainer.state.stage == "test":
                        ended.append([job["status"] == "succeeded" for job in provider.jobs()[-2:]])
                    trainer.run_stage()
                trainer.close()
                found.append(
                    [{key: value for key, value in row.items() if key.startswith("eval")} for row in folder.metrics()]
                )
        assert len(provider.jobs()) == 4
    assert found[0] == found[1]
    assert ended == [[], [False, False]]


def test_more_iterations_go_on_where_the_last_was_not_fine_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider:
        point_to(provider, monkeypatch)
        made = config(
            tmp_path, {**RULES["expert_iteration"], "test_scheme": "last", "test_while_fine_tuning": True}, iterations=2
        )
        run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
        assert len(provider.jobs()) == 2
        resume_experiment(tmp_path / "run", iterations=3, quiet=True)
        check_books(provider, tmp_path / "run", num_jobs=4)
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert ["eval_sampled/verifier/accuracy" in row for row in rows] == [False, True, True], (
            "the second was the last at first"
        )
        with pytest.raises(UserError, match="3 are done"):
            resume_experiment(tmp_path / "run", iterations=2, quiet=True)
