"""The law of the gap: exact soundness by the strengths of prover and verifier, by the plan in `benchmarks/plans.md`.

    python benchmarks/gap.py --out runs              # what benchmarks/gap.json lacks: 52 cells x 3 seeds
    python benchmarks/gap.py --page                  # docs/gap.md and its plots

Layers: each cell is quickstart.yaml with other depths, 512 copies and 60 iterations. Width: each is the first stage of
pg_state_tracking.yaml, chains of four moves between language models of these widths. A finished run is not made again,
and an interrupted command continues with the unfinished runs. In a game of Elo a verifier meets a prover on a false
claim and wins if it rejects: a network by its most likely verdict on sampled messages, a language model by a sampled
one.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from _common import ROOT, machine
from _gap_page import LEVELS, write_page
from detectors import is_recorded, last_test, parser_of, recorded, shipped, trained_in, write
from protocol_table import laid_over

RECORD = ROOT / "benchmarks" / "gap.json"
SEEDS = (500, 501, 502)
ITERATIONS, COPIES = 60, 512
STARTS, ENDS = 200, 300
"""Language models: the iteration from which all learn, not prover0 alone, and the last one."""


def main() -> None:
    """Make the runs that are missing, or write the page."""
    options = parser_of(__doc__, SEEDS, RECORD).parse_args()
    if options.page:
        write_page(recorded(options.record))
        return
    torch.set_num_threads(1)
    print(machine(), flush=True)
    for seed in options.seeds:
        for strength, levels in LEVELS.items():
            for prover, verifier in product(levels, repeat=2):
                key = {"strength": strength, "prover": prover, "verifier": verifier, "seed": seed}
                if is_recorded(options.record, key):
                    continue
                folder = options.out.resolve() / f"gap-{strength}-{prover}-{verifier}-{seed}"
                metrics = trained_in(folder, config_of(strength, prover, verifier) | {"seed": seed})
                found = last_test(folder) if strength == "layers" else last_dialogues(metrics)
                row = {**key, **{name: round(found[name], 5) for name in ("accuracy", "realised", "exact")}}
                write(
                    options.record,
                    sorted([*recorded(options.record), row], key=lambda one: [one[name] for name in key]),
                )
                print(json.dumps(row), flush=True)


def last_dialogues(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The last test of language models, with errors for soundness."""
    last = metrics[-1]
    return {
        "accuracy": last["eval_sampled/verifier/accuracy"],
        "realised": 1 - last["eval_sampled/verifier/soundness"],
        "exact": 1 - last["eval/worst_case/soundness"],
    }


def config_of(strength: str, prover: int, verifier: int) -> dict[str, Any]:
    """The config of a cell, but for its seed."""
    return _layers(prover, verifier) if strength == "layers" else _widths(prover, verifier)


def _layers(prover: int, verifier: int) -> dict[str, Any]:
    depths = {"prover": {"num_gnn_layers": prover}, "verifier": {"num_gnn_layers": verifier}}
    changes = {
        "iterations": ITERATIONS,
        "scenario": {"agents": depths},
        "play": {"num_copies": COPIES},
        "evaluation": {"interval": 0, "attack": {"enabled": False}},
        "checkpoint": {"interval": ITERATIONS},
        "runtime": {"num_threads": 1},
    }
    return laid_over(shipped("quickstart"), changes)


def _widths(prover: int, verifier: int) -> dict[str, Any]:
    data = shipped("pg_state_tracking")
    del data["algorithm"]["curriculum"]
    common, own = data["scenario"]["agents"]["_default"], data["providers"]["local"]
    later = {"from_iteration": STARTS}
    changes = {
        "iterations": ENDS,
        "protocol": {"max_rounds": 5},
        "scenario": {
            "length": 4, "num_train": 1000, "num_test": 200, "agents": {"verifier": {**common, "provider": "judge"}}
        },
        "providers": {
            name: laid_over(own, {"num_threads": 1, "word_model": {"hidden_size": width}})
            for name, width in (("local", prover), ("judge", verifier))
        },
        "algorithm": {"evaluate_every": ENDS, "checkpoint_every": 100, "agents": {"prover1": later, "verifier": later}},
    }  # fmt: skip
    return laid_over(data, changes)


if __name__ == "__main__":
    main()
