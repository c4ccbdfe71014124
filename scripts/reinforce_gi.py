#!/usr/bin/env python3
"""REINFORCE on graph isomorphism with the published setting: reward to go, no baseline, no entropy bonus.

python scripts/reinforce_gi.py --seeds 8144 820 4173 3992
python scripts/reinforce_gi.py --protocol adp --set algorithm.baseline=critic
"""

from _common import gi_parser, run, train_gi


def main() -> None:
    """Train once for each seed and print the held-out metrics."""
    train_gi(gi_parser(__doc__).parse_args(), "reinforce_gi")


if __name__ == "__main__":
    run(main)
