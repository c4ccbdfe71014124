"""The examples do what they say."""

import importlib.util
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import ray.cloudpickle
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.play.conformance import check_scenario
from nip_ray.protocols import PROTOCOLS, build, check
from nip_ray.scenarios.registry import build_scenario
from nip_ray.storage.folder import RunFolder
from nip_ray.text.parts import prepare
from nip_ray.text.training.rules import TEXT_ALGORITHMS
from tests.conftest import forget_plugins
from tests.text.ollama import ollama

pytestmark = pytest.mark.usefixtures("no_plugins")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = (
    "iterations=2",
    "scenario.data.num_train=40",
    "scenario.data.num_test=20",
    "play.num_copies=32",
    "runtime.num_threads=1",
)


@pytest.fixture
def registry() -> Iterator[None]:
    before = dict(PROTOCOLS)
    yield
    PROTOCOLS.clear()
    PROTOCOLS.update(before)


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LENGTHS = {
    "own_protocol": 40,
    "own_scenario": 85,
    "own_algorithm": 65,
    "own_provider": 85,
    "ppo_loop": 151,
    "train_in_python": 36,
}
LENGTHS |= {"own_language_scenario": 250, "own_text_algorithm": 60}


@pytest.mark.parametrize(("name", "most"), LENGTHS.items())
def test_examples_are_short(name: str, most: int) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.usefixtures("registry")
def test_own_protocol_passes_the_check() -> None:
    imported(EXAMPLES / "own_protocol.py")
    protocol = build("criticised")
    check(protocol)
    assert protocol.provers == ("prover", "critic")
    assert build("criticised", max_rounds=5, verifier_reward=2.0).payment.payoff["verifier"][1][1] == 2.0


def test_own_protocol_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top of the repository, as its config says; afterwards the run works from anywhere."""
    monkeypatch.chdir(EXAMPLES.parent)
    run = tmp_path / "run"
    settings = [word for setting in TINY for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["train", "examples/own_protocol.yaml", "--run-dir", str(run), *settings])
    assert done.exit_code == 0, done.output
    assert "eval/verifier/accuracy" in done.stdout
    with RunFolder.open(run) as folder:
        rows = folder.metrics()
        assert len(rows) == 2
        assert {"train/critic/return", "learn/critic/entropy", "eval/prover/return"} <= rows[-1].keys()
        assert len(folder.read_transcripts("000002")) == 20
    monkeypatch.chdir(tmp_path)
    figures = CliRunner().invoke(app, ["evaluate", "run", "--json"])
    assert figures.exit_code == 0, figures.output
    assert json.loads(figures.stdout)["eval/critic/return"] == rows[-1]["eval/critic/return"]
    assert CliRunner().invoke(app, ["resume", "run", "--iterations", "3", "--quiet"]).exit_code == 0


def train(name: str, run: Path, *settings: str) -> None:
    """By the command line, from the top of the repository."""
    words = [word for setting in ("iterations=3", *settings) for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["train", f"examples/{name}.yaml", "--run-dir", str(run), *words])
    assert done.exit_code == 0, done.output


def test_own_scenario_passes_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under protocols with one prover and with two, and with other numbers of places."""
    monkeypatch.chdir(EXAMPLES.parent)
    settings = load_config(
        "examples/own_scenario.yaml", ["scenario.num_places=5", "scenario.num_instances=40"]
    ).scenario
    for protocol in (build("nip", min_rounds=3, max_rounds=4), build("adp"), build("merlin_arthur")):
        check_scenario(build_scenario(protocol, settings))


def test_own_scenario_trains_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    train(
        "own_scenario",
        tmp_path / "run",
        "scenario.num_places=5",
        "play.num_copies=64",
        "algorithm.minibatch_size=64",
        "checkpoint.interval=3",
    )
    monkeypatch.chdir(tmp_path)
    figures = CliRunner().invoke(app, ["evaluate", "run", "--json"])
    assert figures.exit_code == 0, figures.output
    with RunFolder.open(tmp_path / "run") as folder:
        assert json.loads(figures.stdout)["eval/verifier/accuracy"] == folder.metrics()[-1]["eval/verifier/accuracy"]
    assert CliRunner().invoke(app, ["resume", "run", "--iterations", "4", "--quiet"]).exit_code == 0


def test_own_algorithm_passes_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from nip_ray.rllib.conformance import check_algorithm
    from nip_ray.rllib.registry import ALGORITHMS

    monkeypatch.chdir(EXAMPLES.parent)
    config = load_config("examples/own_algorithm.yaml", ["algorithm.temperature=0.25"])
    assert config.algorithm.temperature == 0.25  # type: ignore[union-attr]
    check_algorithm(ALGORITHMS["awr"])


HASTE = """
from dataclasses import replace
from nip_ray.protocols import build, register

def costs(ends):
    return {"verifier": -0.25 * ends.rounds_B}

def haste(params):
    made = build("nip", max_rounds=params.max_rounds, min_rounds=params.min_rounds)
    return replace(made, name="haste", payment=replace(made.payment, function=costs))

register("haste", haste)
"""


def test_claims_need_as_many_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    with pytest.raises(UserError, match=r"scenario\.largest: 19 gives 45 products of the 96, raise it"):
        prepare(load_config("examples/own_language_scenario.yaml", ["scenario.largest=19"]))


