"""`nip-ray doctor`: check that this machine can run nip_ray.

Decisions that matter here:
- a check yields findings: a "problem" would make a local run fail, or should be fixed before one; a "note" is other
  information. The verdict counts only problems;
- a check tries the real operation (making a run in the storage path, running a program in the sandbox), and cleans up.
  It does not start Ray, and its only network access is a connection to the cluster in RAY_ADDRESS;
- a finding holds no value of a secret, and none of a variable that might hold one by mistake, such as RAY_ADDRESS or
  RAY_AUTH_MODE;
- ranges of versions come from nip_ray's own metadata, and the extras of requirements are checked too: `ray[default]`
  without aiohttp lacks the job server;
- containers and schedulers set limits by control groups that `free` and `nproc` do not show. Both versions are read, at
  every level: the tightest counts. Files that a process read stay in its group's memory until needed, and do not count
  as used.
"""

import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.cluster import doctor_access
from nip_ray.cluster.doctor_access import Found, Status, made, ray_temp
from nip_ray.errors import UserError
from nip_ray.sandbox.engines import engine_for
from nip_ray.sandbox.result import SandboxFailure
from nip_ray.sandbox.run import run_program
from nip_ray.settings.sandbox import SandboxSettings
from nip_ray.storage.folder import RunFolder

if TYPE_CHECKING:
    from packaging.requirements import Requirement

VERSION = 1  # of the format of `as_json`
PROJECT, STORAGE, SHARED = "nip_ray", Path("runs"), Path("/dev/shm")
LEAST_MEMORY, EASY_MEMORY = 300 << 20, 2 << 30  # bytes: of the smallest run, and of a local Ray with two workers
LEAST_DISK, EASY_DISK = 64 << 20, 1 << 30
LOCAL_STORE = 256 << 20  # bytes of the object store of a run's own Ray
RAY_SHARE = 0.3  # of all memory, for the object store of `ray start`
SOCKET_PATH, LONGEST_SOCKET = 107, "sockets/dash_MetricsHead"  # bytes that Linux allows; Ray does not start without it


@dataclass(frozen=True)
class Finding:
    """One fact about this machine. name: of the check. mend: how to fix it, "" if there is nothing to fix."""

    name: str
    status: Status
    what: str
    mend: str = ""


def examine(storage_path: Path | None = None) -> list[Finding]:
    """All findings about this machine for a local run. storage_path: the folder of runs (None: ./runs)."""
    checks = {**CHECKS, "storage": partial(storage, STORAGE if storage_path is None else storage_path)}
    return [finding for name, check in checks.items() for finding in findings(name, check)]


def findings(name: str, check: Callable[[], Iterator[Found]]) -> list[Finding]:
    """The findings of a check; a missing library that it needs is also a problem for runs."""
    try:
        return [Finding(name, found[0], *found[1:]) for found in check()]
    except ModuleNotFoundError as error:
        return [Finding(name, "problem", f"this cannot be looked at without {error.name}", f"pip install {error.name}")]


def verdict(findings: Sequence[Finding]) -> bool:
    """True if a local run would work."""
    return all(finding.status != "problem" for finding in findings)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as plain values for JSON: format, version, ok (the verdict), findings."""
    return {
        "format": "nip_ray.doctor",
        "version": VERSION,
        "ok": verdict(findings),
        "findings": [asdict(one) for one in findings],
    }


def size(bytes_: float) -> str:
    """A number of bytes for readers: "256 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if bytes_ < 1024:
            return f"{bytes_:.0f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.1f} GiB"


def python() -> Iterator[Found]:
    """Check that this Python is in the supported range."""
    from packaging.specifiers import SpecifierSet

    here, needed = platform.python_version(), ""
    with suppress(metadata.PackageNotFoundError):
        needed = metadata.metadata(PROJECT)["Requires-Python"] or ""
    if not SpecifierSet(needed).contains(here, prereleases=True):
        yield "problem", f"Python {here} is outside {needed}", f"make a virtual environment with a Python {needed}"
    else:
        yield "ok", f"Python {here} (wanted: {needed})" if needed else f"Python {here}"


def packages() -> Iterator[Found]:
    """Check that every required distribution is installed in its range."""
    try:
        needed = _needs(PROJECT)
    except metadata.PackageNotFoundError:
        what = "nip_ray is not installed as a distribution, so that what it needs cannot be looked up"
        yield "note", what, "run `pip install .` in its folder"
        return
    lacking = [found for one in needed for found in _lacks(one)]
    for what, wanted in lacking:
        yield "problem", what, f"pip install '{wanted}'"
    if not lacking:
        yield "ok", f"all {len(needed)} required distributions are there and in range"


