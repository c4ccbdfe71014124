"""Matches of Hironaka's game between named players and players from run folders.

A player is written as a name ("zeillinger"), a run folder (its player at the newest checkpoint) or RUN_DIR@N (at
iteration N).

Decisions that matter here:
- a network observes the points as in its training (`scale_observation`), which is not part of the game;
- players of a run play the game they were trained on, with the starts and length of the published validator, for
  comparable counts. Two scripted players play the published game;
- the published validator divides the points in every round, and its rounding separates equal points. Networks trained
  on whole numbers have not seen such positions, and some repeat one move forever. `scale_state` selects either form.
"""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_stored_config
from nip_ray.errors import UserError
from nip_ray.settings.hironaka import SCRIPTED, HironakaSettings
from nip_ray.storage.folder import CONFIG, RunFolder

if TYPE_CHECKING:
    from nip_ray.scenarios.hironaka.players import Player, Role

# two players must agree on these
_GAME = ("dimension", "starts", "max_points", "max_value", "polytope", "reposition", "scale_state")


def play_match(
    host: str, agent: str, rounds: int = 10_000, seed: int = 0, search_starts: int = 0, scale_state: bool | None = None
) -> dict[str, Any]:
    """The record of a match (`MatchResult.record`), with host, agent, seed and scale_state.

    scale_state: divide the points in every round, as the published validator does (None: as the runs were trained; True
    for two scripted players). search_starts: also search this many random starts for the longest game that any agent
    can force on this host ("search_starts", "search_depth", "search_complete"), always on whole numbers. Raises
    UserError for an unknown player, a run with several players that take turns, two trained on different games, and a
    search with a host that draws its moves.
    """
    from nip_ray.scenarios.hironaka.game import Game
    from nip_ray.scenarios.hironaka.match import PUBLISHED, match
    from nip_ray.scenarios.hironaka.tree import search_depth
    from nip_ray.seeding import generator

    games = [game for role, text in (("host", host), ("agent", agent)) if (game := _game_of(role, text)) is not None]
    if any(game != games[0] for game in games):
        raise UserError(
            f"{host} and {agent}: trained on different games ({games[0]} and {games[-1]}), name two of the same game"
        )
    settings = replace(PUBLISHED, **(games[0] if games else {}))
    settings = settings if scale_state is None else replace(settings, scale_state=scale_state)
    players = player_of("host", host, settings.dimension), player_of("agent", agent, settings.dimension)
    searched: dict[str, Any] = {}
    if search_starts:
        game = Game(replace(settings, reduce_start=True, scale_state=False))
        points = game.random_points(search_starts, generator(seed, "search"))
        found = search_depth(game, players[0], points, limit=settings.max_rounds + 1)
        searched = {"search_starts": search_starts, "search_depth": found.rounds, "search_complete": found.complete}
    told = {"host": host, "agent": agent, "seed": seed, "scale_state": settings.scale_state}
    return {**told, **match(*players, rounds, seed, settings).record(), **searched}


def player_of(role: "Role", text: str, dimension: int) -> "Player":
    """A player by name, or from a run's checkpoint. Raises UserError if there is none."""
    from nip_ray.scenarios.hironaka.players import scripted

    if (name := text.replace("-", "_")) in SCRIPTED[role]:
        return scripted(role, name, dimension)
    from nip_ray.config.changes import run_fingerprint
    from nip_ray.config.plugins import import_plugins
    from nip_ray.scenarios.hironaka.scenario import Hironaka
    from nip_ray.scenarios.registry import played_scenario
    from nip_ray.storage.checkpoint import load_checkpoint

    path, iteration = _split(text)
    config = _config_of(role, path)
    import_plugins(config.plugins)
    found = load_checkpoint(path / "checkpoints", iteration, run_fingerprint(config))
    scenario = played_scenario(config.protocol, config.scenario, config.algorithm)
    assert isinstance(scenario, Hironaka)
    network = scenario.build_agent(role, 0)
    network.load_state_dict(found.tensors["training"]["modules"][role])
    return scenario.player(role, network.eval())


def _game_of(role: str, text: str) -> dict[str, Any] | None:
    """The game that a run was trained on; None for a player without weights."""
    if text.replace("-", "_") in SCRIPTED[role]:
        return None
    path, _ = _split(text)
    if not path.is_dir():
        names = [name.replace("_", "-") for name in SCRIPTED[role]]
        near = get_close_matches(text, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}, or the folder of a run"
        raise UserError(f"{role}: unknown player {text!r}, and no folder of that name; {hint}")
    scenario = _config_of(role, path).scenario
    return {name: getattr(scenario, name) for name in _GAME}


def _config_of(role: str, path: Path) -> ExperimentConfig:
    with RunFolder.open(path) as folder:
        config = load_stored_config(folder.path / CONFIG)
    if not isinstance(config.scenario, HironakaSettings):
        raise UserError(f"{role}: {path}: a run of {config.scenario.name}, expected one of hironaka")
    return config


def _split(text: str) -> tuple[Path, int | None]:
    """Folder and iteration of RUN_DIR or RUN_DIR@N."""
    folder, at, iteration = text.rpartition("@")
    return (Path(folder), int(iteration)) if at and iteration.isdecimal() else (Path(text), None)
