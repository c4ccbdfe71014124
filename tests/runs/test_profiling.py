"""Torch's profiler around iterations: what is recorded, what is written, and that it costs nothing where it is off."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nip_ray.runs.profiling import profiler
from nip_ray.settings.experiment import ProfilingSettings


def iterations(settings: ProfilingSettings, folder: Path, number: int, start: int = 0) -> None:
    """Each multiplies two matrices whose size tells which iteration it was."""
    with profiler(settings, folder, start) as step:
        for iteration in range(start + 1, start + number + 1):
            with torch.profiler.record_function(f"iteration {iteration}"):
                torch.ones(8, 8) @ torch.ones(8, 8)
            step()


def recorded(folder: Path, first: int) -> set[str]:
    with gzip.open(folder / "profile" / f"trace-{first:06d}.json.gz", "rt") as file:
        return {event["name"] for event in json.load(file)["traceEvents"] if event["name"].startswith("iteration ")}


@pytest.mark.parametrize(
    ("phases", "start", "number", "expected"),
    [((1, 1, 2), 0, 7, {3, 4}), ((0, 1, 1), 40, 3, {42}), ((1, 0, 5), 0, 3, {2, 3})],
)
def test_only_the_active_iterations_are_in_the_trace(
    tmp_path: Path, phases: tuple[int, int, int], start: int, number: int, expected: set[int]
) -> None:
    """Named by the run's own iterations, where it was resumed too, and also where the run ends while recording."""
    wait, warmup, active = phases
    iterations(ProfilingSettings(enabled=True, wait=wait, warmup=warmup, active=active), tmp_path, number, start)
    assert recorded(tmp_path, min(expected)) == {f"iteration {iteration}" for iteration in expected}
    assert {path.name for path in (tmp_path / "profile").iterdir()} == {
        f"trace-{min(expected):06d}.json.gz",
        "table.txt",
    }


def test_a_run_that_does_not_profile_loads_no_profiler_and_writes_nothing(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from nip_ray.runs.profiling import profiler
from nip_ray.settings.experiment import ProfilingSettings
with profiler(ProfilingSettings(), Path({str(tmp_path)!r}), 0) as step:
    step()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert not any(tmp_path.iterdir())
