"""Models that cannot be used, and contexts that are too short, are refused before a run begins."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.serving.default_model import save_default_model
from nip_ray.serving.gguf import converted_name
from nip_ray.text.parts import prepare
from nip_ray.text.written_models import write_models
from tests.gguf_files import write_header


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_default_model(tmp_path_factory.mktemp("model") / "folder")


def code_validation(model: Path, max_length: int | None, **agent: Any) -> Any:
    return config_from_dict(
        {
            "protocol": {"name": "nip"},
            "scenario": {"name": "code_validation", "agents": {"_default": {"model": str(model), **agent}}},
            "algorithm": {"name": "expert_iteration"},
            "providers": {"local": {"name": "local", "max_length": max_length}},
        }
    )


def test_a_context_without_room_for_prompts_is_refused(model: Path) -> None:
    prepare(code_validation(model, None))
    with pytest.raises(UserError, match=r"providers\.local\.max_length: got 300, but chats of \w+ take \d+ tokens"):
        prepare(code_validation(model, 300))
    wants = (
        r"agents\.\w+\.model: its context is 8192, but chats of .* up to 8000 \(max_tokens\), name one with a longer"
    )
    with pytest.raises(UserError, match=wants):
        prepare(code_validation(model, None, max_tokens=8000))


def test_a_reply_that_has_to_be_said_must_fit(model: Path) -> None:
    def config(max_tokens: int) -> Any:
        agents = {"_default": {"model": str(model), "max_tokens": max_tokens}}
        return config_from_dict(
            {
                "protocol": {"name": "adp"},
                "scenario": {"name": "state_tracking", "length": 4, "num_train": 8, "num_test": 2, "agents": agents},
                "algorithm": {"name": "expert_iteration"},
                "providers": {"local": {"name": "local"}},
            }
        )

    prepare(config(8))
    with pytest.raises(
        UserError, match=r"max_tokens: got 1, but the reply '[a-e ]+' takes \d tokens of its model, raise"
    ):
        prepare(config(1))


def test_an_architecture_that_cannot_be_used_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    llama = json.loads((model / "config.json").read_text())
    for config, said in (
        ({"model_type": "nobodys"}, "model type `nobodys`"),
        ({"model_type": "vit"}, "'vit' does not write text"),
        ({"model_type": ["llama"]}, "its config.json cannot be used"),
        ([], "its config.json cannot be used"),
        ({**llama, "hidden_size": "x"}, "its config.json cannot be used"),
        ({**llama, "dtype": "floaty"}, "its config.json cannot be used"),
        ({**llama, "quantization_config": 5}, "its config.json cannot be used"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=said) as refused:
            prepare(code_validation(tmp_path, None))
        assert "\n" not in str(refused.value)
    monkeypatch.setattr(
        "nip_ray.storage.model_files.find_spec", lambda name: object()
    )  # the header is all that is read
    file = write_header(tmp_path / "x.gguf", general__architecture="nobodys", tokenizer__chat_template="x")
    with pytest.raises(UserError, match=r"x\.gguf: transformers does not read the architecture 'nobodys' from GGUF"):
        prepare(code_validation(file, None))


def test_a_converted_file_needs_room_as_a_folder_does(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nip_ray.storage.model_files.find_spec", lambda name: object())
    file = write_header(tmp_path / "x.gguf", general__architecture="llama", tokenizer__chat_template="x")
    config = code_validation(file, 300)
    items = prepare(config).items
    shutil.copytree(model, tmp_path / "local" / "models" / converted_name(file))
    with pytest.raises(UserError, match=r"providers\.local\.max_length: got 300, but chats of \w+ take \d+ tokens"):
        write_models(config, prepare(config).scenario, items["train"], tmp_path)


def test_a_config_names_what_is_wrong_with_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"agents\._default\.model: .*: no model here .* name one or make one"):
        check(code_validation(tmp_path, None))
