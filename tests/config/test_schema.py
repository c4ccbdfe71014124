"""The schema for editors accepts what the loader accepts, and the page of keys is up to date."""

import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.key_pages import FOLDER, INDEX, configuration_pages, write_pages
from nip_ray.config.keys import branches, walk
from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.config.rules import check
from nip_ray.config.schema import config_schema, schema_text
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@cache
def validator() -> Any:
    return pytest.importorskip("jsonschema").Draft202012Validator(config_schema())


def accepted(data: Any) -> bool:
    return validator().is_valid(data)


@pytest.mark.usefixtures("no_plugins")
def test_the_shipped_schema_is_up_to_date() -> None:
    file = ROOT / "tune_configs" / "config.schema.json"
    assert file.read_text(encoding="utf-8") == schema_text(), (
        f"write it again: nip-ray schema --out {file.relative_to(ROOT)}"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "tune_configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_file_announces_the_schema_and_fits_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    announced = text.partition("\n")[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / announced).is_file()
    data = parse_yaml(text, path.name)
    assert accepted(data)
    assert not accepted({**data, "sed": 3})


@pytest.mark.usefixtures("no_plugins")
def test_the_pages_of_keys_are_up_to_date() -> None:
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix(): path.read_text(encoding="utf-8") for path in docs.rglob("*.md")}
    written = {name: text for name, text in written.items() if name == INDEX or name.startswith(f"{FOLDER}/")}
    assert written == configuration_pages(), "write them again: python -m nip_ray.config.schema --markdown"


EXAMPLE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("page", configuration_pages())
def test_the_example_of_a_page_of_keys_could_be_run(page: str) -> None:
    (text,) = EXAMPLE.findall(configuration_pages()[page])
    check(config_from_dict(parse_yaml(text, page)))


@pytest.mark.usefixtures("no_plugins")
def test_a_page_of_keys_that_are_gone_is_removed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "gone.md").write_text("# Gone\n")
    write_pages(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")} == set(configuration_pages())


@pytest.mark.usefixtures("no_plugins")
def test_the_pages_have_every_key_with_a_description() -> None:
    entries = [
        " ".join(entry.split())
        for page in configuration_pages().values()
        for entry in re.findall(r"^- `.*(?:\n  .*)*", page, re.MULTILINE)
    ]
    for path, key in [*walk(ExperimentConfig), *walk(TextExperimentConfig)]:
        if branches(key.annotation) or (key.name == "name" and len(get_args(key.annotation)) == 1):
            continue
        assert [e for e in entries if e.startswith(f"- `{path}` (") and e.endswith(f"): {key.description}")], path
        assert key.description.endswith("."), path


def test_every_key_is_described_in_the_schema() -> None:
    schema = config_schema()
    objects = list(schema["$defs"].values())
    described = {
        (obj["title"], name)
        for obj in objects
        for name, prop in obj["properties"].items()
        if prop.get("description") or "$ref" in prop
    }
    assert described == {(obj["title"], name) for obj in objects for name in obj["properties"]}
    assert all(obj["additionalProperties"] is False for obj in objects)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"scenario": {"shared_body": False}},
        {"scenario": {"name": "message_game", "num_symbols": 3}},
        {"scenario": {"name": "chess"}},
        {"seed": -1},
        {"sed": 3},
        {"algorithm": {"clip_value": True}},
        {"algorithm": {"lr": 0}},
        {"scenario": {"agents": {"prover": {"d_gn": 1}}}},
        {"scenario": {"agents": {"prover": {"d_gnn": 1}}}},
        {"scenario": {"data": {"graph_sizes": []}}},
    ],
)
def test_schema_and_loader_agree(data: dict[str, Any]) -> None:
    try:
        config_from_dict(data)
        loads = True
    except UserError:
        loads = False
    assert accepted(data) is loads


def test_what_is_written_fits_the_schema() -> None:
    assert accepted(yaml.safe_load(config_to_yaml(ExperimentConfig())))
