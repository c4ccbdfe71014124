"""`export_verifiers`: a protocol between language models as a package for `verifiers` and its Environments Hub.

    OUT/            pyproject.toml  README.md
    OUT/NAME/       __init__.py  config.yaml  items/SPLIT.jsonl

The package has config and items, and uses `nip_ray.verifiers` to play. Local settings of the config are left out.
"""

import keyword
import re
import sys
from pathlib import Path

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.config.text_rules import language_agents
from nip_ray.errors import UserError
from nip_ray.exports.game import Game, game_of
from nip_ray.exports.hub import portable
from nip_ray.storage.folder import CONFIG
from nip_ray.text.items import store_items
from nip_ray.version import __version__

_PROJECT = """\
[project]
name = "{dashed}"
version = "0.1.0"
description = "{about}"
readme = "README.md"
requires-python = ">=3.11,<3.15"
dependencies = ["nip_ray[verifiers]>={version}"]
tags = ["multi-agent", "interactive-proofs", "scalable-oversight"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
"""
_MODULE = '''\
"""{about}"""

from pathlib import Path

from nip_ray.verifiers import environment

ProofTaskset, ProofEnv, OneCall = environment(Path(__file__).parent)

__all__ = ["OneCall", "ProofEnv", "ProofTaskset"]
'''
_README = """\
# {dashed}

{about}

| | |
|---|---|
| roles | {roles} |
| items | {items} |
| reward | `payment`: what the protocol pays the agent for the dialogue |
| metrics | {metrics} |

```bash
uv pip install -e .
vf-eval {dashed} -n 20 --model MODEL --env.{first}.model ANOTHER
```

A role for which no model is named is played by the model under evaluation. `--env.taskset.split train` takes the items
to learn from. Each agent that spoke has a trace, with the record of the dialogue in its `info`. Agents that are not to
be trained: {frozen}. Made by nip_ray {version}.
"""


def export_verifiers(source: Path | str, out: Path | str) -> Path:
    """Write the package of a run, or of a config; returns OUT, whose last part names the package.

    out: a new or empty folder. Raises UserError for one that is in use, cannot be written or has no importable name,
    for an unplayable source, and for a config with plugins: their code may not be ours to distribute.
    """
    target = Path(out)
    module = target.name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", module):
        raise UserError(
            f"--out {out}: its last part is the package's name, use letters, digits and, between them, - or _"
        )
    if keyword.iskeyword(module) or module in {"nip_ray", "verifiers"} | sys.stdlib_module_names:
        raise UserError(
            f"--out {out}: {module} means something else to Python, nip_ray or verifiers, choose another name"
        )
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"--out {out}: is not empty, name a new or empty folder")
    game = game_of(source)
    if game.config.plugins:
        raise UserError(
            f"plugins: {', '.join(game.config.plugins)} would have to go along, and an export takes no code; leave"
            " them out"
        )
    config = portable(game.config)
    assert isinstance(config, TextExperimentConfig)
    texts = _texts(game, module)
    try:
        inside = target / module
        inside.mkdir(parents=True)
        store_items(inside, game.items, game.kind)
        (inside / CONFIG).write_text(config_to_yaml(config), encoding="utf-8")
        for name, text in texts.items():
            (target / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror}), name a folder that can be") from error
    return target


def _texts(game: Game, module: str) -> dict[str, str]:
    protocol, agents = game.scenario.protocol, language_agents(game.config)
    frozen = [name for name, settings in agents.items() if settings.frozen]
    metrics = "`rounds`, `unusable_replies`"
    if protocol.verifier is not None:
        metrics = (
            "`accuracy`, `undecided`, `completeness` (of true claims alone), `soundness` (of false claims alone),"
            f" {metrics}"
        )
    told = {
        "module": module,
        "dashed": module.replace("_", "-"),
        "version": __version__,
        "about": f"The protocol {protocol.name} between language models, on {game.config.scenario.name}.",
        "roles": ", ".join(f"`{name}`" for name in protocol.agents),
        "first": protocol.agents[0],
        "items": ", ".join(f"{len(game.chosen(split))} {split}" for split in game.items),
        "metrics": metrics,
        "frozen": ", ".join(frozen) or "none",
    }
    files = {"pyproject.toml": _PROJECT, "README.md": _README, f"{module}/__init__.py": _MODULE}
    return {name: text.format(**told) for name, text in files.items()}
