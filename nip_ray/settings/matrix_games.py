"""Small games with known solutions: which game, its payoffs, and the policies of the two players."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.heads import LrFactors
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option

_LARGEST = 1e30  # so that sums over rounds stay within float32


@dataclass(frozen=True)
class MatrixAgentSettings:
    """Policy and value of one player; they share no parameter."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: Literal["learned", "random"] = option("learned", "A learned policy, or a uniform random player.")
    hidden: int = option(
        0,
        "Width of the hidden layer of policy and value (0: tabular).",
        ge=0,
    )
    activation: Literal["tanh", "relu", "sigmoid"] = option("tanh", "Its activation.")
    initial_scale: float = option(0.0, "Standard deviation of the first logits (0: uniform policy).", ge=0)
    agent_lr_factor: LrFactors = option(LrFactors, "Learning-rate factors of the agent; 0 freezes.")


@dataclass(frozen=True)
class MatrixGameSettings:
    """Two players, one small game: the matrix games are played under the protocol matrix_game, poker under the protocol
    of its name.

    A matrix game of several rounds shows each player the last round's moves and nothing older: its policies have memory
    one.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["matrix_game"] = option("matrix_game", "The task.")
    game: Literal[
        "bimatrix",
        "matching_pennies",
        "rock_paper_scissors",
        "prisoners_dilemma",
        "tandem",
        "kuhn_poker",
        "leduc_poker",
    ] = option("prisoners_dilemma", "The game; bimatrix is the one of payoffs0 and payoffs1.")
    payoffs0: tuple[tuple[float, ...], ...] = option(
        (),
        "Pay of player0: a row for each of its moves, columns for player1's (bimatrix).",
    )
    payoffs1: tuple[tuple[float, ...], ...] = option((), "Pay of player1, in the layout of payoffs0 (bimatrix).")
    tandem_actions: int = option(21, "Evenly spaced actions of each player from -2 to 2 (tandem).", ge=2)
    agents: dict[str, MatrixAgentSettings] = option(
        dict, "Agent -> its policy; `_default` serves the agents not named."
    )

    def faults(self) -> Iterator[str]:
        """Payoffs that make no game, and settings of other games."""
        defaults = MatrixGameSettings()
        for key, game in _USED_BY.items():
            if self.game != game and getattr(self, key) != getattr(defaults, key):
                yield f"{key}: {self.game} has no use for it (only {game}), leave it out"
        if self.game == "bimatrix":
            yield from _payoff_faults(self)


@dataclass(frozen=True)
class LanguageMatrixGameSettings:
    """Two language models, one small game, by the same protocol as between networks."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["matrix_game"] = option("matrix_game", "The task.")
    game: Literal["kuhn_poker"] = option("kuhn_poker", "The game.")
    agents: dict[str, LanguageAgentSettings] = option(dict, "Settings by agent; `_default` for agents not named.")


def protocol_of(game: str) -> str:
    """The protocol that a game is played under."""
    return game if game in ("kuhn_poker", "leduc_poker") else "matrix_game"


_USED_BY = {"payoffs0": "bimatrix", "payoffs1": "bimatrix", "tandem_actions": "tandem"}


def _payoff_faults(settings: MatrixGameSettings) -> Iterator[str]:
    shapes = []
    for key in ("payoffs0", "payoffs1"):
        rows: tuple[tuple[float, ...], ...] = getattr(settings, key)
        widths = [len(row) for row in rows]
        if not rows or not all(widths):
            yield (
                f"{key}: got {_plain(rows)}, expected a row for each move of player0, with a number for each move of"
                " player1"
            )
        elif len(set(widths)) > 1:
            yield f"{key}: got rows of {', '.join(map(str, widths))} numbers, expected rows of one length"
        elif not all(abs(x) <= _LARGEST for row in rows for x in row):  # false for NaN too
            yield f"{key}: expected finite numbers of at most {_LARGEST:g}"
        else:
            shapes.append((len(rows), widths[0]))
    if len(set(shapes)) > 1:
        (rows0, columns0), (rows1, columns1) = shapes
        yield (
            f"payoffs1: got {rows1} x {columns1} numbers, but payoffs0 has {rows0} x {columns0}: expected the same"
            " shape"
        )


def _plain(rows: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    return [list(row) for row in rows]
