"""`nip-ray doctor`: would a local run work on this machine, and if not, what is to be mended?

Decisions that matter here:
- every check looks at the thing itself (a run is made where runs are kept, a program runs in the sandbox), and leaves nothing behind;
- "problem" is what a local run would fail on, or should not be started with; all else is a note. The verdict counts problems alone;
- a finding holds no value of a secret, and none of a variable that might hold one by mistake;
- nothing is printed, no Ray is started, nothing is asked of the network but a connection to the cluster that RAY_ADDRESS names.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from nip_ray.cluster.doctor import cluster, installed, keys, machine, places, ports
from nip_ray.cluster.doctor.finding import Finding, problem

__all__ = ["CHECKS", "Finding", "as_json", "examine", "verdict"]

VERSION = 1
"""Of the format that `as_json` gives."""

STORAGE = Path("runs")
"""Where runs are kept unless somebody says otherwise."""

CHECKS: dict[str, Callable[[], list[Finding]]] = {
    "python": installed.python,
    "packages": installed.packages,
    "ray": installed.ray_version,
    "extras": installed.extras,
    "torch": machine.torch_and_gpus,
    "processors": machine.processors,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "ray folder": places.ray_folder,
    "token": keys.token,
    "cluster": cluster.cluster,
    "ports": ports.ports,
    "keys": keys.keys,
    "sandbox": machine.sandbox,
}
"""Every check but that of the storage path, which is given; in the order in which they are told."""


def examine(storage_path: Path | None = None) -> list[Finding]:
    """What is right and wrong with this machine for a local run. storage_path: where runs are to be kept (None: ./runs)."""
    checks = {**CHECKS, "storage": partial(places.storage, STORAGE if storage_path is None else storage_path)}
    return [finding for name, check in checks.items() for finding in _findings(name, check)]


def verdict(findings: Sequence[Finding]) -> bool:
    """Whether a local run would work."""
    return all(finding.status != "problem" for finding in findings)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as plain values for JSON: format, version, ok (the verdict), findings."""
    return {"format": "nip_ray.doctor", "version": VERSION, "ok": verdict(findings), "findings": [asdict(one) for one in findings]}


def _findings(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """What a check says; where a library that it needs is not installed, that, since runs need it, too."""
    try:
        return check()
    except ModuleNotFoundError as error:
        return [problem(name, f"this cannot be looked at without {error.name}", f"pip install {error.name}")]
