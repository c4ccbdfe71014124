"""Transcripts of several runs side by side, by instance.

Instances that all runs have played come first: among them those with different verdicts, then those with a wrong one.
An instance is identified by its number; across data sets, whose numbers differ in meaning, only labels tell them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_ray.evaluation.report.describe import label_words, verdicts_of
from nip_ray.evaluation.report.episodes import colours_of, is_right, short, shown
from nip_ray.evaluation.report.source import Record, RunSource
from nip_ray.play.transcripts import visible
from nip_ray.storage.folder import RunFolder

INSTANCES_LISTED = 300


@dataclass(frozen=True)
class Column:
    """A run. source: None if it cannot be read; note has the reason."""

    name: str
    source: RunSource | None
    note: str = ""

    @property
    def records(self) -> dict[str, list[Record]]:
        """Instance -> its episodes, in the order of the file."""
        found: dict[str, list[Record]] = {}
        for record in self.source.transcripts if self.source else []:
            found.setdefault(str(record.get("instance", "?")), []).append(record)
        return found


def beside(columns: Sequence[Column], instance: str) -> dict[str, Any]:
    """Variables of beside.html.j2. instance: the one to show, as the page spells it; else the first."""
    played = [column.records for column in columns]
    names = list(dict.fromkeys(name for records in played for name in records))
    listed = sorted(
        (_listed(name, played) for name in names), key=lambda one: (one["missing"], not one["differ"], not one["wrong"])
    )
    chosen = next((name for name in names if visible(name) == instance), listed[0]["name"] if listed else "")
    found = [records.get(chosen, []) for records in played]
    agents = colours_of([record for records in found for record in records[:1]])
    episodes = [
        _column(column, records, agents, number)
        for number, (column, records) in enumerate(zip(columns, found, strict=True), 1)
    ]
    first = next((one["episode"] for one in episodes if one["episode"] is not None), None)
    labels = {one["episode"]["label"] for one in episodes if one["episode"] is not None}
    return {
        "instances": [
            {**one, "short": short(one["name"], 60), "here": one["name"] == chosen} for one in listed[:INSTANCES_LISTED]
        ],
        "left_out": max(0, len(listed) - INSTANCES_LISTED),
        "common": sum(not one["missing"] for one in listed),
        "differ": sum(one["differ"] and not one["missing"] for one in listed),
        "columns": episodes,
        "first": first,
        "strangers": len(labels) > 1,
    }


def transcript_files(columns: Sequence[Column]) -> list[str]:
    """The transcript files that any of these runs has, by iteration."""
    found = {
        name
        for column in columns
        if column.source is not None
        for name in RunFolder(column.source.run_dir, None).transcript_names()
    }
    return sorted(found, key=lambda name: (int(name.rpartition("-")[2]), name))


def _listed(name: str, played: Sequence[Mapping[str, list[Record]]]) -> dict[str, Any]:
    """An instance in the list, with each run's result ("right", "wrong", "played" without a verdict, "" for none)."""
    records = [own.get(name, [None])[0] for own in played]
    marks = [
        "" if one is None else "played" if "verdict" not in one else "right" if is_right(one) else "wrong"
        for one in records
    ]
    verdicts = {str(one["verdict"]) for one in records if one is not None and "verdict" in one}
    return {
        "name": name,
        "marks": marks,
        "missing": marks.count(""),
        "differ": len(verdicts) > 1,
        "wrong": "wrong" in marks,
    }


def _column(column: Column, records: Sequence[Record], agents: Mapping[str, int], number: int) -> dict[str, Any]:
    episode, note = None, column.note
    if column.source is not None:
        note = f"transcripts/{column.source.transcripts_name}" if column.source.transcripts else "no transcripts"
        if records:
            source = column.source
            episode = shown(records[0], number, agents, source.pictures, source.items, verdicts_of(source.config))
            episode["label"] = label_words(source.config).get(episode["label"], f"label {episode['label']}")
            note += f", the first of {len(records)} episodes on this instance" if len(records) > 1 else ""
        elif column.source.transcripts:
            note += ": this instance was not played"
    return {"name": column.name, "episode": episode, "note": note}
