"""The command line: what it accepts, prints and exits with. Training is a stand-in here; its own tests are
elsewhere."""

import io
import json
import os
import pwd
import resource
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from nip_ray.cli import app, main
from nip_ray.cli.folder import list_
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.errors import TrainingError, UserError

ROOT = Path(__file__).resolve().parents[1]
TUNE_CONFIGS = sorted(
    path
    for path in (ROOT / "tune_configs").glob("*.yaml")
    if not path.stem.startswith("runner_") and "\nsweep:" not in path.read_text(encoding="utf-8")
)
QUICKSTART = str(ROOT / "tune_configs" / "quickstart.yaml")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def one_line_error(result: Result, code: int = 2) -> str:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


@dataclass(frozen=True)
class Played:
    run_dir: Path
    metrics: dict[str, Any]
    iterations: int


class Runs:
    """Stands in for nip_ray.runs: notes the calls, leaves a run folder behind, and raises `error` if there is one."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: BaseException | None = None

    def run_experiment(self, config: Any, run_dir: Path | None = None, *, quiet: bool = False) -> Played:
        assert run_dir is not None
        self.calls.append(("train", config, run_dir, quiet))
        run_dir.mkdir(parents=True)
        (run_dir / "config.yaml").write_text("name: a\n")
        return self._end(run_dir, config.iterations)

    def resume_experiment(
        self, run_dir: Path, *, iterations: int | None = None, settings: Sequence[str] = (), quiet: bool = False
    ) -> Played:
        self.calls.append(("resume", run_dir, iterations, list(settings), quiet))
        return self._end(run_dir, iterations or 7)

    def _end(self, run_dir: Path, iterations: int) -> Played:
        if self.error:
            raise self.error
        (run_dir / "report.html").write_text("")
        (run_dir / "metrics.jsonl").write_text('{"iteration": 1, "eval/verifier/accuracy": 0.75, "version": 1}\n')
        return Played(
            run_dir,
            {"eval/verifier/accuracy": 0.75, "eval/verifier/accuracy/wl_score=2": 0.1, "env_steps": 9},
            iterations,
        )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    made = Runs()
    stand_in = types.ModuleType("nip_ray.runs.experiment")
    stand_in.run_experiment, stand_in.resume_experiment = made.run_experiment, made.resume_experiment  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nip_ray.runs.experiment", stand_in)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a-run"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: a\n")
    (folder / "environment.json").write_text("{}")
    return folder


def spent_by_children() -> float:
    """Seconds of processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_instant() -> None:
    """Under a second of work, the start of Python included; the best of three. Waiting for other programs on the
    machine is not counted."""
    seconds = []
    for _ in range(3):
        start = spent_by_children()
        done = subprocess.run(
            [sys.executable, "-m", "nip_ray.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        seconds.append(spent_by_children() - start)
        assert "train" in done.stdout
    assert min(seconds) < 1.0


def test_a_refused_config_loads_nothing_heavy() -> None:
    source = f"""
import sys
from typer.testing import CliRunner
from nip_ray.cli import app
codes = [CliRunner().invoke(app, ["train", {QUICKSTART!r}, *more]).exit_code for more in (
    ["--dry-run"], ["--set", "algorithm.minibatch_size=1"], ["--set", "protocol.nme=1"],
    ["--set", "protocol.name=chess"])]
codes += [CliRunner().invoke(app, verb).exit_code for verb in (["schema"], ["list", "tests"])]
print(codes, sorted({{"torch", "ray", "numpy", "matplotlib"}} & set(sys.modules)))
"""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 2, 2, 2, 0, 0] []"
    assert time.perf_counter() - start < 5


def verbs(command: Any, *above: str) -> list[list[str]]:
    """Every verb of the command line, and every group."""
    below = getattr(command, "commands", {})
    return [list(above), *(verb for name, one in below.items() for verb in verbs(one, *above, name))]


@pytest.mark.parametrize("verb", verbs(typer.main.get_command(app)), ids="-".join)
def test_every_verb_has_help(verb: list[str]) -> None:
    result = call(*verb, "--help")
    assert (result.exit_code, "Usage" in result.stdout) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["trian"],
        ["train"],
        ["train", QUICKSTART, "--iterations", "many"],
        ["train", QUICKSTART, "--nope"],
        ["data", "graph-isomorphism"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def complete(*words: str) -> list[str]:
    """What typer's script for bash is told to offer for the last word."""
    environ = {"_NIP_RAY_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(app, [], env=environ, prog_name="nip-ray").stdout.split()


@pytest.mark.parametrize(
    "words, offered",
    [
        (["tr"], ["train"]),
        (["train", "--dr"], ["--dry-run"]),
        (["train", QUICKSTART, "--set", "algorithm.l"], ["algorithm.lam=", "algorithm.loss=", "algorithm.lr="]),
        (
            ["train", QUICKSTART, "--set", "algorithm.name=reinforce", "--set", "algorithm.l"],
            ["algorithm.lam=", "algorithm.lr="],
        ),
        (["train", QUICKSTART, "--set", "scenario.agents.verifier.d_n"], ["scenario.agents.verifier.d_node_selector="]),
        (
            ["train", "no.yaml", "--set", "algorithm.lear"],
            ["algorithm.learning_rate="],
        ),
        # a list, of no agents
        (["train", str(ROOT / "tune_configs/pg_state_tracking.yaml"), "--set", "algorithm.curric"], []),
        (["run", "--set", "driver.timest"], ["driver.timesteps="]),
        (["sweep", "--set", "sweep.storage"], ["sweep.storage_path="]),
        (["resume", "a-run", "--set", "tracking.wandb.mode"], ["tracking.wandb.mode="]),
        (["resume", "a-run", "--set", "algorithm.lr"], []),
        (["evaluate", "a"], ["a-run"]),
        (["report", "runs/"], []),
        (["vi"], ["view"]),
        (["list", "a"], ["a-run"]),
    ],
    ids=" ".join,
)
def test_the_shell_completes(
    words: list[str], offered: list[str], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    assert complete("nip-ray", *words) == offered


def test_list(run_dir: Path) -> None:
    """A table for readers, an object for programs, one line for a folder that is none."""
    (run_dir / "metrics.jsonl").write_text('{"iteration": 3, "eval/verifier/accuracy": 0.75, "version": 1}\n')
    line = next(line for line in call("list", run_dir.parent).stdout.splitlines() if "a-run" in line)
    assert line.split()[:5] == ["a-run", "interrupted", "3", "eval/verifier/accuracy", "0.7500"]
    found = json.loads(call("list", run_dir.parent, "--json").stdout)["runs"]
    assert [(run["place"], run["state"], run["metric"], run["value"]) for run in found] == [
        ("a-run", "interrupted", "eval/verifier/accuracy", 0.75)
    ]
    (run_dir / "config.yaml").write_text('name: "a"\nscenario: {name: "\\x1b]0;owned\\x07"}\n')
    assert "<U+001B>]0;owned<U+0007>" in call("list", run_dir.parent).stdout
    assert "no such folder" in one_line_error(call("list", "nowhere"))
    assert "is a file" in one_line_error(call("view", run_dir / "config.yaml"))
    assert "is not an address of this machine" in one_line_error(call("view", run_dir, "--host", "192.0.2.1"))


def test_list_keeps_words_whole_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gi_adp-seed-0-first"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "iterations: 400\nscenario: {name: graph_isomorphism}\nprotocol: {name: adp}\nalgorithm: {name: ppo}\n"
    )
    (folder / "metrics.jsonl").write_text('{"iteration": 125, "eval_sampled/verifier/accuracy": 0.75, "version": 1}\n')
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    list_(tmp_path)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    words = set(terminal.getvalue().split())
    assert {
        "gi_adp-seed-0-first",
        "graph_isomorphism,",
        "interrupted",
        "125/400",
        "eval_sampled/verifier/",
        "accuracy",
        "0.7500",
    } <= words


def test_the_script_for_bash_completes(tmp_path: Path) -> None:
    line = f"COMP_WORDS=(nip-ray train {QUICKSTART} --set algorithm.l); COMP_CWORD=4; _nip_ray_completion nip-ray"
    script = f'eval "$(nip-ray --show-completion)"; complete -p nip-ray; {line}'
    (tmp_path / "nip-ray").write_text(f'#!/bin/sh\nexec {sys.executable} -m nip_ray.cli "$@"\n')
    (tmp_path / "nip-ray").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f'{script}; echo "${{COMPREPLY[@]}}"'],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "algorithm.lam= algorithm.loss= algorithm.lr="


def test_help_groups_the_verbs() -> None:
    shown = call("--help").stdout
    titles = ("─ Train ─", "─ Test ─", "─ Look at runs ─", "─ Make and pass on ─", "─ Help ─")
    assert sorted(titles, key=shown.index) == list(titles)
    assert "─ Commands ─" not in shown


def test_an_option_that_is_a_key_of_the_config_is_recognised() -> None:
    assert "--set algorithm.lr=..." in call("train", QUICKSTART, "--lr", "3e-4").stderr


def test_a_list_without_quotes_is_told_from_a_second_config() -> None:
    assert "needs quotes" in call("train", QUICKSTART, "--set", "scenario.data.graph_sizes=[7,", "8]").stderr
    assert "quotes" not in call("train", QUICKSTART, QUICKSTART).stderr


@pytest.mark.parametrize("path", TUNE_CONFIGS, ids=lambda path: path.stem)
def test_dry_run_of_every_shipped_config(path: Path) -> None:
    result = call("train", path, "--dry-run")
    assert result.exit_code == 0, result.output
    assert config_from_dict(yaml.safe_load(result.stdout)) == load_config(path)
    short = call("train", path, "--dry-run", "--diff")
    assert config_from_dict(yaml.safe_load(short.stdout)) == load_config(path)
    assert len(short.stdout) < len(result.stdout) / 2
    assert f"nip-ray train tune_configs/{path.name}" in path.read_text(encoding="utf-8"), (
        "its header says how to run it"
    )


def test_the_page_of_configs_names_each() -> None:
    page = (ROOT / "docs" / "configs.md").read_text(encoding="utf-8")
    missing = [path.stem for path in (ROOT / "tune_configs").glob("*.yaml") if f"`{path.stem}`" not in page]
    assert not missing


def test_flags_and_settings_reach_the_config() -> None:
    settings = ["--set", "scenario.agents.prover.d_gnn=32", "--set", "algorithm.lr=1e-4", "--set", "iterations=3"]
    result = call("train", QUICKSTART, "--dry-run", *settings, "--iterations", "5", "--seed", "9")
    config = config_from_dict(yaml.safe_load(result.stdout))
    assert (config.iterations, config.seed, config.algorithm.lr) == (5, 9, 1e-4)
    assert config == load_config(
        QUICKSTART, ["scenario.agents.prover.d_gnn=32", "algorithm.lr=1e-4", "iterations=5", "seed=9"]
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        ([QUICKSTART.replace("start", "strat")], f"did you mean {QUICKSTART}?"),
        (
            [QUICKSTART, "--set", "algoritm.epochs=1"],
            "error: command line: algoritm: unknown key, did you mean algorithm?",
        ),
        (
            [QUICKSTART, "--set", "play.num_copies=1"],
            f"{QUICKSTART} with --set play.num_copies=1: algorithm.minibatch_size: got ",
        ),
        ([QUICKSTART, "--diff"], "--diff: goes with --dry-run"),
        ([QUICKSTART, "--set", "scenario.agents.verifier.num_gnn_layer=1"], "did you mean num_gnn_layers?"),
        (
            [QUICKSTART, "--set", "protocol.name=adp", "--set", "protocol.max_rounds=5"],
            "protocol.max_rounds: got 5, but adp always has 2",
        ),
        ([QUICKSTART, "--set", "seed"], "must look like key.subkey=value"),
        ([QUICKSTART, "--iterations", "0"], "iterations: got 0, expected integer >= 1"),
    ],
)
def test_mistakes_exit_2_with_one_line(arguments: list[str], said: str) -> None:
    line = one_line_error(call("train", *arguments))
    assert line.startswith("error: ")
    assert said in line


def test_run_folders(runs: Runs) -> None:
    """Without --run-dir a free name is chosen; a folder that was asked for must be new or empty."""
    folders = [call("train", QUICKSTART, "--seed", "3").exit_code for _ in range(3)]
    assert folders == [0, 0, 0]
    assert [str(made[2]) for made in runs.calls] == [
        "runs/quickstart-seed3",
        "runs/quickstart-seed3-2",
        "runs/quickstart-seed3-3",
    ]
    assert "`nip-ray resume runs/quickstart-seed3` continues" in one_line_error(
        call("train", QUICKSTART, "--run-dir", "runs/quickstart-seed3")
    )
    Path("other").mkdir()
    Path("other/file").touch()
    line = one_line_error(call("train", QUICKSTART, "--run-dir", "other"))
    assert "is not empty" in line
    assert "resume" not in line
    assert "is a file" in one_line_error(call("train", QUICKSTART, "--run-dir", "other/file"))
    assert len(runs.calls) == 3


def test_or_resume_begins_resumes_and_says_that_it_has_finished(tmp_path: Path) -> None:
    """With the real thing, of one iteration: a scheduler's first try, a second one, and one with another total."""
    small = [
        "--set",
        "play.num_copies=32",
        "--set",
        "algorithm.minibatch_size=32",
        "--set",
        "evaluation.max_instances=8",
    ]
    again = ["train", ROOT / "tune_configs" / "message_game.yaml", *small, "--run-dir", tmp_path / "run", "--or-resume"]
    assert call(*again, "--iterations", "1").exit_code == 0
    for ended in (call(*again, "--iterations", "1"), call("resume", tmp_path / "run")):
        assert (ended.exit_code, "the run is finished, all 1 iterations are done" in ended.stderr) == (0, True)
    assert call(*again, "--iterations", "2").exit_code == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert "was begun with another algorithm.lr: a resumed run can change" in one_line_error(
        call(*again, "--set", "algorithm.lr=0.5")
    )
    assert "needs --run-dir" in one_line_error(call("train", QUICKSTART, "--or-resume"))


def test_what_train_prints(runs: Runs) -> None:
    result = call("train", QUICKSTART, "--run-dir", "here")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "eval/verifier/accuracy" in result.stdout
    assert "0.7500" in result.stdout
    assert "wl_score" not in result.stdout
    assert "the verifier decided" in result.stdout, "the sentence of the report"
    assert "here/report.html" in result.stdout
    quiet = call("train", QUICKSTART, "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")
    assert [made[3] for made in runs.calls] == [False, True]


@pytest.mark.parametrize("verb", ["train", "resume"])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("pairs.npz: truncated\nmake it anew"), 2, "error: pairs.npz: truncated; make it anew"),
        (TrainingError("a NaN in iteration 3"), 1, "error: a NaN in iteration 3"),
        (KeyboardInterrupt(), 130, "interrupted, `nip-ray resume here` continues it"),
    ],
)
def test_errors_of_a_run(runs: Runs, verb: str, error: BaseException, code: int, said: str) -> None:
    if verb == "resume":
        call("train", QUICKSTART, "--run-dir", "here")
    runs.error = error
    result = call("resume", "here") if verb == "resume" else call("train", QUICKSTART, "--run-dir", "here")
    assert one_line_error(result, code) == said


