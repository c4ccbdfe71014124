"""Weights & Biases: what offline files hold by wandb's own reader (`wandb sync`), what an online run sends, and
fetching artifacts.

The service is one of loopback (`wandb_service.py`) that the installed client's own queries are answered by.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nip_ray.errors import UserError
from nip_ray.storage import wandb_source
from nip_ray.tracking.wandb_runs import last_step
from tests.tracking.tracked import CONFIG, ROOT, files_news, row, run_folder, track
from tests.tracking.wandb_service import ENTITY, KEY, PROJECT, Service, running

RUN = "proofs-a1b2"
SETTINGS: dict[str, Any] = {"wandb": {"enabled": True, "entity": ENTITY, "project": PROJECT, "tags": ["nip", "small"]}}
OFFLINE: dict[str, Any] = {"wandb": {**SETTINGS["wandb"], "mode": "offline"}}


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as made:
        yield made
        assert not made.refused


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def environment(home: Path, service: Service | None = None, key: str | None = KEY) -> dict[str, str]:
    """A home of its own, the service on loopback, and a key."""
    url = service.url if service else "http://127.0.0.1:9"  # where nobody answers
    xdg = {name: str(home / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    return {"HOME": str(home), **xdg, "WANDB_BASE_URL": url, **({"WANDB_API_KEY": key} if key else {})}


def sync(folder: Path, environment: dict[str, str]) -> None:
    """`wandb sync` of every offline folder of a run, oldest first."""
    for part in sorted((folder / "wandb").glob("offline-run-*")):
        command = [sys.executable, "-m", "wandb", "sync", str(part)]
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_offline_run_holds_all_that_a_run_says_and_leaves_no_trace_elsewhere(
    tmp_path: Path, home: Path, service: Service
) -> None:
    folder = run_folder(tmp_path / "run")
    (tmp_path / "cwd").mkdir()
    news = [row(1), row(2), *files_news(folder), ["finish", False]]
    done = track(folder, OFFLINE, news, environment=environment(home), cwd=tmp_path / "cwd")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not files_in(home)
    assert not files_in(tmp_path / "cwd")
    assert not [path for path in files_in(tmp_path) if KEY.encode() in path.read_bytes()]
    assert not [path for path in files_in(tmp_path) if os.environ["NIP_PROVIDER_KEY"].encode() in path.read_bytes()]

    shutil.rmtree(folder / "checkpoints")  # pruned since
    sync(folder, environment(home, service))
    run = service.runs[RUN]
    assert run.steps() == [1, 2]
    assert run.values(2) == {
        "iteration": 2,
        "train/verifier/accuracy": 0.25,
        "eval/verifier/accuracy/wl_score=-1": 0.5,
        "time/iteration_s": 0.25,
        "stage": "sampling",
    }
    assert run.config() == CONFIG
    bucket = run.bucket
    assert (bucket["displayName"], bucket["tags"], bucket["groupName"], bucket["entity"]) == (
        "proofs",
        ["nip", "small"],
        "sweep-7",
        ENTITY,
    )
    assert run.exit_code == 0
    kinds = {stored.collection: (stored.kind, stored.aliases) for stored in service.artifacts}
    assert kinds == {
        f"config-{RUN}": ("config", {"latest"}),
        f"checkpoint-{RUN}": ("checkpoint", {"latest", "iteration-2"}),
        f"transcripts-{RUN}": ("transcripts", {"latest", "iteration-2"}),
    }
    assert service.content(f"checkpoint-{RUN}:latest") == {
        "checkpoints/000002/manifest.json": b'{"iteration": 2}',
        "checkpoints/000002/tensors/a.bin": bytes(range(256)) * 40,
        "config.yaml": b"name: proofs\nseed: 3\n",
    }, "a small run folder, from which agents can be taken"
    assert service.content(f"transcripts-{RUN}:iteration-2") == {"000002.jsonl": b'{"episode": 0}\n'}
    assert service.content(f"config-{RUN}:latest") == {"config.yaml": b"name: proofs\nseed: 3\n"}


@pytest.mark.crash
def test_a_killed_offline_run_that_is_resumed_has_every_step_once(tmp_path: Path, home: Path, service: Service) -> None:
    folder = run_folder(tmp_path / "run")
    killed = track(folder, OFFLINE, [*map(row, range(1, 6)), ["sleep", 2.5], ["kill"]], environment=environment(home))
    assert killed.returncode == -9
    assert last_step(folder / "wandb") == 5
    resumed = track(
        folder, OFFLINE, [*map(row, range(3, 8)), ["finish", False]], resumed_from=2, environment=environment(home)
    )
    assert resumed.returncode == 0, resumed.stderr
    assert last_step(folder / "wandb") == 7
    sync(folder, environment(home, service))
    assert list(service.runs) == [RUN]
    assert service.runs[RUN].steps() == [1, 2, 3, 4, 5, 6, 7]
    assert service.runs[RUN].exit_code == 0


def test_an_online_run_that_fails_and_is_resumed_is_one_run_with_every_step_once(
    tmp_path: Path, home: Path, service: Service
) -> None:
    folder = run_folder(tmp_path / "run")
    failed = track(
        folder,
        SETTINGS,
        [*map(row, range(4)), *files_news(folder), ["finish", True]],
        resumed_from=-1,
        environment=environment(home, service),
    )
    assert (failed.returncode, failed.stdout, failed.stderr) == (0, "", "")
    assert service.runs[RUN].steps() == [0, 1, 2, 3]
    assert service.runs[RUN].exit_code == 1
    resumed = track(
        folder, SETTINGS, [row(3), row(4), ["finish", False]], resumed_from=2, environment=environment(home, service)
    )
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert list(service.runs) == [RUN]
    assert service.runs[RUN].steps() == [0, 1, 2, 3, 4]
    assert service.runs[RUN].exit_code == 0
    assert [stored.version for stored in service.artifacts if stored.kind == "config"] == [0]
    assert service.content(f"checkpoint-{RUN}:iteration-2")["checkpoints/000002/manifest.json"] == b'{"iteration": 2}'
    assert not files_in(home)
    assert not [path for path in files_in(tmp_path) if KEY.encode() in path.read_bytes()]


def test_checkpoints_and_transcripts_stay_at_home_where_the_settings_say_so(
    tmp_path: Path, home: Path, service: Service
) -> None:
    folder = run_folder(tmp_path / "run")
    settings = {"wandb": {**SETTINGS["wandb"], "checkpoints": False, "transcripts": False, "group": "mine"}}
    done = track(
        folder, settings, [row(1), *files_news(folder), ["finish", False]], environment=environment(home, service)
    )
    assert done.returncode == 0, done.stderr
    assert [stored.kind for stored in service.artifacts] == ["config"]
    assert service.runs[RUN].bucket["groupName"] == "mine"


def test_a_service_that_refuses_the_key_costs_one_warning_without_the_key(
    tmp_path: Path, home: Path, service: Service
) -> None:
    folder, wrong = run_folder(tmp_path / "run"), "wrong" + "7" * 40
    done = track(folder, SETTINGS, [row(1), ["finish", False]], environment=environment(home, service, wrong))
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("warning: tracker wandb failed and is left alone from here on (")
    assert wrong not in done.stderr
    assert not service.runs


def test_a_missing_key_is_a_users_mistake_that_names_both_ways_out(tmp_path: Path, home: Path) -> None:
    folder = run_folder(tmp_path / "run")
    done = track(folder, SETTINGS, [row(1)], environment=environment(home, key=None))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("nip_ray.errors.UserError: tracking.wandb.mode is online")
    assert "WANDB_API_KEY" in last
    assert "mode: offline" in last
    assert not (folder / "wandb").exists()


def fetch(sources: list[str], into: Path, environment: dict[str, str]) -> list[str]:
    """What fetching one after the other prints: the message of a UserError, or the files, which are kept in `into`."""
    code = f"""
