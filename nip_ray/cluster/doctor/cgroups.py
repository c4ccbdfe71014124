"""What control groups leave to this process: containers and schedulers limit by them what `free` and `nproc` do not show.

Decisions that matter here:
- both versions are read, and every level up to the root: the tightest counts. In a container the path in /proc may be the host's and
  not be there; the root of what is mounted then is the container's own group;
- files that a process read stay in its group's memory until somebody needs the room. They do not count as used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """cpus: processors, or a share of them. memory: bytes in all. free: bytes of them that are not used. None: no limit."""

    cpus: float | None = None
    memory: int | None = None
    free: int | None = None


def limits(mount: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Limits:
    """The limits of the group that this process is in. Files that are missing limit nothing."""
    cpus: list[float] = []
    memory: list[tuple[int, int]] = []  # (limit, free)
    for folder in _folders(mount, membership):
        quota, period = _cpu(folder)
        if quota > 0 and period > 0:
            cpus.append(quota / period)
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < 1 << 60:  # version 1 writes a huge number for none
            memory.append((limit, max(0, limit - _used(folder))))
    return Limits(
        min(cpus, default=None), min((limit for limit, _ in memory), default=None), min((free for _, free in memory), default=None)
    )


def _folders(mount: Path, membership: Path) -> Iterator[Path]:
    """The group's folder of each controller that matters, and all above it."""
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = [name for name in controllers.split(",") if name in ("cpu", "memory")]
        if controllers and not names:
            continue
        roots = {mount / part for part in (controllers, *names)}
        for root in sorted(roots):
            folder = root / path.strip("/")
            yield folder
            while folder != root:
                folder = folder.parent
                yield folder


def _cpu(folder: Path) -> tuple[float, float]:
    """Microseconds in each period of so many; (0, 0) without a limit."""
    words = _text(folder / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        return int(words[0]), int(words[1])
    return _number(folder / "cpu.cfs_quota_us") or 0, _number(folder / "cpu.cfs_period_us") or 0


def _used(folder: Path) -> int:
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return used - int(value)
    return used


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" and -1 mean none


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
