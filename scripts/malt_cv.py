#!/usr/bin/env python3
"""MALT (trees of replies, preference pairs) on code validation with the published setting, for one protocol and any
number of seeds.

OPENAI_API_KEY=... python scripts/malt_cv.py --protocol nip --set budget.usd=50
python scripts/malt_cv.py --provider local                  # a small model made here, in minutes
python scripts/malt_cv.py --provider dummy --iterations 2   # no model at all, to try the rest out
"""

from _common import cv_parser, run, train_cv


def main() -> None:
    """Train once for each seed and print the held-out metrics."""
    train_cv(cv_parser(__doc__).parse_args(), "malt")


if __name__ == "__main__":
    run(main)
