"""What a Python file of your own calls so that configs can name its protocols, scenarios and algorithms.

The file stands in a config's `plugins`, and is imported wherever the experiment is: here, in workers, when a run is resumed.

    from nip_ray.plugins import register_protocol, register_scenario, register_algorithm

Decisions that matter here:

- To register a part of the same module and name again replaces it, so that a cell of a notebook can be run twice.
- Ray pickles classes by name, and no worker knows the module of a plugin file before it has imported it. So an algorithm's module is
  pickled by value.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nip_ray.config.members import add
from nip_ray.config.plugins import is_plugin_file
from nip_ray.errors import UserError
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol
from nip_ray.protocols import register as register_protocol
from nip_ray.scenarios.registry import SCENARIOS

if TYPE_CHECKING:
    from nip_ray.rllib.config import ProtocolAlgorithmConfig

__all__ = ["register_algorithm", "register_protocol", "register_scenario"]


def register_scenario(settings: type, build: Callable[[Protocol, Any], Scenario]) -> None:
    """Let configs choose a scenario by the name in `settings`.

    settings: a frozen dataclass of `option`s with `name` and `agents` (agent -> its settings, which have `kind` and `agent_lr_factor`).
    build: from a protocol and an instance of `settings` to the scenario; see `nip_ray.play.conformance.check_scenario`.
    Raises UserError when the name is taken, or for what `settings` lacks.
    """
    if not callable(build):
        raise UserError(f"register_scenario: {build!r} is no function of (protocol, settings)")
    SCENARIOS[add("scenario", settings)] = build


def register_algorithm(config: "type[ProtocolAlgorithmConfig]") -> None:
    """Let configs choose a learning rule by the name in `config.settings_class`.

    config: a `ProtocolAlgorithmConfig` with its `settings_class` (a frozen dataclass of `option`s, derived from `PolicyGradientSettings`)
    and its learner; see `nip_ray.rllib.conformance.check_algorithm`.
    Raises UserError when the name is taken, or for what the settings lack.
    """
    import ray.cloudpickle

    from nip_ray.rllib.config import ProtocolAlgorithmConfig
    from nip_ray.rllib.registry import ALGORITHMS

    if not (isinstance(config, type) and issubclass(config, ProtocolAlgorithmConfig) and hasattr(config, "settings_class")):
        raise UserError(f"register_algorithm: {config!r} is no subclass of ProtocolAlgorithmConfig with a settings_class")
    ALGORITHMS[add("algorithm", config.settings_class)] = config
    if is_plugin_file(config.__module__):
        ray.cloudpickle.register_pickle_by_value(sys.modules[config.__module__])
