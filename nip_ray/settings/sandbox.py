"""Settings of running programs."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class SandboxSettings:
    """Limits on one program, and whether it is isolated from the machine."""

    __pydantic_config__ = FORBID_UNKNOWN

    isolation: Literal["trusted", "isolated"] = option(
        "trusted",
        "trusted: a process of this user under limits. isolated: the same in bwrap, Docker or Podman, without files of"
        " yours or network.",
    )
    wall_s: float = option(4.0, "Seconds after which it is killed.", gt=0)
    cpu_s: int = option(4, "Seconds of processor time.", ge=1)
    memory_mb: int = option(1024, "Address space in MB, of which stacks of threads are a part.", ge=64)
    processes: int = option(128, "Processes and threads that it may have.", ge=1)
    file_mb: int = option(16, "Size in MB of a file that it writes.", ge=0)
    output_kb: int = option(256, "Output in kB that is kept; the program is killed at more.", ge=1)
    container_image: str = option("python:3.11-slim", "Image of the container, where Docker or Podman isolates.")
