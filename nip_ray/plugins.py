"""Functions for a Python file of your own, to let configs name its protocols, scenarios, algorithms and providers.

The file is listed in a config's `plugins`, and is imported in every process of the experiment: here, in workers, when a
run is resumed.

    from nip_ray.plugins import register_algorithm, register_protocol, register_scenario
    from nip_ray.plugins import register_language_scenario, register_provider, register_text_algorithm

Decisions that matter here:

- Registering a part of the same module and name again replaces it, so that a cell of a notebook can be rerun.
- Ray pickles classes by name, and no worker knows the module of a plugin file before it has imported it. So an
  algorithm's module is pickled by value.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from nip_ray.config.members import add
from nip_ray.config.plugins import send_by_value
from nip_ray.errors import UserError
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol
from nip_ray.protocols import register as register_protocol
from nip_ray.scenarios.language import LANGUAGE_SCENARIOS, LanguageScenarioKind
from nip_ray.scenarios.registry import SCENARIOS

if TYPE_CHECKING:
    from nip_ray.rllib.config import ProtocolAlgorithmConfig
    from nip_ray.settings.providers import ProviderSettings
    from nip_ray.text.providers.interface import ChatClient, Connection, FineTuneBackend
    from nip_ray.text.training.rules import TextRule

__all__ = [
    "register_algorithm",
    "register_language_scenario",
    "register_protocol",
    "register_provider",
    "register_scenario",
    "register_text_algorithm",
]


def register_scenario(settings: type, build: Callable[[Protocol, Any], Scenario]) -> None:
    """Let configs choose a scenario by the name in `settings`.

    settings: a frozen dataclass of `option`s with `name` and `agents` (agent -> its settings, which have `kind` and
    `agent_lr_factor`). build: from a protocol and an instance of `settings` to the scenario; see
    `nip_ray.play.conformance.check_scenario`. Raises UserError when the name is taken, or for missing requirements of
    `settings`.
    """
    if not callable(build):
        raise UserError(f"register_scenario: {build!r} is not a function of (protocol, settings)")
    SCENARIOS[add("scenario", settings)] = build


def register_language_scenario(kind: LanguageScenarioKind) -> None:
    """Let language model configs choose a scenario by the name in `kind.settings`; see `nip_ray.scenarios.language`.

    Raises UserError when the name is taken, or for missing requirements of the settings.
    """
    if not isinstance(kind, LanguageScenarioKind):
        raise UserError(f"register_language_scenario: {kind!r} is not a LanguageScenarioKind")
    for name in ("build", "items", "read_item", "write_item"):
        if not callable(given := getattr(kind, name)):
            raise UserError(f"register_language_scenario: {name}: {given!r} is not a function")
    LANGUAGE_SCENARIOS[add("language_scenario", kind.settings)] = kind


def register_algorithm(config: "type[ProtocolAlgorithmConfig]") -> None:
    """Let configs choose a learning rule by the name in `config.settings_class`.

    config: a `ProtocolAlgorithmConfig` with its `settings_class` (a frozen dataclass of `option`s, derived from
    `OnPolicySettings`) and its learner; see `nip_ray.rllib.conformance.check_algorithm`. Raises UserError when the name
    is taken, or for missing requirements of the settings.
    """
    from nip_ray.rllib.config import ProtocolAlgorithmConfig
    from nip_ray.rllib.registry import ALGORITHMS

    if not (
        isinstance(config, type) and issubclass(config, ProtocolAlgorithmConfig) and hasattr(config, "settings_class")
    ):
        raise UserError(
            f"register_algorithm: {config!r} is not a subclass of ProtocolAlgorithmConfig with a settings_class"
        )
    ALGORITHMS[add("algorithm", config.settings_class)] = config
    send_by_value(config)


def register_text_algorithm(rule: "TextRule") -> None:
    """Let language model configs choose a learning rule by name in `rule.settings`; see `nip_ray.text.training.rules`.

    `nip_ray.text.training.conformance.check_text_algorithm` tests it. Raises UserError when the name is taken, or for
    missing requirements of the rule or its settings.
    """
    from nip_ray.text.training.rules import TEXT_ALGORITHMS, TextRule

    if not isinstance(rule, TextRule):
        raise UserError(f"register_text_algorithm: {rule!r} is not a TextRule")
    faults = list(rule.faults()) if is_dataclass(rule.settings) and isinstance(rule.settings, type) else []
    if faults:
        raise UserError(f"register_text_algorithm: {rule.settings.__name__}: {'; '.join(faults)}")
    TEXT_ALGORITHMS[add("text_algorithm", rule.settings)] = rule
    send_by_value(rule.settings)


def register_provider(
    settings: "type[ProviderSettings]",
    chat: "Callable[[Connection], ChatClient]",
    fine_tuning: "Callable[[Connection], FineTuneBackend] | None" = None,
) -> None:
    """Let configs choose a provider of language models by the name in `settings`.

    settings: a frozen dataclass of `option`s, derived from `ProviderSettings`, whose class attributes state the
    provider's abilities. chat: makes a client with its own retries; budget, prices and rate limits are applied around
    it. fine_tuning: makes a backend (None: its models are not fine-tuned). See
    `nip_ray.text.providers.conformance.check_provider`. Raises UserError when the name is taken, or for missing
    requirements of `settings`.
    """
    from nip_ray.text.providers.interface import PROVIDERS, Provider

    for given in (chat, *([] if fine_tuning is None else [fine_tuning])):
        if not callable(given):
            raise UserError(f"register_provider: {given!r} is not a function of a Connection")
    if getattr(settings, "fine_tunes", False) != (fine_tuning is not None):
        raise UserError(
            "register_provider: set `fine_tunes = True` in the settings and give `fine_tuning`, or leave both out"
        )
    PROVIDERS[add("provider", settings)] = Provider(chat, fine_tuning)
