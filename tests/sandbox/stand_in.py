"""In the place of bwrap, docker and podman, by the name that it is called by: takes exactly the arguments that these
take, and runs the program without isolating it. An unknown option, a missing value or an unmade file ends it as it ends
the real one."""

import csv
import os
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

BWRAP = {
    0: {"--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"},
    1: {
        "--uid",
        "--gid",
        "--cap-drop",
        "--hostname",
        "--proc",
        "--dev",
        "--tmpfs",
        "--size",
        "--remount-ro",
        "--chdir",
    },
    2: {"--ro-bind"},
}
CONTAINER = {
    0: {"--rm", "--interactive", "--read-only", "--init"},
    1: {"--pull", "--name", "--network", "--cap-drop", "--security-opt", "--user", "--memory", "--memory-swap",
        "--pids-limit", "--ipc", "--ulimit", "--tmpfs", "--workdir", "--mount", "--env"},
}  # fmt: skip


def parsed(arguments, known):
    """Options as tuples in their order, and the rest."""
    found, rest = [], list(arguments)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        if name == "--":
            break
        count = next((count for count, names in known.items() if name in names), None)
        if count is None:
            raise SystemExit(f"Unknown option {name}")
        if len(rest) < count:
            raise SystemExit(f"{name} takes {count} arguments")
        found.append((name, *rest[:count]))
        del rest[:count]
    return found, rest


def bwrap(arguments):
    """(Files by where they are seen, folder, command, environment)."""
    options, command = parsed(arguments, BWRAP)
    places = {where: source for name, source, where in (option for option in options if len(option) == 3)}
    sized = [later for (name, *_), later in pairwise(options) if name == "--size"]
    assert all(name == "--tmpfs" for name, _ in sized), "a size is for the next folder in memory"
    folders = {value for name, *values in options for value in values if name == "--tmpfs"}
    (where,) = (values[0] for name, *values in options if name == "--chdir")
    assert where in folders, "the program's folder can be written"
    assert options.index(("--remount-ro", "/")) > max(i for i, option in enumerate(options) if option[0] == "--ro-bind")
    command[0] = places["/env"] + command[0].removeprefix("/env")
    return places, where, command, dict(os.environ)


def container(arguments):
    """The same, of `docker run`. `kill` is only noted."""
    options, (image, *command) = parsed(arguments, CONTAINER)
    assert image, "an image"
    rows = csv.reader(values[0] for name, *values in options if name == "--mount")
    mounts = [dict(part.partition("=")[::2] for part in row) for row in rows]
    assert all(mount["type"] == "bind" and "readonly" in mount for mount in mounts)
    (where,) = (values[0] for name, *values in options if name == "--workdir")
    env = dict(values[0].split("=", 1) for name, *values in options if name == "--env")
    return {mount["target"]: mount["source"] for mount in mounts}, where, [sys.executable, *command[1:]], env


def main():
    """Run the program in a folder of its own, and end as it ends, signals as a shell has them."""
    name = Path(sys.argv[0]).name
    with open(Path(sys.argv[0]).parent / "log", "a") as log:
        print(name, sys.argv[1], file=log)
    if name != "bwrap" and sys.argv[1] == "kill":
        return 0
    try:
        places, where, command, env = bwrap(sys.argv[1:]) if name == "bwrap" else container(sys.argv[2:])
    except (SystemExit, AssertionError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1 if name == "bwrap" else 125
    with tempfile.TemporaryDirectory() as folder:
        for seen, source in places.items():
            if not os.path.exists(source):
                print(f"{name}: Can't find source path {source}: No such file or directory", file=sys.stderr)
                return 1
            if os.path.dirname(seen) == where:
                os.symlink(source, os.path.join(folder, os.path.basename(seen)))
        code = subprocess.run(command, cwd=folder, env=env, check=False).returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    sys.exit(main())
