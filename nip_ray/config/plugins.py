"""Importing a user's own code: files or modules that register protocols, scenarios, algorithms and providers (see `nip_ray.plugins`).

Decisions that matter here:

- A protocol is needed when it is built; scenarios, algorithms and providers add keys to configs, and are needed before a config that names
  them can be checked. So a config's plugins are imported while it is read if, and only if, it names what is not known yet.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

from nip_ray.config.keys import branches, keys_of, tag_of, value_annotation
from nip_ray.errors import UserError

_PREFIX = "nip_ray_plugin_"  # of the modules of plugin files; the rest is a hash of the path


def import_plugins(plugins: Iterable[str]) -> None:
    """Import each plugin once: a path to a .py file, or the dotted name of a module.

    Raises UserError naming the plugin that is missing or fails to import.
    """
    for plugin in plugins:
        try:
            if plugin.endswith(".py"):
                _import_file(Path(plugin).resolve())
            else:
                importlib.import_module(plugin)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"plugins: {plugin!r} cannot be imported{_where(error)}: {type(error).__name__}: {error}") from error


def _where(error: Exception) -> str:
    """The last line of a plugin's file that was run (nothing where none was)."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if is_plugin_file(frame.f_globals.get("__name__", ""))]
    return f" (line {lines[-1]})" if lines else ""


def import_needed(data: Any, kind: type) -> None:
    """Import the plugins that a config of class `kind`, as plain data, asks for, where it names a member of a union that is not known yet.

    Data of any other shape are left to the check of configs. Raises UserError as `import_plugins` does.
    """
    if not isinstance(data, Mapping) or not isinstance(plugins := data.get("plugins"), list | tuple) or not plugins:
        return
    if any(name not in map(tag_of, members) for name, members in _named(data, kind)):
        import_plugins(plugin for plugin in plugins if isinstance(plugin, str))


def _named(data: Mapping[str, Any], kind: type) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """The names by which a config chooses members of unions, also within mappings, each with the members that there are."""
    for key in keys_of(kind).values():
        below, given = value_annotation(key.annotation), data.get(key.name)
        members = branches(key.annotation if below is None else below)
        values = [given] if below is None else list(given.values()) if isinstance(given, Mapping) else []
        if len(members) > 1:
            yield from ((value["name"], members) for value in values if isinstance(value, Mapping) and "name" in value)


def is_plugin_file(module: str) -> bool:
    """Whether a module of this name came from a plugin file, so that no other process can import it by name."""
    return module.startswith(_PREFIX)


def send_by_value(*made: Any) -> None:
    """Let Ray's actors have these classes and functions whole where a plugin's file defines them: no actor has read that file."""
    for module in {one.__module__ for one in made}:
        if is_plugin_file(module):
            import ray.cloudpickle

            ray.cloudpickle.register_pickle_by_value(sys.modules[module])


def _import_file(path: Path) -> None:
    name = f"{_PREFIX}{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise UserError(f"plugins: {path} does not exist (paths begin in the folder where the command is started)")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
