"""The default model: reproducible, complete, and able to write any text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_ray.serving.default_model import VOCABULARY, default_tokenizer, save_default_model
from scripts.learn_vocabulary import learn_vocabulary

TOKENIZER = default_tokenizer()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes(default_dir: Path, tmp_path: Path) -> None:
    again, other = save_default_model(tmp_path / "again", 0), save_default_model(tmp_path / "other", 1)
    assert contents(again) == contents(default_dir)
    assert contents(other)["model.safetensors"] != contents(default_dir)["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@given(st.text(max_size=60))
def test_every_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, split_special_tokens=True)) == text


def test_the_shipped_vocabulary_was_made_by_this_code() -> None:
    """Same special tokens, alphabet and splitting as a vocabulary learned now."""
    import json

    shipped, now = json.loads(VOCABULARY.read_text()), json.loads(learn_vocabulary(["a"], 300))
    for part in ("added_tokens", "pre_tokenizer", "decoder", "normalizer", "post_processor"):
        assert shipped[part] == now[part]
    assert len(shipped["model"]["vocab"]) == len(TOKENIZER)


@pytest.mark.slow
def test_it_loads_anywhere_without_our_code(default_dir: Path, tmp_path: Path) -> None:
    """A process that never imports nip_ray, offline and with an empty home, loads it and generates."""
    source = f"""
from transformers import pipeline
import sys
chat = pipeline("text-generation", model={str(default_dir)!r})
out = chat([{{"role": "user", "content": "hello"}}], max_new_tokens=4)
assert out[0]["generated_text"][-1]["role"] == "assistant"
assert not any(name.startswith("nip_ray") for name in sys.modules)
"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", source], env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
