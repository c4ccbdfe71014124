"""Command line: `nip-ray VERB`. Every verb checks arguments, calls a function of another package and prints results.

Nothing heavy is imported before a verb needs it, so that `--help` and a refused config are instant. Exit codes: 0 done,
1 training went wrong, 2 the user's mistake (one line that says what would be right), 130 interrupted.

Decisions that matter here:

- A file holds a group of verbs, which register with `common.app` as the file is imported. The order of the imports here
  is the order of the verbs in `--help`.
"""

import os
import signal
import sys
import warnings
from types import FrameType, TracebackType

from nip_ray.cli import common
from nip_ray.cli.common import app
from nip_ray.errors import UserError
from nip_ray.progress import BestEffort, open_standard_files
from nip_ray.redaction import Redactor

# isort: off
from nip_ray.cli import train, sweep, run, evaluate, play, folder, report, text, new, data, model, export, tools  # noqa: F401

# isort: on

_PANELS = {
    "Train": "train resume sweep run",
    "Test": "evaluate cross-play judge match",
    "Look at runs": "list view report compare watch",
    "Make and pass on": "new data model export serve-model",
    "Help": "doctor schema",
}
for verb in (*app.registered_commands, *app.registered_groups):
    name = verb.name or getattr(verb.callback, "__name__", "")
    verb.rich_help_panel = next(panel for panel, verbs in _PANELS.items() if name in verbs.split())

_plain_warning = warnings.formatwarning

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of `nip-ray`."""
    if os.path.expanduser("~") == "~":  # a container's user without a home: Ray cannot be imported without one
        os.environ["HOME"] = "/"
    open_standard_files()
    sys.stdout, sys.stderr = BestEffort(sys.stdout, needed=True), BestEffort(sys.stderr)
    common.end_at_once = _end_at_next_signal
    sys.excepthook = _show
    warnings.formatwarning = _warning
    try:
        app(prog_name="nip-ray")
    except KeyboardInterrupt:  # outside of the verbs' handling: one that came just after another
        raise SystemExit(130) from None
    except UserError as error:  # stdout cannot be written, outside of verbs
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    finally:
        sys.stdout = BestEffort(sys.stdout)  # a full buffer is not an error at exit


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback, which may quote a key."""
    sys.stderr.write(Redactor().traceback(error))


def _warning(message: Warning | str, category: type[Warning], *where: object) -> str:
    """A warning as one line, with its place if it is meant for developers."""
    return f"warning: {message}\n" if category is UserWarning else _plain_warning(message, category, *where)  # pyright: ignore


def _end_at_next_signal(code: int) -> None:
    """End the process at further signals while an interrupted process ends, without a traceback."""

    def end(signum: int, frame: FrameType | None) -> None:
        os._exit(code)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
