"""How untrusted programs are run."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class SandboxSettings:
    """Limits on one program, and how strongly it is shut in."""

    __pydantic_config__ = FORBID_UNKNOWN

    isolation: Literal["auto", "process", "namespaces", "container"] = option(
        "auto",
        "A limited process, one in namespaces of its own without network, a container, or the strongest of the first two that works.",
    )
    wall_s: float = option(4.0, "Seconds after which it is killed.", gt=0)
    cpu_s: int = option(4, "Seconds of processor time.", ge=1)
    memory_mb: int = option(512, "Address space in MB.", ge=64)
    processes: int = option(16, "Processes and threads that it may have.", ge=1)
    file_mb: int = option(16, "Size in MB of a file that it writes.", ge=0)
    output_kb: int = option(256, "Output in kB that is kept; the program is killed at more.", ge=1)
    container_image: str = option("python:3.11-slim", "Image of the container (container).")
