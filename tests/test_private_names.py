"""Private names of other packages stand in the compat files alone, each with the version in which it was read."""

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from nip_ray.cluster import compat as cluster
from nip_ray.serving import compat as serving
from nip_ray.storage import compat as storage
from tests.test_imports import FILES, PACKAGE, ROOT, imports_below, module_name, tree

COMPAT = [file for file in FILES if file.name == "compat.py"]
EXTENSION_POINTS = {"_forward", "_forward_train", "_was_dead_step", "_clear_rewards", "_accumulate_rewards"}
"""Private in form alone: documentation says to override (RLModule) or to call them (AECEnv)."""
INTERNAL = ("ray.core.generated", "wandb.sdk")
"""Public in form alone: nobody promises what is in there."""
DOTTED = re.compile(r"[a-z]\w*(\.\w+)*\._[a-z]\w*")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def bound(node: ast.AST) -> set[str]:
    """Private names that are made in there: functions, classes, variables, attributes of `self`."""
    found = set[str]()
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(child.name)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.add(child.id)
        elif (
            isinstance(child, ast.Attribute)
            and isinstance(child.ctx, ast.Store)
            and getattr(child.value, "id", "") in ("self", "cls")
        ):
            found.add(child.attr)
    return {name for name in found if is_private(name)}


def bases(source: ast.Module) -> Iterator[tuple[ast.ClassDef, str]]:
    for node in ast.walk(source):
        if isinstance(node, ast.ClassDef):
            yield from ((node, ast.unparse(base).partition("[")[0]) for base in node.bases)


@cache
def files_of_classes() -> dict[str, Path]:
    return {node.name: file for file in FILES for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef)}


@cache
def inherited(source: ast.Module) -> set[str]:
    """Private names bound in the files of our own classes that classes in `source` derive from."""
    files = {
        there
        for _, base in bases(source)
        if (there := files_of_classes().get(base.rpartition(".")[2])) and tree(there) is not source
    }
    return {name for file in files for name in bound(tree(file)) | inherited(tree(file))}


@cache
def listed() -> frozenset[str]:
    """The private names in the tables of the compat files."""
    tables = [importlib.import_module(module_name(file)).PRIVATE for file in COMPAT]
    return frozenset(re.findall(r"\w+", name)[-1] for table in tables for name in table)


def borrowed(source: ast.Module, file: Path) -> Iterator[str]:
    """What `source`, at `file`, takes of other packages' private names."""
    imported = [
        found
        for found in imports_below(source, file, False)
        if found.package not in {"nip_ray", *sys.stdlib_module_names}
    ]
    standard = {
        alias.asname or alias.name for node in ast.walk(source) if isinstance(node, ast.Import) for alias in node.names
    }
    standard &= sys.stdlib_module_names
    own = bound(source) | inherited(source) | EXTENSION_POINTS
    for found in imported:
        if any(map(is_private, found.name.split("."))) or found.within(*INTERNAL):
            yield f"{found.line} {found.name}"
    for node in ast.walk(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield f"{node.lineno} {node.value}"
        elif (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in own
            and ast.unparse(node.value) not in standard
        ):
            yield f"{node.lineno} {ast.unparse(node)}"
    for node, base in bases(source):
        first, _, rest = base.partition(".")
        for found in (found for found in imported if found.name.rpartition(".")[2] == first):
            theirs = dir(pkgutil.resolve_name(".".join([found.name, rest] if rest else [found.name])))
            for name in sorted(bound(node) & {*theirs, *listed()} - EXTENSION_POINTS):
                yield f"{node.lineno} {node.name}.{name}, of {base}"


def test_private_names_of_other_packages_stand_in_compat_files() -> None:
    assert len(COMPAT) >= 2
    found = [
        f"{file.relative_to(ROOT)}:{use}" for file in FILES if file not in COMPAT for use in borrowed(tree(file), file)
    ]
    assert not found, "\n".join(found)


NAMES = {
    **cluster.PRIVATE,
    **serving.PRIVATE,
    **storage.PRIVATE,
}  # of RLlib and Tune: test_compat.py of their folders


@pytest.mark.parametrize("name", NAMES)
def test_private_names_are_still_there(name: str) -> None:
    package = name.partition(".")[0]
    pytest.importorskip(package)
    read_in, here = NAMES[name], metadata.version(package)
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(f"{package} {here} has no {name}, which was read in {read_in}")
    assert package != "ray" or read_in == here, "read it again in this Ray, and write its version there"


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("from ray._private import services", True),
        ("from wandb.sdk.lib import wbauth", True),
        ("find_spec('pyarrow._s3fs')", True),
        ("def f(group): return group._workers", True),
        ("class A:\n    def f(self): return self._device", True),
        ("from torch import nn\nclass A(nn.Module):\n    def _apply(self, f): pass", True),
        ("from torch import nn\nclass A(nn.Module):\n    def f(self): self._weights_seq_no = 1", True),
        (
            (
                "from nip_ray.rllib.learner import ProtocolLearner\nclass A(ProtocolLearner):\n    def f(self): return"
                " self._world()"
            ),
            False,
        ),
        ("class A:\n    def __init__(self): self._x = 1\n    def f(self, other): return other._x", False),
        ("from torch import nn\nclass A(nn.Module):\n    def _mine(self): return self._mine", False),
        ("import os\nos._exit(0)", False),
    ],
)
def test_the_rule_bites(source: str, caught: bool) -> None:
    assert bool(list(borrowed(ast.parse(source), PACKAGE / "rllib" / "x.py"))) is caught
