#!/usr/bin/env python3
"""Make graph isomorphism pairs of the published composition; the same as `nip-ray data graph-isomorphism`.

python scripts/create_gi_dataset.py data/gi --pairs 10000 --test-pairs 1000 --seed 0
"""

import json
from pathlib import Path

from _common import plain_parser, run


def main() -> None:
    """Write the files and print a summary."""
    parser = plain_parser(__doc__)
    parser.add_argument("out", type=Path, help="a .npz file, or a folder")
    parser.add_argument("--pairs", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument(
        "--test-pairs",
        type=int,
        default=0,
        metavar="N",
        help="held-out pairs, none of them among the others (default: 0)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the same seed gives the same pairs (default: 0)"
    )
    parser.add_argument("--exclude", type=Path, metavar="FILE", help="a data set whose pairs must not occur")
    parser.add_argument("--force", action="store_true", help="replace data sets that are there")
    arguments = parser.parse_args()

    from nip_ray.scenarios.graph_isomorphism.create import write_dataset

    given = vars(arguments)
    summary = write_dataset(
        given["out"],
        given["pairs"],
        given["seed"],
        test_pairs=given["test_pairs"],
        exclude=given["exclude"],
        replace=given["force"],
    )
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    run(main)
