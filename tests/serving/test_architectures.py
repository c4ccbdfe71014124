"""Models of other architectures: computed as transformers computes them, or refused; and folders that are broken."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.learning.token_rows import Turn
from nip_ray.serving.batch import ContinuousBatch
from nip_ray.serving.chat_format import ChatFormat, load_format
from nip_ray.serving.default_model import default_tokenizer, save_default_model
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.model_folder import load_model
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.providers import LocalProvider

COMMON = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64, "initializer_range": 0.1}
HEADS = {**COMMON, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 256}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
COMPUTED: dict[str, dict[str, Any]] = {
    "Gemma2Config": {**HEADS, **ENDS, "head_dim": 16},  # eager attention
    "GptOssConfig": {**HEADS, **ENDS, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},  # the same
    "MistralConfig": {**HEADS, **ENDS, "sliding_window": 5},
    "Gemma3TextConfig": {**HEADS, **ENDS, "head_dim": 16, "sliding_window": 4},
}
REFUSED: dict[str, dict[str, Any]] = {
    "MptConfig": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "initializer_range": 0.1},
    "BloomConfig": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.1},
    "RwkvConfig": {"hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64},
}


def built(kind: str, settings: dict[str, Any]) -> tuple[Any, ChatFormat]:
    import transformers

    tokenizer = default_tokenizer()
    torch.manual_seed(0)
    config = getattr(transformers, kind)(vocab_size=len(tokenizer), **settings)
    return transformers.AutoModelForCausalLM.from_config(config).eval(), ChatFormat(tokenizer, 256)


@pytest.mark.parametrize("kind", COMPUTED)
def test_replies_and_log_probabilities_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model, chat = built(kind, COMPUTED[kind])
    model.generation_config.eos_token_id = None
    prompt = [(7 * i * i + 3 * i) % 2000 + 6 for i in range(12)]
    found = ContinuousBatch(model, chat, 4).generate([GenerationRequest(prompt, 6, temperature=0.0)])[0].tokens
    assert list(found) == model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)[0, 12:].tolist()

    model.save_pretrained(tmp_path)
    chat.tokenizer.save_pretrained(tmp_path)
    policy = PolicyModel(tmp_path, LocalProvider(), trained=False)
    turns = [Turn(prompt, [first, *range(50, 56)]) for first in (20, 30)]  # two branches in one row
    for turn, ours in zip(turns, policy.logprobs(turns), strict=True):
        whole = torch.tensor([[*turn.prompt, *turn.reply]])
        with torch.inference_mode():
            logits = load_model(tmp_path, "float32")(whole).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        plain = logits.gather(1, torch.tensor(turn.reply)[:, None])[:, 0].tolist()
        assert ours == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_engine_would_compute_wrongly_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"its architecture .* choose another model, or serve this one by vLLM"):
        ContinuousBatch(*built(kind, REFUSED[kind]), 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_default_model(tmp_path / "model")


def changed(folder: Path, file: str, **values: Any) -> None:
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **values}))


def test_a_folder_without_all_its_weights_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(folder, "config.json", num_hidden_layers=6)
    with pytest.raises(
        UserError, match=r"lack weights that its config.json asks for \(model.layers.4.* and \d+ more\)"
    ):
        load_model(folder)
    changed(folder, "config.json", num_hidden_layers=4, intermediate_size=100)
    with pytest.raises(UserError, match="lack weights that"):
        load_model(folder)
    changed(folder, "config.json", num_hidden_layers=2, intermediate_size=384)
    load_model(folder)
    assert "its config.json has no place for model.layers.2" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", None])
def test_a_damaged_file_of_weights_is_one_error(folder: Path, content: bytes | None) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000] if content is None else content)
    with pytest.raises(UserError, match="the model cannot be loaded"):
        load_model(folder)


def test_a_tokenizer_of_another_form_is_one_error(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="no tokenizer can be loaded"):
        load_format(folder, 100)


def test_a_tokenizer_with_more_words_than_the_model_is_refused(folder: Path) -> None:
    chat = load_format(folder, 100)
    chat.tokenizer.add_special_tokens({"eos_token": "<|more|>"})
    longer = ChatFormat(chat.tokenizer, 100)
    with pytest.raises(UserError, match=r"'<\|more\|>' as token \d+, but the model has embeddings of"):
        ContinuousBatch(load_model(folder), longer, 4)


def test_replies_end_where_generation_ends(folder: Path) -> None:
    """A model made to chat may end turns by another token than texts."""
    stop = load_format(folder, 100).tokenizer.convert_tokens_to_ids("<|name|>")
    assert stop not in load_format(folder, 100).ends
    changed(folder, "generation_config.json", eos_token_id=[1, stop])
    chat = load_format(folder, 100)
    assert chat.ends == {1, stop}
    assert chat.up_to_end([40, stop, 41, 1]) == [40, stop]
    assert chat.up_to_end([40]) == [40, 1]
    shutil.rmtree(folder)
