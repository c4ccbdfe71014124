"""Every script runs by its path, at a tiny size. Language agents speak to nobody, or to a provider on this machine."""

import importlib.util
import io
import json
import os
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.storage.folder import RunFolder
from tests.text.provider import API_KEY, provider_thread

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
TRAINING = ("ppo_gi", "spg_gi", "reinforce_gi", "solo_agents_gi", "ei_cv", "malt_cv")
OTHERS = ("create_gi_dataset", "create_cv_dataset", "cv_benchmark", "dqn_hironaka")
TINY_GRAPHS = (
    "scenario.data.num_train=40",
    "scenario.data.num_test=20",
    "scenario.num_normalization_steps=30",
    "play.num_copies=16",
    "algorithm.minibatch_size=16",
    "algorithm.num_epochs=1",
    "runtime.num_threads=1",
)
TINY_TEXTS = (
    "scenario.data.num_train=8",
    "scenario.data.num_test=4",
    "algorithm.rollouts_per_iteration=8",
    "algorithm.fine_tuning.min_examples=1",
)
WRONG = "MODIFIED SOLUTION:\n```python\nprint(3)\n```"


@dataclass(frozen=True)
class Done:
    """What a script said."""

    stdout: str
    stderr: str


def run(
    script: str, *arguments: str | int | Path, settings: tuple[str, ...] = (), code: int = 0, **variables: str
) -> Done:
    """A script by its path, in this process. settings: for `--set`. variables: of its environment, which has no key
    otherwise."""
    path = SCRIPTS / f"{script}.py"
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for key in [key for key in os.environ if key.startswith("OPENAI_")]:
            patch.delenv(key)
        for key, value in variables.items():
            patch.setenv(key, value)
        patch.setattr(
            sys,
            "argv",
            [str(path), *map(str, arguments), *(word for setting in settings for word in ("--set", setting))],
        )
        patch.syspath_prepend(SCRIPTS)
        patch.delitem(sys.modules, "_common", raising=False)
        try:
            runpy.run_path(str(path), run_name="__main__")
            status: Any = 0
        except SystemExit as end:
            status = end.code or 0
        sys.modules.pop("_common", None)
    assert status == code, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def lines(done: Done) -> list[dict[str, Any]]:
    """What a script that makes runs prints: an object for each."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def last_row(run_dir: str) -> dict[str, Any]:
    with RunFolder.open(run_dir) as folder:
        assert (folder.path / "report.html").is_file()
        return folder.metrics()[-1]


@pytest.fixture(scope="module")
def common() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripts_common", SCRIPTS / "_common.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_experiments_are_short_and_say_how_they_are_run() -> None:
    for name in (*TRAINING, *OTHERS):
        text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
        assert len(text.splitlines()) <= (60 if name in TRAINING else 101)
        assert f"python scripts/{name}.py" in text


def test_every_protocol_and_rule_makes_a_config_that_is_accepted(common: ModuleType) -> None:
    """Nothing is trained here; the protocols and the rules that the tests below do not run are at least no mistake."""
    rules = (None, "reinforce_gi", *(f"{variant}_gi" for variant in ("spg", "pspg", "lola", "pola", "sos", "psos")))
    for protocol, file in common.GI_CONFIGS.items():
        for rule in rules:
            arguments = common.gi_parser("").parse_args(["--protocol", protocol, "--provers", "random"])
            config = load_config(common.CONFIGS / f"{file}.yaml", common.gi_settings(arguments, rule))
            assert isinstance(config, ExperimentConfig)
            assert config.protocol.name == protocol
            assert config.algorithm.name == (
                "ppo" if rule is None else "reinforce" if "reinforce" in rule else "stackelberg"
            )
            assert all(agent.kind == "random" for name, agent in config.scenario.agents.items() if name != "verifier")
    for protocol in common.CV_PROTOCOLS:
        for provider in ("hosted", "local", "dummy"):
            for rule in ("ei", "malt"):
                file, settings = common.cv_settings(
                    common.cv_parser("").parse_args(["--protocol", protocol, "--provider", provider]), rule
                )
                config = load_config(common.CONFIGS / f"{file}.yaml", settings)
                assert config.protocol.name == protocol
                assert config.algorithm.name == {"ei": "expert_iteration", "malt": "malt"}[rule]


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("ppo_gi", ["--turns", "3"], "error: --turns 3: expected 2 numbers >= 1, for verifier, prover"),
        ("spg_gi", ["--set", "algorithm.varient=sos"], "did you mean variant?"),
        ("ei_cv", [], "$OPENAI_API_KEY is not set"),
        ("cv_benchmark", [], "scenario.agents.verifier.model: default is a local model"),
        ("create_cv_dataset", ["out.jsonl", "--problems", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
    ],
)
def test_a_mistake_is_answered_by_one_line(tmp_path: Path, script: str, words: list[str], said: str) -> None:
    out = [] if script == "create_cv_dataset" else ["--out", str(tmp_path / "runs")]
    done = run(script, *words, *out, code=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.slow
def test_ppo_learns_in_turns_for_every_seed(tmp_path: Path) -> None:
    words = ("--protocol", "debate", "--iterations", 3, "--seeds", 3, 4, "--turns", 1, 1, 1, "--out", tmp_path)
    found = lines(run("ppo_gi", *words, settings=TINY_GRAPHS))
    assert [Path(one["run_dir"]).name for one in found] == ["gi-debate-seed3", "gi-debate-seed4"]
    for one in found:
        row = last_row(one["run_dir"])
        assert one["eval/verifier/accuracy"] == row["eval/verifier/accuracy"]
        learned = {
            key
            for key, value in row.items()
            if key.startswith("learn/") and key.endswith("/objective") and value is not None
        }
        assert learned == {"learn/prover1/objective"}, "whose turn was last"


def test_reinforce_with_a_random_prover(tmp_path: Path) -> None:
    (found,) = lines(
        run("reinforce_gi", "--provers", "random", "--iterations", 1, "--out", tmp_path, settings=TINY_GRAPHS)
    )
    config = load_config(Path(found["run_dir"]) / "config.yaml")
    assert (config.name, config.algorithm.name, config.seed) == ("reinforce-gi-nip", "reinforce", 8144)
    row = last_row(found["run_dir"])
    assert "learn/verifier/objective" in row
    assert "learn/prover/objective" not in row


def test_solo_agents_are_trained_one_after_the_other(tmp_path: Path) -> None:
    found = lines(run("solo_agents_gi", "--iterations", 1, "--seeds", 5, "--out", tmp_path, settings=TINY_GRAPHS))
    assert [Path(one["run_dir"]).name for one in found] == ["solo-gi-verifier-seed5", "solo-gi-prover-seed5"]
    assert found[0]["eval/verifier/wl_bound"] < found[1]["eval/verifier/wl_bound"], "the deeper network can see more"


def test_expert_iteration_under_debate(tmp_path: Path) -> None:
    (found,) = lines(
        run(
            "ei_cv",
            "--provider",
            "dummy",
            "--protocol",
            "debate",
            "--iterations",
            2,
            "--out",
            tmp_path,
            settings=TINY_TEXTS,
        )
    )
    assert Path(found["run_dir"]).name == "ei-cv-debate-seed8144"
    row = last_row(found["run_dir"])
    assert row["cost/jobs"] > 0, "fine-tunings were asked for"
    assert row["eval_sampled/verifier/accuracy"] == found["eval_sampled/verifier/accuracy"]


def test_malt_under_adp(tmp_path: Path) -> None:
    (found,) = lines(
        run(
            "malt_cv",
            "--provider",
            "dummy",
            "--protocol",
            "adp",
            "--iterations",
            1,
            "--out",
            tmp_path,
            settings=TINY_TEXTS,
        )
    )
    assert "train/malt/verifier/expected_reward" in last_row(found["run_dir"])


def test_benchmark_asks_any_provider_and_tells_accuracy_by_difficulty(tmp_path: Path) -> None:
    """A model that accepts everything: right on correct programs, never on wrong ones."""
    judge = [{"name": "judge", "marker": "", "replies": ["Decision: accept"]}]
    with provider_thread(tmp_path, roles=judge, base_models=["judge-1"]) as provider:
        words = (
            "--model",
            "judge-1",
            "--difficulties",
            "introductory",
            "competition",
            "--max-problems",
            4,
            "--n-attempts",
            2,
        )
        done = run(
            "cv_benchmark",
            *words,
            "--out",
            tmp_path / "runs",
            OPENAI_BASE_URL=provider.base_url,
            OPENAI_API_KEY=API_KEY,
        )
        asked = provider.requests()
    found = lines(done)
    assert [one["difficulty"] for one in found] == ["introductory", "competition"]
    for one in found:
        assert one["accuracy"]["n"] == 4
        assert one["accuracy"]["lower"] <= one["accuracy"]["estimate"] == 0.5 <= one["accuracy"]["upper"]
        assert (one["completeness"]["estimate"], one["soundness"]["estimate"], one["always_fail"]["estimate"]) == (
            1,
            0,
            0.5,
        )
    assert sum(count for what, count in asked.items() if "chat/completions" in what) == 2 * (4 * 2 + 1), (
        "and one dialogue of training"
    )
    assert API_KEY not in done.stdout + done.stderr + "".join(
        path.read_text() for path in (tmp_path / "runs").rglob("*.json*")
    )


def test_create_cv_dataset_offline(tmp_path: Path) -> None:
    words = ("--items", 6, "--split", "test", "--difficulties", "introductory")
    summary = json.loads(run("create_cv_dataset", tmp_path / "items.jsonl", *words).stdout)
    assert summary["labels"] == {"0": 3, "1": 3}
    assert {json.loads(line)["difficulty"] for line in (tmp_path / "items.jsonl").read_text().splitlines()} == {
        "introductory"
    }


def test_create_cv_dataset_with_a_model_asks_for_no_problem_twice(tmp_path: Path) -> None:
    tests = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]})
    solutions = json.dumps(["print(2 * int(input()))", "n = int(input())\nprint(n + n)"])
    row = {
        "question": "Read a number and print it doubled.",
        "solutions": solutions,
        "input_output": tests,
        "difficulty": "interview",
    }
    (tmp_path / "apps.jsonl").write_text("".join(json.dumps({**row, "problem_id": i}) + "\n" for i in range(2)))
    saboteur = [{"name": "saboteur", "marker": "", "replies": [WRONG]}]
    with provider_thread(tmp_path, roles=saboteur, base_models=["saboteur-1"]) as provider:
        words = (
            "--problems",
            tmp_path / "apps.jsonl",
            "--model",
            "saboteur-1",
            "--max-attempts",
            1,
            "--isolation",
            "trusted",
        )
        made = [
            json.loads(
                run(
                    "create_cv_dataset",
                    tmp_path / "buggy.jsonl",
                    *words,
                    OPENAI_BASE_URL=provider.base_url,
                    OPENAI_API_KEY=API_KEY,
                ).stdout
            )
            for _ in range(2)
        ]
        asked = provider.requests()
    assert made == [{"made": 2, "without_row": 0, "done_before": 0}, {"made": 0, "without_row": 0, "done_before": 2}]
    assert sum(count for what, count in asked.items() if "chat/completions" in what) == 2
    rows = [json.loads(line) for line in (tmp_path / "buggy.jsonl").read_text().splitlines()]
    assert {one["buggy_solutions"][0]["solution"] for one in rows} == {"print(3)"}
