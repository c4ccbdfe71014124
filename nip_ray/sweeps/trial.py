"""A trial in Tune, for networks and for language models: its config, run folder, steps, checkpoints and resources.

Decisions that matter here:
- a trial is a run: it has a run folder, on storage that all nodes see, under `run_root/TRIAL_ID`. A checkpoint of
  Tune's only refers to a place in it, so nothing is written twice. A trial with an existing folder continues,
  independent of Tune's state;
- deterministic failures are not retried: the trial ends with the reason in its last result (`failed`). External
  failures (a lost process, a full disk) raise, and Tune restarts the trial.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ray import tune

from nip_ray.cluster.liveness import give_signs
from nip_ray.cluster.resources import trial_bundles
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import AnyConfig, config_to_yaml
from nip_ray.config.paths import with_absolute_paths
from nip_ray.config.plugins import know
from nip_ray.config.rules import check
from nip_ray.errors import LearnerLost, UserError
from nip_ray.storage.folder import CONFIG, RunFolder, environment
from nip_ray.sweeps.spaces import from_tune, parse_space
from nip_ray.sweeps.spec import config_of
from nip_ray.tracking import check_trackers

Config = TypeVar("Config", bound=AnyConfig)

POINTER = "run.json"
_LOCK_WAIT_S = 120.0  # for the lock of a trial whose node is gone: a file server releases it after a while
_MEDIA = {ExperimentConfig: "networks", TextExperimentConfig: "language models"}

TRIAL_INDEX = "__trial_index__"
"""Key of the index of this repetition of the setting from Tune's `Repeater`."""
KEYS = ("experiment", "values", "spaces", "run_root", "group", "iterations_per_report", "seeds", TRIAL_INDEX)


class Work(Protocol):
    """A run in progress."""

    def close(self) -> None:
        """Close actors and trackers."""


AnyWork = TypeVar("AnyWork", bound=Work)


