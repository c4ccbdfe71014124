"""A language model as a folder in the Hugging Face form: with all weights, or adapters and the name of their base."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.progress import say
from nip_ray.serving.extras import local_llm
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.gguf_header import gguf_header
from nip_ray.storage.model_files import gguf_in

ADAPTER, BASE = "adapter", "base.json"
"""In a model's folder: its adapters; and, if they are not merged, the base's folder, relative to this one, and the
dtype of the base while they learned. On a base that is rounded otherwise they are another policy."""


def base_of(folder: Path) -> Path | None:
    """The base of the adapters in `folder`, None for a folder with all weights. Raises UserError when it is gone, or
    the adapters are."""
    if not (folder / BASE).is_file():
        return None
    base = (folder / recorded(folder)["base"]).resolve()
    if not (base / "config.json").is_file():
        raise UserError(f"{folder} holds adapters of the model in {base}, which is gone; put it back")
    if not (folder / ADAPTER / "adapter_model.safetensors").is_file():
        raise UserError(f"{folder}: no adapters here ({ADAPTER}/adapter_model.safetensors is missing)")
    return base


def dtype_of(folder: Path) -> str:
    """The dtype of the base while the adapters in `folder` learned; `auto`: as the base's files, if it is unknown."""
    return recorded(folder).get("dtype", "auto")


def learning_dtype(settings: LocalProvider, gpu: bool) -> str:
    """The dtype of weights in learning. Adapters themselves are in single precision."""
    if settings.dtype == "auto":
        return "bfloat16" if settings.method == "lora" and gpu else "float32"
    return settings.dtype


def adapter_rank(folder: Path) -> int:
    """The rank of the adapters in `folder`. Raises UserError if it cannot be read."""
    return _kept(folder / ADAPTER / "adapter_config.json", {"r": int})["r"]


def recorded(folder: Path) -> dict[str, str]:
    """The record of `name_base` in `folder`. Raises UserError if it cannot be read."""
    return _kept(folder / BASE, {"base": str})


