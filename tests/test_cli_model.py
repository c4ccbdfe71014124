"""`nip-ray model`: what it refuses. What it writes is tested in tests/models, with the real packages."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.serving import packaged


def test_bad_input_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(packaged.PACKAGED["smollm2-135m"], parts=(("no_such_package", "no.gguf"),))
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", missing)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "junk.gguf").write_text("junk")
    (tmp_path / "bad.jinja").write_text("{% for %}")
    (tmp_path / "empty.jinja").touch()
    for name, out, said, *more in (
        ("smollm2-135m", "new", "smollm2-135m needs the package that carries it"),
        ("smollm", "new", "smollm: no such model; expected smollm2-135m, gemma3-270m, or the path of a .gguf file"),
        ("smollm2-135m", "full", "is there already and holds no model"),
        ("smollm2-135m", "new", "has a template, leave it out", "--chat-template", str(tmp_path / "junk.gguf")),
        ("smollm2-135m", "new", "gone.jinja: is not a text file", "--chat-template", str(tmp_path / "gone.jinja")),
        ("some.gguf", "new", "bad.jinja: line 1: ", "--chat-template", str(tmp_path / "bad.jinja")),
        ("some.gguf", "new", "empty.jinja: is empty", "--chat-template", str(tmp_path / "empty.jinja")),
        (str(tmp_path / "junk.gguf"), "new", "junk.gguf: is not a GGUF file"),
        (str(tmp_path / "gone.gguf"), "new", "gone.gguf: no model here"),
    ):
        done = CliRunner().invoke(app, ["model", name, "--out", str(tmp_path / out), *more])
        assert done.exit_code == 2, done.output
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()
