"""The models of a run of language agents for an export: copied if the run has them, otherwise named."""

import json
import shutil
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import UserError
from nip_ray.exports.game import models_at, tested_iteration
from nip_ray.serving.gguf import converted_name
from nip_ray.serving.model_folder import ADAPTER, BASE, recorded
from nip_ray.storage.files import sum_of
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.model_files import gguf_in

_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_CARRIED = (".safetensors", ".json", ".jinja", ".txt", ".model")


@dataclass(frozen=True)
class KeptModels:
    """iteration: of their test. names: group -> model. elsewhere: groups whose weights a provider has. bases: places in
    the export of models that the run did not make, alone or under adapters; they are not copied. files: path in the
    export -> SHA-256 sum."""

    iteration: int
    names: dict[str, str]
    elsewhere: list[str]
    bases: list[str]
    files: dict[str, str]


def copy_models(folder: RunFolder, config: TextExperimentConfig, target: Path) -> KeptModels:
    """Copy the models that were tested last into `target`, at their places in a run folder. Raises UserError for
    pickled weights."""
    iteration = tested_iteration(folder.path, config, None)
    names, elsewhere, bases = models_at(folder, iteration), [], list[str]()
    settings = language_agents(config)
    given = {converted_name(Path(own.model)) for own in settings.values() if gguf_in(Path(own.model)) is not None}
    for group, agents in groups(config).items():
        home = settings[agents[0]].provider
        if not config.providers[home].has_model:
            continue
        found = folder.path / home / "models" / names[group]
        if config.providers[home].local_models and Path(names[group]).is_absolute():
            names[group] = found.name  # the config named a folder elsewhere, which is not part of the run
            bases.append(f"{home}/models/{names[group]}")
            continue
        if not config.providers[home].local_models or not (found / "config.json").is_file():
            elsewhere.append(group)
            continue
        names[group] = found.name
        bases += [f"{home}/models/{base}" for base in _copy(found, target / home / "models" / found.name, given)]
    files = {str(path.relative_to(target)): sum_of(path) for path in sorted(target.rglob("*")) if path.is_file()}
    return KeptModels(iteration, names, elsewhere, sorted(set(bases)), files)


def with_models(config: TextExperimentConfig, names: Mapping[str, str]) -> TextExperimentConfig:
    """`config` whose agents use these models (group -> name)."""
    group_of = {agent: group for group, agents in groups(config).items() for agent in agents}
    agents = {agent: replace(own, model=names[group_of[agent]]) for agent, own in language_agents(config).items()}
    return config.model_copy(update={"scenario": replace(config.scenario, agents=agents)})


def _copy(source: Path, target: Path, given: Set[str]) -> list[str]:
    """Copy a model's folder, and the base of its adapters if the run made it; returns the bases that it did not make.
    given: the names of bases converted from a user's file."""
    if target.is_dir():
        return []
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        if path.suffix in _PICKLED:
            raise UserError(
                f"{path}: is pickled, and an export has safetensors alone; convert the model, or remove the file"
            )
        if path.is_file() and path.suffix in _CARRIED:
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))
    for told in (target / "config.json", target / ADAPTER / "adapter_config.json"):
        _forget_places(told)
    if not (source / BASE).is_file():
        return []
    told = recorded(source)
    base = (source / told["base"]).resolve()
    (target / BASE).write_text(json.dumps(told | {"base": f"../{base.name}"}) + "\n", encoding="utf-8")
    if base.parent != source.resolve().parent or base.name in given:
        return [base.name]
    return _copy(base, target.parent / base.name, given)


def _forget_places(path: Path) -> None:
    """Reduce local paths that a library has recorded to their last part."""
    if not path.is_file():
        return
    told = json.loads(path.read_text(encoding="utf-8"))
    for key in ("_name_or_path", "base_model_name_or_path"):
        if isinstance(told.get(key), str) and Path(told[key]).is_absolute():
            told[key] = Path(told[key]).name
    path.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
