"""An alias for one version: `run_batch` of trusted programs, by `nip_ray.sandbox.testing.run_calls`."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from nip_ray.errors import UserError
from nip_ray.sandbox.result import DEFAULTS
from nip_ray.sandbox.testing import CallResult, run_calls
from nip_ray.settings.sandbox import SandboxSettings


def run_batch(
    solutions: Sequence[str],
    function_name: str,
    calls: Sequence[list[Any]],
    per_call_s: float = 0.2,
    settings: SandboxSettings = DEFAULTS,
) -> list[list[CallResult]]:
    """`run_calls` of every program, (programs, calls). per_call_s: rounded up to whole seconds of processor time.

    Raises UserError for the level `isolated`.
    """
    warnings.warn("nip_ray.sandbox.batch: take run_calls of nip_ray.sandbox.testing", DeprecationWarning, stacklevel=2)
    if settings.isolation != "trusted":  # never weaker than requested
        raise UserError(
            f"isolation: {settings.isolation}, but run_batch runs trusted programs; take run_calls for others"
        )
    limited = replace(settings, cpu_s=max(1, ceil(per_call_s)))
    return [run_calls(solution, function_name, calls, limited) for solution in solutions]
