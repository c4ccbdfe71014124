#!/usr/bin/env python3
"""Make graph isomorphism pairs of the published composition; the same as `nip-ray data graph-isomorphism`.

python scripts/create_gi_dataset.py data/gi --pairs 10000 --test-pairs 1000 --seed 0
"""

import argparse
import json
from pathlib import Path

from nip_ray.scenarios.graph_isomorphism.create import write_dataset


def main() -> None:
    """Write the files and print what is in them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--test-pairs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exclude", type=Path)
    arguments = parser.parse_args()
    summary = write_dataset(arguments.out, arguments.pairs, arguments.seed, test_pairs=arguments.test_pairs, exclude=arguments.exclude)
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
