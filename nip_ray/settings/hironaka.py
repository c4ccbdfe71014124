"""Hironaka's polyhedra game: its size, its rules, and what it pays."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option

MAX_DIMENSION = 10  # 1013 choices of the host
MAX_POINTS = 255  # points are counted in bytes


@dataclass(frozen=True)
class HironakaSettings:
    """One game. The host chooses coordinates, the agent one of them; the host wins when one point is left."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["hironaka"] = option("hironaka", "The task.")
    dimension: int = option(3, "Coordinates of a point.", ge=2, le=MAX_DIMENSION)
    max_points: int = option(20, "Points of a random start, and the most a game can have.", ge=2, le=MAX_POINTS)
    max_value: int = option(
        19, "Largest coordinate of a random start; they are whole numbers from 0 to this, both included.", ge=1, le=2**20
    )
    max_rounds: int = option(1000, "A game that is not over after so many rounds is cut off (truncated, nobody has won).", ge=1)
    polytope: Literal["minimal", "exact"] = option(
        "minimal",
        "Which points stay after a move: those that no other point is below in every coordinate, or the vertices alone (slow, scipy).",
    )
    reduce_start: bool = option(True, "Reduce the points before the first move, too.")
    reposition: bool = option(False, "Move the points to the coordinate planes after each move.")
    scale_state: bool = option(
        False,
        "Divide the points themselves by their largest coordinate, at the start and after each move, as the published code does: "
        "rounding then decides which points are equal.",
    )
    scale_observation: bool = option(True, "Players see points divided by the game's largest coordinate.")
    host_reward: Literal["win", "win_and_points"] = option(
        "win", "The host's pay in a round: 1 if it ends the game; with points also the number of points that went."
    )
    agent_reward: Literal["lose", "survive"] = option(
        "lose", "The agent's pay in a round: -1 if the game ends, else 0; or 1 if it goes on, else 0."
    )
    precision: Literal["single", "double"] = option("single", "Numbers of 24 or of 53 bits: whole numbers are exact up to that size.")
