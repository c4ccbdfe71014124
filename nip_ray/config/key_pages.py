"""Pages of every key of a config, generated from the settings: docs/configuration.md and one page per group of keys.

Decisions that matter here:
- a page is the first part of a key and, if the settings differ by `name`, that name; short groups share a page;
- headings do not depend on the page, so a link only needs the page.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml

from nip_ray.config.aliases import ALIASES
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import Key, branches, keys_of, place, tag_of, value_annotation, walk

INDEX, FOLDER = "configuration.md", "configuration"
_WRITTEN = "<!-- written by `python -m nip_ray.config.schema --markdown` from nip_ray/settings/ -->"

_INTRODUCTION = """\
# Configuration

Use these pages to look up a key: in brackets what it takes and its default, then its meaning. A config is a YAML
file of keys:

```yaml
name: first
protocol: {name: nip}
scenario: {name: graph_isomorphism}
algorithm: {name: ppo, lr: 0.001}
iterations: 200
```

`--set a.b=c` changes one value (`--set scenario.data.graph_sizes=[7,8]`; c is YAML), and `nip-ray train CONFIG
--dry-run` prints a config with every default. An unknown key is refused with the nearest valid one, an illegal
combination with the reason, before anything starts.

Values keep the type they are written in: `"3"` is not an integer. A key whose default is `null` also
takes `null`, which its description calls "none". Editors with YAML support complete and check keys by a schema
(`tune_configs/config.schema.json`); `nip-ray schema --out FILE` writes one with the keys of plugins.

{table}

## Other names

Learning rules also take these names of stock RLlib and earlier runner files, with a warning:
{aliases}

{written}
"""

_SIGNS = {">=": "≥", "<=": "≤", "<": "<", ">": ">"}
_SHARED = {
    "": "experiment",
    "base_run": "experiment",
    "budget": "experiment",
    "talk": "experiment",
    "schedules": "learning",
    "initial_weights": "learning",
    "search": "learning",
    "pretraining": "learning",
    "opponents": "learning",
    "play": "running",
    "learners": "running",
    "checkpoint": "running",
    "stop": "running",
    "fault_tolerance": "running",
    "profiling": "running",
    "runtime": "running",
}
"""First part of a key -> the page that it shares with others."""

_ABOUT = {
    "experiment": ("The experiment", "name an experiment, choose its length and seed, or start from another run"),
    "learning": ("Schedules, opponents, search, pretraining", "change who learns when, from what, against whom"),
    "running": ("Play, learners, checkpoints, runtime", "choose how much is played, on what, and what is kept"),
    "protocol": ("Protocol", "choose the rules: who speaks when, who sees what, who is paid"),
    "tracking": ("Tracking", "send metrics to a tracker"),
    "evaluation": ("Evaluation", "choose when and how the verifier is examined"),
    "providers": ("Providers", "choose where language models run"),
    "algorithm-fine_tuning": ("Fine-tuning", "set how expert_iteration and malt fine-tune language models"),
    "algorithm-shared": ("Keys that algorithms share", "look up a key that several algorithms have"),
    "scenario-shared": ("Keys that scenarios share", "look up a key that several scenarios have"),
    "scenario-agents": ("Agents that are language models", "choose the model, prompt and role of a language agent"),
}
"""Page -> its title and purpose."""

_EXAMPLES = """
[experiment]
name: first
seed: 1
iterations: 200
[learning]
schedules:
  verifier: {kind: contiguous, period: 2, start: 0, stop: 1}
search: {share: 0.5}
[running]
play: {num_copies: 128}
checkpoint: {interval: 20, keep: 5}
runtime: {num_threads: 1}
[protocol]
protocol: {name: debate, max_rounds: 4}
[tracking]
tracking:
  tensorboard: {enabled: true}
[evaluation]
evaluation: {interval: 20, max_instances: 500}
[providers]
scenario:
  name: code_validation
  agents:
    _default: {provider: mine}
