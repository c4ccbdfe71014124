"""`nip-ray evaluate`: the figures of a run again, from any checkpoint, on any kind of data file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.graph_isomorphism.build import graph_data
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs, save_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.storage.folder import RunFolder
from tests.runs.small import small

CONFIG = small(
    "iterations=4",
    "checkpoint.interval=1",
    "checkpoint.keep=null",
    "evaluation.interval=1",
    "algorithm.lr=0.05",
    "search={}",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(CONFIG, tmp_path_factory.mktemp("evaluate") / "run", quiet=True).run_dir


@pytest.fixture(scope="module")
def held_out() -> GraphPairs:
    """The run's own held-out split."""
    assert isinstance(CONFIG.scenario, GraphIsomorphismSettings)
    return graph_data(CONFIG.scenario.data)[1]


def rows(run: Path) -> list[dict[str, Any]]:
    with RunFolder.open(run) as folder:
        return folder.metrics()


def evaluated(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith(("eval/", "eval_sampled/"))}


def without_bounds(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in evaluated(figures).items() if not key.endswith(("/lower", "/upper", "/n"))}


def call(*arguments: str | Path) -> dict[str, Any]:
    """The JSON object that `nip-ray evaluate` prints."""
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)


def write(pairs: GraphPairs, folder: Path) -> Path:
    save_pairs(pairs, folder / "pairs.npz")
    return folder / "pairs.npz"


def test_one_json_object_and_nothing_else(run: Path) -> None:
    before = sorted(path for path in run.rglob("*"))
    done = CliRunner().invoke(app, ["evaluate", str(run), "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("}\n")
    assert len(done.stdout.splitlines()) == 1
    figures = json.loads(done.stdout)
    assert (figures["run_dir"], figures["iteration"], figures["dataset"], figures["num_instances"]) == (
        str(run),
        4,
        None,
        20,
    )
    assert without_bounds(figures) == evaluated(rows(run)[-1]), "greedy and sampled: the seed is the run's"
    assert sorted(path for path in run.rglob("*")) == before, "evaluating writes nothing"


def test_an_earlier_checkpoint(run: Path) -> None:
    figures = call(run, "--checkpoint", "2")
    assert figures["iteration"] == 2
    assert without_bounds(figures) == evaluated(rows(run)[1])


def test_every_figure_comes_with_its_sample_size_and_the_record_that_it_is_from(run: Path) -> None:
    figures = evaluate_run(run)
    with RunFolder.open(run) as folder:
        document = folder.read_json("evaluation.json")
    for mode, prefix in (("greedy", "eval"), ("sampled", "eval_sampled"), ("searched", "eval_searched")):
        assert figures[mode] == document[mode]
        for name, record in document[mode].items():
            for end in ("lower", "upper", "n"):
                assert figures.get(f"{prefix}/{name}/{end}") == (None if record["estimate"] is None else record[end]), (
                    name
                )
    assert any("=" in key and key.endswith("/lower") for key in figures)
    assert figures["held_out"] is document["held_out"] is True


def test_the_seed_is_for_sampled_actions(run: Path) -> None:
    found = [call(run, "--seed", seed) for seed in ("3", "3", "11", "12", "13")]
    assert found[0] == found[1] == call(run)
    greedy = [{key: value for key, value in figures.items() if key.startswith("eval/")} for figures in found]
    sampled = [{key: value for key, value in figures.items() if key.startswith("eval_sampled/")} for figures in found]
    assert all(figures == greedy[0] for figures in greedy), "nothing random is in it"
    assert any(figures != sampled[0] for figures in sampled)


def test_a_table_without_json(run: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(run)])
    assert result.exit_code == 0
    figures = evaluate_run(run)
    cells = [f"{figures[f'eval/verifier/accuracy{end}']:.4f}" for end in ("", "/lower", "/upper")]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["eval/verifier/accuracy", *cells, "20"] in lines
    assert sum(line[:1] == ["eval/verifier/accuracy"] for line in lines) == 1


def test_the_same_pairs_from_a_file(run: Path, held_out: GraphPairs, tmp_path: Path) -> None:
    path = write(held_out, tmp_path)
    figures, own = call(run, "--dataset", path), call(run)
    assert figures["dataset"] == str(path)
    assert {**figures, "dataset": None} == own


def test_a_data_set_is_used_whole(tmp_path: Path, held_out: GraphPairs) -> None:
    config = small(
        "iterations=1", "scenario.data.num_test=4", "evaluation.max_instances=3", "scenario.data.min_wl_score=2"
    )
    run = run_experiment(config, tmp_path / "run", quiet=True).run_dir
    assert call(run)["num_instances"] == 3
    assert call(run, "--dataset", write(held_out, tmp_path))["num_instances"] == 20


