"""Protocols as environments of `verifiers`: the package, and its own loader and evaluation, whose rewards are ours."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from nip_ray.errors import UserError
from nip_ray.exports.game import Game, game_of
from nip_ray.exports.verifiers_package import export_verifiers
from nip_ray.play.dialogue import Chat, Dialogue, dialogue_record, shape_chat
from nip_ray.play.dialogues import Answer, play_dialogue
from tests.text.loopback import serving

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tune_configs"
NUM = 50


class Script:
    """Replies that depend on who is asked, on the chat and on how often it was seen: of the right form, but one in
    twenty at first none."""

    def __init__(self, game: Game) -> None:
        said: dict[str, set[str]] = {name: set() for name in game.scenario.protocol.agents}

        async def invented(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
            reply = game.scenario.invent(dialogue, agent, attempt)
            said[agent].add(reply)
            return Answer(reply)

        for number, item in enumerate(game.items["test"][:20]):
            asyncio.run(play_dialogue(game.scenario, item, number, invented))
        self.replies = {agent: sorted(replies) for agent, replies in said.items()}
        self.seen: Counter[str] = Counter()

    def __call__(self, agent: str, chat: Chat) -> str:
        text = agent + json.dumps([[message["role"], message["content"]] for message in chat])
        self.seen[text] += 1
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        if drawn % 20 == 0 and self.seen[text] == 1:
            return ""
        reply = self.replies[agent][drawn // 20 % len(self.replies[agent])]
        return f"<think>{drawn}</think>{reply}" if drawn % 20 == 1 else reply

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        reply = self(body["model"], body["messages"])
        choice = {"index": 0, "message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        return web.json_response(
            {
                "id": "a",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
            }
        )


@contextmanager
def served(script: Script) -> Iterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", script.serve)
    with serving(app) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def played(game: Game, script: Script) -> list[dict[str, Any]]:
    """The records of the same dialogues as our core plays them."""

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
        return Answer(script(agent, shape_chat(chat, "alternating")))

    tasks = [game.task(item, number, 1) for number, item in enumerate(game.chosen("test")[:NUM])]
    return [
        dialogue_record(game.scenario, await play_dialogue(game.scenario, task.item, task.seed, ask)) for task in tasks
    ]


def source(folder: Path, name: str, protocol: str) -> Path:
    """A shipped config under this protocol, with enough items."""
    made = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    if protocol:
        made["protocol"]["name"] = protocol
    if "data" in made["scenario"]:
        made["scenario"]["data"] |= {"num_train": 8, "num_test": NUM}
    (folder / "source.yaml").write_text(yaml.safe_dump(made))
    return folder / "source.yaml"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with `verifiers`, which wants another openai than our extra `text`, before all else that is here."""
    folder = tmp_path_factory.mktemp("verifiers")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["verifiers"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"verifiers cannot be installed here: {done.stderr[-300:]}")
    return os.pathsep.join([str(folder), str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])


