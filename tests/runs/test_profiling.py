"""Torch's profiler around iterations: what is recorded, what is written, and that it costs nothing where it is off."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def events(folder: Path, first: int) -> list[dict[str, Any]]:
    with gzip.open(folder / "profile" / f"trace-{first:06d}.json.gz", "rt") as file:
        return json.load(file)["traceEvents"]


def recorded(folder: Path, first: int) -> set[str]:
    return {event["name"] for event in events(folder, first) if event["name"].startswith("iteration ")}


def test_only_the_active_iterations_are_in_the_trace(tmp_path: Path) -> None:
    iterations(ProfilingSettings(enabled=True, wait=1, warmup=1, active=2), tmp_path, 7)
    assert recorded(tmp_path, 3) == {"iteration 3", "iteration 4"}
    assert {path.name for path in (tmp_path / "profile").iterdir()} == {"trace-000003.json.gz", "table.txt"}


def test_a_resumed_run_names_its_trace_by_its_own_iterations(tmp_path: Path) -> None:
    iterations(ProfilingSettings(enabled=True, wait=0, warmup=1, active=1), tmp_path, 3, start=40)
    assert recorded(tmp_path, 42) == {"iteration 42"}


def test_a_run_that_ends_while_recording_writes_what_it_has(tmp_path: Path) -> None:
    iterations(ProfilingSettings(enabled=True, wait=1, warmup=0, active=5), tmp_path, 3)
    assert recorded(tmp_path, 2) == {"iteration 2", "iteration 3"}


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
