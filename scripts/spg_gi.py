#!/usr/bin/env python3
"""The Stackelberg and opponent-shaping rules on graph isomorphism with the published setting.

python scripts/spg_gi.py --variant psos --seeds 8144 820 4173 3992
python scripts/spg_gi.py --variant spg --protocol debate --set algorithm.estimator=published
"""

from _common import gi_parser, run, train_gi

VARIANTS = ("spg", "pspg", "lola", "pola", "sos", "psos")


def main() -> None:
    """Train once for each seed and print the held-out metrics."""
    parser = gi_parser(__doc__)
    parser.add_argument(
        "--variant", choices=VARIANTS, default="psos", help="which rule of the family (default: psos, as published)"
    )
    arguments = parser.parse_args()
    train_gi(arguments, f"{arguments.variant}_gi")


if __name__ == "__main__":
    run(main)