def evaluated(
    package: Path, library: str, base_url: str, agents: list[str], out: Path, *more: str
) -> list[dict[str, Any]]:
    """The episodes that `vf-eval` writes."""
    name = package.name.replace("_", "-")
    command = [
        sys.executable,
        "-c",
        "from verifiers.v1.cli.eval.main import main; main()",
        name,
        "-n",
        str(NUM),
        "-c",
        "1",
        "-o",
        str(out),
        "--run.dir",
        "run",
    ]
    command += ["--no-push", "--no-rich", "--client.base-url", base_url, "--client.api-key-var", "NO_KEY"]
    for agent in agents:
        command += [f"--env.{agent}.model", agent]
    command += more
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(package), library]),
        "NO_KEY": "none",
        "HOME": str(out),
    }
    done = subprocess.run(
        command, env=environment, cwd=out.parent, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in (out / "run" / "traces.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("ei_cv_offline", "nip"),
        ("ei_cv_offline", "debate"),
        ("ei_cv_offline", "mnip"),
        ("pg_state_tracking", "bisection"),
        ("pg_kuhn_poker", ""),
    ],
)
def test_its_own_evaluation_pays_as_we_do(name: str, protocol: str, tmp_path: Path, library: str) -> None:
    package, out = export_verifiers(source(tmp_path, name, protocol), tmp_path / "nip_proofs"), tmp_path / "out"
    out.mkdir()
    game = game_of(package / "nip_proofs")
    agents = list(game.scenario.protocol.agents)
    with served(Script(game)) as base_url:
        episodes = evaluated(package, library, base_url, agents, out)
    ours = asyncio.run(played(game, Script(game)))
    assert len(episodes) == len(ours)
    assert all(episode["ok"] for episode in episodes)
    for episode, record in zip(sorted(episodes, key=lambda one: one["task"]["data"]["idx"]), ours, strict=True):
        traces = episode["traces"]
        assert {trace["agent"]["name"] for trace in traces} == {
            turn["agent"] for turns in record["rounds"] for turn in turns
        }
        for trace in traces:
            agent = trace["agent"]["name"]
            assert trace["info"]["nip_ray"] == record
            assert trace["rewards"]["payment"]["score"] == sum(paid.get(agent, 0.0) for paid in record["rewards"])


@pytest.mark.slow
def test_an_agent_at_a_limit_of_its_role_says_nothing_more(tmp_path: Path, library: str) -> None:
    package, out = export_verifiers(source(tmp_path, "ei_cv_offline", "nip"), tmp_path / "nip_proofs"), tmp_path / "out"
    out.mkdir()
    game = game_of(package / "nip_proofs")
    with served(Script(game)) as base_url:
        episodes = evaluated(package, library, base_url, ["prover", "verifier"], out, "--env.verifier.max-turns", "1")
    assert all(episode["ok"] for episode in episodes)
    asked = [
        len(trace["calls"])
        for episode in episodes
        for trace in episode["traces"]
        if trace["agent"]["name"] == "verifier"
    ]
    assert set(asked) == {1}


def test_a_package_holds_config_items_and_no_code_of_others(tmp_path: Path) -> None:
    package = export_verifiers(source(tmp_path, "ei_cv_offline", "debate"), tmp_path / "my-Debate")
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-debate"
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["my_debate"]
    compile((package / "my_debate" / "__init__.py").read_text(), "module", "exec")
    game = game_of(package / "my_debate")
    assert game.items == game_of(tmp_path / "source.yaml").items
    assert "`prover0`, `prover1`, `verifier`" in (package / "README.md").read_text()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=package, check=True, capture_output=True)
    (wheel,) = (package / "dist").glob("my_debate-*.whl")
    assert {f"my_debate/{name}" for name in ("__init__.py", "config.yaml", "items/test.jsonl")} <= set(
        zipfile.ZipFile(wheel).namelist()
    )


@pytest.mark.parametrize(
    ("out", "changes", "said"),
    [
        (
            "a",
            {"scenario": {"name": "message_game"}, "protocol": {"name": "message_game"}},
            "language models can speak",
        ),
        ("a", {"plugins": ["tests/builders.py"]}, "plugins: tests/builders.py would have to go along"),
        ("7a", {}, "--out .*7a: its last part is the package's name"),
        ("nip-", {}, "its last part is the package's name"),
        ("nip-ray", {}, "nip_ray means something else"),
        ("class", {}, "class means something else"),
        (".", {}, "is not empty"),
    ],
)
def test_what_cannot_be_a_package_is_named(out: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = source(tmp_path, "pg_kuhn_poker", "")
    path.write_text(yaml.safe_dump({**({} if "scenario" in changes else yaml.safe_load(path.read_text())), **changes}))
    with pytest.raises(UserError, match=said):
        export_verifiers(path, tmp_path / out)
