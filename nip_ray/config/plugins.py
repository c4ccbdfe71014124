"""Importing a user's own code: files or modules that register protocols."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from nip_ray.errors import UserError


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
            raise UserError(f"plugins: {plugin!r} cannot be imported: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> None:
    name = f"nip_ray_plugin_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise UserError(f"plugins: {path} does not exist")
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
