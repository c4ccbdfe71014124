"""The families of problems of the built-in data set, and which of them are held out.

A family is an entry of `introductory.yaml`, `interview.yaml` or `competition.yaml` beside this file:

| key | what it is |
|---|---|
| `names` | names that the function may have |
| `draw` | statements that draw what varies, from `draw` (a `base.Draw`); optional |
| `question`, `solutions` | the statement and correct programs; `$name` and choices of words are explained in `base` |
| `call` | an expression that draws the arguments of a hidden test |
| `edges` | an expression: arguments that are always tested |
| `facts` | an expression: values of `$name` |

Decisions that matter here:
- a family is in one split for ever: which one depends on its name alone, so that data sets made with different seeds,
  sizes or later versions of this package never have a family of the one split in the other.
"""

from pathlib import Path
from typing import get_args

import yaml

from nip_ray.scenarios.code_validation.built_in import Split
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import Difficulty

from .base import Family, Problem, family_of

__all__ = ["FAMILIES", "Family", "Problem", "split_of"]


def _read(difficulty: Difficulty) -> list[Family]:
    table = yaml.safe_load(Path(__file__).with_name(f"{difficulty}.yaml").read_text(encoding="utf-8"))
    return [family_of(name, difficulty, entry) for name, entry in table.items()]


FAMILIES: tuple[Family, ...] = tuple(family for difficulty in get_args(Difficulty) for family in _read(difficulty))
"""All families."""
_SALT = 0


def split_of(family: str) -> Split:
    """`test` for about a quarter of the families, `train` for the others."""
    return "test" if stable_seed(_SALT, "code_validation", "split", family) % 4 == 0 else "train"