def test_a_signal_after_the_last_stage_ends_with_a_line_too(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nip_ray.cli.train._print_result", lambda *_: signal.raise_signal(signal.SIGTERM))
    said = one_line_error(call("train", QUICKSTART, "--run-dir", "here"), 143)
    assert said == "stopped by SIGTERM, `nip-ray resume here` continues it"


@pytest.mark.parametrize("verb", ["resume", "evaluate", "report"])
def test_no_run_there(verb: str, tmp_path: Path) -> None:
    assert "no such folder" in one_line_error(call(verb, tmp_path / "nowhere"))
    assert "it has no config.yaml" in one_line_error(call(verb, tmp_path))


def test_data_is_written_and_summed_up(tmp_path: Path) -> None:
    from nip_ray.scenarios.graph_isomorphism.dataset import load_pairs

    common = [
        "data",
        "graph-isomorphism",
        "--pairs",
        "40",
        "--seed",
        "1",
        "--sizes",
        "7,8",
        "--edge-probabilities",
        "0.4, 0.6",
    ]
    result = call(*common, "--out", tmp_path / "one", "--test-pairs", "10", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["train"]["pairs"], summary["test"]["pairs"]) == (40, 10)
    assert set(summary["train"]["sizes"]) == {"7", "8"}
    assert [len(load_pairs(file)) for file in summary["files"]] == [40, 10]

    table = call(*common, "--out", tmp_path / "two.npz", "--exclude", tmp_path / "one" / "test.pairs.npz")
    assert table.exit_code == 0, table.output
    assert "isomorphic" in table.stdout
    assert "pairs/s" in table.stdout
    assert str(tmp_path / "two.npz") in table.stdout
    before = (tmp_path / "two.npz").read_bytes()
    assert "there already" in one_line_error(call(*common, "--out", tmp_path / "two.npz"))
    assert (tmp_path / "two.npz").read_bytes() == before
    assert call(*common, "--out", tmp_path / "two.npz", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "7,x"], "--sizes 7,x: expected whole numbers"),
        (["--edge-probabilities", "1.5"], "must lie between 0 and 1"),
        (["--sizes", "5"], "no pair with score 3 or more has fewer than 7 nodes"),
        (["--exclude", "nowhere.npz"], "--exclude nowhere.npz: no such file"),
        (["--out", "pairs.txt"], "pairs.txt: pairs are written to a .npz file or into a folder; name pairs.npz"),
    ],
)
def test_bad_data_requests(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in one_line_error(
        call("data", "graph-isomorphism", "--pairs", "40", "--out", tmp_path / "out", *arguments)
    )


def test_schema(tmp_path: Path) -> None:
    printed = call("schema")
    assert json.loads(printed.stdout)["title"] == "nip_ray experiment"
    assert call("schema", "--out", tmp_path / "schema.json").output == ""
    assert (tmp_path / "schema.json").read_text(encoding="utf-8") == printed.stdout
    assert "cannot be written" in one_line_error(call("schema", "--out", tmp_path / "no" / "schema.json"))


def test_a_user_without_a_home_folder_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, under a number that passwd does not know: Ray's import fails there."""

    def unknown(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setenv("HOME", "")  # so that it is put back
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(sys, "argv", ["nip-ray", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert Path.home() == Path("/")
