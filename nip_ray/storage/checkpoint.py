"""Atomic checkpoints, verified before anything in them is read.

A checkpoint is a folder `NNNNNN` (its iteration) with `NAME.pt` for each entry of `tensors`, `state.json`, and
`manifest.json`, which holds the SHA-256 sum and the size of every other file, and of itself.

A kill, or a power cut, at any moment leaves a valid checkpoint, once there was one, because:
- all files are written into a hidden folder `.NNNNNN.tmp-PID`, then they and that folder are fsynced, then it is
  renamed to `NNNNNN`, then the parent is fsynced. The rename is atomic, so `NNNNNN` is always complete;
- older checkpoints are removed only after that. Each is first renamed to a hidden name, so that none is ever visible
  half removed;
- an iteration that exists already is renamed to `.NNNNNN.old-PID` before the new one takes its name. Between the two
  renames `load_checkpoint` still finds the old one under its hidden name, and the next `save_checkpoint` restores its
  name;
- the next save removes what killed writers left. One process writes at a time: the caller holds the lock of the run
  folder.

Later damage is found by the sums: size and sum of every file are compared before the first is read. The loader then
falls back to the checkpoint before; not from one that a newer nip_ray wrote, which is an error. It never runs code from
a file: tensors are read by `torch.load(weights_only=True)`, and other content in a file with a right sum was not
written here: that is an error without a fallback.

Weights alone, for publishing, are a folder with the manifest and the state at its top and `AGENT.safetensors` for each
agent (`write_weights`). It is read as the one checkpoint of a run folder that has no `checkpoints`.
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nip_ray.errors import UserError, require
from nip_ray.storage.files import make_folder, sync
from nip_ray.storage.fingerprint import checksum

FORMAT = "nip_ray.checkpoint"
VERSION = 1
MANIFEST, STATE, WEIGHTS = "manifest.json", "state.json", ".safetensors"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_FINISHED = re.compile(r"\d{6,}")
_REPLACED = re.compile(r"\.(\d{6,})\.old-\d+")
_HIDDEN = re.compile(r"\.(\d{6,})\.(tmp|trash)-\d+")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    iteration: its number. tensors: name -> nested dicts and lists of tensors (on the CPU) and plain values. state:
    plain JSON values. fingerprint: of the config it belongs to. path: its folder. skipped: for each newer checkpoint
    that was skipped, its path and the reason.
    """

    iteration: int
    tensors: dict[str, Any]
    state: dict[str, Any]
    fingerprint: str
    path: Path
    skipped: list[str]


class _Damaged(Exception):
    """The reason why a checkpoint is unusable."""


class AllDamaged(UserError):
    """There are checkpoints, and none can be read."""


def save_checkpoint(
    folder: Path,
    iteration: int,
    tensors: Mapping[str, Any],
    state: Mapping[str, Any],
    fingerprint: str,
    keep: int | None,
) -> Path:
    """Write the checkpoint of `iteration` into `folder` (the run's `checkpoints`), then remove those before it beyond
    `keep` (None: none).

    tensors: NAME -> nested dicts, lists and tuples of tensors, numpy arrays (which come back as tensors), numbers,
    strings, None. state: plain JSON values with finite numbers (tuples come back as lists; put other numbers into
    `tensors`, which keep them exactly). An existing checkpoint of `iteration` is replaced. Later iterations are neither
    counted nor changed: see `rewind_checkpoints`. Returns the checkpoint's folder. Raises UserError when it cannot be
    written (all earlier checkpoints are then kept), ValueError for content that could not be read back.
    """
    if iteration < 0 or (keep is not None and keep < 1):
        raise ValueError(f"iteration must be at least 0 and keep at least 1 (got {iteration}, {keep})")
    plain = {_checked_name(name): _plain(content, name) for name, content in tensors.items()}
    _check_state(state, "state")
    final = folder / f"{iteration:06d}"
    aside = folder / f".{final.name}.tmp-{os.getpid()}"
    try:
        _prepare(folder)
        _write_files(aside, iteration, plain, state, fingerprint)
        _move_into_place(aside, final)
        older = [path for number, path in _finished(folder) if number <= iteration]
        _remove(older[:-keep] if keep is not None else [])
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(
            f"{final}: the checkpoint cannot be written ({error.strerror or error}); earlier ones are untouched"
        ) from None
    return final


def load_checkpoint(folder: Path, iteration: int | None = None, fingerprint: str | None = None) -> Checkpoint:
    """The checkpoint of `iteration`, or the newest undamaged one; its `skipped` names the damaged ones.

    Raises UserError when there is none (left), when the requested one is missing or damaged, when it belongs to another
    config than `fingerprint`, when a newer nip_ray wrote it, and when one with right sums holds anything but tensors
    and plain values.
    """
    found = _candidates(folder)
    if iteration is not None:
        if iteration not in found:
            there = ", ".join(str(number) for number in sorted(found)) or "none"
            raise UserError(f"{folder}: there is no checkpoint of iteration {iteration} (there is: {there})")
        found = {iteration: found[iteration]}
    if not found:
        raise UserError(f"{folder}: there is no checkpoint")
    skipped: list[str] = []
    for number in sorted(found, reverse=True):
        try:
            manifest = _verify(found[number], number)
        except _Damaged as reason:
            skipped.append(f"{found[number]} is damaged: {reason}")
            continue
        return _read(found[number], manifest, fingerprint, skipped)
    if iteration is not None:
        raise UserError(f"{skipped[0]}; choose another iteration, or none for the newest undamaged checkpoint")
    raise AllDamaged(f"{folder}: no undamaged checkpoint is left: {'; '.join(skipped)}")


