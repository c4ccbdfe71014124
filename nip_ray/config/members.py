"""The scenarios, algorithms and providers that a config can name: built-in ones, and those of plugins.

Decisions that matter here:

- An addition is a settings class like the built-in ones, and joins the union of the config itself. So its keys are
  checked, suggested, dumped and described in the schema by the same code, and no other code treats it specially.
- All requirements on a settings class are checked when it is added, in one error, not when the first config names it.
- A class of the same name and module, or file, replaces the former: it comes from a rerun cell of a notebook, or from a
  file that is both imported and named in `plugins`.
"""

import dataclasses
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from nip_ray.config.experiment import Experiment, ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import Key, branches, keys_of, tag_of, value_annotation, walk
from nip_ray.errors import UserError
from nip_ray.protocols.tables import same_definition
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import ProviderSettings
from nip_ray.settings.text_training import TextTrainingSettings

Part = Literal["scenario", "algorithm", "language_scenario", "text_algorithm", "provider"]

_PLACES: Mapping[Part, tuple[type[Experiment], str]] = {
    "scenario": (ExperimentConfig, "scenario"),
    "algorithm": (ExperimentConfig, "algorithm"),
    "language_scenario": (TextExperimentConfig, "scenario"),
    "text_algorithm": (TextExperimentConfig, "algorithm"),
    "provider": (TextExperimentConfig, "providers"),
}
"""Part of a config -> the config class and the key of its union."""
ADDED: dict[Part, dict[str, type]] = {part: {} for part in _PLACES}
"""Part of a config -> the name of an addition -> its settings class."""


def _members(part: Part) -> tuple[type, ...]:
    kind, key = _PLACES[part]
    annotation = kind.model_fields[key].annotation
    return branches(value_annotation(annotation) or annotation)


_SHIPPED: Mapping[Part, tuple[type, ...]] = {part: _members(part) for part in ADDED}
_RULE_KEYS = ("lr", "minibatch_size", "num_epochs", "max_grad_norm")


def known(part: Part) -> tuple[str, ...]:
    """Every current name of `part`, built-in ones first."""
    return tuple(map(tag_of, _members(part)))


def add(part: Part, settings: type) -> str:
    """Allow configs to name `settings`, a frozen settings dataclass, as their `part`; returns the name.

    Raises one UserError that lists all missing requirements of `settings`, or says that its name is taken.
    """
    faults = list(_class_faults(settings)) or list(_FAULTS[part](settings))
    if faults:
        raise UserError(
            f"{_words(part)} settings {getattr(settings, '__name__', reprlib.repr(settings))}: " + "; ".join(faults)
        )
    name = tag_of(settings)
    if name in map(tag_of, _SHIPPED[part]) or not same_definition(ADDED[part].get(name, settings), settings):
        raise UserError(f"{_words(part)} {name!r} is registered already; choose another name")
    if ADDED[part].get(name) is not settings:
        ADDED[part][name] = settings
        _rebuild(part)
    return name


def _words(part: Part) -> str:
    return part.replace("_", " ")


def forget(part: Part, name: str) -> None:
    """Remove an addition."""
    if ADDED[part].pop(name, None) is not None:
        _rebuild(part)


def _rebuild(part: Part) -> None:
    kind, key = _PLACES[part]
    union: Any = Union[(*_SHIPPED[part], *ADDED[part].values())]
    kind.model_fields[key].annotation = (
        dict[str, Annotated[union, Field(discriminator="name")]] if part == "provider" else union
    )
    kind.model_rebuild(force=True)
    keys_of.cache_clear()


def _class_faults(settings: Any) -> Iterator[str]:
    """Requirements on every settings class of a union."""
    if not (isinstance(settings, type) and dataclasses.is_dataclass(settings) and settings.__dataclass_params__.frozen):  # pyright: ignore[reportAttributeAccessIssue]
        yield (
            "must be a frozen dataclass (`@dataclass(frozen=True)`) whose fields are made with `option(default,"
            " description)`"
        )
        return
    keys = keys_of(settings)
    name = keys.get("name")
    if name is None or get_origin(name.annotation) is not Literal or get_args(name.annotation) != (str(name.default),):
        yield "needs a field `name: Literal['mine'] = option('mine', ...)`, by which configs choose it"
    yield from _key_faults(settings)


