"""`nip-ray new`: a protocol, scenario, algorithm or provider of your own to start from, with its config and its test.

The examples are the templates: their names are replaced, in code and configs, not in prose.
"""

import json
import keyword
import re
from enum import StrEnum
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tokenize import NAME, generate_tokens
from typing import Annotated

import typer

from nip_ray.cli.common import app, errors
from nip_ray.errors import UserError


class Kind(StrEnum):
    """The kinds of files that `nip-ray new` writes, by the name of their example."""

    protocol = "protocol"
    scenario = "scenario"
    algorithm = "algorithm"
    provider = "provider"


_CALLED = {Kind.protocol: "criticised", Kind.scenario: "haystack", Kind.algorithm: "awr", Kind.provider: "ollama"}
_CLASSES = {Kind.scenario: "Haystack", Kind.algorithm: "AWR", Kind.provider: "Ollama"}
_CHECKS = {
    Kind.protocol: ("from nip_ray.protocols import build, check", 'check(build("NAME", max_rounds=5))'),
    Kind.scenario: (
        "from nip_ray.play.conformance import check_scenario\nfrom nip_ray.scenarios.registry import played_scenario",
        "check_scenario(played_scenario(CONFIG.protocol, CONFIG.scenario, CONFIG.algorithm))",
    ),
    Kind.algorithm: (
        "from nip_ray.rllib.conformance import check_algorithm\nfrom nip_ray.rllib.registry import ALGORITHMS",
        'check_algorithm(ALGORITHMS["NAME"])',
    ),
    Kind.provider: (
        "from nip_ray.text.providers.conformance import check_provider",
        'check_provider(CONFIG.providers["here"], CONFIG.scenario.agents["_default"].model)',
    ),
}
_TEST = '''"""NAME keeps to the contract, and trains: pytest test_NAME.py"""

from pathlib import Path

from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import load_config
IMPORTS

HERE = Path(__file__).resolve().parent
PLUGIN = f"plugins=[{HERE / 'NAME.py'}]"
CONFIG = load_config(HERE / "NAME.yaml", [PLUGIN])


def test_it_keeps_to_the_contract() -> None:
    CHECK


def test_it_trains(tmp_path: Path) -> None:
    words = ["train", str(HERE / "NAME.yaml"), "--set", PLUGIN, "--iterations", "1", "--run-dir", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
'''


@app.command()
def new(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", help="protocol, scenario, algorithm or provider.", show_default=False)
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name used in configs.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for its three files.")] = Path(),
) -> None:
    """Write a protocol, scenario, algorithm or provider to start from: NAME.py, NAME.yaml and test_NAME.py."""
    with errors():
        files = _files(kind, name, out)
        for path in files:
            if path.exists():
                raise UserError(f"{path}: is there already, choose another name or --out")
        try:
            out.mkdir(parents=True, exist_ok=True)
            for path, text in files.items():
                path.write_text(text, encoding="utf-8")
                typer.echo(str(path))
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror}), name a folder that can be") from error


def _files(kind: Kind, name: str, out: Path) -> dict[Path, str]:
    """Path -> text of the three files. Raises UserError for an invalid name."""
    _check_name(kind, name)
    example, old, old_class = f"examples/own_{kind}", _CALLED[kind], _CLASSES.get(kind, "no class")
    new_class = "".join(part.title() for part in name.split("_"))
    # installed with the examples; in a clone they are beside it
    package = Path(__file__).resolve().parents[1]
    folder = next(found for found in (package / "examples", package.parent / "examples") if found.is_dir())
    code, config = ((folder / f"own_{kind}.{suffix}").read_text(encoding="utf-8") for suffix in ("py", "yaml"))
    class_name = re.compile(rf"\b{old_class}(?=(Settings|Chat|Learner|Config)\b|[(\":)])")
    words = {name, *(f"{new_class}{found[1] or ''}" for found in class_name.finditer(code))}
    if taken := sorted(
        words & {token.string for token in generate_tokens(StringIO(code).readline) if token.type == NAME}
    ):
        raise UserError(
            f"{name}: {taken[0]} means something else in the file to be written, choose another name, as in my_{name}"
        )
    config = config.replace(f"[{example}.py]", f"[{json.dumps(str(out / name) + '.py')}]").replace(
        f"own-{kind}", name.replace("_", "-")
    )
    files = {}
    for suffix, text in (("py", code), ("yaml", config)):
        text = re.sub(rf'(?<="){old}(?=")|(?<=name: ){old}\b|\b{old}(?=[()])', name, class_name.sub(new_class, text))
        files[out / f"{name}.{suffix}"] = text.replace(example, str(out / name)).replace(
            ": here the top of the repository", ""
        )
    imports, check = _CHECKS[kind]
    files[out / f"test_{name}.py"] = _TEST.replace("IMPORTS", imports).replace("CHECK", check).replace("NAME", name)
    return files


def _check_name(kind: Kind, name: str) -> None:
    """Raise UserError for an invalid or taken name."""
    from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
    from nip_ray.config.keys import branches, keys_of, tag_of, value_annotation
    from nip_ray.config.load import names_of
    from nip_ray.protocols.tables import PROTOCOLS

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise UserError(
            f"{name}: cannot be a name, use lower-case letters, digits and single underscores, as in my_{kind}"
        )
    if kind == Kind.protocol:
        known = list(PROTOCOLS)
    elif kind == Kind.provider:
        known = [
            tag_of(member)
            for member in branches(value_annotation(keys_of(TextExperimentConfig)["providers"].annotation))
        ]
    else:
        known = names_of(ExperimentConfig, kind) + names_of(TextExperimentConfig, kind)
    if name in known:
        raise UserError(
            f"{name}: is {'an' if kind == Kind.algorithm else 'a'} {kind} that ships with nip_ray, choose another name,"
            f" as in my_{name}"
        )
    if find_spec(name) is not None or find_spec(f"test_{name}") is not None:
        raise UserError(
            f"{name}: is a Python module that is installed, which {name}.py would hide; choose another name, as in"
            f" my_{name}"
        )
