"""The house rules that code alone cannot enforce: who may import whom, how long a file may be, that public names are
documented."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import nip_ray

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nip_ray"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 600

CORE = ("protocols", "scenarios", "networks", "learning", "play")  # must run with torch and numpy alone
COMMON = ("errors", "redaction", "seeding", "settings")
CORE_MAY_USE = {f"nip_ray.{room}" for room in (*CORE, *COMMON, "storage", "sandbox")}
CORE_MAY_NOT_USE = {"ray", "pydantic", "typer", "rich"}
LIGHT = ("cli", "config")
HEAVY = {"torch", "ray", "numpy", "matplotlib", "scipy", "gymnasium"}
ORDER = (
    ("errors", "redaction", "version", "progress", "secrets", "seeding"),
    ("settings",),
    ("sandbox",),
    ("storage",),
    ("protocols",),
    ("learning", "networks"),
    ("play",),
    ("scenarios",),
    ("config",),
    ("cluster", "tracking"),
    ("evaluation",),
    ("environments",),
    ("rllib", "serving"),
    ("text",),
    ("evaluation.verbs",),
    ("runs",),
    ("exports",),
    ("sweeps", "drivers", "plugins", "pettingzoo", "gymnasium", "vector", "inspect_ai", "verifiers"),
    ("",),
    ("cli",),
)
"""Rooms from the lowest to the highest: imports go down, or stay in their room; those side by side know nothing of each
other."""
# may import ray anywhere; every other room only inside functions
RAY_ROOMS = ("rllib", "sweeps", "text", "serving", "drivers")


@dataclass(frozen=True)
class Import:
    """One imported name. deferred: it stands inside a function or under TYPE_CHECKING, so importing the file does not
    run it. typing: the latter.
    """

    file: Path
    line: int
    name: str
    deferred: bool
    typing: bool = False

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def within(self, *modules: str) -> bool:
        """Whether the name is one of these modules or lies in one."""
        return any(self.name == module or self.name.startswith(f"{module}.") for module in modules)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(file: Path) -> str:
    """`cli` for nip_ray/cli/train.py, `learning` for nip_ray/learning/policy_gradient.py, empty for
    nip_ray/__init__.py."""
    return (*module_name(file).split("."), "")[1]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imported_names(node: ast.Import | ast.ImportFrom, file: Path) -> list[str]:
    """Absolute dotted names; `from a import b` gives `a.b`, since b may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = module_name(file).split(".") if file.name == "__init__.py" else module_name(file).split(".")[:-1]
        parents = package[: len(package) - node.level + 1]
        base = ".".join([*parents, base] if base else parents)
    return [base if alias.name == "*" else f"{base}.{alias.name}" for alias in node.names]


def imports_below(node: ast.AST, file: Path, deferred: bool, typing: bool = False) -> Iterator[Import]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for name in imported_names(node, file):
            yield Import(file, node.lineno, name, deferred, typing)
    if isinstance(node, ast.If) and is_type_checking(node):
        for child in node.body:
            yield from imports_below(child, file, True, True)
        for child in node.orelse:
            yield from imports_below(child, file, deferred)
        return
    inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from imports_below(child, file, inside, typing)


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(found for file in FILES for found in imports_below(tree(file), file, False))


def breach(found: Import) -> str | None:
    """The rule that an import breaks, or None."""
    where = room(found.file)
    if found.within("nip_ray.cli") and where != "cli":
        return "nothing imports the command line"
    if where in (*CORE, *COMMON):
        if found.package in CORE_MAY_NOT_USE:
            return f"{where} runs where there is torch and numpy alone"
        lazy_exports = set(nip_ray.__all__) - {"__version__"}
        if found.package == "nip_ray" and (found.name == "nip_ray" or found.name.rpartition(".")[2] in lazy_exports):
            return f"{where} knows nothing of experiments"
        if found.package == "nip_ray" and not found.within(*CORE_MAY_USE):
            return f"{where} may use only {', '.join(sorted(CORE_MAY_USE))}"
    if where in LIGHT and found.package in HEAVY and not found.deferred:
        return f"{where} imports nothing heavy at module level"
    if found.package == "ray" and where not in RAY_ROOMS and not found.deferred:
        return "only " + ", ".join(RAY_ROOMS) + " import ray at module level"
    return None


def test_nobody_imports_what_it_may_not() -> None:
    assert all_imports()
    breaches = [f"{found}: {rule}" for found in all_imports() if (rule := breach(found))]
    assert not breaches, "\n".join(breaches)


def rank(module: str) -> tuple[int, str]:
    """The place in ORDER of the room that a module of ours is in, and that room."""
    names = module.split(".")[1:]
    for place in (".".join(names[:2]), (*names, "")[0]):
        for number, rooms in enumerate(ORDER):
            if place in rooms:
                return number, place
    raise AssertionError(f"{module} is in no room of ORDER")


