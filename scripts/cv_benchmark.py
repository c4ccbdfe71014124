#!/usr/bin/env python3
"""Accuracy of an untrained language model as a lone verifier on held-out items, by difficulty, with 95 % intervals.

OPENAI_API_KEY=... python scripts/cv_benchmark.py --model gpt-4o-mini --source buggy_apps --difficulties interview
--max-problems 50
python scripts/cv_benchmark.py --provider local --model /models/a-folder   # a Hugging Face model on this machine
python scripts/cv_benchmark.py --provider dummy                           # random replies, to try it out
"""

import json
from argparse import Namespace
from typing import Any

from _common import DIFFICULTIES, run, run_parser

PROVIDERS = {"openai": {"name": "openai", "fine_tuning": False}, "local": {"name": "local"}, "dummy": {"name": "dummy"}}
FIGURES = ("accuracy", "completeness", "soundness", "undecided", "acceptance", "always_fail")


def main() -> None:
    """One run for each seed and difficulty; prints a line of JSON for each."""
    parser = run_parser(__doc__, 0)
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        default="openai",
        help="openai: any service of that protocol ($OPENAI_BASE_URL)",
    )
    parser.add_argument("--model", default="default", help="its name at the provider (local: a folder)")
    parser.add_argument("--source", choices=("built_in", "buggy_apps"), default="built_in", help="(default: built_in)")
    parser.add_argument("--difficulties", nargs="+", choices=DIFFICULTIES, default=DIFFICULTIES, help="(default: all)")
    parser.add_argument(
        "--max-problems", type=int, default=10, metavar="N", help="items of each difficulty (default: 10)"
    )
    parser.add_argument("--n-attempts", type=int, default=5, metavar="N", help="verdicts on each item (default: 5)")
    parser.add_argument("--temperature", type=float, default=1.0, help="(default: 1)")
    arguments = parser.parse_args()

    from nip_ray import run_experiment
    from nip_ray.config.load import apply_overrides, config_from_dict

    for seed, level in ((seed, level) for seed in arguments.seeds for level in arguments.difficulties):
        config = config_from_dict(apply_overrides(experiment(arguments, seed, level), arguments.settings))
        result = run_experiment(config, arguments.out / f"{config.name}-seed{seed}", quiet=True)
        found = json.loads((result.run_dir / "evaluation.json").read_text())["sampled"]
        figures = {name: found[f"verifier/{name}"] for name in FIGURES}
        print(json.dumps({"difficulty": level, "seed": seed, **figures, "run_dir": str(result.run_dir)}), flush=True)


def experiment(arguments: Namespace, seed: int, level: str) -> dict[str, Any]:
    """The config: no agent learns, and training is one dialogue, the minimum."""
    verifier = {"provider": "judge", "model": arguments.model, "temperature": arguments.temperature, "frozen": True}
    data = {"source": arguments.source, "difficulties": [level], "num_train": 2, "num_test": arguments.max_problems}
    return {
        "name": f"cv-benchmark-{level}",
        "seed": seed,
        "iterations": 1,
        "protocol": {"name": "solo_verifier"},
        "scenario": {"name": "code_validation", "data": data, "agents": {"verifier": verifier}},
        "algorithm": {
            "name": "expert_iteration",
            "rollouts_per_iteration": 1,
            "num_test_repeats": arguments.n_attempts,
        },
        "providers": {"judge": PROVIDERS[arguments.provider]},
    }


if __name__ == "__main__":
    run(main)
