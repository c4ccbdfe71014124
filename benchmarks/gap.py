"""The law of the gap: exact soundness by the depths of prover and verifier, by the plan in `benchmarks/plans.md`.

    python benchmarks/gap.py --out runs              # what benchmarks/gap.json lacks: 36 cells x 3 seeds
    python benchmarks/gap.py --page                  # docs/gap.md and its plots

Each cell is quickstart.yaml with other depths, 512 copies and 60 iterations. A finished run is not made again, and an
interrupted command continues with the unfinished runs. In a game of Elo a verifier meets a prover on a false claim and
wins if its most likely verdict rejects it; messages are sampled.
"""

import json
from typing import Any

import torch
from _common import ROOT, machine
from _gap_page import write_page
from detectors import is_recorded, last_test, parser_of, recorded, shipped, trained_in, write
from protocol_table import laid_over

RECORD = ROOT / "benchmarks" / "gap.json"
DEPTHS = range(1, 7)
SEEDS = (500, 501, 502)
ITERATIONS, COPIES = 60, 512
KEYS = ("accuracy", "realised", "exact")


def main() -> None:
    """Make the runs that are missing, or write the page."""
    options = parser_of(__doc__, SEEDS, RECORD).parse_args()
    if options.page:
        write_page(recorded(options.record))
        return
    torch.set_num_threads(1)
    print(machine(), flush=True)
    for seed in options.seeds:
        for prover in DEPTHS:
            for verifier in DEPTHS:
                key = {"strength": "layers", "prover": prover, "verifier": verifier, "seed": seed}
                if is_recorded(options.record, key):
                    continue
                folder = options.out.resolve() / f"gap-{prover}-{verifier}-{seed}"
                trained_in(folder, config_of(prover, verifier) | {"seed": seed})
                found = last_test(folder)
                row = {**key, **{name: round(found[name], 5) for name in KEYS}}
                write(
                    options.record,
                    sorted([*recorded(options.record), row], key=lambda one: [one[name] for name in key]),
                )
                print(json.dumps(row), flush=True)


def config_of(prover: int, verifier: int) -> dict[str, Any]:
    """The config of a cell, but for its seed."""
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


if __name__ == "__main__":
    main()
