"""Convert models in GGUF files to folders in the Hugging Face form, which all other code reads.

Decisions that matter here:
- a file is converted once: weights are dequantized to float32 (exactly), and the model is an ordinary one that learns,
  saves adapters and is exported like any other;
- transformers reads the file. It reads most kinds of pre-tokenization in such files as GPT-2's; known ones that differ
  are corrected here.
"""

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from hashlib import sha256
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.serving.default_model import save_once
from nip_ray.serving.extras import local_llm
from nip_ray.serving.model_folder import reading
from nip_ray.storage.gguf_header import gguf_header
from nip_ray.storage.model_files import model_fault


def convert_gguf(file: Path, folder: Path, template: str | None = None) -> Path:
    """Write the model and tokenizer in `file` to `folder`, unless there is a model; returns the folder.

    template: a chat template, in place of the file's.

    Raises UserError for a file that cannot be read, an architecture that transformers does not read, a tokenizer
    without chat template, and where the package gguf is missing.
    """
    if (fault := model_fault(file, template)) is not None:
        raise UserError(f"{file}: {fault}")
    return save_once(folder, lambda: _read(file, template))


def converted_name(file: Path) -> str:
    """The name of the folder that `file` is converted to: the file's own, and a code for its path and size."""
    stem = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in file.stem
    )
    code = sha256(f"{file.resolve()} {file.stat().st_size}".encode()).hexdigest()[:8]
    return f"{stem.lstrip('.-') or 'model'}-{code}"


def _tokenizer(file: Path) -> Any:
    tokenizer = _reading(file, local_llm("transformers").AutoTokenizer.from_pretrained)
    if (split := _SPLITS.get(gguf_header(file).get("tokenizer.ggml.pre", ""))) is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = split()
    return tokenizer


def _read(file: Path, template: str | None) -> tuple[Any, Any]:
    """(tokenizer, model)"""
    auto, tokenizer = local_llm("transformers").AutoModelForCausalLM, _tokenizer(file)
    tokenizer.chat_template = template or tokenizer.chat_template
    read = _reading(file, auto.from_pretrained, dtype="float32")
    kept = {
        key: value
        for key, value in read.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path")
    }
    config = type(read.config).from_dict(kept)
    plain = auto.from_config(config, dtype=read.dtype)  # one that was read from GGUF cannot be saved
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    tokenizer.model_max_length = config.get_text_config().max_position_embeddings
    return tokenizer, plain


def _reading(file: Path, read: Callable[..., Any], **options: Any) -> Any:
    with (
        reading(f"{file}: cannot be read", ", get it again or name another"),
        redirect_stderr(io.StringIO()),  # transformers draws a progress bar
    ):
        return read(str(file.parent), gguf_file=file.name, local_files_only=True, **options)


def _digits_apart() -> Any:
    """Each digit separately, so that spaces before a number stay together."""
    splits = local_llm("tokenizers").pre_tokenizers
    return splits.Sequence([splits.Digits(individual_digits=True), splits.ByteLevel(add_prefix_space=False)])


_SPLITS = {"smollm": _digits_apart}
"""`tokenizer.ggml.pre` -> the pre-tokenizer, if transformers reads it as something else."""
