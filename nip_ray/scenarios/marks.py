"""Marks that change with a file, for the keys of caches."""

from pathlib import Path

Mark = tuple[str, int, int]


def marks(*paths: str | Path | None) -> tuple[Mark, ...]:
    """(path, bytes, time of last change in nanoseconds) of every file in `paths`, for folders of all files below them.

    Missing files have no mark: reading them raises.
    """
    found = []
    for path in (Path(path) for path in paths if path is not None):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                stat = file.stat()
                found.append((str(file.absolute()), stat.st_size, stat.st_mtime_ns))
    return tuple(found)
