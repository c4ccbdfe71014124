"""From YAML, dictionaries and `--set a.b=c` to checked `ExperimentConfig` or `TextExperimentConfig`, and back to YAML.

Decisions that matter here:

- Values keep the type they are written in: `true` is not a number and `"3"` is not an integer. `1e-3`, which is text in
  YAML 1.1, is a number here, in files and in `--set`. An integer is valid for a number, but not the other way round.
- A duplicate key is refused: one of the two would be silently lost.
- All faults of a config are in one UserError, each with its dotted key, its value and what would be right, and with the
  file, or the command line if that set the key. A config of a newer format is refused before that: its unknown keys are
  not misspellings.
- A run, by its folder or an artifact, can replace a config file: its stored config is used.
- Plugins are code. A config fetched over the network imports none, unless the user names them; one of a run folder only
  known ones (`nip_ray.config.plugins`).
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import pydantic
import pydantic_core
import yaml

from nip_ray.config.aliases import in_own_words, other_words
from nip_ray.config.experiment import (
    FORMAT_VERSION,
    Experiment,
    ExperimentConfig,
    TextExperimentConfig,
    names_of,
    refuse_other_players,
)
from nip_ray.config.fault_texts import fault_text, shown
from nip_ray.config.gone import without_gone
from nip_ray.config.keys import branches, keys_of, value_annotation, with_tags
from nip_ray.config.plugins import TRUST, code_in, import_needed, know, refuse_unknown
from nip_ray.config.rules import check
from nip_ray.config.text_rules import learns_from_tokens
from nip_ray.config.yaml_text import Dumper, parse_yaml
from nip_ray.errors import UserError
from nip_ray.progress import say
from nip_ray.storage.folder import CONFIG, EXPORTED
from nip_ray.storage.sources import config_file, is_artifact
from nip_ray.storage.stored_config import plain_config

_EXPERIMENT_KEYS, RUNNER_KEYS = (
    ("protocol", "scenario", "algorithm", "iterations"),
    ("environment", "driver", "experiment"),
)
AnyConfig = ExperimentConfig | TextExperimentConfig
Settings = TypeVar("Settings")


def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, checked: bool = True, of_run: bool | None = None
) -> AnyConfig:
    """The config in the YAML file `path` with `overrides` ("a.b=c") laid over it.

    path: or a run's folder, or an artifact ("wandb:ENTITY/PROJECT/config-RUNID:VERSION"): the config of that run.
    checked: also apply `rules.check`; without it, a stored config whose data files have moved can still be read.
    of_run: True if the file is in a run folder, so that only known code is imported (None: unchecked files named
    config.yaml, all folders, and files as runs write them). Raises UserError, which names the file.
    """
    data, name = read_mapping(
        path, overrides, of_run=not checked and Path(path).name == CONFIG if of_run is None else of_run
    )
    if "sweep" in data:
        raise UserError(f"{name}: is a sweep of many runs; start it with `nip-ray sweep {name}`")
    if is_runner(data):
        raise UserError(
            f"{name}: is a runner file, of learners and a driver, which is for `nip-ray run` and `nip-ray resume`"
        )
    with faults_of(name, overrides):
        config = config_from_dict(data, stored=not checked)
        if checked:
            check(config)
            asked = data.get("protocol", {}).get("shared_reward")
            if asked is False and config.protocol.shared_reward:
                say(
                    f"warning: {name}: protocol.shared_reward: got false, but {config.protocol.name} always shares it,"
                    " leave it out"
                )
    return config


@contextmanager
def faults_of(name: str, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Prefix the faults of a UserError: with the file's `name`; with "command line" for a key that `overrides` set;
    with both for another key whose fault mentions one that `overrides` set."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    above = {key[: dot.start()] for key in keys for dot in re.finditer(r"\.", key)}
    patterns = [f"^{re.escape(key)}(?!\\w)" for key in keys] + [f"^{re.escape(key)}: unknown key" for key in above]
    by_hand = re.compile("|".join(patterns) or "(?!)")

    def source(fault: str) -> str:
        if by_hand.search(fault):
            return "command line"
        spoken_of = (set_ for set_, key in zip(overrides, keys, strict=True) if "." in key)
        clash = [
            one for one in spoken_of if re.search(rf"(?<![\w.]){re.escape(one.partition('=')[0].strip())}(?!\w)", fault)
        ]
        return " ".join([name, *(f"with --set {one}" for one in clash)])

    try:
        yield
    except UserError as error:
        raise UserError(
            *(f"{place}: {'; '.join(found)}" for place, found in groupby(map(str, error.args), source))
        ) from None
    except RecursionError:
        raise UserError(f"{name}: a part of it contains itself, or it is nested too deeply") from None


def read_mapping(
    path: Path | str, overrides: Sequence[str] = (), *, of_run: bool = False
) -> tuple[dict[str, Any], str]:
    """(the content of a file, run or artifact overlaid with `overrides`, its name in messages). See `load_config`.

    of_run: the file is the config of a run folder, which is known for a folder, and for a file as runs write it.
    """
    return read_source(path, overrides, of_run=of_run)[:2]


def read_source(
    path: Path | str, overrides: Sequence[str] = (), *, of_run: bool = False
) -> tuple[dict[str, Any], str, bool]:
    """`read_mapping`, and whether it is the config of a run folder."""
    fetched = is_artifact(path)
    with config_file(path) as file:
        name = str(path if fetched else file)
        text = _text(file, name)
        data = parse_yaml(plain := plain_config(text, name), name)
        of_run = of_run or file != Path(path) or plain != text
        foreign = fetched or (file.parent / EXPORTED).is_file()
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"has {shown(data)} at its top level"
        raise UserError(f"{name}: {what}; a config is a mapping of keys, for example `name: my-run`")
    if (
        foreign
        and data.get("plugins")
        and os.environ.get(TRUST) != "1"
        and not any(override.partition("=")[0].strip() == "plugins" for override in overrides)
    ):
        raise UserError(
            f"{name}: asks for plugins ({shown(data['plugins'])}), which are code; name those to import by --set"
            " plugins=[...]"
        )
    try:
        made = apply_overrides(data, overrides)
    except RecursionError:
        raise UserError(f"{name}: a part of it contains itself, or it is nested too deeply") from None
    named = [text for text in overrides if text.partition("=")[0].strip() in ("plugins", "environment.id")]
    know(code_in(made if not of_run else apply_overrides({}, named)))
    refuse_unknown(made, name)
    return made, name, of_run


def _text(file: Path, name: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = nearest_path(file, [*file.parent.glob("*.yaml"), *Path("tune_configs").glob("*.yaml")])
        hint = f"did you mean {near}?" if near else "name a YAML config, for example one of tune_configs/"
        raise UserError(f"{name}: no such file; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"{name}: cannot be read ({reason}); name a YAML config") from error


def nearest_path(path: Path, there: Iterable[Path]) -> Path | None:
    """The path among `there` whose name, without its suffix, is nearest to that of `path`; None if none is near."""
    named: dict[str, Path] = {}
    for found in there:
        named.setdefault(found.stem, found)
    return next((named[stem] for stem in get_close_matches(path.stem, named, 1)), None)


def load_stored_config(path: Path | str) -> ExperimentConfig:
    """Config of a run of agents with networks, data files unchecked. Raises UserError for one of language models."""
    config = load_config(path, checked=False)
    if isinstance(config, TextExperimentConfig):
        rerun = "a config with base_run: {run_dir: ..., kind: rerun_tests} tests its models again"
        hint = (
            f"nip-ray cross-play {Path(path).parent} --checkpoints plays its models"
            if learns_from_tokens(config)
            else rerun
        )
        raise UserError(f"{path}: the agents of this run are language models, which have no networks; {hint}")
    return config


def kind_of(data: Mapping[str, Any]) -> type[AnyConfig]:
    """The config class of a mapping; its plugins are imported if needed. Raises UserError as `import_plugins` does."""
    parts = {key: data.get(key) for key in ("scenario", "algorithm")}
    named = {key: part["name"] for key, part in parts.items() if isinstance(part, Mapping) and "name" in part}
    if any(
        name not in names_of(ExperimentConfig, key) + names_of(TextExperimentConfig, key) for key, name in named.items()
    ):
        import_needed(data, ExperimentConfig)
    text = text_names()
    of_text = any(name in text[key] for key, name in named.items()) or _is_misspelt_text(data, named.get("algorithm"))
    return TextExperimentConfig if of_text else ExperimentConfig


def _is_misspelt_text(data: Mapping[str, Any], algorithm: Any) -> bool:
    """True if an unknown learning rule is meant for language models: by keys only these have, or the nearest name."""
    known = names_of(ExperimentConfig, "algorithm")
    if algorithm is None or algorithm in known:
        return False
    near = get_close_matches(str(algorithm), [*known, *names_of(TextExperimentConfig, "algorithm")], 1)
    return bool((keys_of(TextExperimentConfig).keys() - keys_of(ExperimentConfig).keys()) & data.keys()) or bool(
        near and near[0] not in known
    )


def text_names() -> dict[str, list[str]]:
    """Key -> the names that mark a config as one of language models: those that configs of networks do not have."""
    keys = ("scenario", "algorithm")
    return {
        key: [name for name in names_of(TextExperimentConfig, key) if name not in names_of(ExperimentConfig, key)]
        for key in keys
    }


def is_runner(data: Mapping[str, Any]) -> bool:
    """Return True if a mapping describes learners and a driver (see `nip_ray.drivers.spec`) rather than an experiment,
    by its keys."""
    found = any(key in data for key in RUNNER_KEYS) or isinstance(data.get("learners"), list)
    return found and not any(key in data for key in _EXPERIMENT_KEYS)


def is_experiment(data: Mapping[str, Any]) -> bool:
    """Return True if a mapping has keys that only experiments have, and none that only runner files have."""
    return any(key in data for key in _EXPERIMENT_KEYS) and not any(key in data for key in RUNNER_KEYS)


def config_from_dict(data: Mapping[str, Any], *, stored: bool = False) -> AnyConfig:
    """The config of a mapping; keys left out have their defaults. `rules.check` is not called.

    stored: possibly by an earlier version: removed keys are dropped with any value. Raises one UserError that lists
    every unknown key and every value of a wrong type or out of bounds, or says that the format is newer.
    """
    version = data.get("format_version", FORMAT_VERSION)
    if type(version) is int and version > FORMAT_VERSION:
        known = f"this nip_ray knows formats up to {FORMAT_VERSION}"
        raise UserError(f"format_version: got {version}, and {known}; use a newer one")
    kind = kind_of(data)
    refuse_other_players(data, kind)
    data = in_own_words(without_gone(data, stored=stored), kind)
    try:
        encoded = pydantic_core.to_json(with_tags(data, kind), inf_nan_mode="constants")
    except ValueError as error:
        raise UserError(f"a config holds numbers, text, lists and mappings only ({error})") from None
    try:
        # JSON in strict mode: lists may be tuples and integers numbers, without other conversions
        return kind.model_validate_json(encoded, strict=True)
    except pydantic_core.ValidationError as error:
        faults = dict.fromkeys(fault_text(detail, kind) for detail in error.errors(include_url=False))
        raise UserError(*faults) from None


def config_to_yaml(config: AnyConfig) -> str:
    """Every key of `config` as YAML in the order of the docs; `config_from_dict` of it gives an equal config."""
    return to_yaml(plain(config))


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain values as YAML, in their order."""
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=140)


