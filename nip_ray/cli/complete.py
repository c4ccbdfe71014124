"""Shell completion of config keys after `--set`, and of run folders. Typer completes verbs and options.

Nothing on the line is run or fetched: only the config file is read, and its plugins are not imported.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from nip_ray.errors import UserError


def run_folders(incomplete: str) -> list[str]:
    """Run folders whose path begins with `incomplete`, or else those of runs/; if none, the shell completes files."""
    from nip_ray.storage.listing import find_runs

    above = incomplete[: incomplete.rfind("/") + 1]
    here = [f"{above}{found.name}" for found in find_runs(Path(above), depth=1) if found != Path(above)]
    return here or [str(found) for found in find_runs(Path("runs"), depth=1)]


def folders(incomplete: str) -> list[str]:
    """Folders whose path begins with `incomplete`."""
    above = incomplete[: incomplete.rfind("/") + 1]
    try:
        return sorted(
            f"{above}{entry.name}"
            for entry in Path(above).iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError:
        return []


def config_keys(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """`KEY=` with its valid values, for the keys of the config (or run folder, or runner file) on the command line."""
    from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
    from nip_ray.config.keys import resumable
    from nip_ray.config.load import is_runner, text_names
    from nip_ray.protocols.tables import PROTOCOLS, table_of
    from nip_ray.settings.drivers import RunnerSettings
    from nip_ray.settings.protocol import ProtocolParams
    from nip_ray.settings.sweep import SweepSettings

    data = _on_the_line(ctx)
    named = {key: part["name"] for key, part in data.items() if isinstance(part, Mapping) and "name" in part}
    if ctx.info_name == "run" or is_runner(data):
        kinds: Sequence[type] = (RunnerSettings,)
    elif any(named.get(key) in names for key, names in text_names().items()):
        kinds = (TextExperimentConfig,)
    else:
        kinds = (ExperimentConfig,) if data else (ExperimentConfig, TextExperimentConfig)
    protocol = str(named.get("protocol", "nip"))
    agents = table_of(protocol, ProtocolParams()).agents if protocol in PROTOCOLS else ("prover", "verifier")
    found = {key: takes for kind in kinds for key, takes in _keys(kind, data, agents)}
    if ctx.info_name == "sweep":
        found |= _keys(SweepSettings, data.get("sweep"), agents, "sweep.")
    elif ctx.info_name == "evaluate":
        found = {key: takes for key, takes in found.items() if key.startswith("evaluation.")}
    elif ctx.info_name == "resume" and RunnerSettings not in kinds:
        allowed = {name for kind in kinds for name in resumable(kind)}
        found = {key: takes for key, takes in found.items() if {key, key.partition(".")[0]} & allowed}
    return [(f"{key}=", takes) for key, takes in sorted(found.items()) if key.startswith(incomplete)]


def _on_the_line(ctx: typer.Context) -> Mapping[str, Any]:
    """The config of the first file among the arguments, with the preceding `--set`; {} if it cannot be read."""
    from nip_ray.config.load import read_mapping

    given = [*filter(None, map(ctx.params.get, ("config", "run_dir", "runner"))), *ctx.args]
    if not given or not Path(given[0]).exists():
        return {}
    try:
        return read_mapping(given[0], [text for text in ctx.params.get("settings") or () if "=" in text])[0]
    except UserError:
        return {}


def _keys(kind: type, data: Any, agents: Sequence[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys below a settings class with valid values; for a union whose member `data` names, only that member's."""
    from nip_ray.config.keys import branches, keys_of, place, tag_of, value_annotation

    for name, key in keys_of(kind).items():
        path = f"{prefix}{name}"
        own = data.get(name) if isinstance(data, Mapping) else None
        given = own if isinstance(own, Mapping) else {}
        below = value_annotation(key.annotation)
        members = branches(key.annotation if below is None else below)
        if not (members and isinstance(key.default, (*members, dict, tuple))):
            yield path, key.expects
        if below is None:
            for member in [
                member for member in members if len(members) > 1 and tag_of(member) == given.get("name")
            ] or members:
                yield from _keys(member, given, agents, f"{path}.")
        else:
            for part in {**dict.fromkeys(agents if place(name) == "<agent>" else ()), **given}:
                for member in members:
                    yield from _keys(member, given.get(part), agents, f"{path}.{part}.")
