"""The files of a run folder that a report reads.

Unlike `RunFolder`, which refuses damaged files, this reads whatever it can and notes the rest, so that a killed run, or
one whose disk filled up, gets a report too.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.storage.folder import CONFIG, METRICS, VERSION, RunFolder
from nip_ray.storage.listing import config_of

MAX_TEXT = 60_000  # characters of a config or environment that a page shows
EXACT = "exact"  # in place of an interval, if nothing was sampled
CROSS_PLAY = "cross_play.json"
PRETRAINING = "pretraining.json"
INSTANCES = "instances.json"  # pictures of a run's instances
MAX_TRANSCRIPT_BYTES = 20_000_000  # more than a report can show is not read

Row = dict[str, float]
Record = dict[str, Any]


@dataclass(frozen=True)
class RunSource:
    """The readable part of a run folder.

    rows: the finite numbers of each iteration, in order, the newest row where an iteration was repeated after a resume.
    config_text, environment: for the page; config: the parsed config. evaluation: evaluation.json, {} without one.
    transcripts: records of `transcripts_name`, the newest file. unreadable: a newer file that cannot be read at all,
    else "". pictures: instance -> its picture. items: instance -> problem and program of code validation. cross_play:
    cross_play.json, {} without one. pretraining: pretraining.json, {} without one. notes: what was missing or damaged,
    one sentence each.
    """

    run_dir: Path
    rows: list[Row]
    config_text: str
    config: Record
    environment: Record
    evaluation: Record
    transcripts: list[Record]
    transcripts_name: str
    unreadable: str
    pictures: Mapping[str, Record]
    items: Mapping[str, Record]
    cross_play: Record
    pretraining: Record
    notes: list[str]

    def told(self, part: str) -> Any:
        """A part of evaluation.json, for unseen instances where these are separate; None if it is missing."""
        unseen = self.evaluation.get("unseen")
        return unseen[part] if isinstance(unseen, dict) and part in unseen else self.evaluation.get(part)

    def part(self, name: str) -> Record:
        """The same for a mapping, {} for anything else."""
        found = self.told(name)
        return found if isinstance(found, dict) else {}


def read_run(run_dir: Path, transcripts: str | None = None) -> RunSource:
    """Read a run. transcripts: their file, such as 000050 (None: the newest readable one).

    Raises UserError when `run_dir` is not a run, or the requested file of transcripts is missing or damaged.
    """
    notes: list[str] = []
    rows = metric_rows(run_dir / METRICS, notes)
    config_text = _text(run_dir / CONFIG, notes)
    evaluation = _object(run_dir / "evaluation.json", notes)
    if evaluation and (evaluation.get("format"), evaluation.get("version")) != ("nip_ray.evaluation", 1):
        notes.append("evaluation.json has another format or version than this report reads; it was left out.")
        evaluation = {}
    if transcripts is None:
        records, name, unreadable = _newest_transcripts(run_dir / "transcripts", notes)
    else:
        try:
            records, name, unreadable = (
                RunFolder(run_dir, None).read_transcripts(transcripts),
                f"{transcripts}.jsonl",
                "",
            )
        except ValueError as error:
            raise UserError(f"--transcripts: {error}") from None
    environment = _object(run_dir / "environment.json", notes)
    crossed = _object(run_dir / CROSS_PLAY, notes) if (run_dir / CROSS_PLAY).is_file() else {}
    pretrained = _object(run_dir / PRETRAINING, notes) if (run_dir / PRETRAINING).is_file() else {}
    parsed, fault = config_of(config_text)
    if config_text and fault:
        notes.append("config.yaml is damaged; it is shown as is.")
    pictures = read_pictures(run_dir)
    items = _items(run_dir / "items" / ("test.jsonl" if name.startswith("test-") else "train.jsonl"), records, notes)
    return RunSource(
        run_dir,
        rows,
        config_text,
        parsed,
        environment,
        evaluation,
        records,
        name,
        unreadable,
        pictures,
        items,
        crossed,
        pretrained,
        notes,
    )


@dataclass(frozen=True)
class Figure:
    """A metric from evaluation.json, or without interval and n from metrics.jsonl."""

    estimate: float
    lower: float | None = None
    upper: float | None = None
    n: int | None = None

    def against(self, mark: "float | Figure") -> str:
        """Position of its interval: "above" or "below" a mark or another metric's interval, or "beside" it."""
        low = high = mark.estimate if isinstance(mark, Figure) else mark
        if isinstance(mark, Figure) and mark.lower is not None and mark.upper is not None:
            low, high = mark.lower, mark.upper
        if self.lower is not None and self.lower > high:
            return "above"
        return "below" if self.upper is not None and self.upper < low else "beside"


def figure_of(record: Any) -> Figure | None:
    """A record {estimate, lower, upper, n} of evaluation.json; None for anything else, and without an estimate."""
    if not isinstance(record, dict) or (estimate := finite(record.get("estimate"))) is None:
        return None
    n = finite(record.get("n"))
    return Figure(estimate, finite(record.get("lower")), finite(record.get("upper")), None if n is None else int(n))


def percent_words(share: float) -> str:
    """A share for readers, in one piece."""
    return f"{100 * share:.1f}\u00a0%"