@cache
def imported_modules() -> tuple[tuple[Import, str], ...]:
    """Every import of ours, and the module (not the name in it) that it is of."""
    modules = {module_name(file) for file in FILES}
    return tuple(
        (found, name if name in modules else name.rpartition(".")[0])
        for found in all_imports()
        for name in [found.name]
        if found.package == "nip_ray"
    )


def test_no_import_climbs() -> None:
    climbing = []
    for found, module in imported_modules():
        (here, mine), (there, theirs) = rank(module_name(found.file)), rank(module)
        if here < there or (here == there and mine != theirs and here > 0):
            climbing.append(f"{found}: {mine or 'nip_ray'} stands below or beside {theirs or 'nip_ray'}")
    assert not climbing, "\n".join(climbing)


def test_no_circle_of_files() -> None:
    """Imports inside functions count, those for type checking alone do not."""
    below: dict[str, set[str]] = {}
    for found, module in imported_modules():
        if not found.typing and module != module_name(found.file):
            below.setdefault(module_name(found.file), set()).add(module)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("where", "source", "broken"),
    [
        ("learning/x.py", "import ray", True),
        ("learning/x.py", "def f():\n    from ray import rllib", True),
        ("play/x.py", "from ..rllib import modules", True),
        ("play/x.py", "from nip_ray import rllib", True),
        ("play/x.py", "from nip_ray import run_experiment", True),
        ("play/x.py", "from ..protocols import build", False),
        ("play/x.py", "import torch\nfrom nip_ray.errors import UserError", False),
        ("scenarios/graph_isomorphism/x.py", "import pydantic", True),
        ("scenarios/graph_isomorphism/__init__.py", "from .generate import pairs", False),
        ("config/x.py", "import torch", True),
        ("config/x.py", "def f():\n    import torch", False),
        (
            "config/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import numpy",
            True,
        ),
        ("config/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", False),
        ("runs/x.py", "from nip_ray.cli import main", True),
        ("runs/x.py", "try:\n    import ray\nexcept ImportError:\n    pass", True),
        ("runs/x.py", "def f():\n    import ray", False),
        ("rllib/x.py", "import ray", False),
    ],
)
def test_the_rules_bite(where: str, source: str, broken: bool) -> None:
    """The walker itself, on small sources."""
    found = imports_below(ast.parse(source), PACKAGE / where, False)
    assert any(breach(one) for one in found) is broken


def python(source: str) -> str:
    """The output of `source` in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CONFIG_MODULES = [module_name(file) for file in FILES if room(file) == "config"]


@pytest.mark.parametrize("modules", [["nip_ray"], ["nip_ray.cli"], CONFIG_MODULES], ids=["nip_ray", "cli", "config"])
def test_light_modules_load_nothing_heavy(modules: list[str]) -> None:
    assert modules
    source = (
        f"import importlib, json, sys\nfor name in {modules!r}:"
        " importlib.import_module(name)\nprint(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(python(source)))
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "blocked",
    [
        pytest.param((), marks=pytest.mark.slow, id="all-installed"),
        pytest.param(("ray", "pydantic", "typer", "rich"), id="torch-alone"),
    ],
)
def test_core_needs_torch_alone(blocked: tuple[str, ...]) -> None:
    """Every module of the core can be imported where ray and pydantic do not exist, and does not pull them in where
    they do."""
    names = [module_name(file) for file in FILES if room(file) in (*CORE, *COMMON)]
    required = [
        f"nip_ray.{name}" for name in ("protocols", "play", "learning", "networks", "scenarios.graph_isomorphism")
    ]
    assert set(required) <= set(names)
    source = f"""
import importlib, sys
for name in {blocked!r}: sys.modules[name] = None
for name in {names!r}: importlib.import_module(name)
print([name for name in {sorted(CORE_MAY_NOT_USE - {"rich", "pydantic"})!r} if sys.modules.get(name)])
"""
    assert python(source).strip() == "[]"


def test_files_are_short() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    too_long = {str(file.relative_to(ROOT)): length for file, length in lengths.items() if length > MAX_LINES}
    assert not too_long


def public_definitions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions and classes at module level, also under `if` and `try`, whose names have no leading underscore."""
    open_nodes: list[ast.AST] = list(tree(file).body)
    for node in open_nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                yield node
        else:
            open_nodes.extend(ast.iter_child_nodes(node))


def test_public_names_are_documented() -> None:
    bare = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in FILES
        for node in public_definitions(file)
        if not ast.get_docstring(node)
    ]
    assert not bare, "no docstring:\n" + "\n".join(bare)
