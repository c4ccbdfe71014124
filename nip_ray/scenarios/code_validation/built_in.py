"""The built-in data set: the problems of `built_in.jsonl.gz`, each with a right program and a wrong one.

Decisions that matter here:
- items come in pairs: a right and a wrong program for the same question. So question, family and difficulty are
  independent of the label, and the labels are balanced exactly (an odd number of items has one right program more);
- families of the two splits are disjoint, and those of a split alternate, as long as they have problems;
- the set is fixed: a seed draws from it, and no program is run. `scripts/create_cv_dataset.py` made it and can make
  others.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.item import CodeItem, stance_of
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import Difficulty

Split = Literal["train", "test"]
FILE = Path(__file__).with_name("built_in.jsonl.gz")


@dataclass(frozen=True)
class Pair:
    """A problem with two programs. operator: the kind of change that made `wrong` of a right program."""

    split: Split
    difficulty: Difficulty
    family: str
    question: str
    right: str
    wrong: str
    operator: str


class Made(NamedTuple):
    """An item, and the mutation operator that made its program wrong (empty for a right one)."""

    item: CodeItem
    operator: str


@cache
def built_in_pairs() -> tuple[Pair, ...]:
    """All problems of the file, in its order."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return tuple(Pair(**json.loads(line)) for line in lines)


def draw_items(num: int, split: Split, difficulties: Sequence[Difficulty], seed: int, key: str) -> list[Made]:
    """`num` items with ids 0 to num - 1, half of them right, in random order.

    key: the requesting setting, for the UserError if the file has fewer.
    """
    rng = Random(stable_seed(seed, "code_validation", "order", split))
    found = [pair for pair in built_in_pairs() if pair.split == split and pair.difficulty in difficulties]
    if num > 2 * len(found):
        there = f"there are {2 * len(found)} built-in {split} items of {', '.join(difficulties)}"
        raise UserError(
            f"{key}: got {num}, but {there}; lower it, or make more with scripts/create_cv_dataset.py of the repository"
        )
    rng.shuffle(found)
    numbers: dict[str, count[int]] = defaultdict(count)
    turns = sorted(found, key=lambda pair: next(numbers[pair.family]))
    return made_items(turns[: (num + 1) // 2], num, rng)


def made_items(pairs: Sequence[Pair], num: int, rng: Random) -> list[Made]:
    """The first `num` programs of the pairs, in an order drawn by `rng`; the right one of a pair comes first."""
    programs = [
        (pair, text, operator) for pair in pairs for text, operator in ((pair.right, ""), (pair.wrong, pair.operator))
    ][:num]
    rng.shuffle(programs)
    return [
        Made(
            CodeItem(i, pair.question, text, int(not operator), stance_of(text), pair.difficulty, pair.family), operator
        )
        for i, (pair, text, operator) in enumerate(programs)
    ]
