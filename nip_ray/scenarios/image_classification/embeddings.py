"""Feature maps of pretrained models, computed once for all images and cached by content.

Decisions that matter here:
- a model is an architecture of timm and a local file of weights: nothing is downloaded, and weights are read as tensors
  only (safetensors, or `torch.load` with `weights_only`);
- a model made for small images differs from timm's in its stem (a convolution of 3 x 3 and no pooling); the weights
  show it;
- the key of the cache is a hash of the weights, the architecture, how images are scaled, and every pixel; a file is
  written in one step, and its sum is checked before it is used. Maps are kept in half precision and mapped into memory,
  not read.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.scenarios.image_classification.images import ImageSet, size_text

_VERSION = 1
_BATCH = 256
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as timm writes them
_KEY = "scenario.agents.*.pretrained_architecture"
_WRAPPERS = ("state_dict", "model", "model_state_dict")


@dataclass(frozen=True)
class PretrainedModel:
    """A model's place. weights: a file. architecture: its name in timm. mean, std: of each colour, to scale pixels from
    0 to 1 by."""

    weights: Path
    architecture: str
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def find_model(weights: str, architecture: str) -> PretrainedModel:
    """The model in a weights file, or in a folder as timm writes it. Raises UserError if there is none."""
    path = Path(weights)
    if path.is_file():
        return PretrainedModel(path, architecture)
    found = [path / name for name in _WEIGHTS if (path / name).is_file()]
    if not found:
        raise UserError(
            f"{path}: no weights here; name a .safetensors file, a state dict, or a folder with {' or '.join(_WEIGHTS)}"
        )
    if not (path / "config.json").is_file():
        return PretrainedModel(found[0], architecture)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        given = {**config, **config.get("pretrained_cfg", {})}
        scales = {key: tuple(float(value) for value in given[key]) for key in ("mean", "std") if key in given}
        made = PretrainedModel(found[0], str(given.get("architecture", architecture)), **scales)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"{path / 'config.json'}: cannot be read ({error}); expected: what timm writes beside its weights"
        ) from None
    if {len(made.mean), len(made.std)} != {3} or min(made.std) <= 0:
        raise UserError(
            f"{path / 'config.json'}: mean or std is not three numbers, std above 0; expected: what timm writes"
        )
    return made


def embeddings(model: PretrainedModel, images: ImageSet, cache: Path) -> Tensor:
    """(I, E, h, w) float16: the model's last feature map of each image, from `cache`, or computed and stored there.

    Raises UserError without the extra `vision`, for weights that are damaged or of another architecture, for a model
    without feature maps, and for a folder that cannot be written.
    """
    key = _key(model, images)
    path = cache / f"{key}.npy"
    kept = _read(path)
    if kept is None:
        maps = feature_maps(build_model(model), images, model.mean, model.std)
        _write(path, maps)
        kept = _read(path)
        if kept is None:
            raise UserError(f"{path}: was written and is not there, use another scenario.embedding_cache")
    return kept


@torch.no_grad()
def feature_maps(network: nn.Module, images: ImageSet, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """(I, E, h, w) float16: ``network.forward_features`` of each image; grey ones have three equal colours.

    Raises UserError if that is not a map, for images that the model cannot take, and for maps beyond half precision.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(device).eval()
    mean_C11, std_C11 = (torch.tensor(value, device=device)[:, None, None] for value in (mean, std))
    parts = []
    for pixels in images.pixels_ICHW.split(_BATCH):
        x = (pixels.to(device).float() / images.levels).expand(-1, 3, -1, -1)
        try:
            made = network.forward_features((x - mean_C11) / std_C11)  # type: ignore[operator]
        except (AssertionError, RuntimeError, ValueError) as error:
            detail = (str(error).splitlines() or [type(error).__name__])[0][:120]
            raise UserError(
                f"{_KEY}: the model cannot take images of {size_text(images)} ({detail}), use one for any size"
            ) from error
        if not isinstance(made, Tensor) or made.dim() != 4:
            raise UserError(
                f"{_KEY}: this model has no feature map (copies, channels, height, width), use a convolutional one"
            )
        half = made.half()
        if not bool(half.isfinite().all()):
            raise UserError(
                f"{_KEY}: its feature maps hold numbers that are none, or beyond {torch.finfo(half.dtype).max:.0f}, use"
                " another"
            )
        parts.append(half.cpu().numpy())
    return np.concatenate(parts)


