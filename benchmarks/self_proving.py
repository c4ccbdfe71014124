"""Self-proving models: verifiability after transcripts and after the verifier's feedback, and a verifier that learns in
place of the code, by the plan in `benchmarks/plans.md`.

    python benchmarks/self_proving.py --out runs          # what benchmarks/self_proving.json lacks
    python benchmarks/self_proving.py --page              # the tables of docs/self-proving.md

A run is `examples/self_proving.yaml`, tested when the transcripts are learned, and at the end. A finished run is not
made again, and an interrupted command continues with the unfinished ones.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from _common import ROOT, machine, put_between
from detectors import is_recorded, parser_of, recorded, trained_in, write
from protocol_table import laid_over

from nip_ray.evaluation.intervals import proportion

RECORD = ROOT / "benchmarks" / "self_proving.json"
PAGE = ROOT / "docs" / "self-proving.md"
BEGIN, END = "<!-- {}: written by `python benchmarks/self_proving.py --page` -->", "<!-- end of {} -->"
SEEDS = (500, 501, 502)
ITERATIONS = 50
"""Of feedback."""
COLOURING: Mapping[str, Any] = {
    "scenario": {"task": "two_colouring", "size": 7},
    "providers": {"local": {"word_model": {"hidden_size": 64}}},
    "algorithm": {"warmup_steps": 4000, "warmup_batch_size": 32, "micro_batch_tokens": 4096},
}
ALONE: Mapping[str, Any] = {"scenario": {"annotated": False}}
JUDGED = "colouring, verifier"
ARMS: Mapping[str, Mapping[str, Any]] = {
    "gcd, proof alone": ALONE,
    "gcd, steps": {},
    "colouring, proof alone": laid_over(COLOURING, ALONE),
    "colouring, steps": COLOURING,
    JUDGED: laid_over(COLOURING, {"protocol": {"name": "adp"}, "scenario": {"num_test": 1000}}),
}
"""Arm -> its changes."""
ACCEPTED = {"accepted": "eval_sampled/prover/return"}
JUDGEMENT = {
    "accuracy": "eval_sampled/verifier/accuracy",
    "soundness_error": "eval/soundness_error",
    "mean_error": "eval/mean_error",
    "completeness": "eval/completeness",
}
TESTS = 10_000
"""Held-out inputs, each with one reply."""

Row = Mapping[str, Any]


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
            tested = JUDGEMENT if arm == JUDGED else ACCEPTED
            spent = (sum(row.get(f"time/{part}_s", 0) for part in ("warmup", "play", "learn")) for row in metrics)
            row = {
                **key,
                "tests": [{name: round(metrics[at][key], 5) for name, key in tested.items()} for at in (0, -1)],
                "minutes": round(sum(spent) / 60, 1),
            }
            rows = [*recorded(options.record), row]
            write(options.record, sorted(rows, key=lambda one: ([*ARMS].index(one["arm"]), one["seed"])))
            print(json.dumps(row), flush=True)


def config_of(arm: str) -> dict[str, Any]:
    """The config of a run, but for its seed."""
    data = yaml.safe_load((ROOT / "examples" / "self_proving.yaml").read_text())
    data["plugins"] = [str(ROOT / "examples" / "self_proving.py")]
    common = {"iterations": ITERATIONS, "algorithm": {"evaluate_every": ITERATIONS, "checkpoint_every": 10}}
    return laid_over(laid_over(data, common | {"providers": {"local": {"num_threads": 1}}}), ARMS[arm])


def write_page(rows: Sequence[Row]) -> None:
    """Write the tables of finished runs."""
    page = PAGE.read_text()
    for name, made in (("verifiability", _accepted(rows)), ("verifier", _judged(rows))):
        page = put_between(page, BEGIN.format(name), END.format(name), made)
    PAGE.write_text(page)


def _accepted(rows: Sequence[Row]) -> str:
    lines = ["| arm | seed | after transcripts | after feedback | minutes |", "|---|---|---|---|---|"]
    for row in rows:
        if row["arm"] != JUDGED:
            shown = " | ".join(_interval(test["accepted"]) for test in row["tests"])
            lines.append(f"| {row['arm']} | {row['seed']} | {shown} | {row['minutes']:.0f} |")
    return "\n".join(lines)


def _interval(share: float) -> str:
    found = proportion(round(share * TESTS), TESTS)
    return f"{found.estimate:.4f} ({found.lower:.4f} to {found.upper:.4f})"


def _judged(rows: Sequence[Row]) -> str:
    lines = [
        f"| seed | after | {' | '.join(name.replace('_', ' ') for name in JUDGEMENT)} | minutes |",
        "|---" * (len(JUDGEMENT) + 3) + "|",
    ]
    for row in rows:
        for stage, test in zip(("transcripts", "feedback"), row["tests"]):
            if row["arm"] == JUDGED:
                shown = " | ".join(f"{test[name]:.4f}" for name in JUDGEMENT)
                lines.append(f"| {row['seed']} | {stage} | {shown} | {row['minutes']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
