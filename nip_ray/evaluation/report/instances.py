"""The pictures of a run's instances, which stand in its folder once: `instances.json`."""

import json
from pathlib import Path
from typing import Any

INSTANCES = "instances.json"


def read_pictures(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Instance (as text) -> picture; {} where there are none, or the file is damaged: pictures are an ornament."""
    try:
        document = json.loads((run_dir / INSTANCES).read_bytes())
        found = document["pictures"] if document["version"] == 1 else {}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}