def write_weights(
    folder: Path, iteration: int, modules: Mapping[str, Mapping[str, torch.Tensor]], fingerprint: str
) -> None:
    """Write weights of each agent into the otherwise empty `folder`, in the form of a checkpoint of weights alone.

    Raises UserError without the library safetensors.
    """
    require("safetensors", "hf")
    from safetensors.torch import save_file

    for agent, weights in modules.items():
        path = folder / f"{_checked_name(agent)}{WEIGHTS}"
        save_file({name: weight.clone().contiguous() for name, weight in weights.items()}, path)
        path.chmod(0o644)
    _write_manifest(folder, iteration, {}, fingerprint)


def weights_alone(run_dir: Path) -> dict[int, Path]:
    """iteration -> the folder, if `write_weights` has written into it; else {}."""
    try:
        found = json.loads((run_dir / MANIFEST).read_bytes())
        return {int(found["iteration"]): run_dir} if found["format"] == FORMAT else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def has_checkpoint(folder: Path) -> bool:
    """True if any checkpoint, damaged or not, was ever finished in `folder`; leftovers of a first save that was killed
    do not count."""
    return bool(_candidates(folder))


def kept_iterations(folder: Path) -> list[int]:
    """The iterations of all finished checkpoints in `folder`, oldest first, damaged ones included."""
    return sorted(_candidates(folder))


def rewind_checkpoints(folder: Path, iteration: int, *, alone: bool = False) -> None:
    """Remove the checkpoints after `iteration`, damaged or not, before training continues from there. alone: those
    before it, too.

    Call it before the metrics are rewound: a kill in between then leaves a checkpoint with too many rows, never with
    too few. Raises UserError when the folder cannot be written.
    """
    if not folder.is_dir():
        return
    try:
        _prepare(folder)
        kept = (iteration,) if alone else range(iteration + 1)
        _remove([path for number, path in _candidates(folder).items() if number not in kept])
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror})") from None


def _prepare(folder: Path) -> None:
    """Make the folder, or remove what killed writers left in it."""
    make_folder(folder)
    for entry in list(folder.iterdir()):
        if _HIDDEN.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)
        elif match := _REPLACED.fullmatch(entry.name):
            final = folder / match[1]
            if final.exists():
                _remove([entry])
            else:
                entry.rename(final)


def _write_files(
    aside: Path, iteration: int, tensors: Mapping[str, Any], state: Mapping[str, Any], fingerprint: str
) -> None:
    aside.mkdir()
    for name, content in tensors.items():
        with (aside / f"{name}.pt").open("wb") as file:
            try:
                torch.save(content, file)
            except RuntimeError as error:  # how torch reports a full disk
                raise (error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error))) from None
    _write_manifest(aside, iteration, state, fingerprint)
    with ThreadPoolExecutor(8) as pool:  # at once: a journal then commits them together, in a fifth of the time or less
        list(pool.map(sync, [*aside.iterdir(), aside]))


def _write_manifest(aside: Path, iteration: int, state: Mapping[str, Any], fingerprint: str) -> None:
    """Write the state and the manifest beside the other files of a checkpoint."""
    files: dict[str, dict[str, Any]] = {}
    (aside / STATE).write_bytes(_readable(state))
    for path in sorted(aside.iterdir()):
        with path.open("rb") as file:
            files[path.name] = {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "iteration": iteration,
        "fingerprint": fingerprint,
        "files": files,
    }
    (aside / MANIFEST).write_bytes(_readable({**manifest, "sha256": checksum(manifest)}))


def _move_into_place(aside: Path, final: Path) -> None:
    replaced = final.with_name(f".{final.name}.old-{os.getpid()}")
    if final.exists():
        final.rename(replaced)
    aside.rename(final)
    sync(final.parent)
    if replaced.exists():
        _remove([replaced])


def _remove(checkpoints: list[Path]) -> None:
    """Hide each in one step, then remove it."""
    for path in checkpoints:
        number = _number_of(path.name)
        hidden = path.with_name(f".{number:06d}.trash-{os.getpid()}")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _number_of(name: str) -> int:
    match = _REPLACED.fullmatch(name)
    return int(match[1] if match else name)


def _finished(folder: Path) -> list[tuple[int, Path]]:
    """(iteration, path) of every checkpoint in place, oldest first."""
    return sorted((int(entry.name), entry) for entry in folder.iterdir() if _FINISHED.fullmatch(entry.name))