providers:
  mine: {name: local}
[algorithm-dqn]
protocol: {name: hironaka}
scenario: {name: hironaka}
algorithm: {name: dqn}
evaluation: {sampled: false}
[algorithm-policy_gradient]
protocol: {name: kuhn_poker}
scenario:
  name: matrix_game
  game: kuhn_poker
  agents:
    _default: {max_invalid_replies: 1}
algorithm: {name: policy_gradient}
[algorithm-shared]
algorithm: {name: ppo, lr: 0.001, gamma: 0.95}
[scenario-shared]
scenario:
  name: graph_isomorphism
  agents: {verifier: {kind: learned}}
[scenario-hironaka]
protocol: {name: hironaka}
scenario: {name: hironaka, dimension: 4}
algorithm: {name: ppo, minibatch_size: 400}
[scenario-matrix_game]
protocol: {name: matrix_game}
scenario: {name: matrix_game, game: matching_pennies}
[scenario-message_game]
protocol: {name: message_game}
scenario: {name: message_game, num_symbols: 8}
[algorithm-fine_tuning]
algorithm: {name: expert_iteration, fine_tuning: {num_epochs: 2}}
[scenario-agents]
scenario:
  name: code_validation
  agents:
    verifier: {model: default}
"""
"""Page -> a config that begins with its keys, below its name in brackets; other pages begin with their `name` alone."""


def configuration_pages() -> dict[str, str]:
    """Every page by its path below docs: the index first, then one for each group of keys."""
    groups: dict[str, list[tuple[str, str, list[str]]]] = {}
    for title, kind, prefix in (*_sections(), *_text_sections()):
        rows = [
            _row(path, key) for path, key in _keys_in(kind, prefix) if not branches(key.annotation) and not _is_tag(key)
        ]
        groups.setdefault(_page_of(title, prefix), []).append((title, " ".join((kind.__doc__ or "").split()), rows))
    shared = _shared_rows(groups)
    tables = {page: [_part(page, *group) for group in _without(shared, groups[page])] for page in groups}
    for first in ("algorithm", "scenario"):
        parts: dict[str, list[str]] = {}
        for row, pages_of in shared.items():
            if row.startswith(f"- `{first}."):
                parts.setdefault(", ".join(page.partition("-")[2] for page in pages_of), []).append(row)
        tables[f"{first}-shared"] = [_part("", names, "", rows) for names, rows in parts.items()]
    pages = {f"{FOLDER}/{page}.md": _page(page, parts) for page, parts in sorted(tables.items())}
    return {INDEX: _index(tables), **pages}


def _is_tag(key: Key) -> bool:
    """A `name` with one value, which the heading has."""
    return key.name == "name" and len(get_args(key.annotation)) == 1


def _shared_rows(groups: dict[str, list[tuple[str, str, list[str]]]]) -> dict[str, list[str]]:
    """Each row of an algorithm or a scenario that several pages would have, with these pages."""
    found: dict[str, list[str]] = {}
    for page, sections in sorted(groups.items()):
        for row in dict.fromkeys(row for *_, rows in sections for row in rows):
            found.setdefault(row, []).append(page)
    return {row: pages for row, pages in found.items() if len(pages) > 1}


def _without(
    shared: dict[str, list[str]], sections: list[tuple[str, str, list[str]]]
) -> Iterator[tuple[str, str, list[str]]]:
    """The sections of a page without rows that it shares with others, or that an earlier section has."""
    known = set(shared)
    for title, doc, rows in sections:
        new = [row for row in rows if row not in known]
        left_out = "" if all(row in new or row in shared for row in rows) else " Other keys as above."
        elsewhere = " Further keys: [shared]({page}-shared.md)." if any(row in shared for row in rows) else ""
        known.update(new)
        yield title, f"{doc}{left_out}{elsewhere}", new


def _part(page: str, title: str, doc: str, rows: list[str]) -> str:
    doc = doc.replace("{page}", page.partition("-")[0])
    return "\n".join([f"## {title}", "", *([_wrapped(doc), ""] if doc else []), *rows, *([""] if rows else [])])


def write_pages(docs: Path) -> None:
    """Write every page below `docs`, and remove pages of groups that are gone."""
    pages = configuration_pages()
    (docs / FOLDER).mkdir(exist_ok=True)
    for path in (docs / FOLDER).glob("*.md"):
        if f"{FOLDER}/{path.name}" not in pages:
            path.unlink()
    for name, text in pages.items():
        (docs / name).write_text(text, encoding="utf-8")


def _page_of(title: str, prefix: str) -> str:
    first = prefix.partition(".")[0]
    if first in ("scenario", "algorithm"):
        shared = "agents" if first == "scenario" else "fine_tuning"
        return f"{first}-{title.partition(' (')[2].removesuffix(')') or shared}"
    return _SHARED.get(first, first)


def _about(page: str) -> tuple[str, str]:
    first, _, name = page.partition("-")
    if page in _ABOUT:
        return _ABOUT[page]
    return f"{first.capitalize()} {name}", f"set what `{first}` takes with `name: {name}`"


def _example(page: str) -> str:
    first, _, name = page.partition("-")
    found = re.search(rf"^\[{re.escape(page)}\]\n((?:(?!\[).*\n)+)", _EXAMPLES, re.MULTILINE)
    return found[1].rstrip() if found else f"{first}: {{name: {name}}}"


def _page(page: str, tables: list[str]) -> str:
    title, use = _about(page)
    return "\n".join(
        [f"# {title}", "", f"Use these keys to {use}.", "", "```yaml", _example(page), "```", "", *tables, _WRITTEN, ""]
    )


def _index(tables: dict[str, list[str]]) -> str:
    rows = []
    for page, parts in sorted(tables.items()):
        keys = dict.fromkeys(part.partition("\n")[0].removeprefix("## ").partition(" (")[0] for part in parts)
        if page.endswith("-shared"):
            keys = dict.fromkeys(name for names in keys for name in names.split(", "))
        keys.pop("The experiment", None)
        keys.pop("The experiment with language models", None)
        title, _ = _about(page)
        rows.append(_wrapped(f"- [{title}]({FOLDER}/{page}.md): {', '.join(keys) or 'top level'}", "  "))
    aliases = ", ".join(f"`{alias}` ({word})" for alias, word in ALIASES.items())
    return (
        _INTRODUCTION.replace("{written}", _WRITTEN)
        .replace("{table}", "\n".join(rows))
        .replace("{aliases}", _wrapped(f"{aliases}."))
    )


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _sections(
    kind: type = ExperimentConfig, prefix: str = "", title: str = "The experiment"
) -> Iterator[tuple[str, type, str]]:
    """(title, settings class, prefix of keys) of each table. Keys in an agent's settings are in the agent's table."""
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
    """The tables of an experiment with language models that are not among the earlier ones, with the common part of all
    its scenarios once."""
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
    takes = f"{_takes(key)}, `{_yaml(key.default)}`".replace("[", "\\[")
    return _wrapped(f"- `{path}` ({takes}): {key.description}", "  ")


def _takes(key: Key) -> str:
    """The key's `expects` in short: without `null` where that is the default, with bounds in mathematical signs."""
    words = key.expects if key.default is not None else key.expects.removesuffix(" or null")
    words = words.replace("true or false", "bool").removeprefix("one of ")
    words = re.sub(r" >= (\S+) and <= (\S+)", r" \1…\2", words)
    return re.sub(r" (>=|<=|<|>) ", lambda sign: f" {_SIGNS[sign[1]]}", words)


def _yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, dict):  # settings with variants by name
        plain = {key: {"name": tag_of(type(member))} for key, member in plain.items()}
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=1000).removesuffix("\n...\n").strip()
