#!/usr/bin/env python3
"""Make code validation items: built-in problems offline, or problems with tests from an APPS file, made wrong by a language model.

python scripts/create_cv_dataset.py data/train.jsonl --items 2000
OPENAI_API_KEY=... python scripts/create_cv_dataset.py buggy.jsonl --problems apps/train.jsonl --model gpt-4o-mini --budget-tokens 5000000

The second kind continues where it was stopped, and asks for no problem twice. Its programs run isolated (docs/sandbox.md).
"""

import asyncio
import json
from argparse import Namespace
from pathlib import Path

from _common import DIFFICULTIES, plain_parser, run


def main() -> None:
    """Write the file and print what is in it."""
    parser = plain_parser(__doc__)
    parser.add_argument("out", type=Path, help="a .jsonl file")
    parser.add_argument("--items", type=int, default=10_000, metavar="N", help="items, or the most problems to work on (default: 10000)")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="(default: train)")
    parser.add_argument("--difficulties", nargs="+", choices=DIFFICULTIES, default=DIFFICULTIES, help="(default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="(default: 0)")
    parser.add_argument("--problems", type=Path, metavar="FILE", help="APPS rows (.jsonl or .parquet)")
    parser.add_argument("--model", default="gpt-4o-mini", help="who makes them wrong (default: gpt-4o-mini)")
    parser.add_argument("--max-attempts", type=int, default=10, metavar="N", help="replies for each solution (default: 10)")
    parser.add_argument("--budget-tokens", type=int, metavar="N", help="stop before more tokens than these are used")
    parser.add_argument("--isolation", choices=("isolated", "trusted"), default="isolated", help="of programs (default: isolated)")
    arguments = parser.parse_args()

    from nip_ray.scenarios.code_validation.create import write_code_items

    if arguments.problems is not None:
        summary = asyncio.run(make_wrong(arguments))
    else:
        summary = write_code_items(arguments.out, arguments.items, arguments.seed, arguments.split, tuple(arguments.difficulties), None)
    print(json.dumps(summary, indent=2))


async def make_wrong(arguments: Namespace) -> dict[str, int]:
    """Let a model write wrong solutions. Returns how many problems have a row."""
    from buggy import LEVELS, BuggyOptions, make_buggy, problems_of, sandbox  # noqa: I001
    from nip_ray.scenarios.code_validation.files import read_rows
    from nip_ray.settings.providers import BudgetSettings, OpenAIProvider
    from nip_ray.text.costs.budget import Budget, Limiter
    from nip_ray.text.providers.openai import OpenAIChat

    file, options = arguments.problems, BuggyOptions(arguments.model, arguments.seed, max_attempts=arguments.max_attempts)
    problems = list(problems_of(read_rows(file), str(file), arguments.split, arguments.difficulties))[: arguments.items]
    client = OpenAIChat(OpenAIProvider(), Limiter(None, None), Budget(BudgetSettings(tokens=arguments.budget_tokens)))
    try:
        return await make_buggy(problems, client, arguments.out, options, sandbox(LEVELS[arguments.isolation]))
    finally:
        await client.close()


if __name__ == "__main__":
    run(main)