@pytest.mark.slow
def test_own_language_scenario_is_played_here_and_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_session: None
) -> None:
    """A rollout worker has never seen the plugin files, and holds the dialogues of the main process, paid by the same
    function."""
    monkeypatch.chdir(EXAMPLES.parent)
    (tmp_path / "haste.py").write_text(HASTE)
    nobody = (
        "providers.nobody.name=dummy",
        "scenario.agents._default.provider=nobody",
        "iterations=2",
        "algorithm.format_warmup=0",
    )
    nobody += (f"plugins=[examples/own_language_scenario.py, {tmp_path}/haste.py]", "protocol.name=haste")
    for name, talkers in (("here", 0), ("there", 1)):
        train(
            "own_language_scenario",
            tmp_path / name,
            *nobody,
            f"talk.num_talkers={talkers}",
            "talk.num_cpus_per_talker=0.5",
        )
    here, there = ((tmp_path / name / "rollouts" / "000002.jsonl").read_text() for name in ("here", "there"))
    assert here == there
    paid = [json.loads(line)["dialogue"]["rewards"] for line in here.splitlines()]
    assert all(rounds[-1]["verifier"] % 1 == 1 - len(rounds) * 0.25 for rounds in paid)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["resume", "here", "--iterations", "3", "--quiet"]).exit_code == 0


def test_own_text_algorithm_trains_and_is_resumed_where_it_is_not_known_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in another process: by what the stored config names as its plugins."""
    monkeypatch.chdir(EXAMPLES.parent)
    nobody = (
        "providers={nobody: {name: dummy}}",
        "scenario.agents._default.provider=nobody",
        "scenario.agents._default.model=nobody",
    )
    nobody = (*nobody, "algorithm.format_warmup=0", "algorithm.fine_tuning.min_examples=1", "iterations=2")
    train("own_text_algorithm", tmp_path / "run", *nobody)
    rule = TEXT_ALGORITHMS["best_of_group"]
    # as actors are given settings and losses
    packed = ray.cloudpickle.dumps((rule.settings(num_best=3), rule.examples))
    forget_plugins()
    settings, function = pickle.loads(packed)
    assert (settings.num_best, function.__name__) == (3, "best_of_group")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["resume", "run", "--iterations", "3", "--quiet"])
    assert done.exit_code == 0, done.output
    with RunFolder.open(tmp_path / "run") as folder:
        rows = folder.metrics()
    assert [row["cost/jobs"] for row in rows] == [0, 2, 4]
    # at most two dialogues about each of 16 items, with two turns
    assert all(0 < row["learn/verifier/examples"] <= 64 for row in rows)
    done = CliRunner().invoke(app, ["train", "run/config.yaml", "--set", "algorithm.num_bets=2", "--dry-run"])
    assert "algorithm.num_bets: unknown key, did you mean num_best" in done.output
    done = CliRunner().invoke(app, ["train", "run/config.yaml", "--set", "algorithm.num_best=6", "--dry-run"])
    assert "algorithm.num_best: got 6, but group_size is 6, use less" in done.output


@pytest.mark.learning
@pytest.mark.parametrize("name", ["own_scenario", "own_algorithm"])
def test_what_the_tutorials_show_is_reached(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that sees what it is pointed at is sound, and nearly complete; and a rule of one's own learns the
    message game."""
    monkeypatch.chdir(EXAMPLES.parent)
    train(name, tmp_path / "run", "iterations=30")
    with RunFolder.open(tmp_path / "run") as folder:
        last = folder.metrics()[-1]
    assert last["eval/verifier/soundness"] > 0.99
    assert last["eval/verifier/accuracy"] > 0.9


@pytest.mark.usefixtures("no_plugins")
def test_own_provider_passes_the_check_and_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a server that answers its first call with an error."""
    from nip_ray.text.providers.conformance import check_provider

    monkeypatch.chdir(EXAMPLES.parent)
    config = load_config("examples/own_provider.yaml")
    requests: list[dict[str, Any]] = []
    with ollama(requests) as address:
        check_provider(replace(config.providers["here"], base_url=address), "llama3.2")  # type: ignore[union-attr]
        small = (
            "iterations=1",
            "scenario.data.num_train=2",
            "scenario.data.num_test=2",
            "algorithm.rollouts_per_iteration=2",
        )
        train("own_provider", tmp_path / "run", f"providers.here.base_url={address}", *small)
        wrong = ["scenario.agents._default.model=llama", f"providers.here.base_url={address}"]
        done = CliRunner().invoke(
            app, ["train", "examples/own_provider.yaml", *(word for one in wrong for word in ("--set", one))]
        )
    assert done.exit_code == 2
    assert "model 'llama' not found" in done.output
    assert json.loads((tmp_path / "run" / "cost.json").read_text())["tokens"] > 0
    with RunFolder.open(tmp_path / "run") as folder:
        assert folder.metrics()[-1]["eval_sampled/verifier/accuracy"] == 0.5


def test_training_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = imported(EXAMPLES / "train_in_python.py")
    example.CONFIG.update(iterations=2, runtime={"num_threads": 1})
    example.main(str(tmp_path / "run"))
    said = capsys.readouterr().out
    assert "after 2 iterations" in said
    assert f"everything is in {tmp_path / 'run'}" in said
    assert (tmp_path / "run" / "report.html").is_file()
