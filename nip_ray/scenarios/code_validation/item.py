"""An instance of code validation."""

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True)
class CodeItem:
    """One question: does `solution` solve `question`?

    id: unique within a data set and its split. y: 1 for a correct solution, 0 for a wrong one. prover_stance: the
    verdict that a prover with a random stance argues for. difficulty: introductory, interview or competition. family:
    problems of one family are similar, and never in two splits; empty if unknown.
    """

    id: int
    question: str
    solution: str
    y: int
    prover_stance: int
    difficulty: str = "interview"
    family: str = ""


COLUMNS = ("id", "question", "solution", "y", "prover_stance")
"""Columns of every data file of ours; `difficulty` and `family` may follow."""


def stance_of(solution: str) -> int:
    """The parity of the SHA-256 of a solution's text: a stance that depends on nothing else (the published rule)."""
    return int(sha256(solution.encode()).hexdigest(), 16) & 1
