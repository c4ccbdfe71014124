"""Search spaces: replacements of values in a config, as `{kind: [arguments]}`.

Decisions that matter here:

- A space is a mapping with exactly one key, one of `KINDS`, that holds a list. No setting looks like that (a test
  checks all keys), so no marker is needed. A mapping of agents may have one called `choice`: its value is not a list.
- Tune sees scalars only. It evaluates a mapping `{eval: "..."}` as Python, and searchers need hashable values; if a
  choice has mappings or lists in it, its values are passed as JSON text (`to_tune`, `from_tune`).
- Values from Tune are clipped to their bounds: PBT multiplies settings by factors blindly, and floor(exp(log(n))) may
  be n - 1.
"""

import difflib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nip_ray.errors import UserError

if TYPE_CHECKING:
    import numpy as np

_SCALARS = (bool, int, float, str, type(None))
_NEAR = 0.8  # similarity from which an unknown kind counts as misspelt
_RANDN_REACH = 4.0  # standard deviations that count as the ends of a normal distribution: 6 in 100,000 draws are beyond


@dataclass(frozen=True)
class Kind:
    """The arguments of a kind of space. arguments: their names, () for a list of values. log: equal ratios are equally
    likely. whole: integers, and the upper end is excluded. quantised: the last argument is a step, and the upper end is
    included."""

    arguments: tuple[str, ...] = ()
    log: bool = False
    whole: bool = False

    @property
    def quantised(self) -> bool:
        """True if values are multiples of a step."""
        return "step" in self.arguments


_ENDS = ("lowest", "highest")
KINDS: dict[str, Kind] = {
    "choice": Kind(),
    "grid": Kind(),
    "uniform": Kind(_ENDS),
    "quniform": Kind((*_ENDS, "step")),
    "loguniform": Kind(_ENDS, log=True),
    "qloguniform": Kind((*_ENDS, "step"), log=True),
    "randint": Kind(_ENDS, whole=True),
    "lograndint": Kind(_ENDS, log=True, whole=True),
    "randn": Kind(("mean", "sd")),
}
"""Name -> its arguments: one value drawn from a list, every value of it, or a number drawn from a range or a normal
distribution."""


@dataclass(frozen=True)
class Space:
    """One search space. kind: a key of `KINDS`. arguments: the values of choice and grid, else numbers in the order of
    the kind."""

    kind: str
    arguments: tuple[Any, ...]

    @property
    def listed(self) -> bool:
        """True if its values are listed one by one."""
        return self.kind in ("choice", "grid")

    @property
    def log(self) -> bool:
        """True if equal ratios are equally likely."""
        return KINDS[self.kind].log

    def data(self) -> dict[str, list[Any]]:
        """The space in the form of a sweep file."""
        return {self.kind: list(self.arguments)}


def looks_like_space(value: Any) -> bool:
    """True if `value` can only be a space: a mapping in which a kind holds a list."""
    return isinstance(value, Mapping) and any(
        key in KINDS and isinstance(item, list | tuple) for key, item in value.items()
    )


def parse_space(key: str, value: Any) -> Space | None:
    """The space at the dotted `key`, None if `value` is not a space.

    Raises UserError that names the key for one that is misspelt, has wrong arguments, or contains another space.
    """
    if not isinstance(value, Mapping):
        return None
    if not looks_like_space(value):
        for name, item in value.items() if len(value) == 1 else ():
            if name in KINDS and isinstance(item, _SCALARS):
                wanted = ", ".join(KINDS[name].arguments) or "values"
                raise UserError(f"{key}.{name}: got {_show(item)}, expected a list of {wanted}")
            near = difflib.get_close_matches(str(name).lower(), KINDS, 1, _NEAR)
            if near and name not in KINDS and isinstance(item, list | tuple):
                raise UserError(f"{key}.{name}: no kind of search space, did you mean {near[0]}?")
        return None
    if len(value) > 1:
        raise UserError(
            f"{key}: got the keys {', '.join(map(str, value))}, expected one search space alone, {{kind: [...]}}"
        )
    ((kind, given),) = value.items()
    arguments = tuple(given)
    faults = _listed_faults(arguments) if kind in ("choice", "grid") else _range_faults(KINDS[kind], arguments)
    for fault in faults:
        raise UserError(f"{key}.{kind}: {fault}")
    return Space(kind, arguments)


def _listed_faults(values: Sequence[Any]) -> list[str]:
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    twice = [value for i, value in enumerate(values) if texts[i] in texts[:i]]
    if not values:
        return ["got [], expected one value or more"]
    if twice:
        return [f"got {_show(twice[0])} twice, expected each value once"]
    if any(_has_space(value) for value in values):
        return ["there is another space in one of its values, expected values alone; list what you want to have tried"]
    return []