class RunTrainable(tune.Trainable, Generic[AnyWork, Config]):
    """A run as a trial. config: "experiment" and "run_root", and optionally "values" (dotted key -> value), "spaces"
    (dotted key -> the search space of a drawn value, as in a sweep file), "group" (the sweep's name, for trackers),
    "iterations_per_report" (default 1), "seeds" (of which Tune's `Repeater` chooses). A mapping may be given as JSON
    text, in which Tune does not look for spaces of its own.

    kind: of its configs. ending: errors that end a trial, in addition to a UserError at its start. format: of its
    checkpoints.
    """

    kind: ClassVar[type[Any]]
    ending: ClassVar[type[Exception]]
    format: ClassVar[str]

    def begin(self, folder: RunFolder) -> AnyWork:
        """The run, at the point where this trial continues."""
        raise NotImplementedError

    def advance(self, work: AnyWork) -> dict[str, Any]:
        """The next part of the run, including its end. Returns "done", and further values to report with `reached`."""
        raise NotImplementedError

    def reached(self, work: AnyWork) -> dict[str, Any]:
        """The newest metrics by their keys in metrics.jsonl."""
        raise NotImplementedError

    def place(self) -> dict[str, Any]:
        """Save the run, and return the content of a checkpoint of Tune's."""
        raise NotImplementedError

    def save_interrupted(self, work: AnyWork) -> None:
        """Save a run that is stopped between two reports."""

    def setup(self, config: dict[str, Any]) -> None:
        """Make the run folder, or open the one of an earlier start of this trial. Nothing is built, and no provider
        contacted, before the first `step`. Raises UserError when the folder cannot be written."""
        self.work: AnyWork | None = None
        self.folder: RunFolder | None = None
        self.source: dict[str, Any] | None = None
        self._fault: str | None = None
        self._silence: Callable[[], None] | None = None
        self._broken: Exception | None = None
        try:
            self.experiment: Config = with_absolute_paths(experiment_of(config, self.kind))
            check(self.experiment)
            check_trackers(self.experiment.tracking)
            trial_bundles(self.experiment)
        except UserError as error:
            self._fault = str(error)
            return
        self.root = Path(config["run_root"]).resolve()
        self.folder = opened(self.root / self.trial_id, self.experiment)
        self._silence = give_signs(self.folder.path)

    def step(self) -> dict[str, Any]:
        """The next iterations, or the next stage. Returns the newest metrics by their keys in metrics.jsonl, with
        `iteration`, `run_dir`, `done`, and `failed` (the reason) for a trial that should not be retried. Raises
        LearnerLost, and UserError when nothing can be written."""
        if self._broken is not None:
            raise self._broken
        if self._fault is not None or self.folder is None:
            return failed(self._fault)
        try:
            if self.work is None:
                self.work = self.begin(self.folder)
        except LearnerLost:
            raise
        except (UserError, self.ending) as error:
            return failed(error)
        try:
            told = self.advance(self.work)
        except LearnerLost:
            raise
        except self.ending as error:
            return {**self.reached(self.work), **failed(error)}
        return {**self.reached(self.work), **told, "run_dir": str(self.folder.path)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the run, and record its position."""
        Path(checkpoint_dir, POINTER).write_text(json.dumps({"format": self.format, "version": 1, **self.place()}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Store the point to continue from; see `step`. Raises UserError for content not by `save_checkpoint`."""
        found = json.loads(Path(checkpoint_dir, POINTER).read_text())
        if found.get("format") != self.format or found.get("version") != 1:
            raise UserError(f"{checkpoint_dir}: no checkpoint of the format {self.format}, or one of a newer version")
        self.source = found

    def cleanup(self) -> None:
        """Close actors, trackers and the folder. A trial that is stopped between two reports is saved first."""
        try:
            if self.work is not None:
                try:
                    self.save_interrupted(self.work)
                finally:
                    self.work.close()
        finally:
            if self._silence is not None:
                self._silence()
            if self.folder is not None:
                self.folder.close()

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """CPUs and GPUs of the main process, then of its processes: env runners and learners, rollout workers and local
        models."""
        try:
            return tune.PlacementGroupFactory(trial_bundles(experiment_of(config, cls.kind)))
        # called in the sweep's process; `setup` reports the fault, and only this trial fails
        except UserError:
            return tune.PlacementGroupFactory([{"CPU": 1.0}])


def experiment_of(config: Mapping[str, Any], kind: type[Config]) -> Config:
    """The experiment of a `kind` in a trial's config. Raises UserError for unknown keys and for an invalid config."""
    unknown = sorted(set(config) - set(KEYS))
    if unknown or "experiment" not in config or "run_root" not in config:
        wrong = f"unknown: {', '.join(unknown)}" if unknown else "experiment and run_root are needed"
        raise UserError(f"the config of a trial takes {', '.join(KEYS)} ({wrong})")
    made = config_of(_mapping(config["experiment"]), values_of(config))
    if not isinstance(made, kind):
        right = "text_trainable.TextTrainable" if kind is ExperimentConfig else "trainable.ExperimentTrainable"
        raise UserError(f"this trainable is for {_MEDIA[kind]}; for {_MEDIA[type(made)]} take nip_ray.sweeps.{right}")
    return made


def values_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drawn values of a trial, in the form of a config file, by dotted key."""
    found = _mapping(config.get("values", {}))
    if set(found) == {"drawn"}:  # by us, not by Tune
        return dict(found["drawn"])
    parsed = {key: parse_space(key, space) for key, space in _mapping(config.get("spaces", {})).items()}
    made = {
        key: value if (space := parsed.get(key)) is None else from_tune(space, value) for key, value in found.items()
    }
    seeds = config.get("seeds") or []
    return {**made, "seed": seeds[config.get(TRIAL_INDEX, 0)]} if seeds else made


def opened(path: Path, experiment: AnyConfig) -> RunFolder:
    """The run folder of a trial, open for writing. Waits for the lock of an earlier start that could not release it."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while (path / CONFIG).is_file():
        try:
            return RunFolder.open(path, write=True)
        except UserError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    folder = RunFolder.create(path, config_to_yaml(experiment))
    know(experiment.plugins, keep=True)
    folder.write_json("environment.json", environment())
    return folder


def failed(reason: object) -> dict[str, Any]:
    """The result of a trial that should not be retried."""
    return {"done": True, "failed": " ".join(str(reason).split())}


def _mapping(value: Mapping[str, Any] | str) -> dict[str, Any]:
    return json.loads(value) if isinstance(value, str) else dict(value)