def differences(value: Any, default: Any = None) -> dict[str, Any]:
    """The differences of a config, or of a part of it, from the defaults, as a mapping; `config_from_dict` of a
    config's gives an equal config.

    default: the value if the part is left out (None: its class's). Parts with variants keep their `name`.
    """
    made: dict[str, Any] = {}
    for name, key in keys_of(type(value)).items():
        given = getattr(value, name)
        usual = getattr(default, name) if type(default) is type(value) else key.default
        kinds = branches(value_annotation(key.annotation) or key.annotation)
        tags = ["name"] if len(kinds) > 1 else []
        if is_dataclass(given) or isinstance(given, Experiment):
            found = {**{tag: getattr(given, tag) for tag in tags}, **differences(given, usual)}
            # a part that is present with its defaults differs from one that is left out
            made |= {name: found} if found or usual is None else {}
        elif given == usual:
            continue
        elif kinds and isinstance(given, Mapping):  # of agents: a named one inherits nothing from `_default`
            made[name] = {
                agent: {**{tag: getattr(item, tag) for tag in tags}, **differences(item)}
                for agent, item in given.items()
            }
        else:
            made[name] = plain(given, key.annotation)
    return made


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `data` with each "a.b=c" set in turn: c is YAML, missing mappings are made, lists take an index.

    A mapping is merged into the existing one, which a line reports; see `_merged` for replacements.

    A learning rule's setting under another name in `data` is dropped. Raises UserError for an override of another form
    or for an invalid path.
    """
    made = unshared(data)
    for section, _, name in (override.partition("=")[0].strip().partition(".") for override in overrides):
        if section == "algorithm" and isinstance(rule := made.get(section), dict):
            made[section] = {key: value for key, value in rule.items() if key not in other_words(name)}
    for override in overrides:
        dotted, equals, text = override.partition("=")
        parts = dotted.strip().split(".")
        if not equals or not all(parts):
            raise UserError(f"--set {override}: must look like key.subkey=value")
        _set(made, parts, parse_yaml(text, f"--set {override}"), override)
    return made


def unshared(value: Any) -> Any:
    """A copy without shared parts: targets of YAML aliases must not change together."""
    if isinstance(value, Mapping):
        return {key: unshared(item) for key, item in value.items()}
    return [unshared(item) for item in value] if isinstance(value, list | tuple) else value


def plain(value: Any, annotation: Any = None) -> Any:
    """Settings as mappings in the order of `keys_of`, tuples as lists, numbers in the type of their key."""
    if isinstance(value, Experiment) or is_dataclass(value):
        return {name: plain(getattr(value, name), key.annotation) for name, key in keys_of(type(value)).items()}
    if isinstance(value, Mapping):
        return {name: plain(item, value_annotation(annotation)) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item, value_annotation(annotation)) for item in value]
    return float(value) if annotation is float else value


def _set(data: dict[str, Any], parts: list[str], value: Any, override: str) -> None:
    at: Any = data
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        here = ".".join(parts[:depth])
        if isinstance(at, list):
            if not part.isdecimal() or int(part) >= len(at):
                raise UserError(
                    f"--set {override}: {here} is a list of {len(at)}; {part!r} is not an index from 0 to {len(at) - 1}"
                )
            step: Any = int(part)
        elif isinstance(at, dict):
            step = part
        else:
            raise UserError(f"--set {override}: {here} is {shown(at)}, which has no keys below it")
        if last:
            old = at.get(step) if isinstance(at, dict) else at[step]
            at[step] = _merged(old, value)
            if isinstance(old, dict) and isinstance(value, dict) and (others := old.keys() - value.keys()):
                listed = ", ".join(sorted(map(str, others))[:4]) + (", ..." if len(others) > 4 else "")
                kept = "is merged, and these stay" if others & at[step].keys() else "replaces all of it, without"
                say(f"--set {'.'.join(parts)}: {kept}: {listed}")
        else:
            if (at.get(step) if isinstance(at, dict) else at[step]) is None:
                at[step] = {}
            at = at[step]


def _merged(old: Any, new: Any) -> Any:
    """`new` merged into `old` if both are mappings. It replaces `old` if it is empty, if `name` differs, and if both
    are a single list under different keys: a sweep's search spaces."""
    if not (isinstance(old, dict) and isinstance(new, dict) and new):
        return new
    spaces = len(old) == len(new) == 1 and all(isinstance(item, list) for item in (*old.values(), *new.values()))
    if ("name" in new and new["name"] != old.get("name", new["name"])) or (spaces and old.keys() != new.keys()):
        return new
    return {**old, **{key: _merged(old.get(key), item) for key, item in new.items()}}


