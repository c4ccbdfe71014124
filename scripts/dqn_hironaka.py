#!/usr/bin/env python3
"""Deep Q-learning on Hironaka's game: train a host or an agent, and count its games in 10,000 rounds against every
scripted player.

python scripts/dqn_hironaka.py --role host --seeds 0 1 2
python scripts/dqn_hironaka.py --role agent --iterations 50 --rounds 100000
"""

import json
from argparse import Namespace

from _common import CONFIGS, parser, run


def main() -> None:
    """Train once for each seed and print the results of the matches."""
    made = parser(__doc__)
    made.set_defaults(seeds=[0])
    made.add_argument("--role", choices=("host", "agent"), default="host", help="who learns (default: host)")
    made.add_argument("--rounds", type=int, default=10_000, metavar="N", help="of each match (default: 10000)")
    train(made.parse_args())


def train(arguments: Namespace) -> None:
    """One run for each seed under the role's config; prints a line of JSON for each."""
    from nip_ray import run_experiment
    from nip_ray.config.load import load_config
    from nip_ray.evaluation.verbs.matches import play_match
    from nip_ray.settings.hironaka import SCRIPTED

    settings = (
        list(arguments.settings)
        if arguments.iterations is None
        else [f"iterations={arguments.iterations}", *arguments.settings]
    )
    for seed in arguments.seeds:
        config = load_config(CONFIGS / f"hironaka_{arguments.role}.yaml", [*settings, f"seed={seed}"])
        result = run_experiment(config, arguments.out / f"{config.name}-seed{seed}")
        own, games = str(result.run_dir), {}
        for other in SCRIPTED["agent" if arguments.role == "host" else "host"]:
            played = play_match(*((own, other) if arguments.role == "host" else (other, own)), arguments.rounds)
            games[other] = {key: played[key] for key in ("games", "standard_error")}
        print(json.dumps({"run_dir": str(result.run_dir), "seed": seed, "games": games}), flush=True)


if __name__ == "__main__":
    run(main)
