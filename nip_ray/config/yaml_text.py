"""YAML for configs: safe, without duplicate keys; `1e-3` is a number and a date is text."""

import re
from typing import Any

import yaml

from nip_ray.errors import UserError
from nip_ray.storage.yaml_size import MOST, load_bounded

_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$")
_FLOAT_TAG = "tag:yaml.org,2002:float"


def parse_yaml(text: str, source: str) -> Any:
    """The value of one YAML document. `source` is named in the UserError that faulty YAML raises."""
    try:
        return load_bounded(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{source}: no valid YAML{where}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: no valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{source}: nested too deeply for a config") from None
    except OverflowError:
        raise UserError(
            f"{source}: a part of it contains itself, or its aliases stand for more than {MOST:,} values"
        ) from None
    except ValueError as error:  # looks like a number but is not one
        raise UserError(f"{source}: no valid YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """Safe loading that refuses duplicate keys, reads 1e-3 as a number and leaves dates as text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose as usual, then check for duplicate keys (before any `<<` is merged in)."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is here twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node


class Dumper(yaml.SafeDumper):
    """Block style, with short lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts out again."""
        return True


def _list_node(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    return dumper.represent_sequence(
        "tag:yaml.org,2002:seq", values, flow_style=not any(isinstance(v, list | dict) for v in values)
    )


Dumper.add_representer(list, _list_node)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, Dumper):  # the dumper too, so that it quotes text that looks like a number
    _class.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))
