"""The JSON schema of configs for editors, and the table of all keys in docs/configuration.md.

`python -m nip_ray.config.schema` prints the schema, with `--markdown` the page.
"""

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from pydantic import TypeAdapter

from nip_ray.config.aliases import ALIASES
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import Key, branches, keys_of, place, tag_of, value_annotation, walk
from nip_ray.config.load import RUNNER_KEYS, text_names
from nip_ray.settings.drivers import LearnerSettings, RunnerSettings
from nip_ray.settings.sweep import SweepSettings

_INTRODUCTION = """\
# Configuration

<!-- written by `python -m nip_ray.config.schema --markdown`; edit nip_ray/settings/ and write it again -->

A config is a YAML file of these keys. All of them have defaults, and `nip-ray train CONFIG --dry-run` prints a config
with every default filled in. `--set a.b=c` lays values over the file (`--set scenario.agents.prover.d_gnn=32`,
`--set scenario.data.graph_sizes=[7,8]`); c is YAML. An unknown key is refused with the nearest valid one, an illegal
combination with the reason, before anything is started.

Values keep the type they are written in: `"3"` is no integer and `true` no number. `1e-3` is a number, as `0.001` is.
An editor with YAML support completes and checks keys in files that begin with `# yaml-language-server: $schema=` and
the path of a JSON schema, as the files of `tune_configs/` do (`tune_configs/config.schema.json`).
`nip-ray schema --out FILE` writes one, with the keys of plugins too.

Settings of a learning rule may also be called as stock RLlib and earlier runner files call them; a warning then names
the key's own word:
{aliases}
"""


def config_schema() -> dict[str, Any]:
    """The JSON schema of a config, with titles, descriptions, bounds and defaults; of runner files too, and of a sweep
    its own section (any of its other values may be a search space)."""
    kinds = (ExperimentConfig, TextExperimentConfig, RunnerSettings, SweepSettings)
    parts = TypeAdapter.json_schemas([(kind.__name__, "validation", TypeAdapter(kind)) for kind in kinds])[1]["$defs"]
    for key in [key for kind in (*kinds, LearnerSettings) for key in keys_of(kind).values()]:
        # a member of a union needs its `name`, unless it is the default one: the same as the loader does
        members = branches(value_annotation(key.annotation) or key.annotation)
        for member in members if len(members) > 1 else ():
            if member is not type(key.default):
                parts[member.__name__]["required"] = ["name"]
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
    """`config_schema` as JSON, a line for each of its parts."""
    schema = config_schema()
    parts = ",\n".join(f"{json.dumps(name)}: {json.dumps(part)}" for name, part in schema.pop("$defs").items())
    return f'{json.dumps(schema)[:-1]},\n"$defs": {{\n{parts}\n}}}}\n'


def _part(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _has_any(keys: Iterable[str]) -> dict[str, Any]:
    return {"anyOf": [{"required": [key]} for key in keys]}


def configuration_markdown() -> str:
    """docs/configuration.md: every key with its type, bounds, default and description, a table for each group."""
    aliases = ", ".join(f"`{alias}` ({word})" for alias, word in ALIASES.items())
    parts = [_INTRODUCTION.replace("{aliases}", _wrapped(f"{aliases}."))]
    for title, kind, prefix in (*_sections(), *_text_sections()):
        doc = _wrapped(" ".join((kind.__doc__ or "").split()))
        rows = [_row(path, key) for path, key in _keys_in(kind, prefix) if not branches(key.annotation)]
        parts.append(
            "\n".join(
                [f"## {title}", "", doc, "", "| key | takes | default | what it is |", "|---|---|---|---|", *rows, ""]
            )
        )
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _sections(
    kind: type = ExperimentConfig, prefix: str = "", title: str = "The experiment"
) -> Iterator[tuple[str, type, str]]:
    """(title, settings class, prefix of its keys) of each table. What lies inside an agent's settings stands in the
    agent's table."""
    yield title, kind, prefix
    if "<" in prefix:
        return
    variant = title.partition(" ")[2]
    for key in keys_of(kind).values():
        below = value_annotation(key.annotation)
        members = branches(key.annotation if below is None else below)
        path = f"{prefix}{key.name}" if below is None else f"{prefix}{key.name}.{place(key.name)}"
        for member in members:
            shown = f"({tag_of(member)})" if len(members) > 1 else variant if prefix else ""
            yield from _sections(member, f"{path}.", f"`{path}` {shown}".strip())


def _text_sections() -> Iterator[tuple[str, type, str]]:
    """Those of an experiment with language models that are not in the tables before; what all its scenarios have,
    once."""
    known = {(kind, prefix) for _, kind, prefix in _sections()}
    found = list(_sections(TextExperimentConfig, title="The experiment with language models"))
    times = Counter((kind, prefix) for _, kind, prefix in found)
    for title, kind, prefix in found:
        if (kind, prefix) not in known:
            known.add((kind, prefix))
            yield title if times[kind, prefix] == 1 else title.partition(" (")[0], kind, prefix


def _keys_in(kind: type, prefix: str) -> Iterator[tuple[str, Key]]:
    if "<" in prefix:
        return walk(kind, prefix)
    return ((f"{prefix}{name}", key) for name, key in keys_of(kind).items())


def _row(path: str, key: Key) -> str:
    cells = (f"`{path}`", key.expects, f"`{_yaml(key.default)}`", key.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, dict):  # of settings that are told apart by name
        plain = {key: {"name": tag_of(type(member))} for key, member in plain.items()}
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=1000).removesuffix("\n...\n").strip()


def _without_titles_of_keys(node: Any) -> None:
    """Titles that only repeat the key hide the description in editors."""
    if isinstance(node, dict):
        for child in node.get("properties", {}).values():
            child.pop("title", None)
        for child in node.values():
            _without_titles_of_keys(child)


def main() -> None:
    """Print the schema, or the page with `--markdown`."""
    if "--markdown" in sys.argv[1:]:
        sys.stdout.write(configuration_markdown())
    else:
        sys.stdout.write(schema_text())


if __name__ == "__main__":
    main()