def _has_space(value: Any) -> bool:
    if isinstance(value, Mapping):
        return looks_like_space(value) or any(_has_space(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_has_space(item) for item in value)


def _range_faults(kind: Kind, numbers: Sequence[Any]) -> list[str]:
    """Faults in the arguments of a space of numbers, at most one."""
    wanted = ", ".join(kind.arguments)
    right = int if kind.whole else int | float
    if len(numbers) != len(kind.arguments) or not all(
        isinstance(x, right) and not isinstance(x, bool) for x in numbers
    ):
        return [f"got {_show(list(numbers))}, expected [{wanted}], {'integers' if kind.whole else 'numbers'}"]
    if not all(abs(x) < 1e300 for x in numbers):  # false for NaN, too
        return [f"got {_show(list(numbers))}, expected finite numbers"]
    first, second = numbers[:2]
    if "sd" in kind.arguments:
        return [] if second > 0 else [f"got a standard deviation of {second}, expected a number > 0"]
    if first >= second:
        return [f"got {_show(list(numbers))}, expected the lowest value before the highest"]
    if kind.log and first <= 0:
        return [f"got {first} as the lowest value, expected a number > 0 (it has a logarithm)"]
    if not kind.quantised:
        return []
    if (step := numbers[2]) <= 0:
        return [f"got a step of {step}, expected a number > 0"]
    for end in (first, second):
        if not math.isclose(end / step, round(end / step), rel_tol=1e-9, abs_tol=1e-9):
            return [f"got {end} with a step of {step}, expected a multiple of the step"]
    return []


# --------------------------------------------------------------------------------------------------------------- values


def examples(space: Space) -> list[Any]:
    """Values for checking a space: listed ones, both ends of a range, and mean and ± 4 standard deviations of randn."""
    if space.listed:
        return list(space.arguments)
    if space.kind == "randn":
        mean, sd = space.arguments
        return [float(mean), mean - _RANDN_REACH * sd, mean + _RANDN_REACH * sd]
    lowest, highest = space.arguments[:2]
    return [lowest, highest - 1] if KINDS[space.kind].whole else [float(lowest), float(highest)]


def draw(space: Space, generator: "np.random.Generator") -> Any:
    """One value, from the generator alone; also for a grid, uniformly."""
    if space.listed:
        return space.arguments[int(generator.integers(len(space.arguments)))]
    first, second = space.arguments[:2]
    if space.kind == "randn":
        return float(generator.normal(first, second))
    if space.kind == "randint":
        return int(generator.integers(first, second))
    number = (
        math.exp(generator.uniform(math.log(first), math.log(second)))
        if space.log
        else float(generator.uniform(first, second))
    )
    return clipped(space, math.floor(number) if KINDS[space.kind].whole else number)


def clipped(space: Space, value: Any) -> Any:
    """`value` within the space: in its ends, a multiple of its step, an integer. Listed ones and randn's are
    unchanged."""
    if space.listed or space.kind == "randn":
        return value
    kind = KINDS[space.kind]
    lowest, highest = space.arguments[:2]
    if kind.whole:
        return min(max(round(value), lowest), highest - 1)
    if kind.quantised:
        step = space.arguments[2]
        value = float(f"{round(value / step) * step:.12g}")  # 0.3, not 0.30000000000000004
    return min(max(float(value), float(lowest)), float(highest))


def combinations(spaces: Mapping[str, Space]) -> list[dict[str, Any]]:
    """Every combination of the values of listed spaces, the last one varying fastest."""
    return [
        dict(zip(spaces, values, strict=True))
        for values in itertools.product(*(space.arguments for space in spaces.values()))
    ]


# ----------------------------------------------------------------------------------------------------------------- Tune


def to_tune(space: Space, *, grid: bool = True) -> Any:
    """The space in Ray Tune's form. grid: False turns a grid into a choice, for searchers that do not support grids."""
    from ray import tune

    if space.listed:
        values = [_encoded(space, value) for value in space.arguments]
        return tune.grid_search(values) if space.kind == "grid" and grid else tune.choice(values)
    return getattr(tune, space.kind)(*space.arguments)  # it has functions with these names


def to_pbt(space: Space) -> Any:
    """The space in the form of Tune's population-based training: a list to step through, or a range. (It would multiply
    values of a choice.)"""
    return [_encoded(space, value) for value in space.arguments] if space.listed else to_tune(space)


def from_tune(space: Space, value: Any) -> Any:
    """The setting of Tune's `value`, within the space's bounds. Raises ValueError for one not in the space."""
    if not space.listed:
        return clipped(space, value)
    for own in space.arguments:
        encoded = _encoded(space, own)
        if type(encoded) is type(value) and encoded == value:
            return own
    raise ValueError(f"{value!r:.100} is not a value of {space.kind}")


def _encoded(space: Space, value: Any) -> Any:
    """A listed value for Tune: JSON text for all of a space's values if one of them is not a scalar."""
    if all(isinstance(own, _SCALARS) for own in space.arguments):
        return value
    return json.dumps(value, sort_keys=True)


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."
