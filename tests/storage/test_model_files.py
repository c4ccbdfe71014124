"""Which files are a model, and one line about those that are not."""

import json
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.storage import model_files
from nip_ray.storage.gguf_header import gguf_header
from nip_ray.storage.model_files import gguf_in, is_model, model_fault
from tests.gguf_files import write_header


def test_a_header_is_read_without_its_lists(tmp_path: Path) -> None:
    file = write_header(
        tmp_path / "x.gguf",
        general__architecture="llama",
        tokenizer__ggml__tokens=["a", "bc"],
        llama__context_length=64,
        tokenizer__chat_template="é",
    )
    assert gguf_header(file) == {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "tokenizer.chat_template": "é",
    }
    for size in range(len(file.read_bytes())):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(file.read_bytes()[:size])
        with pytest.raises(UserError, match=r"cut\.gguf: (is not a GGUF file|its header cannot be read)"):
            gguf_header(cut)


def test_a_file_that_ends_before_its_last_tensor_is_refused(tmp_path: Path) -> None:
    file = write_header(tmp_path / "x.gguf", tensors=3, general__architecture="llama")
    assert gguf_header(file) == {"general.architecture": "llama"}
    whole = file.read_bytes()
    for size in (len(whole) - 64, len(whole) - 32 * 3 - 40):
        file.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"x\.gguf: its header cannot be read"):
            gguf_header(file)
    file.write_bytes(whole[:-64])
    assert "the file is cut, get the whole one" in str(model_fault(file))
    file.write_bytes(whole.replace(b"tensor 0\x01", b"tensor 0\xff"))
    assert "its header cannot be read (a tensor of 255 axes)" in str(model_fault(file))


def test_a_gguf_file_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_header(tmp_path / "x.GGUF", general__architecture="llama", tokenizer__chat_template="{{ 1 }}")
    assert gguf_in(file) == gguf_in(tmp_path) == file
    assert is_model(file)
    assert is_model(tmp_path)
    monkeypatch.setattr(model_files, "find_spec", lambda name: object())
    assert model_fault(tmp_path) is None
    monkeypatch.setattr(model_files, "find_spec", lambda name: None)
    assert str(model_fault(file)).startswith("the package gguf, which reads it, is missing, install it (pip install")
    write_header(tmp_path / "y.gguf")
    assert gguf_in(tmp_path) is None
    assert model_fault(tmp_path) == "2 GGUF files are in this folder, name one of them"
    assert str(model_fault(tmp_path / "y.gguf")).startswith("its tokenizer has no chat template")
    (tmp_path / "y.gguf").write_text("no such thing")
    assert model_fault(tmp_path / "y.gguf") == "is not a GGUF file of version 2 or 3, name another"
    (tmp_path / "config.json").write_text("{}")
    assert gguf_in(tmp_path) is None  # a folder in the Hugging Face form, whatever else is in it


def test_a_folder_without_template_is_told(tmp_path: Path) -> None:
    assert str(model_fault(tmp_path)).startswith("no model here")
    (tmp_path / "config.json").write_text("{}")
    assert model_fault(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "x"}))
    assert str(model_fault(tmp_path)).startswith("its tokenizer has no chat template")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert model_fault(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("x")
    assert model_fault(tmp_path) is None
