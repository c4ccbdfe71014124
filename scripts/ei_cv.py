#!/usr/bin/env python3
"""Expert iteration on code validation with the published setting, for one protocol and any number of seeds.

OPENAI_API_KEY=... python scripts/ei_cv.py --protocol nip --set budget.usd=50
python scripts/ei_cv.py --provider local                  # a small model made here, in minutes
python scripts/ei_cv.py --provider dummy --iterations 2   # no model at all, to try the rest out
"""

from _common import cv_parser, run, train_cv


def main() -> None:
    """Train once for each seed and print the held-out metrics."""
    train_cv(cv_parser(__doc__).parse_args(), "ei")


if __name__ == "__main__":
    run(main)