def extras() -> Iterator[Found]:
    """Report which extras of the project are complete, and what the others lack. `dev` is for developers of nip_ray."""
    try:
        names = [name for name in metadata.metadata(PROJECT).get_all("Provides-Extra") or [] if name != "dev"]
    except metadata.PackageNotFoundError:
        return  # reported by `packages`
    missing = {name: [what for one in _needs(PROJECT, name) for what, _ in _lacks(one)] for name in names}
    yield "ok", f"complete: {', '.join(name for name, lacks in missing.items() if not lacks) or 'none'}"
    for name, lacks in missing.items():
        if lacks:
            what = f"the extra {name} is not complete: {'; '.join(lacks)}"
            yield "note", what, f"if you need it: pip install 'nip_ray[{name}]'"


def ray_version() -> Iterator[Found]:
    """Check that Ray is there and can be imported."""
    version = _version("ray")
    if version is None:
        yield "problem", "Ray is not installed, and training needs it", "pip install 'nip_ray[ray]'"
    elif fault := _fault_of_import("ray"):
        yield "problem", f"Ray {version} cannot be imported ({fault})", _again("ray")
    else:
        yield "ok", f"Ray {version}"


def torch_version() -> Iterator[Found]:
    """Check that torch can be imported, and report its GPUs."""
    if fault := _fault_of_import("torch"):
        yield "problem", f"torch cannot be imported ({fault})", _again("torch")
        return
    import torch

    yield "ok", f"torch {torch.__version__}"
    with warnings.catch_warnings(record=True):  # CUDA reports old drivers by a warning
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    driver = (
        Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists()
    )
    toolkit = torch.version.cuda or torch.version.hip
    if count or not driver:
        yield "ok", f"torch sees {count} GPU{'s' if count > 1 else ''}" if count else "no GPU: runs use the processors"
    elif toolkit is None:
        mend = "install torch for CUDA as https://pytorch.org/get-started/locally says"
        yield "note", "there is an NVIDIA driver, but this torch was built without CUDA", mend
    elif "CUDA_VISIBLE_DEVICES" in os.environ:
        yield "note", "CUDA_VISIBLE_DEVICES hides every GPU from torch", "unset CUDA_VISIBLE_DEVICES"
    else:
        mend = "see that `nvidia-smi` works, and that its driver is new enough for that CUDA"
        yield "note", f"there is an NVIDIA driver, but torch, built for CUDA {toolkit}, sees no GPU", mend