def build_model(model: PretrainedModel) -> nn.Module:
    """The network of timm with its weights. Raises UserError as `embeddings` does."""
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except Exception as error:  # torchvision fails in many ways if it was built for another torch
        detail = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        raise UserError(
            f"pretrained_weights: needs timm and a torchvision that fits this torch ({detail}): pip install"
            " 'nip_ray[vision]'"
        ) from None
    if not timm.is_model(model.architecture):
        raise UserError(f"{_KEY}: timm has no model {model.architecture!r}, name one of timm.list_models()")
    state = load_weights(model.weights)
    network = timm.create_model(model.architecture, pretrained=False, num_classes=0)
    fit_stem(network, state)
    classifier = network.pretrained_cfg.get("classifier") or "fc"  # pyright: ignore[reportAttributeAccessIssue]
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    put_weights(network, state, heads, model)
    return network


def fit_stem(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a residual network the stem for small images if the weights have it."""
    first, weight = getattr(network, "conv1", None), state.get("conv1.weight")
    if (
        not isinstance(first, nn.Conv2d)
        or weight is None
        or weight.dim() != 4
        or weight.shape[-1] == first.kernel_size[0]
    ):
        return
    side = weight.shape[-1]
    network.conv1 = nn.Conv2d(
        first.in_channels, first.out_channels, side, padding=side // 2, bias=first.bias is not None
    )
    network.maxpool = nn.Identity()


def put_weights(
    network: nn.Module, state: Mapping[str, Tensor], heads: tuple[str, ...], model: PretrainedModel
) -> None:
    """Load `state`, without the modules `heads` (dotted names), not used. Raises UserError unless the rest fits."""
    own = network.state_dict()
    given = {
        name: value
        for name, value in state.items()
        if not any(name == head or name.startswith(f"{head}.") for head in heads)
    }
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    strange = [name for name in given if name not in own or given[name].shape != own[name].shape]
    if missing or strange:
        which = f"{missing[0]!r} is missing" if missing else f"{strange[0]!r} does not fit"
        count = len(missing) + len(strange)
        raise UserError(
            f"{model.weights}: these are not weights of {model.architecture} ({which}, {count} such entries), set"
            " pretrained_architecture"
        )
    network.load_state_dict(given, strict=False)


def load_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a .safetensors file or one of torch's. Raises UserError for anything else."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise UserError(f"{path}: reading it needs safetensors: pip install 'nip_ray[vision]'") from None
    except Exception:  # damaged bytes can make the readers raise nearly anything, and some advise to read them unsafely
        raise UserError(
            f"{path}: cannot be read; expected: tensors by name, as safetensors or as a state dict of torch"
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UserError(f"{path}: holds no state dict; expected: tensors by name")
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}


# ------------------------------------------------------------------------------------------------------------ the cache


def cache_folder(given: str | None) -> Path:
    """The configured folder, else nip_ray/embeddings in the user's cache."""
    if given is not None:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nip_ray" / "embeddings"


def _key(model: PretrainedModel, images: ImageSet) -> str:
    facts = [_VERSION, model.architecture, model.mean, model.std, images.levels, list(images.pixels_ICHW.shape)]
    digest = hashlib.sha256(json.dumps(facts).encode())
    try:
        with model.weights.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    except OSError as error:
        raise UserError(f"{model.weights}: cannot be read ({error.strerror}), name a file that can be") from None
    digest.update(images.pixels_ICHW.numpy().tobytes())
    return digest.hexdigest()[:32]


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Tensor | None:
    """The maps of `_write`, memory-mapped; None if missing or damaged."""
    try:
        stated = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["sha256"]
        if _sum(path) != stated:
            return None
        # copy on write: torch needs writable memory
        maps = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return torch.from_numpy(maps)


def _write(path: Path, maps: np.ndarray) -> None:
    """Write the maps, then their checksum beside them, each in one step: maps with a checksum are complete."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    note = aside.with_suffix(".json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(aside, maps)
        note.write_text(
            json.dumps({"sha256": _sum(aside), "shape": list(maps.shape), "dtype": str(maps.dtype)}), encoding="utf-8"
        )
        aside.replace(path)
        note.replace(path.with_suffix(".json"))
    except OSError as error:
        raise UserError(
            f"scenario.embedding_cache: {path.parent} cannot be written ({error.strerror}), name another folder"
        ) from None
    finally:
        for left in (aside, note):
            with suppress(OSError):  # already gone after the rename
                left.unlink()
