"""Strict configs: files in which every key is written out, so that nothing is decided by a default, now or in a later version.

`strict: true` at the top of a config asks for it. Nobody writes such a file by hand: `python -m nip_ray.config.strict SHORT > FULL` makes
one of a short file, with the same meaning. A mapping of agents' settings is complete when everyone who plays is in it, or `_default` is.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import keys_of, value_annotation
from nip_ray.config.load import load_config, plain
from nip_ray.config.players import DEFAULT, playing
from nip_ray.config.yaml_text import Dumper
from nip_ray.errors import UserError


def full_yaml(config: Any) -> str:
    """`config` as a strict file: every key, `strict: true`, and `_default` settings where agents would have had none.

    The experiment is the same.
    """
    made = plain(config)
    made["strict"] = True
    if isinstance(config, ExperimentConfig):
        for group, key in (("scenario", "agents"), ("algorithm", "roles")):
            found = keys_of(type(getattr(config, group))).get(key)
            everyone = playing(config)
            if found is not None and (everyone is None or not {*everyone} <= {*made[group][key]}) and DEFAULT not in made[group][key]:
                made[group][key][DEFAULT] = plain(value_annotation(found.annotation)())
    return yaml.dump(made, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=140)


def main(arguments: list[str]) -> int:
    """Print the config in the file named, with overrides a.b=c behind it, as a strict one."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stderr.write("usage: python -m nip_ray.config.strict CONFIG [A.B=C ...] > FULL.yaml\n")
        return 0 if arguments else 2
    try:
        sys.stdout.write(full_yaml(load_config(Path(arguments[0]), [*arguments[1:], "strict=false"])))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
