"""The command line: `nip-ray VERB`. Thin: every verb checks its arguments, calls one function of another room and prints what it returns.

Nothing heavy is imported before a verb needs it, so that `--help` and a refused config are instant.
Exit codes: 0 done, 1 training went wrong, 2 the user's mistake (one line that says what would be right), 130 interrupted.

Decisions that matter here:

- A file holds a group of verbs, which register with `common.app` as the file is imported. The order of the imports here is the order of the
  verbs in `--help`.
"""

import os

from nip_ray.cli.common import app

# isort: off
from nip_ray.cli import train, evaluate, text, folder, report, export, sweep, run, play, new, tools, data  # noqa: F401
# isort: on

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of `nip-ray`."""
    if os.path.expanduser("~") == "~":  # a container's user without a home: Ray cannot be imported without one
        os.environ["HOME"] = "/"
    app(prog_name="nip-ray")
