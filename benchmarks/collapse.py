"""Collapse of self-play between language models and its cures, by the plan in `benchmarks/plans.md`.

    python benchmarks/collapse.py --out runs              # what benchmarks/collapse.json lacks
    python benchmarks/collapse.py --page                  # docs/collapse.md and its plot

Kuhn poker in words, and a message game of two secrets (`_message_words.py`), between models of some 17,000 parameters
that learn by policy gradient. An exact distance at every test: exploitability, or the probability of a wrong verdict or
an unusable reply. A finished run is not made again, and an interrupted command continues with the unfinished runs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _collapse_page import AFTER, BEFORE, write_page
from _common import ROOT, machine
from detectors import is_recorded, parser_of, recorded, shipped, trained_in, write
from protocol_table import laid_over

RECORD = ROOT / "benchmarks" / "collapse.json"
SEEDS = (500, 501, 502)
DISTANCE = {"kuhn": "eval/exploitability", "message": "eval/regret"}
"""Game -> what is measured at a test."""
ITERATIONS = {"kuhn": 1000, "message": 3000}
MAGNET = {"advantage": "leave_one_out", "kl_coefficient": 0.3, "kl_estimator": "k2", "kl_refresh": 100}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "shared weights": {},
    "own weights": {},
    "role baseline": {"algorithm": {"advantage": "role"}},
    "opponents": {"opponents": {"latest": 0.5, "every": 20, "size": 20}},
    "magnet": {"algorithm": MAGNET},
    BEFORE: {"algorithm": {**MAGNET, "average_weights": 0.98}},
    AFTER: {},
}
"""Arm -> its changes; all but the second share weights, and the last one starts from the models of the one before."""


def main() -> None:
    """Make the runs that are missing, or write the page."""
    parser = parser_of(__doc__, SEEDS, RECORD)
    parser.add_argument("--games", nargs="+", choices=list(DISTANCE), default=list(DISTANCE))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    options = parser.parse_args()
    if options.page:
        write_page(recorded(options.record))
        return
    print(machine(), flush=True)
    for seed in options.seeds:
        for game in options.games:
            for arm in options.arms:
                key = {"game": game, "arm": arm, "seed": seed}
                if is_recorded(options.record, key):
                    continue
                folder = run_folder(options.out, game, arm, seed)
                data = config_of(game, arm) | {"seed": seed}
                if arm == AFTER:
                    model = run_folder(options.out, game, BEFORE, seed) / f"local/models/both-{ITERATIONS[game]:06d}"
                    data = laid_over(data, {"scenario": {"agents": {"_default": {"model": str(model)}}}})
                metrics = trained_in(folder, data)
                tests = [
                    [int(one["iteration"]), round(one[DISTANCE[game]], 4) + 0.0]
                    for one in metrics
                    if one["iteration"] and DISTANCE[game] in one
                ]
                rows = [*recorded(options.record), {**key, "tests": tests}]
                write(
                    options.record, sorted(rows, key=lambda one: (one["game"], [*ARMS].index(one["arm"]), one["seed"]))
                )
                print(json.dumps({**key, "last": tests[-1][1]}), flush=True)


def run_folder(out: Path, game: str, arm: str, seed: int) -> Path:
    """Where a run is made."""
    return out.resolve() / f"collapse-{game}-{arm.replace(',', '').replace(' ', '_')}-{seed}"


def config_of(game: str, arm: str) -> dict[str, Any]:
    """The config of a run, but for its seed."""
    data = shipped("pg_kuhn_poker")
    for key in ("kl_coefficient", "final_kl_coefficient", "kl_estimator"):
        del data["algorithm"][key]
    if arm == AFTER:
        for key in ("format_warmup", "warmup_batch_size", "warmup_learning_rate"):
            del data["algorithm"][key]
    common: dict[str, Any] = {
        "iterations": ITERATIONS[game],
        "algorithm": {
            "advantage": "none",
            "anneal_learning_rate": False,
            "evaluate_every": 25,
            "checkpoint_every": 100,
        },
        "providers": {"local": {"num_threads": 1}},
    }
    if game == "message":
        data["scenario"] = {"name": "message_words", "agents": data["scenario"]["agents"]}
        common["plugins"] = [str(ROOT / "benchmarks" / "_message_words.py")]
        common["protocol"] = {"name": "adp", "shared_reward": True}
        common["algorithm"] |= {"rollouts_per_iteration": 256, "group_size": 32}  # opponents need several items
    if arm != "own weights":
        common["scenario"] = {"agents": {"_default": {"group": "both"}}}
    return laid_over(laid_over(data, common), ARMS[arm])


if __name__ == "__main__":
    main()
