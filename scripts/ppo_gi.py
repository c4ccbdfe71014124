#!/usr/bin/env python3
"""PPO on graph isomorphism with the published setting, for one protocol and any number of seeds, one run after the other.

python scripts/ppo_gi.py --protocol nip --seeds 8144 820 4173 3992
python scripts/ppo_gi.py --protocol debate --iterations 100 --out runs/debate
"""

import argparse
from pathlib import Path

from nip_ray import run_experiment
from nip_ray.config.load import load_config

CONFIGS = Path(__file__).resolve().parents[1] / "tune_configs"
FILES = {"nip": "gi_published", "adp": "gi_adp", "debate": "gi_debate", "mnip": "gi_mnip", "solo_verifier": "gi_solo"}


def main() -> None:
    """Train once per seed and print the held-out figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=sorted(FILES), default="nip")
    parser.add_argument("--seeds", type=int, nargs="+", default=[8144])
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    arguments = parser.parse_args()
    if arguments.iterations is not None:
        arguments.overrides.append(f"iterations={arguments.iterations}")
    for seed in arguments.seeds:
        config = load_config(CONFIGS / f"{FILES[arguments.protocol]}.yaml", [*arguments.overrides, f"seed={seed}"])
        result = run_experiment(config, arguments.out / f"{config.name}-seed{seed}")
        print(seed, {key: value for key, value in result.metrics.items() if key.startswith("eval/verifier/") and "=" not in key})


if __name__ == "__main__":
    main()
