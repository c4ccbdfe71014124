"""The cost of an evaluation on 1,000 held-out pairs and of an attack; and the gap of attackers to the exact worst case.

    python benchmarks/attack.py runs/quickstart-seed0
    python benchmarks/attack.py --protocols [NAME ...] [--seeds 0 1 2] [--out FOLDER]

The first takes a finished run: wall clock, processor time, and results. The second trains small agents under every
protocol whose dialogues can be enumerated and prints a table in Markdown: for each goal and seed the share judged
rightly against the trained attacker that counts, against that attacker when it searches (`evaluation.attack.search`),
and against the best of all messages.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _common import machine, show

from nip_ray.config.load import config_from_dict, load_stored_config
from nip_ray.evaluation.verbs.attack import attack
from nip_ray.evaluation.verbs.evaluate import bench, examine, newest_or, trained
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import CONFIG, RunFolder

_NETWORK: dict[str, Any] = dict(use_dual_gnn=False, num_transformer_layers=1, use_batch_norm=False)
_PROVER = {
    **_NETWORK,
    "num_gnn_layers": 5,
    "history_initialisation": "unmarked",
    "input_bias": 1.0,
    "attention_initialisation": "tied",
}
_VERIFIER = {**_NETWORK, "num_gnn_layers": 2, "history_initialisation": "shared"}
_DATA = dict(num_train=2000, num_test=600, graph_sizes=[7, 8])
_DECIDERS = ("verifier", "judge0", "judge1", "judge2")
_AFTER: dict[str, Any] = dict(min_rounds=3, max_rounds=3)
GRAPHS: dict[str, dict[str, Any]] = {
    "nip": dict(name="nip", **_AFTER),
    "nip, two questions": dict(name="nip", min_rounds=5, max_rounds=5),
    "adp": dict(name="adp"),
    "debate": dict(name="debate", **_AFTER),
    "debate, rejection first": dict(name="debate", sequential=True, prover0_first=True, min_rounds=4, max_rounds=4),
    "debate, acceptance first": dict(name="debate", sequential=True, prover0_first=False, min_rounds=4, max_rounds=4),
    "open_debate": dict(name="open_debate", max_rounds=3),
    "critique": dict(name="critique"),
    "merlin_arthur": dict(name="merlin_arthur"),
    "merlin_arthur, one prover": dict(name="merlin_arthur", one_prover=True),
    "consultancy": dict(name="consultancy", **_AFTER),
    "consultancy, one prover": dict(name="consultancy", one_prover=True, **_AFTER),
    "open_consultancy": dict(name="open_consultancy", max_rounds=2),
    "helpful_sneaky": dict(name="helpful_sneaky"),
    "mnip": dict(name="mnip", **_AFTER),
    "judge_panel": dict(name="judge_panel"),
    "judge_panel, by the mean": dict(name="judge_panel", panel_rule="mean"),
}
"""Graph isomorphism of seven and eight nodes, with one message per prover if there may be many."""
CHAINS: dict[str, dict[str, Any]] = {
    "bisection": dict(name="bisection", max_rounds=5),
    "bisection, verifier's halves": dict(name="bisection", max_rounds=5, half_chosen_by="verifier"),
    "nip on chains": dict(name="nip", **_AFTER),
    "prover_estimator": dict(name="prover_estimator", max_rounds=4),
}
"""State tracking over four moves; over two, with estimates."""


def settings(game: str, seed: int) -> dict[str, Any]:
    """The config of one small run."""
    protocol = (GRAPHS | CHAINS)[game]
    made: dict[str, Any] = dict(
        name="attack",
        seed=seed,
        protocol=protocol,
        play=dict(num_copies=128),
        evaluation=dict(interval=0, attack=dict(seeds=1, sizes=[1])),
        runtime=dict(num_threads=1),
    )
    if game in CHAINS:
        rule = dict(name="ppo", lr=3e-3, gamma=1.0, lam=1.0, entropy_coefficient=0.01)
        size = (
            dict(length=2, num_generators=8, num_train=200, num_test=100)
            if game == "prover_estimator"
            else dict(length=4)
        )
        scenario = dict(name="state_tracking", num_train=600, num_test=300) | size
        return {**made, "iterations": 60, "scenario": scenario, "algorithm": rule}
    deciders = _DECIDERS[1:] if protocol["name"] == "judge_panel" else _DECIDERS[:1]
    rounds = protocol.get("max_rounds", 3 if protocol["name"] == "critique" else 2)
    rule = dict(
        name="ppo",
        lr=6e-4,
        num_epochs=4,
        minibatch_size=32 * rounds,
        gamma=0.95,
        entropy_coefficient=0.01,
        max_grad_norm=0.5,
    )
    scenario = dict(
        name="graph_isomorphism",
        data=_DATA,
        agents=dict(_default=_PROVER) | dict.fromkeys(deciders, _VERIFIER),
        shared_body=False,
        central_critic=True,
    )
    before = dict(agents=list(deciders), in_round=rounds, include_heads=True, num_epochs=10, lr=3e-3)
    return {**made, "iterations": 20, "scenario": scenario, "algorithm": rule, "pretraining": before}


def compared(game: str, seed: int, folder: Path) -> dict[str, list[Any]]:
    """Goal -> share judged rightly against (the trained attacker that counts, the searching one, every message); None
    if the tree is too large."""
    config: Any = config_from_dict(settings(game, seed))
    run = folder / f"{game}-{seed}".replace(" ", "_").replace(",", "")
    kept = folder / f"{run.name}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    run_experiment(config, run, quiet=True)
    made = bench(run, config, None, None)
    networks = trained(made, newest_or(RunFolder.open(run), None, config))
    found = attack(config, made.examination.scenario, networks, made.examination.ids, seed, config.evaluation.attack)
    shares = {}
    for goal in ("soundness", "completeness"):
        if (table := found["attack"].get(goal)) is None:
            continue
        learned = [row for row in table["attackers"] if row["kind"] in ("fresh", "continued", "own")]
        best = min(learned, key=lambda row: row["selection"]["estimate"])
        searched = next(row for row in table["attackers"] if row["kind"] == "search")
        exact = table["every_message"]
        shares[goal] = [
            None if record is None else record["estimate"] for record in (best["held_out"], searched["held_out"], exact)
        ]
    kept.write_text(json.dumps(shares))
    return shares


def table(games: Sequence[str], seeds: Sequence[int], folder: Path) -> None:
    """Print a row for each protocol and goal."""
    print(
        "| protocol | goal | trained | searching | every message | largest difference: trained, searching | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    for game in games:
        began = time.perf_counter()
        found = [compared(game, seed, folder) for seed in seeds]
        took = time.perf_counter() - began
        for goal in found[0]:
            columns = list(zip(*(one[goal] for one in found), strict=True))
            words = [" ".join("-" if share is None else f"{share:.3f}" for share in column) for column in columns]
            apart = [
                max(
                    (abs(a - b) for a, b in zip(column, columns[2], strict=True) if b is not None), default=float("nan")
                )
                for column in columns[:2]
            ]
            print(
                f"| {game} | {goal} | {' | '.join(words)} | {apart[0]:.3f}, {apart[1]:.3f} | {took:.0f} |", flush=True
            )


def of_run(path: Path) -> None:
    """Load the run's newest checkpoint, evaluate it like `nip-ray evaluate`, and attack it like `--attack`."""
    folder = RunFolder.open(path)
    config = load_stored_config(folder.path / CONFIG)
    made, loading = measured(lambda: bench(folder.path, config, None, None))
    found = newest_or(folder, None, config)
    document, examining = measured(lambda: examine(made, found, deep=True))
    scenario, ids, asked = made.examination.scenario, made.examination.ids, config.evaluation.attack
    attacked, attacking = measured(lambda: attack(config, scenario, made.networks, ids, config.seed, asked))
    for name, (wall, processor) in {"loading": loading, "examining": examining, "attacking": attacking}.items():
        show(name, {"wall_s": round(wall, 2), "processor_s": round(processor, 2)})
    print(f"accuracy {document['greedy']['verifier/accuracy']['estimate']:.3f} of {document['num_instances']}")
    print(
        f"soundness {interval(document['greedy']['verifier/soundness'])}, error under attack"
        f" {interval(attacked['soundness_error'])}"
    )
    for key in ("any_attacker", "every_message"):
        print(f"  {key}: {interval(attacked['attack']['soundness'][key])}")


def measured(function: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """(result, (wall seconds, processor seconds of this process))."""
    wall, processor = time.perf_counter(), time.process_time()
    found = function()
    return found, (time.perf_counter() - wall, time.process_time() - processor)


def interval(record: dict[str, Any] | None) -> str:
    """A record in words."""
    return (
        "not asked"
        if record is None
        else f"{record['estimate']:.3f} [{record['lower']:.3f}, {record['upper']:.3f}] of {record['n']}"
    )


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, nargs="?")
    parser.add_argument("--protocols", nargs="*", choices=list(GRAPHS | CHAINS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--out", type=Path, help="keep what was found here, and use what it has (default: nothing is kept)"
    )
    options = parser.parse_args()
    print(machine())
    if options.run_dir is not None:
        of_run(options.run_dir)
        return
    with tempfile.TemporaryDirectory() as made:
        table(options.protocols or list(GRAPHS | CHAINS), options.seeds, options.out or Path(made))


if __name__ == "__main__":
    main()
