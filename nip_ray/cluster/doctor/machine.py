"""What the machine gives: processors, memory, shared memory, GPUs, and the sandbox.

Decisions that matter here:
- the judgement is a function of plain numbers (`judge_...`), apart from where they are read;
- the sandbox runs a program at each level: versions and settings do not tell whether it can;
- containers and schedulers limit by control groups what `free` and `nproc` do not show. Both versions are read, and every level up to
  the root: the tightest counts. In a container the path in /proc may be the host's and not be there; the root of what is mounted then
  is the container's own group. Files that a process read stay in its group's memory until needed, and do not count as used.
"""

import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nip_ray.cluster.doctor.finding import Finding, note, ok, problem, size
from nip_ray.cluster.doctor.installed import first_line, wanted
from nip_ray.errors import UserError
from nip_ray.sandbox.engines import engine_for
from nip_ray.sandbox.result import SandboxFailure
from nip_ray.sandbox.run import run_program
from nip_ray.settings.sandbox import SandboxSettings

LEAST_MEMORY = 300 << 20
"""Bytes; the smallest run takes about 240 MiB."""

EASY_MEMORY = 2 << 30
"""Bytes; enough for a local Ray with two workers."""

LOCAL_STORE = 256 << 20
"""Bytes of the object store of a Ray that a run starts (see `nip_ray.cluster.ray_session`)."""

RAY_SHARE = 0.3
"""Of the memory: what the object store takes of a Ray that `ray start` starts."""

SHARED = Path("/dev/shm")


def torch_and_gpus() -> list[Finding]:
    """Whether torch can be imported, with how many threads, and which GPUs it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:
        what = f"torch cannot be imported ({first_line(error)})"
        return [problem("torch", what, f"pip install --force-reinstall '{wanted('torch')}'")]
    with warnings.catch_warnings(record=True):  # CUDA tells of old drivers by a warning; `judge_gpus` tells it in a line
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
    gpus = judge_gpus(torch.version.cuda or torch.version.hip, count, driver, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return [ok("torch", f"torch {torch.__version__}"), gpus]


def judge_gpus(toolkit: str | None, count: int, driver: bool, visible: str | None) -> Finding:
    """toolkit: the version of CUDA that torch was built for (None: for none). count: the GPUs that it sees. driver: whether NVIDIA's is
    there. visible: $CUDA_VISIBLE_DEVICES."""
    if count:
        return ok("gpu", f"torch sees {count} GPU{'s' if count > 1 else ''}")
    if not driver:
        return ok("gpu", "no GPU: runs use the processors")
    if toolkit is None:
        what = "there is an NVIDIA driver, but this torch was built without CUDA"
        return note("gpu", what, "install torch for CUDA as https://pytorch.org/get-started/locally says")
    if visible is not None:
        return note("gpu", "CUDA_VISIBLE_DEVICES hides every GPU from torch", "unset CUDA_VISIBLE_DEVICES")
    what = f"there is an NVIDIA driver, but torch, built for CUDA {toolkit}, sees no GPU"
    return note("gpu", what, "see that `nvidia-smi` works, and that its driver is new enough for that CUDA")


def processors() -> list[Finding]:
    """How many processors a run may use, and how many threads it would take."""
    return judge_processors(len(os.sched_getaffinity(0)), limits().cpus, os.environ.get("OMP_NUM_THREADS", ""))


def judge_processors(usable: int, share: float | None, threads: str) -> list[Finding]:
    """usable: processors that this process may run on. share: what its control group leaves (None: all). threads: $OMP_NUM_THREADS."""
    if threads.isdigit() and int(threads) == 0:
        return [
            problem("processors", "OMP_NUM_THREADS is 0, with which torch does not work", "unset OMP_NUM_THREADS, or set it to 1 or more")
        ]
    asked = int(threads) if threads.isdigit() else min(8, usable)
    allowed = usable if share is None else min(share, usable)
    what = f"{usable} processors, {asked} threads of torch"
    if allowed < usable:
        what += f", but the control group allows no more than {allowed:.3g} processors' time"
    if asked > max(1, allowed):
        few = max(1, int(allowed))
        return [note("processors", what, f"export OMP_NUM_THREADS={few}, and set runtime.ray_num_cpus to {few} where Ray is used")]
    return [ok("processors", what)]


def memory() -> list[Finding]:
    """How much memory is free for a run."""
    import psutil

    group, machine = limits(), psutil.virtual_memory()
    return [judge_memory(min(machine.available, group.free if group.free is not None else machine.available))]


def judge_memory(free: int) -> Finding:
    """free: bytes that a run could take."""
    if free < LEAST_MEMORY:
        what = f"{size(free)} of memory are free; the smallest run takes {size(LEAST_MEMORY)}"
        return problem("memory", what, "end other programs, or give the container more")
    if free < EASY_MEMORY:
        what = f"{size(free)} of memory are free; remote workers want {size(EASY_MEMORY)} and more"
        return note("memory", what, "end other programs, give the container more, or leave play.num_env_runners at 0")
    return ok("memory", f"{size(free)} of memory are free")


def shared_memory() -> list[Finding]:
    """Whether Ray's object stores fit into /dev/shm."""
    import psutil

    try:
        free = shutil.disk_usage(SHARED).free
    except OSError:
        what = f"there is no {SHARED}, and Ray needs it"
        return [problem("shared memory", what, f"mount one: mount -t tmpfs -o size=2g tmpfs {SHARED}")]
    total, group = psutil.virtual_memory().total, limits().memory
    return [judge_shared_memory(free, total if group is None else min(total, group))]


def judge_shared_memory(free: int, memory: int) -> Finding:
    """free: bytes of /dev/shm. memory: bytes of all memory that Ray would see."""
    like = int(RAY_SHARE * memory)
    mend = f"give it more: `docker run --shm-size={max(1, round(like / 2**30))}g`, or `mount -o remount,size=...` {SHARED}"
    if free < LOCAL_STORE:
        what = f"{SHARED} has {size(free)} free; a local Ray wants {size(LOCAL_STORE)} and takes the disk instead, slowly"
        return note("shared memory", what, mend)
    if free < like:
        what = f"{SHARED} has {size(free)} free: enough for a run's own Ray; `ray start` would like {size(like)}"
        return note("shared memory", what, mend)
    return ok("shared memory", f"{SHARED} has {size(free)} free")


def sandbox() -> list[Finding]:
    """Whether programs run here, trusted and isolated, each tried out with a program."""
    try:
        result = run_program("print(6 * 7)", settings=SandboxSettings(wall_s=20.0))
    except SandboxFailure as error:
        return [note("sandbox", f"no program runs here, trusted ones neither: {error}", "docs/sandbox.md")]
    if result.stdout != "42\n":
        return [note("sandbox", f"a trial program ended as {result.status} {result.reason}", "docs/sandbox.md")]
    try:
        engine = engine_for(SandboxSettings(isolation="isolated"))
    except UserError as error:
        mend = "install bubblewrap (bwrap), Docker or Podman, if you run programs of models or strangers: docs/sandbox.md"
        return [note("sandbox", f"trusted programs run; {str(error).partition('. Install')[0]}", mend)]
    return [ok("sandbox", f"programs of models and strangers run isolated, by {os.path.basename(str(engine))}; trusted ones under limits")]


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
