"""The example of self-proving models: its code accepts every proof that the algorithms write, and no proof of a wrong
answer; what a verifier that learns accepts is computed over all colourings."""

from collections.abc import Callable
from itertools import product
from math import gcd
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.protocols import build
from nip_ray.scenarios.language import language_kind
from nip_ray.scenarios.language_conformance import check_language_scenario
from nip_ray.storage.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = ("scenario.task=two_colouring", "scenario.size=5")
pytestmark = pytest.mark.usefixtures("no_plugins")


def example(monkeypatch: pytest.MonkeyPatch, *changes: str) -> tuple[Any, Any]:
    """(settings, scenario) of the config with few items and these changes."""
    monkeypatch.chdir(ROOT)
    config = load_config("examples/self_proving.yaml", ["scenario.num_train=200", "scenario.num_test=40", *changes])
    kind = language_kind(config.scenario)
    return config.scenario, kind.build(build(config.protocol.name), config.scenario)


@pytest.mark.parametrize("changes", [(), GRAPHS, (*GRAPHS, "protocol.name=adp"), ("scenario.annotated=false",)])
def test_the_example_passes_the_check(changes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, scenario = example(monkeypatch, *changes)
    check_language_scenario(settings, scenario.protocol)


@pytest.mark.parametrize("changes", [(), ("scenario.size=2",), GRAPHS])
def test_what_the_algorithms_write_is_accepted(changes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """And uses known words alone."""
    settings, scenario = example(monkeypatch, *changes)
    for item in language_kind(settings).items(settings, 3)["train"]:
        reply = scenario.warm_example(item, "prover", 0)[1]
        assert paid(scenario, item, reply) == 1
        assert set(reply.split()) <= set(scenario.words)


def test_no_other_number_can_be_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three pairs of two digits, with every g, every v and every ninth u."""
    _, scenario = example(monkeypatch, "scenario.size=2")
    proved, random = scenario.task.proved, Random(0)
    words = [[(f"{row}0:{number % 10}", f"{row}1:{number // 10}") for number in range(100)] for row in "dxy"]
    for _ in range(3):
        pair = random.randint(1, 99), random.randint(1, 99)
        for g, u, v in product(range(100), range(0, 100, 9), range(100)):
            for sign in "+-":
                proof = [*words[0][g], sign, *words[1][u], *words[2][v]]
                assert not proved(pair, 2, proof) or g == gcd(*pair)


def test_graphs_are_proved_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colourings and cycles of every form, for graphs of five vertices: never a proof of each kind."""
    settings, scenario = example(monkeypatch, *GRAPHS)
    colourings = [*product(*((f"{vertex}:red", f"{vertex}:blue") for vertex in "abcde"))]
    cycles = [proof for size in range(1, 6) for proof in product("abcde", repeat=size)]
    for item in language_kind(settings).items(settings, 5)["train"][:40]:
        proved = {
            kind: any(scenario.task.proved(item.given, 5, proof) for proof in proofs)
            for kind, proofs in ((1, colourings), (0, cycles))
        }
        assert proved == {item.y: True, 1 - item.y: False}


def test_malformed_proofs_are_paid_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, scenario = example(monkeypatch)
    item = language_kind(settings).items(settings, 3)["train"][0]
    right = scenario.warm_example(item, "prover", 0)[1]
    for reply in ("", ".", right.rsplit(" ", 1)[0], f"{right} d0:0", right.replace(" . ", " d0:0 "), f"{right} . d0:1"):
        assert paid(scenario, item, reply) == 0


def test_exact_figures_are_of_all_colourings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that accepts one colouring of 32, or nothing, whatever the graph: it is always found. One that accepts
    each colouring whose first vertex is blue accepts one of the two true ones."""
    settings, scenario = example(monkeypatch, *GRAPHS, "protocol.name=adp")

    def figures(accepted: Callable[[str], bool]) -> dict[str, float]:
        def probabilities(agent: str, chats: Any, replies: Any) -> list[list[float]]:
            assert (agent, replies) == ("verifier", ("accept",))
            return [[float(accepted(chat[0]["content"]))] for chat in chats]

        return scenario.exact_figures(language_kind(settings).items(settings, 0)["test"], probabilities)

    expected = {"soundness_error": 1.0, "mean_error": 1 / 32, "completeness": 0.0}
    assert figures(lambda words: "red" in words and "blue" not in words) == expected
    assert figures(lambda words: ":" not in words) == {**expected, "mean_error": 0.0}
    assert figures(lambda words: "a:blue" in words) == {**expected, "mean_error": 0.5, "completeness": 0.5}


def test_other_protocols_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in (("protocol.name=adp",), (*GRAPHS, "protocol.name=nip")):
        with pytest.raises(UserError, match=r"protocol\.name: '(adp|nip)' .* expected self_proving"):
            example(monkeypatch, *changes)


def test_graphs_too_few_to_hold_some_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"scenario\.size: 3 .* expected 4 or more"):
        example(monkeypatch, "scenario.task=two_colouring", "scenario.size=3")
    for size, num_test in ((4, 40), (5, 2000)):
        changes = ("scenario.task=two_colouring", f"scenario.size={size}", f"scenario.num_test={num_test}")
        settings, _ = example(monkeypatch, *changes, "scenario.num_train=5000")
        with pytest.raises(UserError, match=rf"scenario\.num_test: {num_test} .* expected fewer"):
            language_kind(settings).items(settings, 0)


def test_numbers_whose_steps_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"scenario\.size: 5 .* expected at most 4"):
        example(monkeypatch, "scenario.size=5")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_verifier_that_learns_is_measured_exactly(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Its exact metrics are printed after a run, and saved. Rollout workers get the plugin's class, with its caches."""
    monkeypatch.chdir(ROOT)
    few = (*GRAPHS, "protocol.name=adp", "iterations=1", "scenario.num_train=100", "scenario.num_test=8")
    few += ("algorithm.warmup_steps=2", "algorithm.warmup_batch_size=8", "algorithm.rollouts_per_iteration=8")
    few += (f"algorithm.num_rollout_workers={workers}", "providers.local.num_cpus=0.5")
    words = [word for change in (*few, "providers.local.word_model.num_layers=1") for word in ("--set", change)]
    done = CliRunner().invoke(app, ["train", "examples/self_proving.yaml", "--run-dir", str(tmp_path / "run"), *words])
    assert done.exit_code == 0, done.output
    with RunFolder.open(tmp_path / "run") as folder:
        last = folder.metrics()[-1]
    for name in ("soundness_error", "mean_error", "completeness"):
        assert 0 < last[f"eval/{name}"] < 1
        assert f"eval/{name} " in done.stdout
    assert last["eval/soundness_error"] >= last["eval/mean_error"]


def paid(scenario: Any, item: Any, reply: str) -> float:
    """What the code pays for a reply."""
    dialogue = Dialogue(item, 0)
    return scenario.judge(dialogue, (Turn("prover", reply, scenario.parse(dialogue, "prover", reply).messages),))[0][
        "prover"
    ]
