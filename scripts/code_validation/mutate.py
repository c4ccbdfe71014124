"""Wrong programs from right ones: small changes of the syntax tree, like human mistakes.

Decisions that matter here:
- an operator takes one node and lists edits; an edit gives one field of one node another value. Mutants are printed
  from the edited tree, one edit each, and right programs go through `normalise`, so the layout does not distinguish
  them;
- operators take turns, in a random order: any number of mutants has many kinds;
- whether a mutant is wrong is not decided here, since some are right. Tests decide (`make.py`).
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Mutant:
    """A changed program. operator: the kind of change, a key of `OPERATORS`. line: where, counted from 1 in the
    normalised original."""

    text: str
    operator: str
    line: int


class Edit(NamedTuple):
    """Give `field` of `node` the value `new`."""

    node: ast.AST
    field: str
    new: Any


def normalise(source: str) -> str:
    """A program printed from its syntax tree: one layout for all, without comments."""
    return ast.unparse(ast.parse(source))


def mutants(solution: str, rng: Random) -> Iterator[Mutant]:
    """Mutants of a program, each text once, in an order drawn by `rng`; operators take turns. Raises SyntaxError."""
    original = normalise(solution)
    tree = ast.parse(original)
    kinds = {name: edits for name, edits in _edits(tree).items() if edits}
    order = rng.sample(list(kinds), len(kinds))
    for name in order:
        rng.shuffle(kinds[name])
    seen = {original}
    while kinds:
        for name in [name for name in order if name in kinds]:
            edit, line = kinds[name].pop()
            if not kinds[name]:
                del kinds[name]
            text = _printed(tree, edit)
            if text not in seen:
                seen.add(text)
                yield Mutant(text, name, line)


def _edits(tree: ast.AST) -> dict[str, list[tuple[Edit, int]]]:
    """Operator -> its edits, with their lines."""
    names = _variables(tree)
    found: dict[str, list[tuple[Edit, int]]] = {name: [] for name in OPERATORS}
    line = 1
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        for name, operator in OPERATORS.items():
            found[name] += [(edit, line) for edit in operator(node, names)]
    return found


def _printed(tree: ast.AST, edit: Edit) -> str:
    """The program with one edit, which is then undone. Raises for a tree that cannot be printed and parsed again."""
    node, field, new = edit
    old = getattr(node, field)
    setattr(node, field, new)
    try:
        return ast.unparse(tree)
    finally:
        setattr(node, field, old)


def _variables(tree: ast.AST) -> list[str]:
    """Names that are assigned to, loop variables and parameters, sorted."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted((stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}) - {"_"})


# ----------------------------------------------------------------------------------------------------------------------
# operators
#
# Each takes a node and the program's variables, and yields edits.

Edits = Iterator[Edit]

_BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_LOOSER = {ast.Eq: (ast.LtE, ast.GtE), ast.NotEq: (ast.Lt, ast.Gt)}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = {
    "lower": "upper",
    "upper": "lower",
    "startswith": "endswith",
    "endswith": "startswith",
    "isalpha": "isalnum",
    "isalnum": "isalpha",
    "isdigit": "isalnum",
    "append": "extend",
    "extend": "append",
    "values": "keys",
    "keys": "values",
}


def _comparison(node: ast.AST, names: list[str]) -> Edits:
    """< for <=, etc.; <= or >= for ==."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for new in (*filter(None, (_BOUNDARY.get(type(operator)),)), *_LOOSER.get(type(operator), ())):
                yield Edit(node, "ops", [*node.ops[:i], new(), *node.ops[i + 1 :]])


def _negation(node: ast.AST, names: list[str]) -> Edits:
    """A negated condition."""
    for field in ("test", "ifs", "values"):
        conditions = getattr(node, field, None)
        if isinstance(node, ast.While) or (field == "values" and not isinstance(node, ast.BoolOp)):
            continue  # a loop that continues where it should end hardly ever returns
        if isinstance(conditions, list):
            for i, condition in enumerate(conditions):
                yield Edit(node, field, [*conditions[:i], _opposite(condition), *conditions[i + 1 :]])
        elif isinstance(conditions, ast.expr) and not isinstance(conditions, ast.BoolOp):
            yield Edit(node, field, _opposite(conditions))


def _opposite(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return condition.operand
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
        return ast.Compare(condition.left, [_OPPOSITE[type(condition.ops[0])]()], condition.comparators)
    return ast.UnaryOp(ast.Not(), condition)


def _boolean(node: ast.AST, names: list[str]) -> Edits:
    """`or` for `and`, and one of the conditions left out."""
    if isinstance(node, ast.BoolOp):
        yield Edit(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        if len(node.values) > 2:
            for i in range(len(node.values)):
                yield Edit(node, "values", node.values[:i] + node.values[i + 1 :])
    for field in ("test", "value", "elt"):
        whole = getattr(node, field, None)
        if isinstance(whole, ast.BoolOp) and len(whole.values) == 2:
            yield from (Edit(node, field, part) for part in whole.values)


def _constant(node: ast.AST, names: list[str]) -> Edits:
    """A whole number off by one."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield Edit(node, "value", node.value + 1)
        if node.value > 0:
            yield Edit(node, "value", node.value - 1)


