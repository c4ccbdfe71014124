"""Hironaka's polyhedra game: its size, its rules, what it pays, and who plays it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.heads import LrFactors
from nip_ray.settings.options import FORBID_UNKNOWN, option

MAX_DIMENSION = 10  # 1013 choices of the host
MAX_POINTS = 255  # points are counted in bytes

ROLES = ("host", "agent")
SCRIPTED: dict[str, tuple[str, ...]] = {
    "host": ("random", "random_all", "all_coordinates", "zeillinger", "weak_spivakovsky"),
    "agent": ("random", "choose_first", "choose_last"),
}
"""Role -> the players without weights, by name."""
THOM = {4: 4, 7: 19}
"""Dimension -> number of points of the start that belongs to a Thom polynomial; see
`nip_ray.scenarios.hironaka.thom`."""
Script = Literal[
    "random", "random_all", "all_coordinates", "zeillinger", "weak_spivakovsky", "choose_first", "choose_last"
]


@dataclass(frozen=True)
class HironakaLayer:
    """Some layers of a network, all alike."""

    __pydantic_config__ = FORBID_UNKNOWN

    width: int = option(256, "Their width.", ge=1)
    kind: Literal["dense", "residual"] = option(
        "dense", "A linear map, or a residual block of two (three if the width changes)."
    )
    norm: Literal["none", "batch", "layer"] = option("none", "Norm after each linear map: none, batch or layer.")
    repeat: int = option(1, "Number of repetitions.", ge=1)


@dataclass(frozen=True)
class HironakaAgentSettings:
    """One of the two players: a network, or a player without weights."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: Literal["learned", "scripted"] = option("learned", "A network, or players without weights.")
    player: Script = option("random", "Scripted player.")
    others: tuple[Script, ...] = option((), "Further scripted players; each game draws one of all (scripted).")
    view: Literal["scaled", "relative"] = option(
        "relative",
        "Network input: the points, or relative places with logarithms.",
    )
    encoder: Literal["flat", "set"] = option(
        "set",
        "Points in their order (flat), or a small network per point, pooled (set).",
    )
    point_width: int = option(64, "Width of the network for each point (set).", ge=1)
    width: int = option(128, "Width of the layers behind it.", ge=1)
    depth: int = option(2, "Number of these layers, each with a rectifier (0: linear heads).", ge=0)
    layers: tuple[HironakaLayer, ...] = option((), "Layers in place of width and depth, each with a rectifier.")
    shared_body: bool = option(True, "Policy and value have encoder and layers in common.")
    agent_lr_factor: LrFactors = option(LrFactors, "Learning-rate factors of the agent; 0 freezes.")


@dataclass(frozen=True)
class HironakaSettings:
    """One game. The host chooses coordinates, the agent one of them; the host wins when one point is left.

    A round of the game takes two rounds of its protocol.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["hironaka"] = option("hironaka", "The task.")
    dimension: int = option(3, "Coordinates of a point.", ge=2, le=MAX_DIMENSION)
    starts: Literal["random", "thom", "thom_homogeneous"] = option(
        "random",
        "Random points, or the published points of a Thom polynomial (dimension 4 or 7).",
    )
    max_points: int = option(20, "Points of a random start, and the most a game can have.", ge=2, le=MAX_POINTS)
    max_value: int = option(
        19,
        "Largest coordinate of a random start; coordinates are integers from 0.",
        ge=1,
        le=2**20,
    )
    max_rounds: int = option(100, "Rounds after which a game is truncated, without a winner.", ge=1)
    polytope: Literal["minimal", "exact"] = option(
        "minimal",
        "Points kept after a move: undominated ones, or vertices only (slow, scipy).",
    )
    reduce_start: bool = option(True, "Reduce the points before the first move, too.")
    reposition: bool = option(False, "Move the points to the coordinate planes after each move.")
    scale_state: bool = option(
        False,
        "Divide points by their largest coordinate after each move, as the published code does.",
    )
    scale_observation: bool = option(True, "Players see points divided by the game's largest coordinate.")
    host_reward: Literal["win", "win_and_points"] = option(
        "win", "Host's pay in a round: 1 at the end, also the number of removed points."
    )
    agent_reward: Literal["lose", "lose_and_points", "survive"] = option(
        "lose",
        "Agent's pay in a round: -1 at the end, also minus removed points, or 1 before it.",
    )
    precision: Literal["single", "double"] = option("single", "Bits of exact integers: 24 (float32) or 53 (float64).")
    num_train: int = option(65_536, "Random starts to train on.", ge=1)
    num_test: int = option(512, "Random starts that are held out.", ge=1)
    rho_games: int = option(200, "Games of each pair of players for games per round (0: none).", ge=0)
    agents: dict[str, HironakaAgentSettings] = option(dict, "Host and agent; `_default` serves the one not named.")

    def faults(self) -> Iterator[str]:
        """Faults of the starts and the players."""
        if self.starts != "random":
            if THOM.get(self.dimension, self.max_points + 1) > self.max_points:
                expected = " or ".join(f"dimension {d} with max_points of at least {n}" for d, n in THOM.items())
                yield f"starts: {self.starts} needs {expected}, got dimension {self.dimension} with {self.max_points}"
            if self.max_value != HironakaSettings().max_value:
                yield f"max_value: starts {self.starts} are no random numbers and have no use for it, leave it out"
        elif self.reduce_start and not _can_begin(self):
            yield (
                f"max_points: got {self.max_points}, with max_value {self.max_value} almost every random start is over"
                " at once, take fewer points or a larger max_value"
            )
        defaults = HironakaAgentSettings()
        for source, agent in self.agents.items():
            unused = (
                ("view", "encoder", "point_width", "width", "depth", "layers", "shared_body")
                if agent.kind == "scripted"
                else ("player", "others")
            )
            for key in unused:
                if getattr(agent, key) != getattr(defaults, key):
                    yield f"agents.{source}.{key}: a {agent.kind} player has no use for it, leave it out"
            if agent.kind == "learned" and agent.encoder == "flat" and agent.point_width != defaults.point_width:
                yield f"agents.{source}.point_width: counts with encoder set only, leave it out"
            for key in ("width", "depth"):
                if agent.layers and getattr(agent, key) != getattr(defaults, key):
                    yield (
                        f"agents.{source}.{key}: layers stands there too and takes its place, leave one of the two out"
                    )
        for role in ROLES:
            source = role if role in self.agents else "_default"
            agent = self.agents.get(source, defaults)
            for key, name in [("player", agent.player), *(("others", name) for name in agent.others)]:
                if agent.kind == "scripted" and name not in SCRIPTED[role]:
                    yield (
                        f"agents.{source}.{key}: got {name}, which does not play the {role}, expected one of"
                        f" {', '.join(SCRIPTED[role])}"
                    )


def _can_begin(settings: HironakaSettings, draws: int = 1000) -> bool:
    """Return True if one of some random starts has no point that is below all others, so that its game is not over at
    once."""
    draw, values = random.Random(0), range(settings.max_value + 1)
    for _ in range(draws):
        columns = [draw.choices(values, k=settings.max_points) for _ in range(settings.dimension)]
        if tuple(min(column) for column in columns) not in zip(*columns, strict=True):
            return True
    return False
