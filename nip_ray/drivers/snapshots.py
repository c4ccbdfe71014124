"""The state of an environment as plain values, so that training continues after a restart in the very episodes it was in.

Decisions that matter here:
- an environment is read attribute by attribute, through its wrappers and the copies of a loop: arrays, numbers, text, random generators,
  and lists, tuples and dictionaries of these. That is all that CartPole and its like have. Nothing is pickled;
- an environment with anything else in it (a physics engine, other processes) has no snapshot, unless it (or each copy of a loop) has
  `state_dict` and `load_state_dict` of its own; drivers then begin new episodes after a restart, and tell the learners so;
- what is left out is told by what it is, not by what it is called: an attribute `clock` may be a number that rewards depend on.
"""

import json
import types
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from nip_ray.drivers.contract import arrays

_IGNORED = ("metadata", "spec", "_cached_spec", "_saved_kwargs", "env_fns")  # what Gymnasium itself keeps under these names
_PICTURES = "pygame"  # windows, surfaces and their clocks, which an environment makes again when it draws
_CONSTANT = (gymnasium.Space, EnvSpec, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_PLAIN = (bool, int, float, str, type(None))
_GENERATORS = {kind.__name__: kind for kind in (np.random.PCG64, np.random.PCG64DXSM)}
_MAX_DEPTH = 20


class _NotPlain(Exception):
    """Something that cannot be read off."""


def take_snapshot(env: Any) -> dict[str, Any] | None:
    """The state of `env` in values that a checkpoint holds; None where it cannot be read off."""
    try:
        return _environment(env, 0)
    except _NotPlain:
        return None


def put_snapshot(env: Any, snapshot: Mapping[str, Any]) -> None:
    """Give a new environment of the same make the state that `take_snapshot` read off another."""
    _decoded(snapshot, env)


def _environment(env: Any, depth: int) -> dict[str, Any]:
    if callable(getattr(env, "state_dict", None)) and callable(getattr(env, "load_state_dict", None)):
        return {"kind": "own", "value": env.state_dict()}
    return _object(env, depth)


def _object(thing: Any, depth: int) -> dict[str, Any]:
    items = {name: _encoded(value, depth + 1) for name, value in vars(thing).items() if not _is_constant(name, value)}
    return {"kind": "object", "items": items}


def _is_constant(name: str, value: Any) -> bool:
    return name in _IGNORED or isinstance(value, _CONSTANT)


def _encoded(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _NotPlain
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return {"kind": "scalar", "value": _array(np.asarray(value))}
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return {"kind": "text", "value": value.astype(str).tolist(), "type": value.dtype.str}
    if isinstance(value, np.ndarray):
        return {"kind": "array", "value": _array(value)}
    if isinstance(value, np.random.Generator):
        if type(value.bit_generator).__name__ not in _GENERATORS:
            raise _NotPlain
        return {"kind": "generator", "value": json.dumps(value.bit_generator.state)}  # as text: its integers have 128 bits
    if isinstance(value, gymnasium.Env | gymnasium.vector.VectorEnv):
        return _environment(value, depth)
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "value": [_encoded(part, depth + 1) for part in value]}
    if type(value) is dict:
        return {"kind": "dict", "value": [[_encoded(key, depth + 1), _encoded(part, depth + 1)] for key, part in value.items()]}
    if isinstance(value, gymnasium.vector.AutoresetMode) or type(value).__module__.partition(".")[0] == _PICTURES:
        return {"kind": "constant"}
    raise _NotPlain


def _array(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind not in "biuf":
        raise _NotPlain
    return np.array(value)


def _fill(thing: Any, items: Mapping[str, Any]) -> None:
    for name, stored in items.items():
        setattr(thing, name, _decoded(stored, getattr(thing, name, None)))


def _decoded(stored: Any, present: Any) -> Any:
    """The value; `present` is what stands in its place now, and is filled or kept where only that can be done."""
    if not isinstance(stored, Mapping):
        return stored
    kind, value = stored["kind"], stored.get("value")
    if kind in ("array", "scalar"):
        array = arrays(value)
        return array[()] if kind == "scalar" else array
    if kind == "text":
        return np.array(value).astype(str(stored["type"]))
    if kind == "generator":
        state = json.loads(str(value))
        generator = np.random.Generator(_GENERATORS[state["bit_generator"]]())
        generator.bit_generator.state = state
        return generator
    if kind == "object":
        _fill(present, stored["items"])
        return present
    if kind == "own":
        present.load_state_dict(value)
        return present
    if kind == "constant":
        return present
    if kind == "dict":
        olds = present if isinstance(present, dict) else {}
        return {(name := _decoded(key, None)): _decoded(part, olds.get(name)) for key, part in value or []}
    olds = present if isinstance(present, list | tuple) and len(present) == len(value or []) else [None] * len(value or [])
    return (list if kind == "list" else tuple)(_decoded(part, old) for part, old in zip(value or [], olds, strict=True))