def _arithmetic(node: ast.AST, names: list[str]) -> Edits:
    """- for +, etc.; = for +=."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for new in _ARITHMETIC.get(type(node.op), ()):
            yield Edit(node, "op", new())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield Edit(node, "op", ast.UAdd())
    for field in ("body", "orelse"):
        for statements, i, statement in _statements(node, field):
            if isinstance(statement, ast.AugAssign):
                assigned = ast.Assign([statement.target], statement.value, lineno=statement.lineno)
                yield Edit(node, field, [*statements[:i], assigned, *statements[i + 1 :]])


def _index(node: ast.AST, names: list[str]) -> Edits:
    """An index or the bound of a slice off by one."""
    if not isinstance(node, ast.Subscript):
        return
    if isinstance(node.slice, ast.Slice):
        for field in ("lower", "upper"):
            bound = getattr(node.slice, field)
            if bound is not None:
                yield from (Edit(node.slice, field, new) for new in _off_by_one(bound))
        if node.slice.lower is None and node.slice.step is None:
            yield Edit(node.slice, "lower", ast.Constant(1))
    elif not isinstance(node.slice, ast.Constant | ast.Tuple):
        yield from (Edit(node, "slice", new) for new in _off_by_one(node.slice))


def _range(node: ast.AST, names: list[str]) -> Edits:
    """The end of a range off by one, or its start."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and 0 < len(node.args) < 4
    ):
        if len(node.args) == 1:
            yield Edit(node, "args", [ast.Constant(1), node.args[0]])
        for i in range(min(2, len(node.args))):
            yield from (
                Edit(node, "args", [*node.args[:i], new, *node.args[i + 1 :]]) for new in _off_by_one(node.args[i])
            )


def _off_by_one(value: ast.expr) -> Iterator[ast.expr]:
    """`value` plus and minus one, as people write it: n for n + 1 - 1."""
    if isinstance(value, ast.Constant):  # the operator on constants does these
        return
    if isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant):
        return
    is_sum = isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant) and value.right.value == 1
    for sign in (ast.Add, ast.Sub):
        if is_sum and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
            if not isinstance(value.op, sign):
                yield value.left
        else:
            yield ast.BinOp(value, sign(), ast.Constant(1))


def _dropped(node: ast.AST, names: list[str]) -> Edits:
    """A missing statement, or a missing branch, filter or option of a call."""
    for field in ("body", "orelse"):
        for statements, i, statement in _statements(node, field):
            if len(statements) > 1 and not isinstance(statement, ast.Return | ast.FunctionDef | ast.For | ast.While):
                yield Edit(node, field, statements[:i] + statements[i + 1 :])
            if isinstance(statement, ast.If) and statement.orelse:
                yield Edit(node, field, statements[:i] + statement.orelse + statements[i + 1 :])
    if isinstance(node, ast.If | ast.For) and node.orelse:
        yield Edit(node, "orelse", [])
    if isinstance(node, ast.comprehension) and node.ifs:
        yield Edit(node, "ifs", node.ifs[1:])
    if isinstance(node, ast.Call) and node.keywords:
        yield Edit(node, "keywords", node.keywords[1:])


def _indentation(node: ast.AST, names: list[str]) -> Edits:
    """A statement after a loop or an `if` moved into it, or its last one moved out."""
    for field in ("body", "orelse"):
        for statements, i, statement in _statements(node, field):
            if not isinstance(statement, ast.For | ast.While | ast.If) or (
                isinstance(statement, ast.If) and statement.orelse
            ):
                continue
            if i + 1 < len(statements) and not isinstance(statements[i + 1], ast.FunctionDef | ast.For | ast.While):
                moved = _with_body(statement, [*statement.body, statements[i + 1]])
                yield Edit(node, field, [*statements[:i], moved, *statements[i + 2 :]])
                if isinstance(statements[i + 1], ast.Return) and isinstance(statement, ast.For):
                    yield Edit(node, field, [*statements[:i], moved, *statements[i + 1 :]])
            last = statement.body[-1]
            if len(statement.body) > 1 and not isinstance(last, ast.Return | ast.Break | ast.Continue):
                yield Edit(
                    node,
                    field,
                    [*statements[:i], _with_body(statement, statement.body[:-1]), last, *statements[i + 1 :]],
                )


