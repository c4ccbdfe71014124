"""Keys that configs of earlier versions have, and what replaces each.

A run folder keeps a config with every key. So a key that is gone is dropped there, and in any config where it has a value that changed
nothing; else it is an error that says what to write instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nip_ray.errors import UserError

_ANY = None  # whatever value it has: it says nothing without another key
_VLLM = "start `vllm serve MODEL` and name its address as base_url of a provider openai (docs/serving.md); leave it out"
_SIGTERM = "a run ends in order at SIGTERM, which Kubernetes, SkyPilot, Slurm and Ray's autoscaler send; leave it out"
GONE: dict[str, tuple[tuple[Any, ...] | None, str]] = {
    "runtime.spot_notices": ((None,), _SIGTERM),
    "runtime.spot_interval_s": (_ANY, _SIGTERM),
    "runtime.spot_address": (_ANY, _SIGTERM),
    "providers.(local).engine": (("auto", "torch"), _VLLM),
    "providers.(local).vllm_memory": ((0.5,), _VLLM),
    "algorithm.learner_placement": (("pack",), "learners of a model are placed on as few nodes as Ray can; leave it out"),
    "algorithm.learner_sharding": (("none",), "each learner holds a whole model, take a smaller one or method lora; leave it out"),
    "(solo).clip_gradients": (_ANY, "one agent learns; leave it out"),
    "learners.shard": ((False,), "learners.num_learners shares out each minibatch among learners that have all copies; leave it out"),
    "learners.partition": (("copies",), "agents learn in the main process, or on learners.num_learners; leave it out"),
    "runtime.static_shapes": ((None, False), "play and learning are eager on every device; leave it out"),
    "talk.invalid_window": ((50,), "the last 50 replies of an agent count; leave it out"),
    "strict": ((False,), "leave it out; `nip-ray train FILE --dry-run` prints the config with every key"),
}
"""Dotted key -> (values that changed nothing, none: all; what to do instead). `(NAME)` stands for all keys whose
settings have this name."""


def without_gone(data: Mapping[str, Any], *, stored: bool) -> dict[str, Any]:
    """`data` without keys that are gone. stored: as an earlier version wrote it, so that no value of these is refused.

    Raises one UserError that names all of them that said something.
    """
    made, faults = dict(data), []
    for path, (silent, instead) in GONE.items():
        made, found = _without(made, path.split("."))
        said = [key for key, value in found.items() if silent is not _ANY and value not in silent]
        faults += [f"{key}: was removed; {instead}" for key in said if not stored]
    if faults:
        raise UserError(*faults)
    return made


def _without(data: Mapping[str, Any], path: Sequence[str], above: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """(`data` without the key at `path`, dotted key -> value of what was there)."""
    made, found, (step, *below) = dict(data), dict[str, Any](), path
    for key, value in data.items():
        if not below and key == step:
            found[f"{above}{key}"] = made.pop(key)
        elif below and isinstance(value, Mapping) and step in (key, f"({value.get('name')})"):
            made[key], deeper = _without(value, below, f"{above}{key}.")
            found |= deeper
    return made, found
