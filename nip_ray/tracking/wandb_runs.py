"""Weights & Biases: a run with the same id, iterations as steps, files as artifacts.

Decisions that matter here:
- all files of the library are in `wandb/` in the run folder: events, logs, artifacts to upload, its cache. The user's
  environment variables win;
- nothing else is collected: no console output, no git state or diff, no list of packages, no command line, no machine
  metrics. Those may contain secrets, and the relevant ones are in the run folder;
- a resumed run has the same id. Steps that already exist, on the server or in earlier offline files, are not sent
  again: a resumed run repeats the same numbers, and a repeated step would be drawn twice;
- the steps of an offline run are read from its files. Their format is LevelDB's log: a header of 7 bytes, blocks of 32
  KiB, each with records of (checksum 4, length 2, kind 1) bytes before their data; a split record is marked by its
  kind; one protocol buffer per record;
- artifacts are copied when they arrive, since checkpoints are pruned while the upload continues.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nip_ray.settings.tracking import WandbSettings
from nip_ray.storage.folder import CONFIG
from nip_ray.storage.wandb_source import kept_in, require_key, require_library
from nip_ray.tracking.base import RunInfo, Tracker, values

FOLDER = "wandb"

_SETTINGS: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "save_code": False,
    "disable_job_creation": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 1.0,  # seconds of metrics that a killed run loses
    "finish_timeout": 1800,  # data not sent by then stays in the run folder, for `wandb sync`
}


def check(settings: WandbSettings) -> None:
    """Raise UserError without the library, or without a usable key for mode: online."""
    require_library("tracking.wandb.enabled")
    if settings.mode == "online":
        require_key("tracking.wandb.mode is online", "or set mode: offline")


def start(settings: WandbSettings, run: RunInfo) -> Tracker:
    """A run at Weights & Biases, or in files for `wandb sync`; the same one again if `run` is resumed."""
    import wandb

    files = run.run_dir / FOLDER
    written = last_step(files)
    files.mkdir(exist_ok=True)
    online = settings.mode == "online"
    with kept_in(files.absolute()):
        made = wandb.init(
            dir=str(run.run_dir.absolute()),
            project=settings.project or os.environ.get("WANDB_PROJECT") or "nip_ray",
            entity=settings.entity,
            id=run.run_id,
            name=run.name,
            group=settings.group or run.group,
            tags=list(settings.tags) or None,
            config=dict(run.config),
            mode=settings.mode,
            resume="allow" if online else None,
            reinit="create_new",
            settings=wandb.Settings(
                **{key: value for key, value in _SETTINGS.items() if key in wandb.Settings.model_fields}
            ),
        )
    tracker = _Wandb(made, files, settings, run, max(written, run.resumed_from, made.starting_step - 1))
    tracker.config(run.run_dir / CONFIG)
    return tracker


class _Wandb:
    """last_step: rows up to it are already there."""

    def __init__(self, made: Any, files: Path, settings: WandbSettings, run: RunInfo, last_step: int) -> None:
        self._run, self._files, self._settings, self._info, self._last_step = (
            made,
            files.absolute(),
            settings,
            run,
            last_step,
        )

    def log(self, row: Mapping[str, Any]) -> None:
        step = int(row["iteration"])
        if step > self._last_step:
            self._run.log(values(row), step=step, commit=True)
            self._last_step = step

    def config(self, file: Path) -> None:
        self._send("config", {file.name: file}, None)

    def checkpoint(self, folder: Path, iteration: int) -> None:
        if self._settings.checkpoints:
            place = f"checkpoints/{iteration:06d}"  # a small run folder, which other runs can start from
            found = {
                f"{place}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()
            }
            self._send("checkpoint", {CONFIG: self._info.run_dir / CONFIG, **found}, iteration)

    def transcripts(self, file: Path, iteration: int) -> None:
        if self._settings.transcripts:
            self._send("transcripts", {file.name: file}, iteration)

    def finish(self, failed: bool) -> None:
        with kept_in(self._files):
            self._run.finish(exit_code=int(failed))

    def _send(self, kind: str, files: Mapping[str, Path], iteration: int | None) -> None:
        """The files, by their names in the artifact KIND-RUN_ID, as its newest version."""
        import wandb

        with kept_in(self._files):
            about = {
                "run": self._info.name,
                "run_id": self._info.run_id,
                **({} if iteration is None else {"iteration": iteration}),
            }
            artifact = wandb.Artifact(f"{kind}-{self._info.run_id}", type=kind, metadata=about)
            for name, path in files.items():
                artifact.add_file(str(path), name=name, skip_cache=True)
            aliases = ["latest"] if iteration is None else ["latest", f"iteration-{iteration}"]
            self._run.log_artifact(artifact, aliases=aliases)


_HEADER, _BLOCK, _RECORD = 7, 32 * 1024, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def last_step(folder: Path) -> int:
    """The largest step in the offline files of earlier processes below the `wandb/` folder of a run; -1 without any."""
    found = (record for file in folder.glob("offline-run-*/*.wandb") for record in records(file))
    return max(
        (record.history.step.num for record in found if record.WhichOneof("record_type") == "history"), default=-1
    )


def records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file up to a torn last one, left by a killed process."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    for data in _chunks(file.read_bytes()):
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        try:
            record.ParseFromString(data)
        except DecodeError:
            return
        yield record


def _chunks(data: bytes) -> Iterator[bytes]:
    place, parts = _HEADER, b""
    while place < len(data):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD.size:  # padding
            place += left
            continue
        if place + _RECORD.size > len(data):
            return
        _, length, kind = _RECORD.unpack_from(data, place)
        begin, place = place + _RECORD.size, place + _RECORD.size + length
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or place > len(data):
            return
        parts = data[begin:place] if kind in (_FULL, _FIRST) else parts + data[begin:place]
        if kind in (_FULL, _LAST):
            yield parts
