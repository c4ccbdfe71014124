#!/usr/bin/env python3
"""PPO on graph isomorphism with the published setting, for one protocol and any number of seeds, one run after the
other.

python scripts/ppo_gi.py --protocol nip --seeds 8144 820 4173 3992
python scripts/ppo_gi.py --protocol debate --provers random --iterations 100 --out runs/debate
python scripts/ppo_gi.py --turns 2 8   # the verifier learns for two iterations, then the prover for eight, and so on
"""

from _common import gi_parser, run, train_gi


def main() -> None:
    """Train once for each seed and print the held-out metrics."""
    train_gi(gi_parser(__doc__).parse_args())


if __name__ == "__main__":
    run(main)
