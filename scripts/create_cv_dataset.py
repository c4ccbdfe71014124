#!/usr/bin/env python3
"""Make code validation items: small problems offline, or problems with tests from an APPS file, made wrong by a
language model.

python scripts/create_cv_dataset.py data/train.jsonl --items 20000 --seed 1
python scripts/create_cv_dataset.py --built-in   # again what the package ships, which is made with seed 0
OPENAI_API_KEY=... python scripts/create_cv_dataset.py buggy.jsonl --problems apps/train.jsonl --budget-tokens 5000000

The second kind continues where it was stopped, and asks for no problem twice. Its programs run isolated
(docs/sandbox.md).
"""

import asyncio
import gzip
import json
import time
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _common import DIFFICULTIES, plain_parser, run


def main() -> None:
    """Write the file and print a summary."""
    parser = plain_parser(__doc__)
    parser.add_argument("out", type=Path, nargs="?", help="a .jsonl file")
    parser.add_argument("--built-in", action="store_true", help="write the built-in set into the package instead")
    parser.add_argument(
        "--items", type=int, default=10_000, metavar="N", help="items, or the most problems to work on (default: 10000)"
    )
    parser.add_argument("--split", choices=("train", "test"), default="train", help="(default: train)")
    parser.add_argument("--difficulties", nargs="+", choices=DIFFICULTIES, default=DIFFICULTIES, help="(default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="(default: 0)")
    parser.add_argument("--problems", type=Path, metavar="FILE", help="APPS rows (.jsonl or .parquet)")
    parser.add_argument("--model", default="gpt-4o-mini", help="who makes them wrong (default: gpt-4o-mini)")
    parser.add_argument(
        "--max-attempts", type=int, default=10, metavar="N", help="replies for each solution (default: 10)"
    )
    parser.add_argument("--budget-tokens", type=int, metavar="N", help="stop before more tokens than these are used")
    parser.add_argument(
        "--isolation", choices=("isolated", "trusted"), default="isolated", help="of programs (default: isolated)"
    )
    arguments = parser.parse_args()

    if arguments.built_in == (arguments.out is not None):
        parser.error("name a .jsonl file, or give --built-in")
    if arguments.built_in:
        summary = {"problems": write_built_in()}
    elif arguments.problems is not None:
        summary = asyncio.run(make_wrong(arguments))
    else:
        summary = make_items(arguments)
    print(json.dumps(summary, indent=2))


def make_items(arguments: Namespace) -> dict[str, Any]:
    """Make problems of our own families. Returns a summary."""
    from code_validation.make import make  # noqa: I001
    from nip_ray.scenarios.code_validation.create import check_place, write_made

    check_place(arguments.out, replace=False)
    start = time.perf_counter()
    made = make(arguments.items, arguments.split, arguments.difficulties, arguments.seed)
    return write_made(made, arguments.out, time.perf_counter() - start)


def write_built_in() -> int:
    """Make the package's file. Returns the number of its problems."""
    from code_validation.make import built_in_places, make_pairs  # noqa: I001
    from nip_ray.scenarios.code_validation.built_in import FILE

    lines = [json.dumps(asdict(pair), ensure_ascii=False) for pair in make_pairs(built_in_places(), 0)]
    FILE.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))
    return len(lines)


async def make_wrong(arguments: Namespace) -> dict[str, int]:
    """Let a model write wrong solutions. Returns the number of problems with a row."""
    from buggy import LEVELS, BuggyOptions, make_buggy, problems_of, sandbox  # noqa: I001
    from nip_ray.scenarios.code_validation.files import read_rows
    from nip_ray.settings.providers import BudgetSettings, OpenAIProvider
    from nip_ray.text.costs.budget import Budget, Limiter
    from nip_ray.text.providers.openai import OpenAIChat

    file, options = (
        arguments.problems,
        BuggyOptions(arguments.model, arguments.seed, max_attempts=arguments.max_attempts),
    )
    problems = list(problems_of(read_rows(file), str(file), arguments.split, arguments.difficulties))[: arguments.items]
    client = OpenAIChat(OpenAIProvider(), Limiter(None, None), Budget(BudgetSettings(tokens=arguments.budget_tokens)))
    try:
        return await make_buggy(problems, client, arguments.out, options, sandbox(LEVELS[arguments.isolation]))
    finally:
        await client.close()


if __name__ == "__main__":
    run(main)
