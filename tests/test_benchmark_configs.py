"""The configs of benchmarks that take hours are valid before the first hour."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_ray.config.load import load_config

ROOT = Path(__file__).resolve().parents[1]


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    collapse, gap, proving = (importlib.import_module(name) for name in ("collapse", "gap", "self_proving"))
    for strength, levels in gap.LEVELS.items():
        yield f"gap, {strength}", gap.config_of(strength, levels[0], levels[-1])
    for game in collapse.DISTANCE:
        for arm in collapse.ARMS:
            yield f"collapse, {game}, {arm}", collapse.config_of(game, arm)
    for arm in proving.ARMS:
        yield f"self-proving, {arm}", proving.config_of(arm)


def test_long_benchmarks_have_valid_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    try:
        found = dict(configs())
    finally:
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == ROOT / "benchmarks":
                del sys.modules[name]
    assert len(found) == 21
    for name, data in found.items():
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(data))
        assert load_config(file).iterations == data["iterations"], name