def interval_words(figure: Figure, shares: bool) -> str:
    """The ends of an interval, of shares in per cent; "" if unknown."""
    if figure.lower is None or figure.upper is None:
        return ""
    if figure.lower == figure.upper:
        return EXACT
    if shares:
        return f"{100 * figure.lower:.1f} to {100 * figure.upper:.1f}"
    return f"{figure.lower:.3g} to {figure.upper:.3g}"


def sure_words(figure: Figure) -> str:
    """The interval of a share in brackets, to follow the share in a sentence; "" if unknown."""
    words = interval_words(figure, True)
    if words == EXACT:
        return f" ({EXACT})"
    return f" (95\u00a0% interval {words})" if words else ""


def finite(value: object) -> float | None:
    """`value` as a float, or None unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def metric_rows(path: Path, notes: list[str]) -> list[Row]:
    """The finite numbers of each iteration, in order; damage is noted. Raises UserError if no row is readable."""
    if not path.is_file():
        raise UserError(
            f"{path.parent}: not a run folder (it has no metrics.jsonl); give the folder that `nip-ray train` printed"
        )
    found, lost = _json_lines(path)
    damaged = len(lost)
    by_iteration: dict[float, Row] = {}
    for record in found:
        row = {key: number for key, value in record.items() if (number := finite(value)) is not None}
        if "iteration" in row:
            by_iteration[row["iteration"]] = row
        else:
            damaged += 1
    if damaged:
        notes.append(
            f"{damaged} unreadable line{'s' if damaged > 1 else ''} of metrics.jsonl {'were' if damaged > 1 else 'was'}"
            " left out."
        )
    if not by_iteration:
        raise UserError(f"{path}: no complete row yet, so there is nothing to report; let the run finish an iteration")
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]


def _json_lines(path: Path) -> tuple[list[Record], list[int]]:
    """The JSON objects of a file's lines, and the numbers of invalid lines or lines of a newer format."""
    records: list[Record] = []
    damaged: list[int] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and record.get("version", VERSION) == VERSION:
            records.append(record)
        else:
            damaged.append(number)
    return records, damaged


def _items(path: Path, records: list[Record], notes: list[str]) -> dict[str, Record]:
    """The items of these transcripts, by id. {} for a run that keeps none."""
    wanted = {record["instance"] for record in records if isinstance(record.get("instance"), int)}
    if not wanted or not path.is_file():
        return {}
    found: dict[str, Record] = {}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with suppress(ValueError, RecursionError):
                    item = json.loads(line)
                    if isinstance(item, dict) and item.get("id") in wanted:
                        found[str(item["id"])] = item
    except OSError as error:
        notes.append(f"items/{path.name} cannot be read ({error.strerror}); left out.")
    return found


def read_pictures(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Instance (as text) -> picture; {} without any, or if the file is damaged: pictures are optional."""
    try:
        document = json.loads((run_dir / INSTANCES).read_bytes())
        found = document["pictures"] if document["version"] == 1 else {}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}


def _text(path: Path, notes: list[str]) -> str:
    if not path.is_file():
        notes.append(f"{path.name} is missing.")
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _object(path: Path, notes: list[str]) -> Record:
    text = _text(path, notes)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    notes.append(f"{path.name} is damaged; it was left out.")
    return {}


def _iteration_and_name(path: Path) -> tuple[int, str]:
    found = re.search(r"([0-9]{1,18})$", path.stem)
    return (int(found[1]) if found else -1, path.name)


def _newest_transcripts(folder: Path, notes: list[str]) -> tuple[list[Record], str, str]:
    """Records of the newest readable file, its name, and the newest unreadable file ("" for none).

    Files are NNNNNN.jsonl or WORD-NNNNNN.jsonl, and are tried by iteration.
    """
    files, unreadable = sorted(folder.glob("*.jsonl"), key=_iteration_and_name, reverse=True), ""
    for path in files:
        try:
            if path.stat().st_size > MAX_TRANSCRIPT_BYTES:
                notes.append(f"transcripts/{path.name} is too large to be shown.")
                continue
            records, damaged = _json_lines(path)
        except OSError as error:
            notes.append(f"transcripts/{path.name} cannot be read ({error.strerror}); left out.")
            unreadable = unreadable or path.name
            continue
        if damaged and not records:
            notes.append(f"transcripts/{path.name}: no record of it can be read; left out.")
            unreadable = unreadable or path.name
        elif damaged:
            lines = f"line {damaged[0]} is" if len(damaged) == 1 else f"lines {', '.join(map(str, damaged[:5]))} are"
            notes.append(
                f"transcripts/{path.name}: {lines} damaged{' (and more)' if len(damaged) > 5 else ''}; left out."
            )
        if records:
            return records, path.name, unreadable
    return [], "", unreadable


def count_words(figure: Figure | None) -> str:
    """The size of the sample, "" if unknown."""
    return "" if figure is None or figure.n is None else f"{figure.n:,}"


def cell(figure: Figure | None, shares: bool = True) -> tuple[str, str]:
    """A metric and its interval for a table, empty for None. shares: in per cent."""
    if figure is None:
        return "", ""
    return percent_words(figure.estimate) if shares else f"{figure.estimate:.3g}", interval_words(figure, shares)