def _candidates(folder: Path) -> dict[int, Path]:
    """iteration -> path, including those that a killed writer had moved aside and not yet replaced; for weights alone,
    the run folder itself."""
    if not folder.is_dir():
        return weights_alone(folder.parent)
    hidden = {_number_of(entry.name): entry for entry in folder.iterdir() if _REPLACED.fullmatch(entry.name)}
    return {**hidden, **dict(_finished(folder))}


def _verify(path: Path, iteration: int) -> dict[str, Any]:
    """The manifest of a checkpoint with unchanged files. Raises _Damaged."""
    manifest = _read_manifest(path)
    if manifest["iteration"] != iteration:
        raise _Damaged(f"{MANIFEST} is of iteration {manifest['iteration']}")
    for name, expected in manifest["files"].items():
        try:
            with (path / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected["bytes"]:
                    raise _Damaged(f"{name} has {size} bytes instead of {expected['bytes']}")
                if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                    raise _Damaged(f"{name} does not match its checksum")
        except FileNotFoundError:
            raise _Damaged(f"{name} is missing") from None
        except OSError as error:
            raise _Damaged(f"{name} cannot be read ({error.strerror})") from None
    return manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        version = manifest["version"]
        stated = manifest.pop("sha256")
        if type(version) is int and version > VERSION:
            newer = f"has the format version {version}, and this nip_ray knows those up to {VERSION}"
            # not damage: continuing from an earlier one would remove a newer nip_ray's work
            if stated == checksum(manifest):
                raise UserError(f"{path} {newer}; use a newer one")
            raise _Damaged(f"it {newer}")
        intact = manifest["format"] == FORMAT and version == VERSION and stated == checksum(manifest)
        well_formed = (
            intact
            and all(_is_entry(name, entry) for name, entry in manifest["files"].items())
            and STATE in manifest["files"]
        )
    except FileNotFoundError:
        raise _Damaged(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise _Damaged(f"{MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _Damaged(f"{MANIFEST} is not a manifest") from None
    if not intact:
        raise _Damaged(f"{MANIFEST} does not match its own checksum")
    if not well_formed:
        raise _Damaged(f"{MANIFEST} lists files that are not of a checkpoint, or not {STATE}")
    return manifest


def _is_entry(name: str, entry: Any) -> bool:
    known = name == STATE or (name.endswith((".pt", WEIGHTS)) and _NAME.fullmatch(name))
    return bool(known) and type(entry["bytes"]) is int and isinstance(entry["sha256"], str)


def _read(path: Path, manifest: Mapping[str, Any], expected: str | None, skipped: list[str]) -> Checkpoint:
    if expected is not None and manifest["fingerprint"] != expected:
        raise UserError(
            f"{path} is a checkpoint of another config: its fingerprint is {manifest['fingerprint']}, that of this"
            f" config {expected}; resume with the config that the run was started with"
        )
    tensors: dict[str, Any] = {}
    for name in manifest["files"]:
        if name == STATE:
            continue
        if name.endswith(WEIGHTS):
            modules = tensors.setdefault("training", {}).setdefault("modules", {})
            modules[name.removesuffix(WEIGHTS)] = _read_weights(path / name)
            continue
        try:
            tensors[name.removesuffix(".pt")] = torch.load(path / name, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises a dozen kinds
            raise UserError(
                f"{path / name} holds something else than tensors and plain values; it was not read ({_kind(error)})"
            ) from None
    try:
        state = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path / STATE} cannot be read ({error})") from None
    if not isinstance(state, dict):
        raise UserError(f"{path / STATE} must hold a mapping, and holds a {type(state).__name__}")
    return Checkpoint(manifest["iteration"], tensors, state, manifest["fingerprint"], path, skipped)


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    require("safetensors", "hf")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is not a safetensors file ({error})") from None


def _kind(error: Exception) -> str:
    """The object that `torch.load` met, without its advice to load the file anyway."""
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    return f"it calls for {forbidden[1]}" if forbidden else type(error).__name__


def _plain(value: Any, where: str) -> Any:
    """`value` in types that `torch.load(weights_only=True)` reads. A view is copied, so that it does not include its
    whole storage."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray):
        try:
            return torch.from_numpy(np.array(value))
        except TypeError as error:
            raise ValueError(f"{where}: {error}") from None
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().as_subclass(torch.Tensor)
        whole = (
            tensor.layout != torch.strided
            or tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        )
        return tensor if whole else tensor.clone()
    if isinstance(value, Mapping):
        strange = [key for key in value if type(key) not in (str, int)]
        if strange:
            raise ValueError(f"{where}: keys must be strings or integers (got {strange[0]!r})")
        return {key: _plain(part, f"{where}.{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(part, f"{where}[{number}]") for number, part in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    raise ValueError(
        f"{where}: a {type(value).__name__} cannot be kept in a checkpoint, only tensors, numbers, strings, dicts and"
        " lists"
    )


def _check_state(value: Any, where: str) -> None:
    """Raise ValueError unless JSON would return `value` unchanged."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: keys must be strings (got {key!r})")
            _check_state(part, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            _check_state(part, f"{where}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON does not have; put it into `tensors`")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"{where}: a {type(value).__name__} is not a plain JSON value")


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a file; use letters, digits, _ . -")
    return name


def _readable(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
