"""Every file of a run folder says which format it is of, and what is of a newer one is refused by one clear line.

On the files of real runs, one of agents with networks and one of language agents.
"""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_ray.config.changes import run_fingerprint
from nip_ray.config.experiment import FORMAT_VERSION
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.rerun import read_rerun, rerun_tests
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.language import LANGUAGE_SCENARIOS
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.records import RecordedChat, read_calls
from nip_ray.text.dialogues.runner import read_dialogues
from nip_ray.text.items import stored_items
from nip_ray.text.jobs import read_journal
from nip_ray.text.parts import load_state
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from tests.runs.small import small
from tests.text.dialogues.test_records import Counted

Read = Callable[[Path], Any]
CODE = LANGUAGE_SCENARIOS["code_validation"]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small("iterations=2", "pretraining.agents=[prover]", "pretraining.num_epochs=1")
    run = run_experiment(config, tmp_path_factory.mktemp("networks") / "run", quiet=True).run_dir
    rerun_tests(run)
    return run


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    agents = {"_default": {"provider": "nobody", "model": "none"}}
    rule = {
        "name": "expert_iteration",
        "rollouts_per_iteration": 8,
        "num_test_items": 2,
        "fine_tuning": {"min_examples": 1},
    }
    scenario = {"name": "code_validation", "data": {"num_train": 4, "num_test": 2}, "agents": agents}
    config = {"iterations": 2, "protocol": {"name": "adp"}, "scenario": scenario, "algorithm": rule}
    made = config_from_dict({**config, "providers": {"nobody": {"name": "dummy"}}})
    run = run_experiment(made, tmp_path_factory.mktemp("text") / "run", quiet=True).run_dir
    asyncio.run(called(run))
    return run


async def called(run: Path) -> None:
    """One call, recorded: a dummy provider makes none."""
    chat = RecordedChat(Counted(lambda _: ChatReply("Well.", "stop", 3, 2)), run, 0)
    await chat.complete(
        ChatRequest(key="k", model="m", agent="prover", messages=[{"role": "user", "content": "Well?"}], max_tokens=5)
    )
    await chat.close()


def document(name: str) -> Read:
    return lambda run: RunFolder.open(run).read_json(name)


NETWORKS: dict[str, Read] = {
    "config.yaml": load_config,
    "metrics.jsonl": lambda run: RunFolder.open(run).metrics(),
    "transcripts/000002.jsonl": lambda run: RunFolder.open(run).read_transcripts("000002"),
    "checkpoints/000002/manifest.json": lambda run: load_checkpoint(run / "checkpoints", 2),
    "reruns/held-out.json": lambda run: read_rerun(run, "held-out"),
    **{name: document(name) for name in ("evaluation.json", "environment.json", "pretraining.json", "run.json")},
}
TEXT: dict[str, Read] = {
    "config.yaml": load_config,
    "metrics.jsonl": lambda run: RunFolder.open(run).metrics(),
    "transcripts/test-000002.jsonl": lambda run: RunFolder.open(run).read_transcripts("test-000002"),
    "state.json": lambda run: load_state(RunFolder.open(run)),
    "items/train.jsonl": lambda run: stored_items(run, CODE),
    "rollouts/000001.jsonl": lambda run: read_dialogues(
        run / "rollouts" / "000001.jsonl", {i.id: i for i in items(run)}
    ),
    "calls/000000-0.jsonl": lambda run: list(read_calls(run)),
    "jobs.jsonl": lambda run: read_journal(run / "jobs.jsonl"),
    "dummy-nobody.jsonl": lambda run: read_journal(run / "dummy-nobody.jsonl"),
    **{name: document(name) for name in ("evaluation.json", "environment.json", "cost.json")},
}
CASES = [("networks", name) for name in NETWORKS] + [("text", name) for name in TEXT]


def items(run: Path) -> list[Any]:
    return (stored_items(run, CODE) or {"train": []})["train"]


def newer(path: Path) -> None:
    """Make the file, or its last line, one of the next version, with something in it that we do not know."""
    if path.suffix == ".yaml":
        data = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**data, "format_version": data["format_version"] + 1, "unheard_of": 3}))
        return
    *before, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    found = json.loads(last)
    path.write_text(
        "\n".join([*before, json.dumps({**found, "version": found["version"] + 1, "unheard_of": 3})]) + "\n"
    )


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind}-{name}" for kind, name in CASES])
def test_what_a_newer_nip_ray_wrote_is_refused(
    kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = Path(shutil.copytree(request.getfixturevalue(kind), tmp_path / "run"))
    read = (NETWORKS if kind == "networks" else TEXT)[name]
    assert read(run) is not None, "as it is, it can be read"
    newer(run / name)
    with pytest.raises(UserError) as caught:
        read(run)
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"format.version:? (got )?2\b", message), message
    assert (Path(name).parent if name.endswith("manifest.json") else Path(name)).name in message, message
    assert "unheard_of" not in message


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """What a file of data holds, without what a version stands beside."""
    if path.suffix == ".yaml":
        yield yaml.safe_load(path.read_text())
    elif path.suffix == ".json":
        yield json.loads(path.read_bytes())
    elif path.suffix == ".jsonl":
        yield from map(json.loads, path.read_text().splitlines())


@pytest.mark.parametrize("kind", ["networks", "text"])
def test_no_file_is_without_a_version(kind: str, request: pytest.FixtureRequest) -> None:
    """But for the state in a checkpoint, whose manifest has one for all its files."""
    run = request.getfixturevalue(kind)
    files = [path for path in run.rglob("*") if path.suffix in (".yaml", ".json", ".jsonl")]
    bare = {
        str(path.relative_to(run))
        for path in files
        for found in objects(path)
        if not {"version", "format_version"} & found.keys()
    }
    assert len(files) > 5
    assert bare <= {"checkpoints/000002/state.json"}


def test_the_version_of_a_config_is_told_before_its_unknown_keys() -> None:
    for data in (
        {"format_version": 2, "unheard_of": 1, "seed": "x"},
        {"format_version": 2, "scenario": {"name": "unheard_of"}},
    ):
        with pytest.raises(UserError) as caught:
            config_from_dict(data)
        assert str(caught.value) == "format_version: got 2, and this nip_ray knows formats up to 1; use a newer one"


def test_a_config_without_a_version_is_of_the_first(networks: Path, text: Path) -> None:
    assert FORMAT_VERSION == 1, "a new version needs a test of its own here: how configs of the first are read"
    for run in (networks, text):
        stored = yaml.safe_load((run / "config.yaml").read_text())
        assert stored.pop("format_version") == 1
        assert config_from_dict(stored) == load_config(run, checked=False)


def test_the_version_is_not_in_the_fingerprint() -> None:
    """These are of checkpoints made before configs had versions."""
    assert run_fingerprint(small()) == run_fingerprint(small("format_version=1")) == "fb45f90db3db410b"
    assert run_fingerprint(small("protocol.name=debate")) == "47fc49a71498b8c2"
