"""Accuracy on chains of permutations by length: for a verifier alone, with one question (nip), and in bisection debate.

    nip-ray train tune_configs/pg_state_tracking.yaml --set seed=0 --set providers.local.num_threads=1 --run-dir RUN
    python benchmarks/state_tracking.py run --runs RUN ... >> rows.jsonl
    python benchmarks/state_tracking.py alone nip before --seeds 0 1 2 --lengths 2 4 8 16 >> rows.jsonl
    python benchmarks/state_tracking.py figure --runs RUN ... --rows rows.jsonl --out docs/state-tracking.svg

A line of JSON for each arm, seed and length n, on chains whose start and moves no training chain of the run has, in any
stage of its curriculum, half of them with a false claim: accuracy of sampled play with its 95 % interval (Clopper and
Pearson), and the exact worst case, over every lie and every opponent. `run`: the final models of finished runs, which
learned at n = 16, at other lengths too. `before`: the same config after its warm-up, before any policy gradient (its
iterations hardly move a weight). `alone`: a verifier of the same size without provers, supervised with labels. `nip`:
it asks for one move; its prover and it learn from examples, then by policy gradient. A pretrained model alone:

    python benchmarks/state_tracking.py alone --config tune_configs/pg_smollm2.yaml --lengths 4 --set \\
        scenario.agents._default.model=models/smollm2 algorithm.kl_estimator=k3 algorithm.warmup_steps=400
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import torch
from _common import ROOT, final_models, machine
from matplotlib.figure import Figure

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import apply_overrides, config_from_dict, load_config
from nip_ray.config.policy_gradient_rules import stage_config
from nip_ray.evaluation.intervals import proportion
from nip_ray.protocols import from_settings
from nip_ray.runs.experiment import run_experiment

CONFIG = ROOT / "tune_configs" / "pg_state_tracking.yaml"
SUPERVISED = (
    "algorithm.curriculum=[]",
    "algorithm.agents={}",
    "algorithm.warmup_steps=2000",
    "scenario.num_train=20000",
)
ARMS: dict[str, tuple[str, ...]] = {
    "before": (
        "algorithm.curriculum.0.until_iteration=1",
        "algorithm.curriculum.1.until_iteration=2",
        "algorithm.agents={}",
        "iterations=3",
        "algorithm.learning_rate=1e-12",
    ),
    "alone": (
        "protocol={name: solo_verifier}",
        "algorithm.warmup_agents=[verifier]",
        *SUPERVISED,
        "iterations=1",
        "algorithm.learning_rate=1e-12",
    ),
    "nip": (
        "protocol={name: nip, min_rounds: 3, max_rounds: 3}",
        "scenario.agents._default.max_tokens=16",
        "algorithm.warmup_agents=[verifier, prover]",
        *SUPERVISED,
        "iterations=150",
        "algorithm.evaluate_every=0",
        "algorithm.learning_rate=0.0001",
    ),
}


def measured(run: Path, length: int, num_test: int) -> dict[str, Any]:
    """The final models of a run on held-out chains of a length."""
    with final_models(run) as trainer:
        config = trainer.config
        drawn = ["scenario.num_train=2", f"scenario.num_test={min(5 * 4**length - 2, 10 * num_test)}"]
        task = changed(config.model_dump(mode="json"), *rounds_of(config.protocol.name, length), *drawn)
        trainer.scenario = trainer.kind.build(from_settings(task.protocol), task.scenario)
        taught = [*trainer.items["train"], *(item for _, (_, items) in trainer._stages for item in items)]
        seen = {trainer.kind.subject_of(item) for item in taught}
        chains = trainer.kind.items(task.scenario, config.seed)["test"]
        unseen = [item for item in chains if trainer.kind.subject_of(item) not in seen]
        trainer.items["test"] = chains = unseen[:num_test]
        trainer.rule = replace(trainer.rule, num_test_items=None)
        found = trainer.test(config.iterations - 1)
    n = len(chains)
    right = proportion(round(found["eval_sampled/verifier/accuracy"] * n), n)
    exact = {
        name.rpartition("/")[2]: round(value, 4) for name, value in found.items() if name.startswith("eval/worst_case/")
    }
    about = {"n": length, "items": n, "false": sum(item.y == 0 for item in chains)}
    return {**about, "accuracy": right.estimate, "interval": [round(right.lower, 3), round(right.upper, 3)], **exact}


def arm(config_file: Path, settings: Sequence[str], name: str, seed: int, length: int, num_test: int) -> dict[str, Any]:
    """Train an arm at one length, and measure it there. settings: later ones than the arm's own."""
    # all that exist
    few = [f"scenario.num_train={5 * 4**length - num_test}", f"scenario.num_test={num_test}"] if length < 8 else []
    made = changed(
        load_config(config_file).model_dump(mode="json"),
        *ARMS[name],
        *settings,
        f"seed={seed}",
        "providers.local.num_threads=1",
    )
    config = changed(made.model_dump(mode="json"), *rounds_of(made.protocol.name, length), *few)
    with tempfile.TemporaryDirectory() as place:
        run_experiment(config, Path(place) / "run", quiet=True)
        return measured(Path(place) / "run", length, num_test)


