"""Models of packages: a test is skipped, with the reason, where its package is missing."""

import importlib.util
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.serving.packaged import PACKAGED, parts_of, write_packaged


def needs(name: str) -> list[Path]:
    """The files of the packages that carry a model."""
    if importlib.util.find_spec("gguf") is None:
        pytest.skip(f"gguf is not installed: {PACKAGED[name].install}")
    try:
        return parts_of(name)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file in its package."""
    return needs("smollm2-135m")[0]


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a folder."""
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    assert "Apache-2.0" in write_packaged("smollm2-135m", folder)
    return folder


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M as a folder."""
    needs("gemma3-270m")
    folder = tmp_path_factory.mktemp("models") / "gemma3"
    assert "Gemma Terms of Use" in write_packaged("gemma3-270m", folder)
    return folder
