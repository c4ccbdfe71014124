"""`rerun_tests`: test all checkpoints of an old run again, optionally on other data or with another seed.

    reruns/NAME.json        format, version, dataset, seed, settings, passed_over, and `checkpoints`: one record each,
                            as in evaluation.json

Decisions that matter here:
- the run's own files are not touched, and no lock is taken: a run that is still training can be tested, too;
- an existing result is never replaced: its name is reserved by creating the file, which fails if it exists, also
  between two processes. Then the document is moved there in one step; a kill between the two leaves an empty file,
  which is reported as damaged;
- damaged checkpoints are named and skipped. It is an error if none is left.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from nip_ray.config.changes import run_fingerprint
from nip_ray.config.load import load_stored_config
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import bench, examine, flat_figures, refuse_unused, with_settings
from nip_ray.progress import progress_line, say
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.files import check_version, write_atomically
from nip_ray.storage.folder import CONFIG, RunFolder, json_ready

FORMAT, VERSION = "nip_ray.rerun", 1
RERUNS = "reruns"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]+")


def rerun_tests(
    run_dir: Path | str,
    *,
    dataset: Path | str | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
    name: str | None = None,
    quiet: bool = True,
) -> list[dict[str, Any]]:
    """The metrics of every undamaged checkpoint, oldest first, as `evaluate_run` returns them, and the `file` with all.

    dataset: a file of pairs (None: the run's own held-out split). seed: of sampled actions (None: the run's).
    settings: "evaluation.key=value" in place of the run's. name: of the file (None: after the data set, with -2, -3 ...
    if taken). quiet: without a progress line. Raises UserError for a taken name, and as `evaluate_run` does.
    """
    folder = RunFolder.open(run_dir)
    if name is not None:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"--name {name}: must begin with a letter or digit and have letters, digits, _ . - only, at most 100"
            )
        if (folder.path / RERUNS / f"{name}.json").exists():
            raise UserError(f"--name {name}: this run has a rerun of that name; choose another")
    stored = load_stored_config(folder.path / CONFIG)
    config = with_settings(stored, settings)
    refuse_unused(stored, config, False, dataset)
    entries = folder.checkpoints.iterdir() if folder.checkpoints.is_dir() else ()
    iterations = sorted(int(entry.name) for entry in entries if re.fullmatch(r"\d{6,}", entry.name))
    if not iterations:
        raise UserError(f"{folder.checkpoints}: there is no checkpoint")
    made = bench(folder.path, config, dataset, seed)
    passed_over: list[str] = []
    documents = []
    with progress_line(config.name, 0, len(iterations), quiet, "tests") as report:
        for number, iteration in enumerate(iterations, 1):
            try:
                found = load_checkpoint(folder.checkpoints, iteration, run_fingerprint(config))
            except UserError as error:  # also for one that a training run removes meanwhile
                passed_over.append(str(error).partition("; ")[0])
                continue
            documents.append(examine(made, found))
            report(number, flat_figures(made, documents[-1]))
    if not documents:
        raise UserError(f"no checkpoint can be tested: {'; '.join(passed_over)}")
    for reason in passed_over:
        say(f"warning: {reason}; passed over")
    where = None if dataset is None else os.path.abspath(dataset)
    content = {
        "dataset": where,
        "seed": made.seed,
        "settings": list(settings),
        "passed_over": passed_over,
        "checkpoints": documents,
    }
    file = _keep(folder.path, content, name, "held-out" if dataset is None else Path(dataset).stem)
    return [{**flat_figures(made, document), "file": str(file)} for document in documents]


def read_rerun(run_dir: Path | str, name: str) -> dict[str, Any]:
    """The document that `rerun_tests` kept under `name`: dataset, seed, passed_over, checkpoints.

    Raises UserError when it is missing, damaged, or of a newer version.
    """
    path = Path(run_dir) / RERUNS / f"{name}.json"
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} is missing; this run has {', '.join(rerun_names(run_dir)) or 'no reruns'}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it and rerun the tests") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UserError(
            f"{path} is damaged: it is not a document of the format {FORMAT}; remove it and rerun the tests"
        )
    check_version(document.get("version"), VERSION, str(path))
    return {key: value for key, value in document.items() if key not in ("format", "version")}


def rerun_names(run_dir: Path | str) -> list[str]:
    """The names of all reruns of a run."""
    return sorted(path.stem for path in (Path(run_dir) / RERUNS).glob("*.json"))


def _keep(run_dir: Path, content: Mapping[str, Any], name: str | None, usual: str) -> Path:
    """Put the document in place, in one step, under `name` or the first free name like `usual`."""
    folder = run_dir / RERUNS
    text = json.dumps({"format": FORMAT, "version": VERSION, **json_ready(content)}, indent=2, allow_nan=False) + "\n"
    stem = (_STRANGE.sub("-", usual).strip(".-") or "data")[:80]
    names = [name] if name is not None else (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    try:
        folder.mkdir(exist_ok=True)
        for free in names:
            path = folder / f"{free}.json"
            with suppress(FileExistsError):
                path.touch(exist_ok=False)
                write_atomically(path, text.encode())
                return path
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}); see to it that the run folder can be"
        ) from None
    raise UserError(f"--name {name}: this run has a rerun of that name by now; choose another")
