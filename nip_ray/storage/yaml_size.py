"""The size of YAML with its aliases expanded, computed before expansion: a few lines can name billions of values."""

from typing import Any

import yaml

MOST = 50_000
"""Maximum number of values in a config, with repeats counted."""


def load_bounded(text: str, loader: type) -> Any:
    """The value of one YAML document; None for an empty one. Raises yaml.YAMLError for invalid YAML, and OverflowError
    for a document whose aliases, or merged keys, make it larger than `MOST` and than its text."""
    reading: Any = loader(text)
    try:
        node = reading.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > max(MOST, len(text)):
            raise OverflowError
        return reading.construct_document(node)
    finally:
        reading.dispose()


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Number of values in a node; infinite for one that contains itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(None, part) for part in node.value]
        keys = (key for key, _ in pairs if not isinstance(key, yaml.ScalarNode | None))
        known[id(node)] = 1 + sum(_size(part, known) for part in (*keys, *(part for _, part in pairs)))
    return known[id(node)]