def _kept(file: Path, needed: Mapping[str, type]) -> dict[str, Any]:
    """The JSON object in a file with these keys."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = None
    if not isinstance(told, dict) or not all(isinstance(told.get(key), kind) for key, kind in needed.items()):
        raise UserError(f"{file}: expected a JSON object with {', '.join(needed)}; put the file back")
    return told


def load_served(folder: Path) -> Any:
    """The causal language model in `folder` as it has learned: adapters apart, their base in its dtype of that time.
    Raises UserError as `load_model` does."""
    if (base := base_of(folder)) is None:
        return load_model(folder)
    return with_adapters(load_model(base, dtype_of(folder)), folder).get_base_model().eval()


def with_adapters(model: Any, folder: Path, trained: bool = False) -> Any:
    """The model of PEFT of this base, which is changed, with the adapters in `folder`. Raises UserError if they
    cannot be used with it."""
    with reading(f"{folder}: its adapters cannot be loaded"):
        return local_llm("peft").PeftModel.from_pretrained(model, str(folder / ADAPTER), is_trainable=trained)


def load_model(folder: Path, dtype: Any = "auto", **options: Any) -> Any:
    """The causal language model in `folder`, from its safetensors, in evaluation mode. options: for transformers.

    Adapters are merged, into their base as it was while they learned; if `dtype` is bfloat16, this rounds them. Raises
    UserError if there is no model, if its weights are pickled, and if it needs code of its own.
    """
    transformers = local_llm("transformers")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no model here (config.json is missing); give a folder in the Hugging Face form")
    if (base := base_of(folder)) is not None:
        if options:  # quantized weights have a dtype of their own, and no gradient
            return with_adapters(load_model(base, dtype, **options), folder).merge_and_unload().eval()
        model = load_model(base, dtype_of(folder))
        if dtype != "auto":
            import torch

            model = model.to(getattr(torch, str(dtype).removeprefix("torch.")))
        return with_adapters(model, folder).merge_and_unload().requires_grad_(True).eval()
    fixed = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    with reading(f"{folder}: the model cannot be loaded"):
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), **fixed, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    if wrong := [str(name) for name, *_ in told["mismatched_keys"]] or sorted(told["missing_keys"]):
        raise UserError(
            f"{folder}: its files lack weights that its config.json asks for ({_some(wrong)}); get the whole model"
        )
    if told["unexpected_keys"]:
        say(f"warning: {folder}: its config.json has no place for {_some(sorted(told['unexpected_keys']))}; left out")
    return model.eval()


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def reply_ends(folder: Path) -> set[int]:
    """The tokens that end a reply by the `generation_config.json` of the model in `folder`, or of its base."""
    file = (base_of(folder) or folder) / "generation_config.json"
    try:
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return set()
    return {end for end in (named if isinstance(named, list) else [named]) if isinstance(end, int)}


def check_architecture(place: Path) -> Any:
    """The configuration of the model at `place`, None for a GGUF file. Does not read weights.

    Raises UserError for an architecture that transformers does not know, or that does not generate text.
    """
    transformers = local_llm("transformers")
    if (file := gguf_in(place)) is not None:
        known = local_llm("transformers.modeling_gguf_pytorch_utils").GGUF_SUPPORTED_ARCHITECTURES
        if (name := gguf_header(file).get("general.architecture")) not in known:
            raise UserError(f"{file}: transformers does not read the architecture {name!r} from GGUF, name a folder")
        return None
    try:
        config = transformers.AutoConfig.from_pretrained(str(place), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of all kinds, by what is wrong with a value
        raise UserError(f"{place}: its config.json cannot be used ({first_line(error)})") from None
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"{place}: its architecture {config.model_type!r} does not write text, name another model")
    return config


def context_of(config: Any, limit: int | None = None) -> int:
    """The maximum context of a model with this configuration, at most `limit`."""
    own = getattr(config.get_text_config(), "max_position_embeddings", None) or 2048
    return min(own, limit) if limit else own


def save_model(model: Any, tokenizer: Any, target: Path, merged: bool = False) -> None:
    """Write a model and its tokenizer to the new folder `target`: all weights, or for a PEFT model its adapters (see
    `name_base`).

    merged: also all weights with the adapters merged in; the model is unusable afterwards.
    """
    target.mkdir(parents=True)
    if isinstance(model, local_llm("peft").PeftModel):
        model.save_pretrained(target / ADAPTER)
        (target / ADAPTER / "README.md").unlink(missing_ok=True)  # a template for a hub, with this machine's paths
        if not merged:
            config = model.get_base_model().config
            if hasattr(config, "quantization_config"):
                del config.quantization_config  # of the base in training, not of the one that answers
            config.save_pretrained(target)
        model = model.merge_and_unload() if merged else None
    if model is not None:
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def name_base(written: Path, home: Path, base: Path, dtype: Any) -> None:
    """Record in the folder `written`, later named `home`, that its adapters belong to the model in `base`, of this
    torch dtype."""
    base, home = base.resolve(), home.resolve()
    where = os.path.relpath(base, home) if base.is_relative_to(home.parent) else str(base)
    told = {"base": where, "dtype": str(dtype).removeprefix("torch.")}
    (written / BASE).write_text(json.dumps(told) + "\n", encoding="utf-8")


def lora_config(rank: int) -> Any:
    """PEFT's settings of our adapters."""
    return local_llm("peft").LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )


@contextmanager
def reading(fault: str, remedy: str = "") -> Iterator[None]:
    """Raise UserError with this fault for what a library raises on damaged files, but for errors of memory."""
    try:
        yield
    except Exception as error:  # libraries pass on errors of all kinds
        if _out_of_memory(error):
            raise
        raise UserError(f"{fault} ({first_line(error)}){remedy}") from None


def _out_of_memory(error: Exception) -> bool:
    """Return True for errors of memory and of PyTorch's own kinds, which get advice elsewhere."""
    own = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError | RecursionError)
    return isinstance(error, MemoryError) or (own and ("memory" in str(error) or type(error) is not RuntimeError))


def first_line(error: Exception) -> str:
    """The first line of a library's error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
