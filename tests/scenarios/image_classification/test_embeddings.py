"""Feature maps of pretrained models: weights read as tensors alone, stems that fit, the cache by content, and what
agents make of them.

What needs timm runs where it can be imported (it needs a torchvision that was built for the installed torch).
"""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import own_rows
from nip_ray.protocols import build
from nip_ray.scenarios.image_classification import embeddings as room
from nip_ray.scenarios.image_classification.build import build_image_classification
from nip_ray.scenarios.image_classification.embeddings import (
    PretrainedModel,
    embeddings,
    feature_maps,
    find_model,
    load_weights,
)
from nip_ray.scenarios.image_classification.scenario import ImageClassification
from nip_ray.seeding import generator
from nip_ray.settings.image_classification import ImageAgentSettings, ImageClassificationSettings, ImageDataSettings
from tests.scenarios.image_classification.files import TINY, random_images

HALF = (0.5, 0.5, 0.5)


class Small(nn.Module):
    """A convolutional model with the interface and the parts of a residual network of timm."""

    def __init__(self, features: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, features, 7, stride=2, padding=3, bias=False)
        self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1)

    def forward_features(self, x: Tensor) -> Tensor:
        return torch.relu(self.maxpool(self.conv1(x)))


def small(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small()


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_are_read_from_all_usual_files(wrap: str | None, prefix: str, tmp_path: Path) -> None:
    state = {f"{prefix}{name}": value for name, value in small().state_dict().items()}
    torch.save(state if wrap is None else {wrap: state, "epoch": 3}, tmp_path / "w.pth")
    save_file(state, tmp_path / "w.safetensors")
    for name in ("w.pth", "w.safetensors"):
        assert torch.equal(load_weights(tmp_path / name)["conv1.weight"], small().conv1.weight)


class Evil:
    def __reduce__(self) -> Any:
        return open, ("evil", "w")


def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"conv1.weight": Evil()}))
    torch.save({"state_dict": Evil()}, tmp_path / "evil2.pth")
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    torch.save([1, 2], tmp_path / "list.pth")
    for name in ("evil.pth", "evil2.pth", "torn.safetensors", "list.pth"):
        with pytest.raises(UserError, match=rf"{name}: (cannot be read|holds no state dict)") as caught:
            load_weights(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "evil").exists()


def test_a_folder_as_timm_writes_it_says_architecture_and_scales(tmp_path: Path) -> None:
    save_file(small().state_dict(), tmp_path / "model.safetensors")
    assert find_model(str(tmp_path), "resnet18") == PretrainedModel(tmp_path / "model.safetensors", "resnet18")
    config: dict[str, Any] = {"architecture": "resnet34", "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = find_model(str(tmp_path), "resnet18")
    assert found == PretrainedModel(tmp_path / "model.safetensors", "resnet34", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    for content in ("{", '{"mean": 3}', '{"mean": [1, 2]}', '{"std": [1, 1, 0]}', "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match=r"config.json: "):
            find_model(str(tmp_path), "resnet18")
    with pytest.raises(UserError, match="no weights here"):
        find_model(str(tmp_path / "nowhere"), "resnet18")


def test_the_stem_for_small_images_is_known_by_its_weights() -> None:
    for side, map_size in ((3, (6, 7)), (7, (2, 2))):
        network = small()
        state = {"conv1.weight": torch.randn(5, 3, side, side)}
        room.fit_stem(network, state)
        room.put_weights(network, state, ("fc",), PretrainedModel(Path("w"), "small"))
        assert network.forward_features(torch.zeros(1, 3, 6, 7)).shape[2:] == map_size
        assert torch.equal(network.conv1.weight, state["conv1.weight"])


def test_weights_of_another_model_are_refused_and_its_classifier_is_ignored() -> None:
    network, model = small(), PretrainedModel(Path("w.pth"), "small")
    good = {**small(1).state_dict(), "fc.weight": torch.zeros(10, 5), "fc.bias": torch.zeros(10)}
    room.put_weights(network, good, ("fc",), model)
    assert torch.equal(network.conv1.weight, small(1).conv1.weight)
    for bad in ({}, {**good, "layer9.weight": torch.zeros(1)}, {"conv1.weight": torch.zeros(4, 3, 7, 7)}):
        with pytest.raises(UserError, match=r"w.pth: these are not weights of small \('.*' (is missing|does not fit)"):
            room.put_weights(network, bad, ("fc",), model)


@pytest.mark.parametrize("channels", [1, 3])
def test_feature_maps_are_the_models_own(channels: int) -> None:
    images = random_images(size=(channels, 6, 7))
    found = feature_maps(small(), images, (0.1, 0.2, 0.3), (0.5, 1.0, 2.0))
    x = images.pixels_ICHW.float().expand(-1, 3, -1, -1) / 255
    x = (x - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 1.0, 2.0])[:, None, None]
    with torch.no_grad():
        expected = small().forward_features(x)
    assert found.dtype == np.float16
    assert np.allclose(found, expected.numpy(), atol=2e-3)


def refuse(x: Tensor) -> Tensor:
    raise RuntimeError("Input height (6) doesn't match model (224).\nmore")


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (refuse, r"agents.\*.pretrained_architecture: the model cannot take images of 6 x 7 x 1 \(Input height \(6\) "),
        (lambda x: x.flatten(2), "no feature map"),
        (lambda x: torch.where(x == x.max(), float("nan"), x), r"hold numbers that are none, or beyond 65504"),
        (lambda x: torch.where(x == x.max(), 1e6, x), r"hold numbers that are none, or beyond 65504"),
    ],
)
def test_a_model_without_usable_maps_is_refused_in_one_line(forward: Callable[[Tensor], Tensor], message: str) -> None:
    model = nn.Module()
    model.forward_features = forward
    with pytest.raises(UserError, match=message) as caught:
        feature_maps(model, random_images(), HALF, HALF)
    assert "\n" not in str(caught.value)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[PretrainedModel]:
    """The models that were built, each a `Small` with the weights of its file, in place of timm's."""
    built: list[PretrainedModel] = []

    def build_model(model: PretrainedModel) -> nn.Module:
        built.append(model)
        network, state = small(), load_weights(model.weights)
        room.fit_stem(network, state)
        room.put_weights(network, state, ("fc",), model)
        return network

    monkeypatch.setattr(room, "build_model", build_model)
    return built


