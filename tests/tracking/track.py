"""A process that tracks a run as a training process does: `python track.py < plan.json`.

The plan: settings (of `tracking`), run (the fields of RunInfo), then news: [["log", row], ["checkpoint", folder,
iteration], ["transcripts", file, iteration], ["sleep", seconds], ["kill"], ["finish", failed]].
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nip_ray.settings.tracking import TrackingSettings
from nip_ray.tracking import RunInfo, check_trackers, open_trackers


def main(plan: dict[str, Any]) -> None:
    settings = TypeAdapter(TrackingSettings).validate_python({"ray_metrics": False, **plan["settings"]})
    check_trackers(settings)
    tracker = open_trackers(settings, RunInfo(**{**plan["run"], "run_dir": Path(plan["run"]["run_dir"])}))
    for kind, *what in plan["news"]:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "sleep":
            time.sleep(what[0])
        elif kind in ("checkpoint", "transcripts"):
            getattr(tracker, kind)(Path(what[0]), what[1])
        else:
            getattr(tracker, kind)(what[0])


if __name__ == "__main__":
    main(json.load(sys.stdin))