def test_instances_of_training_are_counted_and_told_apart(run: Path, held_out: GraphPairs, tmp_path: Path) -> None:
    """With other node labels, and the two graphs exchanged, a pair is the same."""
    assert isinstance(CONFIG.scenario, GraphIsomorphismSettings)
    train, order = (
        graph_data(CONFIG.scenario.data)[0].select(slice(6)),
        torch.randperm(7, generator=torch.manual_seed(0)),
    )
    small = train.size_P == 7
    assert small.any()
    adjacency = train.adjacency_P2nn[small][:, :, :7, :7].flip(1)[:, :, order][:, :, :, order]
    seen = GraphPairs(adjacency, train.size_P[small], train.wl_score_P[small])
    joined = GraphPairs(
        *(
            torch.cat(parts)
            for parts in zip(
                *((p.padded_to(11).adjacency_P2nn, p.size_P, p.wl_score_P) for p in (seen, held_out)), strict=True
            )
        )
    )
    quick = ["iterations=1", "seeds=1", "sizes=[1]", "continued=false", "max_nodes=0", "goals=[soundness]"]
    attack = ["--attack", *(part for setting in quick for part in ("--set", f"evaluation.attack.{setting}"))]
    figures, own = call(run, "--dataset", write(joined, tmp_path), *attack), call(run)
    assert (figures["overlap"], figures["held_out"]) == (len(seen), False)
    assert (own["overlap"], own["held_out"]) == (0, True)
    assert figures["unseen/eval/verifier/accuracy/n"] == len(held_out)
    assert figures["unseen"]["greedy"]["verifier/accuracy"] == own["greedy"]["verifier/accuracy"]
    assert figures["unseen/eval/verifier/solo_baseline"] == own["eval/verifier/solo_baseline"]
    assert figures["unseen"]["calibration"]["brier"] == pytest.approx(own["calibration"]["brier"])
    assert figures["unseen"]["message_value"]["silenced"] == own["message_value"]["silenced"]
    assert figures["unseen"]["worst_case"]["verifier/accuracy"]["n"] == len(held_out)
    assert figures["soundness_error"]["n"] == int((held_out.y_P == 0).sum())
    assert "unseen" not in own


@pytest.mark.parametrize("size", [7, 9])
def test_graphs_of_other_sizes(run: Path, tmp_path: Path, size: int) -> None:
    """Networks know no number of nodes: larger graphs than those of training can be asked about, and padding changes
    nothing."""
    pairs = generate_pairs(12, 5, GeneratorSettings(graph_sizes=(size,)))
    plain = call(run, "--dataset", write(pairs, tmp_path))
    assert plain["num_instances"] == 12
    (larger := tmp_path / "larger").mkdir()
    both = generate_pairs(2, 6, GeneratorSettings(graph_sizes=(11,)))
    joined = GraphPairs(
        torch.cat([pairs.padded_to(11).adjacency_P2nn, both.adjacency_P2nn]),
        torch.cat([pairs.size_P, both.size_P]),
        torch.cat([pairs.wl_score_P, both.wl_score_P]),
    )
    mixed = call(run, "--dataset", write(joined, larger))
    assert mixed["num_instances"] == 14
    right = [figures["eval/verifier/accuracy"] * figures["num_instances"] for figures in (plain, mixed)]
    assert -1e-6 <= right[1] - right[0] <= 2 + 1e-6, "the 12 are judged as before, the 2 others right or wrong"


def test_every_instance_has_its_line(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "instances.jsonl"
    figures = call(run, "--instances", file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for mode, key in (("greedy", "eval"), ("sampled", "eval_sampled")):
        own = [row for row in rows if row["mode"] == mode]
        assert len({row["id"] for row in own}) == len(own) == 20
        assert sum(row["correct"] for row in own) / 20 == pytest.approx(figures[f"{key}/verifier/accuracy"])
        assert all((row["label"] == row["verdict"]) == row["correct"] and "wl_score" in row for row in own)
    result = CliRunner().invoke(app, ["evaluate", str(run), "--instances", str(tmp_path / "no" / "x.jsonl")])
    assert result.exit_code == 2
    assert "--instances" in result.output


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("evaluation.num_transcripts=1024", "--instances FILE"),
        ("evaluation={num_transcripts: 1024}", "--instances FILE"),
        ("evaluation.sampled=false", "while a run trains"),
        ("evaluation.attack.seeds=4", "add --attack"),
    ],
)
def test_a_setting_without_a_part_in_it_is_refused(run: Path, setting: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        evaluate_run(run, settings=[setting])


ALONE = (
    "protocol={name: solo_verifier}",
    "iterations=1",
    "algorithm.minibatch_size=16",
    "evaluation.num_transcripts=0",
)


@pytest.mark.slow
def test_the_stronger_of_the_classifier_and_the_verifier_alone_counts(tmp_path: Path) -> None:
    alone = run_experiment(small(*ALONE), tmp_path / "alone", quiet=True).run_dir
    named = f"evaluation.solo_run={alone}"
    document = json.loads((alone / "evaluation.json").read_text())
    record = document["greedy"]["verifier/accuracy"]
    for share, by in ((1.0, "verifier trained alone"), (0.0, "fitted classifier")):
        document["greedy"]["verifier/accuracy"] = {**record, "estimate": share}
        (alone / "evaluation.json").write_text(json.dumps(document))
        if share:
            result = run_experiment(small("iterations=1", named), tmp_path / "proof", quiet=True)
            assert result.metrics["eval/verifier/solo_baseline"] == 1.0
        found = evaluate_run(result.run_dir)
        assert found["solo_baseline_by"] == by
        assert (found["eval/verifier/solo_baseline"] == 1.0) == (by == "verifier trained alone")
        assert found["eval/verifier/solo_baseline/n"] == record["n"]
    page = (result.run_dir / "report.html").read_text()
    assert "measured without a prover (verifier trained alone)" in page

    for settings, reason in (
        (
            [f"evaluation.solo_run={tmp_path / 'nowhere'}"],
            r"evaluation.solo_run: .*nowhere: no run here.*--set evaluation\.solo_run=null",
        ),
        ([f"evaluation.solo_run={result.run_dir}"], "its verifier does not play alone"),
        ([named, "scenario.data.seed=9"], "has other scenario.data"),
    ):
        with pytest.raises(UserError, match=reason):
            run_experiment(small("iterations=1", *settings), tmp_path / "refused", quiet=True)
        assert not (tmp_path / "refused").exists()
