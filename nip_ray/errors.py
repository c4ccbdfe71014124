"""Exceptions: `UserError`, for faults that the user can fix, whose message says what was wrong, where, and what would
be right; errors that end a training; and the import of optional libraries.

Messages may quote a plugin's or a library's errors, so they are shown without the values of secret variables.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from types import ModuleType

from nip_ray.redaction import Redactor


class UserError(Exception):
    """One or more mistakes in a config, a file or a command line, one per argument. The command line prints them on one
    line and exits with code 2."""

    def __str__(self) -> str:
        return _without_secrets("; ".join(map(str, self.args)))


class TrainingError(Exception):
    """Training itself failed (a NaN, a lost learner). Earlier saves stay valid; the command line exits with 1."""

    def __str__(self) -> str:
        return _without_secrets(super().__str__())


class LearnerLost(TrainingError):
    """A learner's process or node is gone. Training can continue from the newest checkpoint, with new learners."""


def refuse_faults(what: str, *checks: Callable[[], Iterable[str]]) -> None:
    """Raise one UserError with the faults of `what` by the first of these checks that finds any; later ones would only
    repeat them."""
    for check in checks:
        if faults := list(dict.fromkeys(check())):
            raise UserError(f"{what}: {'; '.join(faults)}")


def refuse_missing(module: str, extra: str) -> None:
    """Raise UserError with install instructions if the optional library `module` is missing; it is not imported."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, extra)


def require(module: str, extra: str) -> ModuleType:
    """The optional library `module`. Raises UserError with install instructions if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the library is installed but lacks one of its own
        raise _missing(module, extra) from None


def _missing(module: str, extra: str) -> UserError:
    return UserError(f"this needs the package {module}: pip install 'nip_ray[{extra}]'")


_without_secrets = Redactor()