def changed(config: dict[str, Any], *settings: str) -> TextExperimentConfig:
    """A config with other settings."""
    made = config_from_dict(apply_overrides(config, settings))
    assert isinstance(made, TextExperimentConfig)
    return made


def rounds_of(protocol: str, length: int) -> list[str]:
    """Settings of chains of a length."""
    rounds = [f"protocol.max_rounds={2 * (length.bit_length() - 1) + 1}"] if protocol == "bisection" else []
    return [f"scenario.length={length}", *rounds]


def draw(runs: Sequence[Path], rows: Path, out: Path) -> None:
    """Worst case over iterations of runs, and over n of all arms."""
    with matplotlib.rc_context({"svg.hashsalt": "state tracking", "font.size": 9}):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        over_time, over_n = figure.subplots(1, 2)
        for number, run in enumerate(runs):
            found = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            for key, label, style in (
                ("eval/worst_case/soundness", "soundness against every lie", "C0-o"),
                ("eval/worst_case/completeness", "completeness against every opponent", "C2-s"),
            ):
                points = [(row["iteration"], row[key]) for row in found if key in row]
                over_time.plot(*zip(*points, strict=True), style, markersize=3, label=label if number == 0 else None)
        config: Any = load_config(runs[0] / "config.yaml")
        stages = config.algorithm.curriculum
        parts: list[Any] = [*(stage_config(config, stage) for stage in stages), config]
        trained_at = [part.scenario.length for part in parts]
        for iteration, n in zip((0, *(stage.until_iteration for stage in stages)), trained_at, strict=True):
            text = str(n) if iteration else f"n = {n}"
            over_time.axvline(iteration, color="0.8", linewidth=0.8)
            over_time.text(iteration + 5, 1.02, text, color="0.4")
        over_time.set(
            xlabel="iteration", ylabel=f"exact worst case at n = {trained_at[-1]}, {len(runs)} seeds", ylim=(0, 1.08)
        )
        over_time.legend(loc="center left")
        table = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        for name, label, style in (
            ("run", "bisection debate, after policy gradient", {"color": "C0", "marker": "o"}),
            ("before", "the same before it", {"color": "C3", "marker": "v"}),
            ("nip", "one question (nip)", {"color": "C1", "marker": "^"}),
            ("alone", "verifier alone (sampled)", {"color": "0.4", "marker": "x"}),
        ):
            mine = [row for row in table if row["arm"] == name]
            values = [
                (row["soundness"] + row["completeness"]) / 2 if "soundness" in row else row["accuracy"] for row in mine
            ]
            over_n.plot([row["n"] for row in mine], values, linestyle="none", markersize=5, label=label, **style)
        lengths = [2, 4, 8, 16]
        over_n.plot(lengths, [(1 + 1 / n) / 2 for n in lengths], "C1--", linewidth=0.8, label="one question, in theory")
        over_n.set(xlabel="n, moves of a chain", ylabel="accuracy in the worst case", ylim=(0, 1.08), xscale="log")
        over_n.set_xticks(lengths, [str(n) for n in lengths], minor=False)
        over_n.minorticks_off()
        over_n.legend(loc="lower left")
        figure.savefig(out, metadata={"Date": None})


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=[*ARMS, "run", "figure"])
    parser.add_argument("--config", type=Path, default=CONFIG, help="of the arms")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of the arms")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="folders of finished runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--items", type=int, default=200, help="held-out chains (fewer where there are fewer)")
    parser.add_argument("--rows", type=Path, help="what was printed, for the figure")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "state-tracking.svg")
    given = parser.parse_args()
    if given.what == ["figure"]:
        return draw(given.runs, given.rows, given.out)
    torch.set_num_threads(1)
    print(machine(), flush=True)
    for name, length in product(given.what, given.lengths):
        items = min(given.items, 4**length)
        if name == "run":
            for run in given.runs:
                print(json.dumps({"arm": name, "run": run.name, **measured(run, length, items)}), flush=True)
            continue
        for seed in given.seeds:
            print(
                json.dumps({"arm": name, "seed": seed, **arm(given.config, given.set, name, seed, length, items)}),
                flush=True,
            )
    return None


if __name__ == "__main__":
    main()
