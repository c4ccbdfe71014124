"""The one exception that means "the user can mend this": its message names what was wrong, where, and what would be
right.

Beside it those that end a training, and the import of optional libraries. Messages may quote what a plugin or a library
has raised, so they are shown without the values of secret variables.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from types import ModuleType

from nip_ray.redaction import Redactor


class UserError(Exception):
    """A mistake in a config, a file or a command line, or several, an argument each. The command line prints them on
    one line and exits with code 2.
    """

    def __str__(self) -> str:
        return _without_secrets("; ".join(map(str, self.args)))


class TrainingError(Exception):
    """Training itself went wrong (a NaN, a lost learner). What was saved before stays valid; the command line exits
    with 1."""

    def __str__(self) -> str:
        return _without_secrets(super().__str__())


class LearnerLost(TrainingError):
    """A learner's process or node is gone. Training can continue from the newest checkpoint, with learners made
    again."""


def refuse_faults(what: str, *checks: Callable[[], Iterable[str]]) -> None:
    """Raise one UserError that lists what the first of these checks that finds anything finds wrong with `what`; later
    ones would only repeat it. Return quietly where none does.
    """
    for check in checks:
        if faults := list(dict.fromkeys(check())):
            raise UserError(f"{what}: {'; '.join(faults)}")


def refuse_missing(module: str, extra: str) -> None:
    """UserError that tells how to install the optional library `module` where it is missing; it is not imported."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, extra)


def require(module: str, extra: str) -> ModuleType:
    """The optional library `module`. Raises UserError that tells how to install it when it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the library is there and lacks one of its own
        raise _missing(module, extra) from None


def _missing(module: str, extra: str) -> UserError:
    return UserError(f"this needs the package {module}: pip install 'nip_ray[{extra}]'")


_without_secrets = Redactor()
