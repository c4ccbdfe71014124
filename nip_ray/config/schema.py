"""The JSON schema of configs for editors.

`python -m nip_ray.config.schema` prints the schema, with `--markdown` it writes docs/configuration.md and the pages of
keys below docs/configuration.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.key_pages import write_pages
from nip_ray.config.keys import branches, keys_of, value_annotation
from nip_ray.config.load import RUNNER_KEYS, text_names
from nip_ray.settings.drivers import LearnerSettings, RunnerSettings
from nip_ray.settings.sweep import SweepSettings


def config_schema() -> dict[str, Any]:
    """The JSON schema of a config, with titles, descriptions, bounds and defaults; also for runner files and a sweep's
    own section (any of its other values may be a search space)."""
    kinds = (ExperimentConfig, TextExperimentConfig, RunnerSettings, SweepSettings)
    parts = TypeAdapter.json_schemas([(kind.__name__, "validation", TypeAdapter(kind)) for kind in kinds])[1]["$defs"]
    for key in [key for kind in (*kinds, LearnerSettings) for key in keys_of(kind).values()]:
        # a member of a union needs its `name`, unless it is the default one, as in the loader
        members = branches(value_annotation(key.annotation) or key.annotation)
        for member in members if len(members) > 1 else ():
            if member is not type(key.default):
                parts[member.__name__]["required"] = ["name"]
    for part in parts.values():
        if "description" in part:  # line breaks of docstrings do not matter here
            part["description"] = " ".join(part["description"].split())
    _without_titles_of_keys(parts)
    of_language_models = []
    for key, names in text_names().items():
        named = {"type": "object", "properties": {"name": {"enum": names}}, "required": ["name"]}
        of_language_models.append({"properties": {key: named}, "required": [key]})
    top = {key: {} for kind in (ExperimentConfig, TextExperimentConfig) for key in keys_of(kind)}
    sweep = {"type": "object", "properties": {"sweep": _part(SweepSettings), **top}, "additionalProperties": False}
    experiment = {
        "if": {"anyOf": of_language_models},
        "then": _part(TextExperimentConfig),
        "else": _part(ExperimentConfig),
    }
    runner = {"if": _has_any(RUNNER_KEYS), "then": _part(RunnerSettings), "else": experiment}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nip_ray experiment",
        "if": _has_any(["sweep"]),
        "then": sweep,
        "else": runner,
        "$defs": parts,
    }


def schema_text() -> str:
    """`config_schema` as JSON, one line for each of its parts."""
    schema = config_schema()
    parts = ",\n".join(f"{json.dumps(name)}: {json.dumps(part)}" for name, part in schema.pop("$defs").items())
    return f'{json.dumps(schema)[:-1]},\n"$defs": {{\n{parts}\n}}}}\n'


def _part(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _has_any(keys: Iterable[str]) -> dict[str, Any]:
    return {"anyOf": [{"required": [key]} for key in keys]}


def _without_titles_of_keys(node: Any) -> None:
    """Remove titles that only repeat the key, since they hide the description in editors."""
    if isinstance(node, dict):
        for child in node.get("properties", {}).values():
            child.pop("title", None)
        for child in node.values():
            _without_titles_of_keys(child)


def main() -> None:
    """Print the schema, or write the pages of keys with `--markdown`."""
    if "--markdown" in sys.argv[1:]:
        write_pages(Path("docs"))
    else:
        sys.stdout.write(schema_text())


if __name__ == "__main__":
    main()