def _fault_of_import(module: str) -> str:
    try:
        import_module(module)
    except (ImportError, OSError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def _again(distribution: str) -> str:
    """The command that reinstalls it, with the extras and the range that the project needs."""
    wanted = distribution
    with suppress(metadata.PackageNotFoundError):
        needs = [*_needs(PROJECT), *_needs(PROJECT, "ray")]
        wanted = next((_plain(one) for one in needs if one.name == distribution), distribution)
    return f"pip install --force-reinstall '{wanted}'"


def _needs(distribution: str, extra: str = "") -> "list[Requirement]":
    """The requirements of a distribution; with an extra's name, its additional ones. Raises PackageNotFoundError."""
    from packaging.requirements import Requirement

    found = [(one, one.marker) for one in map(Requirement, metadata.requires(distribution) or [])]
    if not extra:
        return [one for one, marker in found if marker is None or marker.evaluate({"extra": ""})]
    return [
        one
        for one, marker in found
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
    ]


def _lacks(requirement: "Requirement", seen: frozenset[tuple[str, str]] = frozenset()) -> Iterator[tuple[str, str]]:
    """(missing or out of range, argument for pip): the requirement, or those of its extras. seen: earlier extras."""
    version = _version(requirement.name)
    if version is None:
        yield f"{requirement.name} is not installed (wanted: {_plain(requirement)})", _plain(requirement)
    elif not requirement.specifier.contains(version, prereleases=True):
        yield f"{requirement.name} {version} is outside {requirement.specifier}", _plain(requirement)
    else:
        for extra in sorted(requirement.extras):
            if (requirement.name, extra) not in seen:
                seen |= {(requirement.name, extra)}
                for nested in _needs(requirement.name, extra):
                    yield from _lacks(nested, seen)


def _version(distribution: str) -> str | None:
    """The installed version; None if there is none, or if it is damaged."""
    try:
        return metadata.version(distribution) or None
    except (metadata.PackageNotFoundError, KeyError):
        return None


def _plain(requirement: "Requirement") -> str:
    """A requirement without its marker, in pip's form."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def processors() -> Iterator[Found]:
    """Report the processors a run may use, and its number of threads."""
    usable, (share, _, _), threads = len(os.sched_getaffinity(0)), limits(), os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) == 0:
        mend = "unset OMP_NUM_THREADS, or set it to 1 or more"
        yield "problem", "OMP_NUM_THREADS is 0, with which torch does not work", mend
        return
    asked = int(threads) if threads.isdigit() else min(8, usable)
    allowed = usable if share is None else min(share, usable)
    what, few = f"{usable} processors, {asked} threads of torch", max(1, int(allowed))
    if allowed < usable:
        what += f", but the control group allows no more than {allowed:.3g} processors' time"
    if asked > max(1, allowed):
        yield "note", what, f"export OMP_NUM_THREADS={few}, and set runtime.ray_num_cpus to {few} where Ray is used"
    else:
        yield "ok", what


def memory() -> Iterator[Found]:
    """Report the free memory for a run."""
    import psutil

    available, (_, _, group) = psutil.virtual_memory().available, limits()
    free = available if group is None else min(available, group)
    what = f"{size(free)} of memory are free"
    if free < LEAST_MEMORY:
        what = f"{what}; the smallest run takes {size(LEAST_MEMORY)}"
        yield "problem", what, "end other programs, or give the container more"
    elif free < EASY_MEMORY:
        mend = "end other programs, give the container more, or leave play.num_env_runners at 0"
        yield "note", f"{what}; remote workers want {size(EASY_MEMORY)} and more", mend
    else:
        yield "ok", what


def shared_memory() -> Iterator[Found]:
    """Check that Ray's object stores fit into /dev/shm."""
    import psutil

    try:
        free = shutil.disk_usage(SHARED).free
    except OSError:
        mend = f"mount one: mount -t tmpfs -o size=2g tmpfs {SHARED}"
        yield "problem", f"there is no {SHARED}, and Ray needs it", mend
        return
    total, (_, group, _) = psutil.virtual_memory().total, limits()
    like = int(RAY_SHARE * (total if group is None else min(total, group)))
    larger = f"`docker run --shm-size={max(1, round(like / 2**30))}g`, or `mount -o remount,size=...` {SHARED}"
    what = f"{SHARED} has {size(free)} free"
    if free < LOCAL_STORE:
        what += f"; a local Ray wants {size(LOCAL_STORE)} and takes the disk instead, slowly"
        yield "note", what, f"give it more: {larger}"
    elif free < like:
        what += f": enough for a run's own Ray; `ray start` would like {size(like)}"
        yield "note", what, f"give it more: {larger}"
    else:
        yield "ok", what


def limits(
    mount: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> tuple[float | None, int | None, int | None]:
    """Limits of this process's control group: processors (or a fraction), bytes, unused bytes. None: no limit."""

    def text(path: Path) -> str:
        with suppress(OSError):
            return path.read_text(encoding="ascii", errors="replace").strip()
        return ""

    def number(*paths: Path) -> int:  # the first that has one: "max" and -1 mean none
        return next((int(found) for found in map(text, paths) if found.isdigit()), 0)

    cpus, sizes, free = list[float](), list[int](), list[int]()
    for line in text(membership).splitlines():
        controllers, path = line.split(":", 2)[1:]
        for root in {mount / part for part in (controllers, *controllers.split(","))}:
            group = root / path.strip("/")
            for folder in (group, *group.parents)[: len(group.parts) - len(root.parts) + 1]:
                old = " ".join(text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
                quota, _, period = (text(folder / "cpu.max") or old).partition(" ")
                if quota.isdigit() and period.isdigit() and int(quota) and int(period):
                    cpus.append(int(quota) / int(period))
                limit = number(folder / "memory.max", folder / "memory.limit_in_bytes")
                if 0 < limit < 1 << 60:  # version 1 writes a huge number for none
                    kept = dict(row.split()[:2] for row in text(folder / "memory.stat").splitlines())
                    # version 1 has both, and only the total counts the groups below, as its usage does
                    files = int(kept.get("total_inactive_file", kept.get("inactive_file", 0)))
                    sizes.append(limit)
                    free.append(
                        max(0, limit + files - number(folder / "memory.current", folder / "memory.usage_in_bytes"))
                    )
    return min(cpus, default=None), min(sizes, default=None), min(free, default=None)


def sandbox() -> Iterator[Found]:
    """Check that programs run here, trusted and isolated, by running one each."""
    try:
        result = run_program("print(6 * 7)", settings=SandboxSettings(wall_s=20.0))
        if result.stdout != "42\n":
            yield "note", f"a trial program ended as {result.status} {result.reason}", "docs/sandbox.md"
            return
        engine = os.path.basename(str(engine_for(SandboxSettings(isolation="isolated"))))
    except SandboxFailure as error:
        yield "note", f"no program runs here, trusted ones neither: {error}", "docs/sandbox.md"
    except UserError as error:
        mend = (
            "install bubblewrap (bwrap), Docker or Podman, if you run programs of models or strangers: docs/sandbox.md"
        )
        yield "note", f"trusted programs run; {str(error).partition('. Install')[0]}", mend
    else:
        yield "ok", f"programs of models and strangers run isolated, by {engine}; trusted ones under limits"


def storage(path: Path) -> Iterator[Found]:
    """Check that runs can be stored below `path`: made, written, synced, renamed, locked; and report the free space."""
    choose = "choose another folder by --run-dir"
    try:
        with ExitStack() as stack:
            stack.enter_context(made(path))
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix=".doctor-", dir=path))
            told = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            with RunFolder.create(Path(scratch) / "run", "name: doctor\n") as run:
                run.append_metrics({"iteration": 0})
                run.sync()
            free = shutil.disk_usage(path).free
    except (OSError, UserError) as error:
        reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
        yield "problem", f"{path}: runs cannot be kept here ({reason})", choose
        return
    if free < LEAST_DISK:
        yield "problem", f"{path}: the disk is full ({size(free)} are free)", f"free some of it, or {choose}"
    elif told:
        what = f"{path}: this file system has no locks, so that nothing keeps two processes from writing one run"
        yield "note", what, f"see to it that one process writes a run at a time, or {choose}"
    elif free < EASY_DISK:
        what = f"{path} can be written, but only {size(free)} are free"
        yield "note", what, "free some of the disk, or keep fewer checkpoints"
    else:
        yield "ok", f"{path} can be written and locked, {size(free)} are free"


def ray_folder() -> Iterator[Found]:
    """Check that Ray can create its sessions, and sockets with their short paths, in its folder."""
    folder = ray_temp()
    try:
        with made(folder), tempfile.TemporaryFile(dir=folder):
            usage = shutil.disk_usage(folder)
    except OSError as error:
        what = f"Ray cannot write {folder} ({error.strerror or type(error).__name__})"
        yield "problem", what, "export RAY_TMPDIR to a short path of a folder that you can write"
        return
    if (length := socket_path(folder, os.getpid())) > SOCKET_PATH:
        what = f"paths of Ray's sockets below {folder} would have {length} bytes, and {SOCKET_PATH} is the most"
        yield "problem", what, "export RAY_TMPDIR to a shorter path, such as /tmp"
    elif usage.used > 0.95 * (usage.used + usage.free):
        what = f"the disk of {folder} is more than 95 % full: Ray then stops spilling objects to it"
        yield "note", what, "free some of it, or export RAY_TMPDIR to another disk"
    else:
        yield "ok", f"{folder} can be written, and its path is short enough for sockets"


def socket_path(folder: Path, pid: int) -> int:
    """Bytes of the longest path of Ray's sockets below `folder`, in a session of the process `pid`."""
    return len(os.fsencode(folder / f"session_2026-01-01_00-00-00_000000_{pid}" / LONGEST_SOCKET))


CHECKS: dict[str, Callable[[], Iterator[Found]]] = {
    "python": python,
    "packages": packages,
    "ray": ray_version,
    "extras": extras,
    "torch": torch_version,
    "processors": processors,
    "memory": memory,
    "shared memory": shared_memory,
    "ray folder": ray_folder,
    "token": doctor_access.token,
    "cluster": doctor_access.cluster,
    "ports": doctor_access.ports,
    "keys": doctor_access.keys,
    "sandbox": sandbox,
}
"""All checks except that of the storage path, in display order."""
