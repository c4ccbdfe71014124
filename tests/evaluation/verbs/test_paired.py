"""Two verifiers on the same instances, one by one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.paired import compare_paired, mcnemar, pair_record
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import RunFolder
from tests.runs.small import MESSAGES, small
from tests.text.cooperation import dummy, write_config


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (0, 7), (3, 3), (3, 4), (12, 5), (400, 460)])
def test_p_is_that_of_the_exact_binomial_test(b: int, c: int) -> None:
    assert mcnemar(b, c) == pytest.approx(stats.binomtest(b, b + c).pvalue if b + c else 1.0, rel=1e-9)


def test_of_runs_that_are_equally_good_one_in_twenty_seems_better() -> None:
    """At most: the test is exact, and of few instances it errs to the safe side."""
    random = np.random.default_rng(0)
    drawn = random.binomial(300, 0.5, 2000)
    assert 0.035 <= np.mean([mcnemar(int(b), 300 - int(b)) <= 0.05 for b in drawn]) <= 0.055


def test_a_record_counts_pairs() -> None:
    first, second = (np.array([int(flag) for flag in flags], dtype=bool) for flags in ("1111100000", "1110010000"))
    found = pair_record(first, second)
    assert (found["only_first"], found["only_second"], found["p"]) == (2, 1, 1.0)
    assert (found["first"]["estimate"], found["second"]["estimate"], found["difference"]["estimate"]) == (
        0.5,
        0.4,
        pytest.approx(0.1),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of one task: a verifier that questions a prover, one that hears a debate, one alone; and one of another task."""
    folder = tmp_path_factory.mktemp("paired")
    configs = {
        "nip": small("iterations=1"),
        "debate": small("iterations=1", "protocol={name: debate, min_rounds: 1, max_rounds: 3}", "seed=5"),
        "alone": small(
            "iterations=1",
            "protocol={name: solo_verifier, min_rounds: 1, max_rounds: 1}",
            "algorithm.minibatch_size=16",
        ),
        "messages": small("iterations=1", base=MESSAGES),
        "other": small("iterations=1", "scenario.data.num_test=10"),
    }
    return {name: run_experiment(config, folder / name, quiet=True).run_dir for name, config in configs.items()}


@pytest.mark.parametrize("other", ["debate", "alone"])
def test_each_plays_its_own_protocol_about_the_same_instances(runs: dict[str, Path], other: str) -> None:
    found, turned = compare_paired(runs["nip"], runs[other]), compare_paired(runs[other], runs["nip"])
    assert [run["protocol"] for run in found["runs"]] == ["nip", "solo_verifier" if other == "alone" else other]
    assert found["num_instances"] + found["left_out"] == 20
    for name, run in (("first", "nip"), ("second", other)):
        record = RunFolder.open(runs[run]).read_json("evaluation.json")
        assert found["accuracy"][name] == record.get("unseen", record["greedy"])["verifier/accuracy"]
    for name in ("accuracy", "completeness", "soundness", "undecided"):
        assert found[name]["difference"]["estimate"] == -turned[name]["difference"]["estimate"]
        gained = found[name]["only_first"] - found[name]["only_second"]
        assert found[name]["difference"]["estimate"] == pytest.approx(gained / found[name]["first"]["n"])


def test_dialogues_of_language_models_are_paired_by_their_items(tmp_path: Path) -> None:
    run_dirs = []
    for number, tested in enumerate((12, 10)):
        data: dict[str, Any] = dummy(tmp_path) | {"protocol": {"name": "nip", "max_rounds": 3 + 2 * number}}
        data["algorithm"] |= {"num_test_items": tested, "num_test_repeats": 1}
        config = load_config(write_config(tmp_path, data))
        run_dirs.append(run_experiment(config, tmp_path / f"run{number}", quiet=True).run_dir)
    found = compare_paired(*run_dirs)
    assert (found["num_instances"], found["left_out"], found["only_in_one"]) == (10, 0, 2)
    own = RunFolder.open(run_dirs[1]).read_json("evaluation.json")["sampled"]
    assert found["soundness"]["second"] == own["verifier/soundness"]


def test_the_table_and_what_does_not_go_together(runs: dict[str, Path], tmp_path: Path) -> None:
    def call(*arguments: Any) -> Any:
        return CliRunner().invoke(app, ["compare", *map(str, arguments)])

    told = call(runs["nip"], runs["alone"], "--paired")
    assert told.exit_code == 0, told.output
    assert all(word in told.stdout for word in ("accuracy", "only first", "p (McNemar)"))
    audit = json.loads(call(runs["debate"], runs["alone"], runs["nip"], "--paired", "--json").stdout)["pairs"]
    names = [[Path(run["run_dir"]).name for run in pair["runs"]] for pair in audit]
    assert names == [["debate", "alone"], ["debate", "nip"], ["alone", "nip"]]
    assert audit[0] == json.loads(call(runs["debate"], runs["alone"], "--paired", "--json").stdout)
    assert audit[0]["accuracy"]["second"] == audit[2]["accuracy"]["first"]
    for arguments, said in (
        ((runs["nip"], runs["alone"], "--json"), "--json: goes with --paired"),
        ((runs["nip"], runs["alone"], "--paired", "--out", tmp_path / "a.html"), "--out: does not go with --paired"),
        ((runs["nip"], "--paired"), "two runs or more, and there is 1"),
    ):
        refused = call(*arguments)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    for other, said in (
        ("messages", "name runs of one"),
        ("other", "have other held-out instances"),
        ("nip", "is named twice"),
    ):
        with pytest.raises(UserError, match=said):
            compare_paired(runs["nip"], runs[other])
