"""Read and check a runner file: `RunnerSettings` from YAML or a mapping, and back.

Decisions that matter here:
- all faults are in one UserError, key by key, with the nearest valid key for an unknown one; a file that cannot be read
  is an error, never an empty file;
- a string is a string. Schedules have keys of their own; nothing is evaluated;
- in an experiment a learner without an algorithm learns by the experiment's config: nothing else can play it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nip_ray.config.aliases import in_own_words
from nip_ray.config.keys import with_tags
from nip_ray.config.load import (
    apply_overrides,
    faults_of,
    is_experiment,
    plain,
    read_mapping,
    read_source,
    settings_from,
    to_yaml,
)
from nip_ray.drivers.contract import resolve_scopes
from nip_ray.errors import UserError
from nip_ray.settings.drivers import (
    ExperimentAgentSettings,
    ExperimentEnvironmentSettings,
    LearnerSettings,
    NetworkSettings,
    RunnerSettings,
)

EXPERIMENT = "experiment"
# learners of one experiment may differ in these and in scenario.agents
_OWN = ("algorithm", "schedules", "initial_weights", "pretraining")


def load_runner(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = ()) -> RunnerSettings:
    """The settings in a YAML file, in a run's folder, or in a mapping, overlaid with `overrides` ("a.b=c").

    Raises UserError, which names the file, for all faults.
    """
    if isinstance(source, Mapping):
        return _with_its_code(parse_runner(apply_overrides(source, overrides)))
    data, name, of_run = read_source(source, overrides)
    if is_experiment(data):
        raise UserError(f"{name}: is an experiment, not a runner file; start it with `nip-ray train {name}`")
    with faults_of(name, overrides):
        settings = parse_runner(data)
        return settings if of_run else _with_its_code(settings)


def _with_its_code(settings: RunnerSettings) -> RunnerSettings:
    """The same settings, of the user's own: the experiment that they name may import what it names."""
    environment = settings.environment
    if isinstance(environment, ExperimentEnvironmentSettings):
        with suppress(UserError):  # raised, with its place, where the experiment is read
            read_mapping(environment.config, environment.changes)
    return settings


def is_runner_folder(run_dir: Path | str) -> bool:
    """True if `run_dir` is the folder of a run of a runner file, for `resume_runner` (config.yaml has the key
    `learners` as a list; an experiment's is a mapping)."""
    try:
        return isinstance(read_mapping(run_dir)[0].get("learners"), list)
    except UserError:
        return False


def parse_runner(data: Mapping[str, Any]) -> RunnerSettings:
    """The settings of a mapping; keys left out have their defaults. Raises one UserError that lists every fault."""
    settings = settings_from(_with_names(data), RunnerSettings)
    _check(settings)
    return settings


def _with_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with missing kinds of environment and learners filled in."""
    made = with_tags(data, RunnerSettings)
    environment, own = made.get("environment"), {}
    if isinstance(environment, Mapping) and environment.get("name") == EXPERIMENT:
        made, own = {"learners": [{}], **made}, {"algorithm": {"name": EXPERIMENT}}
    if isinstance(made.get("learners"), list | tuple):
        made["learners"] = list(made["learners"])
        for place, one in enumerate(made["learners"]):
            if isinstance(one, Mapping):
                tagged = with_tags({**own, **one}, LearnerSettings)
                made["learners"][place] = in_own_words(tagged, LearnerSettings, f"learners.{place}.")
    return made


def runner_to_yaml(settings: RunnerSettings) -> str:
    """Every key as YAML; `parse_runner` of it gives equal settings."""
    return to_yaml(plain(settings))


def sizes_of(settings: RunnerSettings) -> list[int] | None:
    """The configured numbers of copies of learners; None if there are none."""
    sizes = [learner.scope for learner in settings.learners if learner.scope is not None]
    if sizes and len(sizes) != len(settings.learners):
        raise UserError(
            f"scopes: got {len(sizes)} for {len(settings.learners)} learners, expected one for each, or none at all"
        )
    return sizes or None


def names_of(settings: RunnerSettings) -> list[str]:
    """The learners' names."""
    return [learner.name or f"learner_{place}" for place, learner in enumerate(settings.learners)]


def _check(settings: RunnerSettings) -> None:
    resolve_scopes(settings.environment.num_copies, len(settings.learners), sizes_of(settings))
    names = names_of(settings)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"learners: the name {', '.join(twice)} is used twice, expected a different one for each")
    if settings.driver.name == "manual" and settings.environment.shared and len(names) > 1:
        raise UserError(
            "driver.name: got manual, which has one learner an environment; expected environment.shared: false, or"
            " sequential"
        )
    if any(width < 1 for learner in settings.learners for width in learner.network.hidden):
        raise UserError("learners: network.hidden holds a width below 1, expected integers >= 1")
    played = isinstance(settings.environment, ExperimentEnvironmentSettings)
    if not settings.driver.headless and (played or "render_mode" not in getattr(settings.environment, "options", {})):
        what = "an experiment has no pictures" if played else "environment.options has no render_mode"
        right = "true" if played else "environment.options: {render_mode: human}, or headless: true"
        raise UserError(f"driver.headless: got false, but {what}; expected {right}")
    if isinstance(settings.environment, ExperimentEnvironmentSettings) and not settings.environment.config:
        raise UserError(
            "environment.config: missing, expected the YAML config of an experiment, for example"
            " tune_configs/message_game.yaml"
        )
    for place, learner in enumerate(settings.learners):
        _check_kind(f"learners.{place}", learner, played)


def _check_kind(where: str, learner: LearnerSettings, played: bool) -> None:
    """An experiment needs learners of its own kind, and a Gymnasium environment the others."""
    chosen = learner.algorithm
    if not isinstance(chosen, ExperimentAgentSettings):
        if played:
            raise UserError(
                f"{where}.algorithm.name: got {chosen.name}, but an experiment is learned by algorithm: {{name:"
                " experiment}"
            )
        return
    if not played:
        raise UserError(
            f"{where}.algorithm.name: got experiment, but the environment is not one, expected ppo, dqn or random"
        )
    if learner.network != NetworkSettings():
        raise UserError(
            f"{where}.network: an experiment's networks are in its config, change scenario.agents there or in changes"
        )
    for change in chosen.changes:
        key = change.partition("=")[0].strip()
        if key.partition(".")[0] not in _OWN and not key.startswith("scenario.agents"):
            raise UserError(
                f"{where}.algorithm.changes: {change} is about what all learners play, put it into environment.changes;"
                f" a learner has its own {', '.join(_OWN)}, scenario.agents"
            )
