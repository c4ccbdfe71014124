"""`nip-ray model`: what it refuses. What it writes is tested in tests/models, with the real packages."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.errors import UserError
from nip_ray.serving import packaged
from nip_ray.serving.default_model import save_default_model
from nip_ray.serving.engine import Engine
from nip_ray.serving.generation import GenerationRequest


def test_bad_input_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(packaged.PACKAGED["smollm2-135m"], parts=(("no_such_package", "no.gguf"),))
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", missing)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "junk.gguf").write_text("junk")
    (tmp_path / "bad.jinja").write_text("{% for %}")
    (tmp_path / "empty.jinja").touch()
    for name, out, said, *more in (
        ("smollm2-135m", "new", "smollm2-135m needs the package that carries it"),
        ("smollm", "new", "smollm: no such model; expected smollm2-135m, gemma3-270m, or the path of a .gguf file"),
        ("smollm2-135m", "full", "is there already, name a new folder"),
        ("smollm2-135m", "full/file/x", "file is no folder that you may write to, name a new folder"),
        ("some.gguf", "model", "is there already, name a new folder"),
        ("smollm2-135m", "new", "has a template, leave it out", "--chat-template", str(tmp_path / "junk.gguf")),
        ("smollm2-135m", "new", "gone.jinja: no such file", "--chat-template", str(tmp_path / "gone.jinja")),
        ("some.gguf", "new", "bad.jinja: line 1: ", "--chat-template", str(tmp_path / "bad.jinja")),
        ("some.gguf", "new", "empty.jinja: is empty", "--chat-template", str(tmp_path / "empty.jinja")),
        (str(tmp_path / "junk.gguf"), "new", "junk.gguf: is not a GGUF file"),
        (str(tmp_path / "gone.gguf"), "new", "gone.gguf: no such file"),
    ):
        done = CliRunner().invoke(app, ["model", name, "--out", str(tmp_path / out), *more])
        assert done.exit_code == 2, done.output
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_another_reply_than_the_models_own_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder holds a model already, the untrained one, whose reply is checked."""
    folder = save_default_model(tmp_path / "model")
    with Engine(folder, max_batch_size=1) as engine:
        prompt = engine.chat.prompt([{"role": "user", "content": "What?"}])
        said = engine.generate([GenerationRequest(prompt, 32, temperature=0.0)])[0].text
    files = (("json", "__init__.py"), ("json", "decoder.py"))
    right = replace(packaged.PACKAGED["smollm2-135m"], parts=files, question="What?", answer=said)
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", right)
    assert "Apache-2.0" in packaged.write_packaged("smollm2-135m", folder)
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", replace(right, answer=said + "."))
    with pytest.raises(UserError, match=r"the model answers .*: it is another model, or damaged; name a new folder"):
        packaged.write_packaged("smollm2-135m", folder)