def weights(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(small(seed).state_dict(), path)
    return path


def test_maps_are_computed_once_for_a_content_and_anew_for_another(
    tmp_path: Path, counted: list[PretrainedModel]
) -> None:
    images, place = random_images(), tmp_path / "cache"
    model = PretrainedModel(weights(tmp_path / "a" / "w.safetensors"), "small")
    first = embeddings(model, images, place)
    assert torch.equal(
        embeddings(PretrainedModel(weights(tmp_path / "b" / "other.safetensors"), "small"), images, place), first
    )
    assert len(counted) == 1  # the same content in another place
    changed = random_images()
    changed.pixels_ICHW[3, 0, 0, 0] ^= 1
    for other in (
        (PretrainedModel(weights(tmp_path / "c" / "w.safetensors", 1), "small"), images),
        (PretrainedModel(model.weights, "small", std=(1.0, 1.0, 1.0)), images),
        (model, changed),
    ):
        assert not torch.equal(embeddings(*other, place), first)
    assert len(counted) == 4
    assert len(list(place.glob("*.npy"))) == 4
    assert not list(place.glob(".*"))


@pytest.mark.parametrize("harm", ["bytes", "no sum"])
def test_a_damaged_file_of_the_cache_is_made_anew(harm: str, tmp_path: Path, counted: list[PretrainedModel]) -> None:
    images, model = random_images(), PretrainedModel(weights(tmp_path / "w.safetensors"), "small")
    first = embeddings(model, images, tmp_path / "cache").clone()
    (file,) = (tmp_path / "cache").glob("*.npy")
    content = file.read_bytes()
    if harm == "bytes":
        file.write_bytes(content[:-4] + b"\x00\x01\x02\x03")
    else:
        file.with_suffix(".json").unlink()
    assert torch.equal(embeddings(model, images, tmp_path / "cache"), first)
    assert len(counted) == 2
    assert file.read_bytes() == content


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, counted: list[PretrainedModel]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"scenario.embedding_cache: .*file cannot be written"):
        embeddings(PretrainedModel(weights(tmp_path / "w.safetensors"), "small"), random_images(), tmp_path / "file")


def with_maps(tmp_path: Path, **changes: Any) -> ImageClassification:
    agents = {
        "_default": ImageAgentSettings(**TINY),
        "prover": ImageAgentSettings(
            **{**TINY, "pretrained_weights": str(weights(tmp_path / "w.safetensors"))}, **changes
        ),
    }
    data = ImageDataSettings(num_train=20, num_test=8)
    settings = ImageClassificationSettings(
        data=data, agents=agents, embedding_cache=str(tmp_path / "cache"), shared_body=False
    )
    return build_image_classification(build("nip", max_rounds=4), settings)


def test_an_agent_with_a_pretrained_model_sees_its_maps_and_the_others_do_not(
    tmp_path: Path, counted: list[PretrainedModel]
) -> None:
    scenario = with_maps(tmp_path)
    agents = {name: scenario.build_agent(name, 0) for name in scenario.protocol.agents}
    ids = scenario.ids("test")
    rollout = play_rollout(BatchedPlay(scenario), agents, ids, torch.arange(len(ids)), generator(0, "noise"))
    assert "embedding" not in own_rows(scenario, rollout, "verifier").obs
    found = own_rows(scenario, rollout, "prover")
    (file,) = (tmp_path / "cache").glob("*.npy")
    kept = torch.from_numpy(np.load(file)).float()
    assert torch.equal(found.obs["embedding"], kept[rollout.id_B[found.copy_N]])
    silent = {**found.obs, "embedding": torch.zeros_like(found.obs["embedding"])}
    assert not torch.equal(agents["prover"](found.obs)[0].message, agents["prover"](silent)[0].message)
    assert len(counted) == 1


@cache
def timm_works() -> bool:
    if find_spec("timm") is None or find_spec("torchvision") is None:
        return False
    # in a process of its own: a torchvision built for another torch leaves half of itself behind when its import fails
    return subprocess.run([sys.executable, "-c", "import timm"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("small_stem", [True, False])
def test_a_model_of_timm_gives_its_own_feature_maps(small_stem: bool, tmp_path: Path) -> None:
    if not timm_works():
        pytest.skip("timm cannot be imported here")
    timm: Any = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model("resnet18", pretrained=False, num_classes=10)
    if small_stem:
        network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18", "num_classes": 10}))
    images = random_images(3, (3, 32, 32))
    found = embeddings(find_model(str(tmp_path), "resnet34"), images, tmp_path / "cache")
    with torch.no_grad():
        expected = network.eval().forward_features(images.pixels_ICHW.float() / 127.5 - 1)
    assert found.shape == (3, 512, 4, 4) if small_stem else (3, 512, 1, 1)
    assert torch.allclose(found.float(), expected, atol=5e-3)