def _with_body(statement: ast.For | ast.While | ast.If, body: list[ast.stmt]) -> ast.stmt:
    """A copy of a loop or an `if` around other statements."""
    if isinstance(statement, ast.For):
        return ast.For(statement.target, statement.iter, body, statement.orelse, lineno=statement.lineno)
    return type(statement)(statement.test, body, statement.orelse, lineno=statement.lineno)


def _exchange(node: ast.AST, names: list[str]) -> Edits:
    """Two swapped parts: arguments, the sides of a difference, the ends of a slice, the cases of a choice."""
    if (
        isinstance(node, ast.Call)
        and len(node.args) == 2
        and getattr(node.func, "id", "") not in (*_FUNCTIONS, "range")
    ):
        yield Edit(node, "args", node.args[::-1])
    for field in ("value", "elt", "left", "right", "test"):
        inner = getattr(node, field, None)
        if isinstance(inner, ast.BinOp) and _order_matters(inner):
            yield Edit(node, field, ast.BinOp(inner.right, inner.op, inner.left))
        if isinstance(inner, ast.IfExp):
            yield Edit(node, field, ast.IfExp(inner.test, inner.orelse, inner.body))
        if isinstance(inner, ast.Tuple | ast.List) and len(inner.elts) == 2:
            yield Edit(node, field, type(inner)(inner.elts[::-1], inner.ctx))
    if (
        isinstance(node, ast.If)
        and len(node.orelse) == 1
        and isinstance(node.orelse[0], ast.If)
        and node.body != node.orelse
    ):
        other = node.orelse[0]
        yield Edit(node, "orelse", [ast.If(other.test, node.body, other.orelse, lineno=other.lineno)])


def _order_matters(value: ast.BinOp) -> bool:
    """True if the result may depend on the order of the sides; a sum may be one of texts."""
    is_text = isinstance(value.op, ast.Add) and not isinstance(value.right, ast.Constant)
    return is_text or isinstance(value.op, ast.Sub | ast.FloorDiv | ast.Mod)


def _function(node: ast.AST, names: list[str]) -> Edits:
    """min for max, etc."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        yield Edit(node.func, "id", _FUNCTIONS[node.func.id])
    if isinstance(node, ast.Attribute) and node.attr in _METHODS:
        yield Edit(node, "attr", _METHODS[node.attr])


def _start(node: ast.AST, names: list[str]) -> Edits:
    """A variable with a wrong initial value."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        if isinstance(node.value, ast.Subscript | ast.Call) and not isinstance(node.value, ast.Constant):
            yield Edit(node, "value", ast.Constant(0))
        elif isinstance(node.value, ast.Name):
            yield from (Edit(node, "value", ast.Constant(start)) for start in (0, 1))
        elif isinstance(node.value, ast.Constant) and type(node.value.value) is bool:
            yield Edit(node.value, "value", not node.value.value)
        elif isinstance(node.value, ast.Constant) and node.value.value is None:
            yield Edit(node.value, "value", 0)
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and type(node.value.value) is bool:
        yield Edit(node.value, "value", not node.value.value)


def _variable(node: ast.AST, names: list[str]) -> Edits:
    """One variable for another."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        yield from (Edit(node, "id", name) for name in names if name != node.id)


def _jump(node: ast.AST, names: list[str]) -> Edits:
    """`continue` for `break`, and the other way round."""
    for field in ("body", "orelse"):
        for statements, i, statement in _statements(node, field):
            if isinstance(statement, ast.Break | ast.Continue):
                other = ast.Continue() if isinstance(statement, ast.Break) else ast.Break()
                yield Edit(node, field, [*statements[:i], other, *statements[i + 1 :]])


def _statements(node: ast.AST, field: str) -> Iterator[tuple[list[ast.stmt], int, ast.stmt]]:
    """The statements of a block, each with the whole block and its place there."""
    block = getattr(node, field, None)
    if isinstance(block, list):
        yield from ((block, i, statement) for i, statement in enumerate(block))


OPERATORS: dict[str, Callable[[ast.AST, list[str]], Edits]] = {
    "comparison": _comparison,
    "negation": _negation,
    "boolean": _boolean,
    "constant": _constant,
    "arithmetic": _arithmetic,
    "index": _index,
    "range": _range,
    "dropped": _dropped,
    "indentation": _indentation,
    "exchange": _exchange,
    "function": _function,
    "start": _start,
    "variable": _variable,
    "jump": _jump,
}
"""Name -> the function that lists the edits of that kind at a node."""
