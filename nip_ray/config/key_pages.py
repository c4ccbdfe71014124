"""Pages of every key of a config, made from the settings: docs/configuration.md and one page for each group of keys.

Decisions that matter here:
- a page is the first word of a key and, where the settings differ by `name`, that name; short groups share a page;
- headings stay what they are wherever a table stands, so a link needs the page alone.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
"""First word of a key -> the page that it shares with others."""

_ABOUT = {
    "experiment": ("The experiment", "name an experiment, choose its length and seed, or start from another run"),
    "learning": ("Schedules, opponents, search, pretraining", "change who learns when, from what, against whom"),
    "running": ("Play, learners, checkpoints, runtime", "choose how much is played, on what, and what is kept"),
    "protocol": ("Protocol", "choose the rules: who speaks when, who sees what, who is paid"),
    "tracking": ("Tracking", "send metrics to a tracker"),
    "evaluation": ("Evaluation", "choose when and how the verifier is examined"),
    "providers": ("Providers", "choose where language models run"),
    "algorithm-fine_tuning": ("Fine-tuning", "set how expert_iteration and malt fine-tune language models"),
    "scenario-agents": ("Agents that are language models", "choose the model, prompt and role of a language agent"),
}
"""Page -> its title, and what it is used for."""

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
    tables: dict[str, list[str]] = {}
    for title, kind, prefix in (*_sections(), *_text_sections()):
        doc = " ".join((kind.__doc__ or "").split())
        rows = [_row(path, key) for path, key in _keys_in(kind, prefix) if not branches(key.annotation)]
        parts = tables.setdefault(_page_of(title, prefix), [])
        new = [row for row in rows if all(f"{row}\n" not in part for part in parts)]
        doc += "" if new == rows else " Other keys as above."
        parts.append(
            "\n".join([f"## {title}", "", *([_wrapped(doc), ""] if doc else []), *new, *([""] if new else [])])
        )
    pages = {f"{FOLDER}/{page}.md": _page(page, parts) for page, parts in sorted(tables.items())}
    return {INDEX: _index(tables), **pages}


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
        keys.pop("The experiment", None)
        keys.pop("The experiment with language models", None)
        title, _ = _about(page)
        rows.append(f"| [{title}]({FOLDER}/{page}.md) | {', '.join(keys) or 'top level'} |")
    aliases = ", ".join(f"`{alias}` ({word})" for alias, word in ALIASES.items())
    return (
        _INTRODUCTION.replace("{written}", _WRITTEN)
        .replace("{table}", "\n".join(["| page | keys |", "|---|---|", *rows]))
        .replace("{aliases}", _wrapped(f"{aliases}."))
    )


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
    takes = f"{_takes(key)}, `{_yaml(key.default)}`".replace("[", "\\[")
    text = f"- `{path}` ({takes}): {key.description}"
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _takes(key: Key) -> str:
    """The key's `expects` in short: without `null` where that is the default, with bounds in mathematical signs."""
    words = key.expects if key.default is not None else key.expects.removesuffix(" or null")
    words = words.replace("true or false", "bool").removeprefix("one of ")
    words = re.sub(r" >= (\S+) and <= (\S+)", r" \1…\2", words)
    return re.sub(r" (>=|<=|<|>) ", lambda sign: f" {_SIGNS[sign[1]]}", words)


def _yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, dict):  # of settings that are told apart by name
        plain = {key: {"name": tag_of(type(member))} for key, member in plain.items()}
    return yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=1000).removesuffix("\n...\n").strip()
