"""Self-proving models: verifiability after transcripts and after the verifier's feedback, and a verifier that learns in
place of the code, by the plan in `benchmarks/plans.md`.

    python benchmarks/self_proving.py --out runs          # what benchmarks/self_proving.json lacks
    python benchmarks/self_proving.py --page              # the tables of docs/self-proving.md

A run is `examples/self_proving.yaml`, tested when the transcripts are learned, and at the end. A finished run is not
made again, and an interrupted command continues with the unfinished ones.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from _common import ROOT, machine
from _self_proving_page import JUDGED, write_page
from detectors import is_recorded, parser_of, recorded, trained_in, write
from protocol_table import laid_over

RECORD = ROOT / "benchmarks" / "self_proving.json"
SEEDS = (500, 501, 502)
COLOURING: Mapping[str, Any] = {
    "scenario": {"task": "two_colouring", "size": 7},
    "providers": {"local": {"word_model": {"hidden_size": 64}}},
    "algorithm": {"warmup_steps": 4000, "warmup_batch_size": 32, "micro_batch_tokens": 4096},
}
ALONE: Mapping[str, Any] = {"scenario": {"annotated": False}}
TWO_CORES: Mapping[str, Any] = {
    "algorithm": {"num_learners": 2, "num_rollout_workers": 2},
    "providers": {"local": {"num_cpus": 0.5}},
}
VERIFIER: Mapping[str, Any] = {
    "protocol": {"name": "adp"},
    "scenario": {"num_test": 1000},
    "algorithm": {"evaluate_every": 10},
}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "gcd, proof alone": ALONE,
    "gcd, steps": TWO_CORES,
    "colouring, proof alone": laid_over(COLOURING, ALONE),
    "colouring, steps": COLOURING,
    "colouring, verifier": laid_over(COLOURING, VERIFIER),
}
"""Arm -> its changes."""
PAID = "eval_sampled/prover/return"
TESTED = {"accuracy": "eval_sampled/verifier/accuracy"} | {name: f"eval/{name}" for name in JUDGED[1:]}
"""Of a verifier that learns."""


def main() -> None:
    """Make the runs that are missing, or write the page."""
    parser = parser_of(__doc__, SEEDS, RECORD)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    options = parser.parse_args()
    if options.page:
        write_page(recorded(options.record))
        return
    print(machine(), flush=True)
    for seed in options.seeds:
        for arm in options.arms:
            key = {"arm": arm, "seed": seed}
            if is_recorded(options.record, key):
                continue
            folder = options.out.resolve() / f"self-proving-{arm.replace(',', '').replace(' ', '_')}-{seed}"
            metrics = trained_in(folder, config_of(arm) | {"seed": seed})
            named = TESTED if "eval/soundness_error" in metrics[0] else {"accepted": PAID}
            tests = [
                [row["iteration"], {name: round(row[metric], 5) for name, metric in named.items()}]
                for row in metrics
                if PAID in row
            ]
            spent = (sum(row.get(f"time/{part}_s", 0) for part in ("warmup", "play", "learn")) for row in metrics)
            row = {**key, "tests": tests, "minutes": round(sum(spent) / 60, 1)}
            rows = [*recorded(options.record), row]
            write(options.record, sorted(rows, key=lambda one: ([*ARMS].index(one["arm"]), one["seed"])))
            print(json.dumps(row), flush=True)


def config_of(arm: str) -> dict[str, Any]:
    """The config of a run, but for its seed."""
    data = yaml.safe_load((ROOT / "examples" / "self_proving.yaml").read_text())
    data["plugins"] = [str(ROOT / "examples" / "self_proving.py")]
    return laid_over(laid_over(data, {"providers": {"local": {"num_threads": 1}}}), ARMS[arm])


if __name__ == "__main__":
    main()