import shutil, tempfile
from pathlib import Path
from nip_ray.errors import UserError
from nip_ray.storage.wandb_source import fetch
for source in {sources!r}:
    try:
        with tempfile.TemporaryDirectory() as folder:
            fetched = Path(shutil.copytree(fetch(source, Path(folder)), {str(into)!r}))
        print(*sorted(str(path.relative_to(fetched)) for path in fetched.rglob("*") if path.is_file()))
    except UserError as error:
        print(error)
"""
    command = [sys.executable, "-c", code]
    everything = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=100, cwd=into.parent)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


FILES = {"config.yaml": b"name: other\n", "tensors/a.bin": b"\x80\x04not a pickle"}


def test_an_artifact_is_fetched_file_by_file_and_nothing_else_is_left(
    tmp_path: Path, home: Path, service: Service
) -> None:
    service.add("checkpoint-b", "checkpoint", FILES, {"latest"})
    into = tmp_path / "fetched"
    assert fetch([f"wandb:{ENTITY}/{PROJECT}/checkpoint-b:latest"], into, environment(home, service)) == [
        "config.yaml tensors/a.bin"
    ]
    assert {str(path.relative_to(into)): path.read_bytes() for path in files_in(into)} == FILES
    assert not files_in(home)


REFUSED = {
    "checkpoint-b:v7": "there is no artifact wandb:team/proofs/checkpoint-b:v7 ",
    "no-such:latest": "there is no artifact wandb:team/proofs/no-such:latest ",
    "points:latest": "model.bin only points at s3://bucket/model.bin",
    "climbs:latest": "'../outside.txt' would be outside its folder",
    "damaged:latest": "wandb:team/proofs/damaged:latest cannot be fetched: ",
}


def test_what_cannot_be_fetched_is_said_in_one_line_and_leaves_nothing(
    tmp_path: Path, home: Path, service: Service
) -> None:
    service.add("checkpoint-b", "checkpoint", FILES, {"latest"})
    service.add(
        "points", "checkpoint", {"model.bin": b""}, {"latest"}, **{"model.bin": {"ref": "s3://bucket/model.bin"}}
    )
    service.add("climbs", "checkpoint", {"../outside.txt": b"gotcha"}, {"latest"})
    service.add(
        "damaged", "checkpoint", {"a.bin": b"changed"}, {"latest"}, **{"a.bin": {"digest": "AAAAAAAAAAAAAAAAAAAAAA=="}}
    )
    sources = [f"wandb:{ENTITY}/{PROJECT}/{name}" for name in REFUSED]
    printed = fetch(sources, tmp_path / "fetched", environment(home, service))
    assert len(printed) == len(REFUSED)
    for line, said in zip(printed, REFUSED.values()):
        assert said in line
    assert list(tmp_path.iterdir()) == [home]


def test_a_key_that_the_service_refuses_is_said_without_the_key(tmp_path: Path, home: Path, service: Service) -> None:
    (printed,) = fetch(
        [f"wandb:{ENTITY}/{PROJECT}/c:v0"], tmp_path / "fetched", environment(home, service, "wrong" + "7" * 40)
    )
    assert printed.startswith("wandb:team/proofs/c:v0 cannot be fetched: ")
    assert "7" * 40 not in printed


@pytest.mark.parametrize(
    "source", ["wandb:a/b", "wandb:a/b/c", "wandb:a/b/c/d:v1", "wandb:a/b/c:", "wandb:a/../c", "b/c:v1"]
)
def test_a_misspelt_source_is_a_users_mistake_that_shows_the_form(source: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write wandb:ENTITY/PROJECT/NAME:VERSION"):
        wandb_source.fetch(source, tmp_path / "into")
