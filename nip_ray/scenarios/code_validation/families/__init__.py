"""The families of problems of the built-in data set, by topic, and which of them are held out.

Decisions that matter here:
- a family is in one split for ever: which one depends on its name alone, so that data sets made with different seeds, sizes or later
  versions of this package never have a family of the one split in the other.
"""

from nip_ray.scenarios.code_validation.families import (
    dynamic,
    graphs,
    grids,
    intervals,
    lists,
    numbers,
    parsing,
    sequences,
    simulation,
    strings,
    tables,
    words,
)
from nip_ray.scenarios.code_validation.families.base import Family, Problem
from nip_ray.seeding import stable_seed

__all__ = ["FAMILIES", "Family", "Problem", "split_of"]

FAMILIES: tuple[Family, ...] = tuple(
    family
    for topic in (strings, words, numbers, lists, sequences, tables, dynamic, grids, graphs, parsing, simulation, intervals)
    for family in topic.FAMILIES
)
"""All families."""
_SALT = 0


def split_of(family: str) -> str:
    """`test` for about a quarter of the families, `train` for the others."""
    return "test" if stable_seed(_SALT, "code_validation", "split", family) % 4 == 0 else "train"
