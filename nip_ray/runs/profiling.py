"""Torch's profiler around a few iterations of the main process.

Decisions that matter here:
- without profiling nothing is imported for it, and after profiling an iteration calls an empty function;
- one trace per process: wait, warm up, record, write, stop. A run that ends earlier writes what was recorded so far, if
  anything;
- remote workers are not included: Ray's dashboard profiles those (py-spy), and their share of an iteration is in
  `time/...`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nip_ray.settings.experiment import ProfilingSettings

FOLDER, TABLE = "profile", "table.txt"

_ROWS = 40


@contextmanager
def profiler(settings: ProfilingSettings, folder: Path, start: int) -> Iterator[Callable[[], None]]:
    """Yields ``step()``, to call at the end of every iteration.

    folder: the run folder; `profile/trace-NNNNNN.json.gz` and `profile/table.txt` are written there. start: number of
    finished iterations; the trace has the number of the first recorded one. Iterations are events `ProfilerStep#N` in
    the trace, with N counted from 0 in this process.
    """
    if not settings.enabled:
        yield _nothing
        return
    from torch.profiler import profile, schedule

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the config's documentation covers skewed metrics without a warm-up
        phases = schedule(wait=settings.wait, warmup=settings.warmup, active=settings.active, repeat=1)
    first = start + settings.wait + settings.warmup + 1
    left = settings.wait + settings.warmup + settings.active
    with profile(
        schedule=phases,
        on_trace_ready=lambda recorded: _write(recorded, settings, folder / FOLDER, first),
        profile_memory=settings.memory,
        record_shapes=False,
    ) as running:

        def step() -> None:
            nonlocal left
            if left:
                left -= 1
                running.step()

        yield step


def _nothing() -> None:
    """The step of a run without profiling."""


def _write(recorded: Any, settings: ProfilingSettings, folder: Path, first: int) -> None:
    import torch

    folder.mkdir(exist_ok=True)
    recorded.export_chrome_trace(str(folder / f"trace-{first:06d}.json.gz"))
    sort_by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    averages = recorded.key_averages()
    (folder / TABLE).write_text(averages.table(sort_by=sort_by, row_limit=_ROWS), encoding="utf-8")
