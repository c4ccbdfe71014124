"""The cards of an export, from its config and its evaluation: metrics are copied unchanged from `evaluation.json`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.config.paths import mapped_paths
from nip_ray.evaluation.report.describe import describe
from nip_ray.exports.hub_transcripts import COLUMNS, TURN, described
from nip_ray.secrets import Redactor

AnyConfig = ExperimentConfig | TextExperimentConfig
_TAGS = ["nip_ray", "neural-interactive-proofs", "scalable-oversight"]
_FIRST = (
    "accuracy",
    "completeness",
    "soundness",
    "undecided",
    "soundness_error",
    "soundness_under_attack",
    "completeness_under_attack",
)


def write_model_card(
    path: Path,
    config: AnyConfig,
    evaluation: Mapping[str, Any],
    about: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> None:
    """The card of the models. evaluation: {} if there is none for them. about: the content of `exported.json`."""
    rows = [_row(name, record) for name, record in records(evaluation)]
    front: dict[str, Any] = {"library_name": "nip_ray", "tags": [*_TAGS, config.protocol.name, config.scenario.name]}
    if rows:
        metrics = [
            {"type": row["name"].rpartition("/")[2], "name": row["name"], "value": row["value"]}
            for row in rows
            if row["first"]
        ]
        dataset = {"type": config.scenario.name, "name": config.scenario.name, "split": evaluation["split"]}
        result = {
            "task": {"type": "other", "name": f"{config.protocol.name} protocol"},
            "dataset": dataset,
            "metrics": metrics,
        }
        front["model-index"] = [{"name": config.name, "results": [result]}]
    attackers = list(_attackers(evaluation.get("attack", {})))
    held = {file.split("/")[2] for file in about.get("files", {})}
    words = {
        "held": held,
        "evaluation": evaluation,
        "about": about,
        "environment": {"nip_ray": "", **environment},
        "files": _files(config),
    }
    _write("model_card.md.j2", path, config, front, rows=rows, attackers=attackers, **words)


def write_dataset_card(path: Path, config: AnyConfig, splits: Mapping[str, int]) -> None:
    """The card of the transcripts. splits: name -> episodes."""
    files = [{"split": split, "path": f"data/{split}.parquet"} for split in splits]
    front = {"tags": [*_TAGS, config.protocol.name], "configs": [{"config_name": "default", "data_files": files}]}
    _write("dataset_card.md.j2", path, config, front, splits=splits, columns=described(COLUMNS), turns=described(TURN))


def records(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, record) of every metric of an evaluation except tables of attackers; exact ones only have an estimate."""
    for key, value in part.items():
        if key == "exact":
            yield from ((f"{prefix}exact/{name}", {"estimate": computed}) for name, computed in value.items())
        elif isinstance(value, Mapping) and key != "attack":
            if "estimate" in value:
                yield f"{prefix}{key}", value
            else:
                yield from records(value, f"{prefix}{key}/")


def _row(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    shown = {
        part: "" if record.get(part) is None else repr(record[part]) for part in ("estimate", "lower", "upper", "n")
    }
    place, _, last = name.rpartition("/")
    first = last in _FIRST and place in ("greedy/verifier", "sampled/verifier", "") and record["estimate"] is not None
    return {"name": name, "value": record["estimate"], "first": first, **shown}


def _attackers(attack: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for goal, table in attack.items():
        if isinstance(table, Mapping) and "attackers" in table:
            for row in table["attackers"]:
                yield {**_row(row["name"], row["held_out"]), "goal": goal, "chosen": row["chosen"]}
            for name in ("any_attacker", "every_message"):
                if table.get(name) is not None:
                    yield {**_row(name.replace("_", " "), table[name]), "goal": goal, "chosen": False}


def _files(config: AnyConfig) -> list[str]:
    """The keys of files that the config reads."""
    found = list[str]()

    def note(sort: str, path: str, key: str) -> str:
        if sort == "file" and path:
            found.append(f"`{path}` ({key})")
        return path

    mapped_paths(config.model_dump(mode="json"), type(config), note)
    return found


def _write(template: str, path: Path, config: AnyConfig, front: Mapping[str, Any], **words: Any) -> None:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    task, pay = describe(config.model_dump(mode="json"))
    text = environment.get_template(template).render(
        config=config,
        protocol=config.protocol.name,
        task=task,
        pay=pay,
        text=config_to_yaml(config),
        front=yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True),
        **words,
    )
    path.write_text(Redactor()(text), encoding="utf-8")
