"""Early stopping of a run, by its rows of metrics, so that a resumed run decides identically."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from nip_ray.errors import TrainingError
from nip_ray.settings.experiment import StopSettings


def stopped_at(rows: Iterable[Mapping[str, Any]], settings: StopSettings | None) -> int | None:
    """The iteration after which a run with these rows ends early, None if it continues.

    A row without an evaluation decides nothing. Raises TrainingError if an evaluation does not log the metric.
    """
    if settings is None:
        return None
    sign = 1 if settings.mode == "max" else -1
    best, waited = -float("inf"), 0
    for row in rows:
        found = [key for key in row if key.startswith(("eval/", "eval_sampled/"))]
        if not found:
            continue
        value = row.get(settings.metric)
        if settings.metric not in row:
            near = difflib.get_close_matches(settings.metric, found, n=1)
            instead = f"did you mean {near[0]}?" if near else f"they log {', '.join(sorted(found)[:8])} ..."
            raise TrainingError(f"stop.metric: evaluations do not log {settings.metric}, {instead}")
        score = -float("inf") if value is None else sign * float(value)
        if settings.until is not None and score >= sign * settings.until:
            return int(row["iteration"])
        best, waited = (score, 0) if score > best else (best, waited + 1)
        if settings.patience is not None and waited >= settings.patience:
            return int(row["iteration"])
    return None
