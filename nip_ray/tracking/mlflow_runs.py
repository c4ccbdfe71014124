"""MLflow: a run folder's metrics and files in an MLflow server, a database, or a folder.

Decisions that matter here:
- only MLflow's client object is used, never its global state: one process may track several runs, each elsewhere;
- a resumed run continues in the same MLflow run, whose id is stored in `mlflow.json` of the run folder. Steps that
  MLflow already has are not sent again: it would keep, and draw, both. Parameters cannot be changed there, so they are
  sent once;
- MLflow is abandoning its own store of plain files, and refuses it. For a plain folder, an SQLite database is kept in
  it, with the files beside it;
- credentials come from MLflow's own environment variables; an address with a password in it is refused, since it would
  be stored.
"""

import importlib.util
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nip_ray.errors import UserError
from nip_ray.settings.tracking import MlflowSettings
from nip_ray.storage.folder import CONFIG, RunFolder
from nip_ray.tracking.base import RunInfo, Tracker, flat, numbers

DOCUMENT = "mlflow.json"

_LIBRARIES = ("mlflow", "sqlalchemy", "alembic")
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
_MAX_KEY, _MAX_VALUE, _PARAMS_PER_CALL = 250, 6000, 100  # MLflow's own bounds
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # an unreachable server costs the run half a minute, not an hour
    "GIT_PYTHON_REFRESH": "quiet",
}


def check(settings: MlflowSettings) -> None:
    """Raise UserError if a library is missing, or the address contains a password."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"tracking.mlflow.enabled needs an extra (there is no {', '.join(missing)}): pip install 'nip_ray[mlflow]'"
        )
    if settings.tracking_uri and urlsplit(settings.tracking_uri).password:
        raise UserError(
            "tracking.mlflow.tracking_uri has a password in it; give it in $MLFLOW_TRACKING_USERNAME and"
            " $MLFLOW_TRACKING_PASSWORD, or the whole address in $MLFLOW_TRACKING_URI"
        )


def start(settings: MlflowSettings, run: RunInfo) -> Tracker:
    """A new MLflow run with the parameters of `run`, or its earlier one."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from mlflow.entities import Param
    from mlflow.tracking import MlflowClient

    uri, artifacts = store(settings.tracking_uri)
    client = MlflowClient(tracking_uri=uri)
    known = _known_run(client, run)
    if known is not None:
        client.update_run(known, status="RUNNING")
        return _Mlflow(client, known, max(run.resumed_from, _last_step(client, known)), settings)
    experiment = _experiment(client, settings.experiment, artifacts)
    tags = {"nip_ray.run_id": run.run_id, **({"nip_ray.group": run.group} if run.group else {})}
    made = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
    with RunFolder.open(run.run_dir) as folder:
        folder.write_json(DOCUMENT, {"run": made})
    params = [
        Param(key_of(key), str(value)[:_MAX_VALUE]) for key, value in flat(run.config).items() if value is not None
    ]
    for first in range(0, len(params), _PARAMS_PER_CALL):
        client.log_batch(made, params=params[first : first + _PARAMS_PER_CALL])
    client.log_artifact(made, str(run.run_dir / CONFIG))
    return _Mlflow(client, made, run.resumed_from, settings)


def store(tracking_uri: str | None) -> tuple[str | None, str | None]:
    """(MLflow's address of a store, the place of files of new experiments). None: MLflow decides. A path without a
    scheme is a folder, which is made."""
    if tracking_uri is None or re.match(r"[A-Za-z][\w+.-]*:", tracking_uri) or tracking_uri == "databricks":
        return tracking_uri, None
    folder = Path(tracking_uri).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def key_of(name: str) -> str:
    """MLflow's form of a key: characters that it does not allow ("=") become colons."""
    return _NOT_IN_KEYS.sub(":", name)[:_MAX_KEY]


class _Mlflow:
    """last_step: rows up to it are already there."""

    def __init__(self, client: Any, mlflow_run: str, last_step: int, settings: MlflowSettings) -> None:
        self._client, self._run, self._last_step, self._settings = client, mlflow_run, last_step, settings

    def log(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        step, now = int(row["iteration"]), int(time.time() * 1000)
        if step > self._last_step:
            self._client.log_batch(
                self._run, [Metric(key_of(key), float(value), now, step) for key, value in numbers(row).items()]
            )
            self._last_step = step

    def checkpoint(self, folder: Path, iteration: int) -> None:
        if self._settings.checkpoints:
            self._client.log_artifacts(self._run, str(folder), f"checkpoints/{iteration:06d}")

    def transcripts(self, file: Path, iteration: int) -> None:
        if self._settings.transcripts:
            self._client.log_artifact(self._run, str(file), "transcripts")

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _known_run(client: Any, run: RunInfo) -> str | None:
    """The MLflow run that an earlier process made for this folder; None if there is none, or no longer."""
    from mlflow.exceptions import MlflowException

    if not (run.run_dir / DOCUMENT).is_file():
        return None
    with RunFolder.open(run.run_dir) as folder:
        known = folder.read_json(DOCUMENT).get("run")
    try:
        return client.get_run(known).info.run_id
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _last_step(client: Any, mlflow_run: str) -> int:
    return max((point.step for point in client.get_metric_history(mlflow_run, "iteration")), default=-1)


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    try:
        return client.create_experiment(name, artifact_location=artifacts)
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another process of a sweep was faster
        if found is None:
            raise
        return found.experiment_id