def _key_faults(settings: type, prefix: str = "") -> Iterator[str]:
    """Parts below a settings class that cannot be checked or described."""
    if getattr(settings, "__pydantic_config__", {}).get("extra") != "forbid":
        yield f"{settings.__name__} needs `__pydantic_config__ = FORBID_UNKNOWN`, or misspelt keys would be ignored"
    for key in keys_of(settings).values():
        if not _describable(key):
            yield (
                f"{prefix}{key.name}: a config cannot hold {key.annotation}; use int, float, bool, str, Literal, tuple,"
                " dict or settings"
            )
            continue
        if not _takes(key, key.default):
            yield f"{prefix}{key.name}: its default is {key.default!r}, expected {key.expects}"
        for member in branches(value_annotation(key.annotation) or key.annotation):
            yield from _key_faults(member, f"{prefix}{key.name}.")


def _describable(key: Key) -> bool:
    try:
        return bool(key.expects)
    except (KeyError, TypeError, IndexError):
        return False


def _takes(key: Key, value: Any) -> bool:
    """Return True if the key accepts this value."""
    try:
        annotation: Any = Annotated[key.annotation, Field(**key.bounds)]
        TypeAdapter(annotation).validate_json(to_json(value, inf_nan_mode="constants"), strict=True)
    except ValidationError:
        return False
    return True


def _scenario_faults(settings: type) -> Iterator[str]:
    agents = keys_of(settings).get("agents")
    members = branches(value_annotation(agents.annotation)) if agents is not None else ()
    if len(members) != 1:
        yield "needs a field `agents: dict[str, X] = option(dict, ...)`, X being the settings class of one agent"
        return
    below = keys_of(members[0])
    if "kind" not in below or "learned" not in get_args(below["kind"].annotation):
        yield f"{members[0].__name__} needs a field `kind: Literal['learned', ...]`"
    if {"agent_lr_factor.actor", "agent_lr_factor.critic"} - {path for path, _ in walk(members[0])}:
        yield f"{members[0].__name__} needs a field `agent_lr_factor: LrFactors = option(LrFactors, ...)`"


def _language_scenario_faults(settings: type) -> Iterator[str]:
    agents = keys_of(settings).get("agents")
    if agents is None or branches(value_annotation(agents.annotation)) != (LanguageAgentSettings,):
        yield "needs a field `agents: dict[str, LanguageAgentSettings] = option(dict, ...)`"


def _algorithm_faults(settings: type) -> Iterator[str]:
    missing = [name for name in _RULE_KEYS if name not in keys_of(settings)]
    if missing:
        yield f"lacks {', '.join(missing)}, which every learner reads; derive it from OnPolicySettings"


def _text_algorithm_faults(settings: type) -> Iterator[str]:
    if not issubclass(settings, TextTrainingSettings | TokenTrainingSettings):
        yield (
            "must derive from nip_ray.settings.text_training.TextTrainingSettings (fine-tuning jobs) or "
            "nip_ray.settings.policy_gradient.TokenTrainingSettings (gradients on tokens)"
        )
    elif isinstance(found := settings().faults(), str) or not isinstance(found, Iterable):
        yield f"faults() gives {reprlib.repr(found)}, expected texts, yield each"
    if tag_of(settings) in known("algorithm"):  # else a config would count as one of networks
        yield f"{tag_of(settings)!r} is a learning rule of networks already; choose another name"


def _provider_faults(settings: type) -> Iterator[str]:
    if not issubclass(settings, ProviderSettings):
        yield "must derive from nip_ray.settings.providers.ProviderSettings"


_FAULTS = {
    "scenario": _scenario_faults,
    "algorithm": _algorithm_faults,
    "language_scenario": _language_scenario_faults,
    "text_algorithm": _text_algorithm_faults,
    "provider": _provider_faults,
}
