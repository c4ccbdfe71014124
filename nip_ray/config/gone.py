"""Removed keys of earlier versions, and their replacements.

A run folder stores every key of its config. So a removed key is dropped there, and in any config in which its value has
no effect; otherwise it is an error that names the replacement.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nip_ray.errors import UserError

_ANY = None  # any value: it has no effect without another key
_VLLM = "start `vllm serve MODEL` and name its address as base_url of a provider openai (docs/serving.md); leave it out"
_SIGTERM = "a run ends in order at SIGTERM, which Kubernetes, SkyPilot, Slurm and Ray's autoscaler send; leave it out"
_TWO_LAYERS = "every head has two layers, whose width its `d_` key says; leave it out"
_ROUND = "heads that decide or value are always told the round; leave it out"
_READER = "the perceptron is the published one (num_epochs stays); leave it out"
GONE: dict[str, tuple[tuple[Any, ...] | None, str]] = {
    "runtime.spot_notices": ((None,), _SIGTERM),
    "runtime.spot_interval_s": (_ANY, _SIGTERM),
    "runtime.spot_address": (_ANY, _SIGTERM),
    "providers.(local).engine": (("auto", "torch"), _VLLM),
    "providers.(local).vllm_memory": ((0.5,), _VLLM),
    "algorithm.learner_placement": (
        ("pack",),
        "learners of a model are placed on as few nodes as Ray can; leave it out",
    ),
    "algorithm.learner_sharding": (
        ("none",),
        "each learner holds a whole model, take a smaller one or method lora; leave it out",
    ),
    "(solo).clip_gradients": (_ANY, "one agent learns; leave it out"),
    "learners.shard": (
        (False,),
        "learners.num_learners shares out each minibatch among learners that have all copies; leave it out",
    ),
    "learners.partition": (("copies",), "agents learn in the main process, or on learners.num_learners; leave it out"),
    "runtime.static_shapes": ((None, False), "play and learning are eager on every device; leave it out"),
    "scenario.agents.*.num_decider_layers": ((2,), _TWO_LAYERS),
    "scenario.agents.*.num_linear_message_selector_layers": ((2,), _TWO_LAYERS),
    "scenario.agents.*.num_value_layers": ((2,), _TWO_LAYERS),
    "scenario.agents.*.num_node_selector_layers": ((2,), _TWO_LAYERS),
    "scenario.agents.*.num_latent_pixel_selector_layers": ((2,), _TWO_LAYERS),
    "scenario.agents.*.include_round_in_decider": ((True,), _ROUND),
    "scenario.agents.*.include_round_in_value": ((True,), _ROUND),
    "scenario.agents.*.orthogonal_initialisation_gain": (
        (1.0,),
        "use_orthogonal_initialisation has the gain 1; leave it out",
    ),
    "scenario.agents.*.gnn_output_digits": ((None,), "representations are not rounded; leave it out"),
    "scenario.agents.*.kernel_size": ((3,), "convolutions are 3 x 3; leave it out"),
    "scenario.data.iso_prop_from_non_iso": (
        (0.5,),
        (
            "half of the made isomorphic pairs come from non-isomorphic ones; write other pairs with `nip-ray data"
            " graph-isomorphism`"
        ),
    ),
    "scenario.item_seed": ((0,), "the chains are always those of seed 0; leave it out"),
    "scenario.data_seed": ((0,), "the starts are always those of seed 0; leave it out"),
    "scenario.tandem_range": ((2.0,), "the actions lie between -2 and 2; leave it out"),
    "algorithm.kl_decrement": ((0.5,), "the penalty's coefficient is halved or doubled; leave it out"),
    "algorithm.kl_increment": ((2.0,), "the penalty's coefficient is halved or doubled; leave it out"),
    "algorithm.adaptive_lr_factor": ((1.5,), "the learning rate moves by a factor of 1.5; leave it out"),
    "algorithm.priority_floor": ((1e-6,), "it is 1e-6; leave it out"),
    "algorithm.roles.*.adam_beta1": ((0.9,), "Adam's decays are 0.9 and 0.999; leave it out"),
    "algorithm.roles.*.adam_beta2": ((0.999,), "Adam's decays are 0.9 and 0.999; leave it out"),
    "algorithm.roles.*.momentum": ((0.0,), "sgd has none, adam has its own; leave it out"),
    "evaluation.message_regression.test_share": ((0.2,), _READER),
    "evaluation.message_regression.num_layers": ((2,), _READER),
    "evaluation.message_regression.hidden": ((64,), _READER),
    "evaluation.message_regression.activation": (("relu",), _READER),
    "evaluation.message_regression.minibatch_size": ((512,), _READER),
    "evaluation.message_regression.lr": ((0.001,), _READER),
    "profiling.stacks": ((False,), "the traces in profile/ have the operations; leave it out"),
    "talk.invalid_window": ((50,), "the last 50 replies of an agent count; leave it out"),
    "strict": ((False,), "leave it out; `nip-ray train FILE --dry-run` prints the config with every key"),
}
"""Dotted key -> (values without an effect, None: all; the replacement). `(NAME)` matches all keys whose settings have
this name, `*` all keys."""


def without_gone(data: Mapping[str, Any], *, stored: bool) -> dict[str, Any]:
    """`data` without removed keys. stored: written by an earlier version, so that no value of these is refused.

    Raises one UserError that names all of them that had an effect.
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
    """(`data` without the key at `path`, dotted key -> removed value)."""
    made, found, (step, *below) = dict(data), dict[str, Any](), path
    for key, value in data.items():
        if not below and key == step:
            found[f"{above}{key}"] = made.pop(key)
        elif below and isinstance(value, Mapping) and step in ("*", key, f"({value.get('name')})"):
            made[key], deeper = _without(value, below, f"{above}{key}.")
            found |= deeper
    return made, found
