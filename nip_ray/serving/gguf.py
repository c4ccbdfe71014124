"""Models in GGUF files, written as folders in the Hugging Face form, which is what everything else here reads.

Decisions that matter here:
- a file is converted once: weights are dequantized to float32 (exactly: their values are what they were in the file),
  and the model is an ordinary one that learns, saves adapters and is exported like any other;
- transformers reads the file. Of the ways in which a file says that text is split before its merges apply, it reads
  most as GPT-2's; those that differ and are known are put right here.
"""

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.serving.default_model import save_once
from nip_ray.serving.extras import local_llm
from nip_ray.serving.model_folder import first_line
from nip_ray.storage.model_files import NEEDS_GGUF


def convert_gguf(file: Path, folder: Path) -> Path:
    """Write the model and tokenizer in `file` to `folder`, unless there is a model; returns the folder.

    Raises UserError for a file that cannot be read, an architecture that transformers does not read, a tokenizer
    without chat template, and where the package gguf is missing.
    """
    return save_once(folder, lambda: _read(file))


def converted_name(file: Path) -> str:
    """The name of the folder that a run converts `file` to: the file's own, and a code for where it was."""
    stem = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in file.stem)
    return f"{stem.lstrip('.-') or 'model'}-{sha256(str(file.resolve()).encode()).hexdigest()[:8]}"


def gguf_config(file: Path) -> Any:
    """The configuration of the model in `file`, as transformers reads it. Raises UserError; see `convert_gguf`."""
    return _reading(file, local_llm("transformers").AutoConfig.from_pretrained)


def gguf_tokenizer(file: Path) -> Any:
    """The tokenizer in `file`. Raises UserError; see `convert_gguf`."""
    tokenizer = _reading(file, local_llm("transformers").AutoTokenizer.from_pretrained)
    if (split := _SPLITS.get(_field(file, "tokenizer.ggml.pre"))) is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = split()
    if tokenizer.chat_template is None:
        raise UserError(f"{file}: its tokenizer has no chat template; take a model that was made to chat")
    return tokenizer


def _read(file: Path) -> tuple[Any, Any]:
    """(tokenizer, model)"""
    auto, tokenizer = local_llm("transformers").AutoModelForCausalLM, gguf_tokenizer(file)
    read = _reading(file, auto.from_pretrained, dtype="float32")
    config = type(read.config).from_dict(
        {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    )
    config._name_or_path = ""
    plain = auto.from_config(config, dtype=read.dtype)  # one that was read from GGUF refuses to be saved
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    tokenizer.model_max_length = config.get_text_config().max_position_embeddings
    return tokenizer, plain


def _reading(file: Path, read: Callable[..., Any], **options: Any) -> Any:
    if find_spec("gguf") is None:
        raise UserError(f"{file}: {NEEDS_GGUF}")
    if not file.is_file():
        raise UserError(f"{file}: no such file, name a GGUF file")
    try:
        with redirect_stderr(io.StringIO()):  # transformers draws a progress bar
            return read(str(file.parent), gguf_file=file.name, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, NotImplementedError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: cannot be read ({first_line(error)})") from None


def _field(file: Path, name: str) -> str:
    """A text in the file's header, "" where there is none."""
    found = local_llm("gguf").GGUFReader(str(file)).get_field(name)
    return "" if found is None else str(found.contents())


def _digits_apart() -> Any:
    """Each digit for itself, so that spaces before a number stay together."""
    splits = local_llm("tokenizers").pre_tokenizers
    return splits.Sequence([splits.Digits(individual_digits=True), splits.ByteLevel(add_prefix_space=False)])


_SPLITS = {"smollm": _digits_apart}
"""`tokenizer.ggml.pre` -> what splits text, where transformers reads it as something else."""
