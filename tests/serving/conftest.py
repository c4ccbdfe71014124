"""The default model, written once for all tests of the room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nip_ray.serving.default_model import save_default_model
from nip_ray.serving.engine import Engine


@pytest.fixture(scope="session")
def default_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_default_model(tmp_path_factory.mktemp("default") / "model", seed=0)


@pytest.fixture(scope="module")
def engine(default_dir: Path) -> Iterator[Engine]:
    with Engine(default_dir, max_batch_size=4) as made:
        yield made
