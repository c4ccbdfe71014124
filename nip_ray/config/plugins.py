"""Import user code: files or modules registering protocols, scenarios, algorithms and providers; see `nip_ray.plugins`.

Decisions that matter here:

- A protocol is needed when it is built; scenarios, algorithms and providers add keys to configs, and are needed before
  a config that names them can be checked. So a config's plugins are imported while it is read if, and only if, it has
  an unknown name.
- Code named in a run folder is imported only if it is known: named in this process by a config or on the command line,
  or by a run that this user has started on this machine (a list in $XDG_STATE_HOME/nip_ray), or if `TRUST` is set. A
  checksum in the folder would not help, since the author of a folder writes that too.
"""

import copyreg
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from traceback import walk_tb
from typing import Any

from nip_ray.config.keys import branches, keys_of, tag_of, value_annotation
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError

TRUST = "NIP_RAY_TRUST"
"""Set to 1 to import code named in any run folder; `nip-ray --trust VERB ...` does."""
_known: set[str] = set()
"""Code that this process may import for a run folder."""
_PREFIX = "nip_ray_plugin_"  # of the modules of plugin files; the rest is a hash of the path


def import_plugins(plugins: Iterable[str]) -> None:
    """Import each plugin once: a path to a .py file, or the dotted name of a module.

    Raises UserError naming the plugin that is missing or fails to import.
    """
    for plugin in plugins:
        know([plugin])
        try:
            if plugin.endswith(".py"):
                _import_file(Path(plugin).resolve())
            else:
                importlib.import_module(plugin)
        except UserError:
            raise
        except Exception as error:
            frames = walk_tb(error.__traceback__)
            lines = [line for frame, line in frames if is_plugin_file(frame.f_globals.get("__name__", ""))]
            where = f" (line {lines[-1]})" if lines else ""  # the last line of a plugin's file that was executed
            raise UserError(
                f"plugins: {plugin!r} cannot be imported{where}: {type(error).__name__}: {error}"
            ) from error


def code_in(data: Mapping[str, Any]) -> list[str]:
    """The code that a config, a sweep or a runner file, as plain data, names for import: plugins, also those of cases,
    spaces and changes, and the module of a Gymnasium environment."""
    environment = data.get("environment")
    id = environment.get("id") if isinstance(environment, Mapping) else None
    return [*_plugins_in(data)] + ([id.partition(":")[0]] if isinstance(id, str) and ":" in id else [])


def _plugins_in(data: Any, named: bool = False) -> Iterator[str]:
    """The plugins somewhere in plain data. named: all strings there are plugins."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _plugins_in(value, named or _first(str(key)) == "plugins")
    elif isinstance(data, list | tuple):
        for one in data:
            yield from _plugins_in(one, named)
    elif isinstance(data, str) and named:
        yield data
    elif isinstance(data, str) and _first((change := data.partition("="))[0]) == "plugins":
        with suppress(UserError):  # of invalid YAML, refused where it is applied
            yield from _plugins_in(parse_yaml(change[2], data), True)


def _first(key: str) -> str:
    return key.partition(".")[0].strip()


def know(code: Iterable[str], keep: bool = False) -> None:
    """Allow run folders to name this code from now on in this process. keep: also in later ones of this user, if a list
    can be stored."""
    added = set(map(_absolute, code))
    _known.update(added)
    if keep and (new := added - _kept()):
        with suppress(OSError):
            _list().parent.mkdir(parents=True, exist_ok=True)
            with _list().open("a", encoding="utf-8") as file:
                file.write("".join(f"{one}\n" for one in sorted(new) if "\n" not in one))


def refuse_unknown(data: Mapping[str, Any], name: str) -> None:
    """Raise UserError if a run folder, whose config is `data`, names unknown code. name: the file in messages."""
    unknown = [one for one in code_in(data) if _absolute(one) not in _known]
    if (
        unknown
        and os.environ.get(TRUST) != "1"
        and (unknown := [one for one in unknown if _absolute(one) not in _kept()])
    ):
        raise UserError(
            f"{name}: names code to import ({', '.join(unknown)}) that no run on this machine has used; if you trust"
            " the author of this folder, put --trust before the verb (nip-ray --trust ...)"
        )


def _absolute(plugin: str) -> str:
    return str(Path(plugin).resolve()) if plugin.endswith(".py") else plugin


def _list() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "nip_ray" / "plugins"


def _kept() -> set[str]:
    try:
        return set(_list().read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return set()


def import_needed(data: Any, kind: type) -> None:
    """Import the plugins of a config of class `kind`, as plain data, if it names an unknown member of a union.

    Data of any other shape are left to the check of configs. Raises UserError as `import_plugins` does.
    """
    if not isinstance(data, Mapping) or not isinstance(plugins := data.get("plugins"), list | tuple) or not plugins:
        return
    if any(name not in map(tag_of, members) for name, members in _named(data, kind)):
        import_plugins(plugin for plugin in plugins if isinstance(plugin, str))


def _named(data: Mapping[str, Any], kind: type) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """The names by which a config selects members of unions, also within mappings, each with the existing members."""
    for key in keys_of(kind).values():
        below, given = value_annotation(key.annotation), data.get(key.name)
        members = branches(key.annotation if below is None else below)
        values = [given] if below is None else list(given.values()) if isinstance(given, Mapping) else []
        if len(members) > 1:
            yield from ((value["name"], members) for value in values if isinstance(value, Mapping) and "name" in value)


def is_plugin_file(module: str) -> bool:
    """Return True if a module of this name came from a plugin file, so that no other process can import it by name."""
    return module.startswith(_PREFIX)


def send_by_value(*made: Any) -> None:
    """Pickle these classes and functions by value for Ray's actors if a plugin's file defines them, since actors have
    not read that file."""
    for module in {one.__module__ for one in made}:
        if is_plugin_file(module):
            import ray.cloudpickle

            ray.cloudpickle.register_pickle_by_value(sys.modules[module])
            copyreg.pickle(cached_property, _reduced)  # before Python 3.12 one has a lock, which cannot be pickled


def _reduced(made: "cached_property[Any]") -> tuple[Any, ...]:
    return _cached, (made.func, made.attrname)


def _cached(function: Any, name: str | None) -> "cached_property[Any]":
    made = cached_property(function)
    made.attrname = name  # known from the body of the class, which is not run again
    return made


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