def config_of(config: AnyConfig | Mapping[str, Any] | Path | str, *, checked: bool = True) -> AnyConfig:
    """A config from Python callers: a config, its keys, or a YAML file or run folder. Raises UserError for faults.

    checked: as in `load_config`; a config that is passed as such, or by its keys, is not checked here.
    """
    if isinstance(config, Path | str):
        return load_config(config, checked=checked)
    if isinstance(config, Mapping):
        return config_from_dict(config)
    if not isinstance(config, Experiment):
        raise UserError(
            f"config: got {shown(config)}, expected an ExperimentConfig, a TextExperimentConfig, a mapping or a path"
        )
    return config


def settings_from(data: Any, kind: type[Settings], prefix: str = "") -> Settings:
    """Settings of a `kind` (a dataclass) from a mapping; missing keys have defaults, variants are selected by `name`.

    prefix: of its keys. Raises one UserError that lists every fault.
    """
    try:
        found = _model(kind).model_validate_json(pydantic_core.to_json(data, inf_nan_mode="constants"), strict=True)
    except pydantic_core.ValidationError as error:
        raise UserError(
            *dict.fromkeys(prefix + fault_text(detail, kind) for detail in error.errors(include_url=False))
        ) from None
    except ValueError as error:
        raise UserError(
            f"{prefix.rstrip('.') or 'config'}: holds numbers, text, lists and mappings only ({error})"
        ) from None
    return _settings(kind, found)


def _settings(kind: type[Settings], found: pydantic.BaseModel) -> Settings:
    values = {name: getattr(found, name) for name in keys_of(kind)}
    for name, element in _elements(kind).items():
        values[name] = tuple(_settings(element, one) for one in values[name])
    return kind(**values)


def _elements(kind: type) -> dict[str, type]:
    """Key -> the class of the elements, for keys that are tuples of settings."""
    held = {
        key.name: value_annotation(key.annotation)
        for key in keys_of(kind).values()
        if get_origin(key.annotation) is tuple
    }
    return {name: of for name, of in held.items() if is_dataclass(of)}  # type: ignore[misc]


@cache
def _model(kind: type) -> type[pydantic.BaseModel]:
    """The pydantic model of a settings class."""
    fields: dict[str, Any] = {}
    for key in keys_of(kind).values():
        annotation: Any = key.annotation
        if key.name in _elements(kind):
            annotation = tuple[_model(_elements(kind)[key.name]), ...]
        elif len(branches(annotation)) > 1:
            annotation = Annotated[annotation, pydantic.Field(discriminator="name")]
        fields[key.name] = (annotation, pydantic.Field(key.default, **key.bounds))
    return pydantic.create_model(kind.__name__, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
