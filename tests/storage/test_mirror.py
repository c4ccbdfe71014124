"""Copies of run folders in object stores: on a file system, and in an S3 server on loopback, which pyarrow reaches by
its real protocol."""

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.runs.initial_weights import initial_weights
from nip_ray.settings.tracking import MirrorSettings, TrackingSettings
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.mirror import Place, Store, fetch_mirror, is_mirror, local_run, place_of
from nip_ray.storage.sources import absolute, is_artifact, run_folder
from nip_ray.tracking import RunInfo, check_trackers
from nip_ray.tracking import mirror as tracker
from nip_ray.tracking.mirror import Copier, NotOurs
from tests.runs.small import MESSAGES, command, environment, nip_ray, small, untimed, write_small
from tests.storage.mirrored import (
    BUCKET,
    at_home,
    checkpoint,
    delete_raw,
    everything,
    gate,
    made_by_hand,
    owner,
    put_raw,
    refusal,
    running,
)

CANARY = "canary-4f1d-secret-of-the-bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "canary-4f1d-name-of-the-key",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_EC2_METADATA_DISABLED": "true",
}
ALL = ("checkpoint.interval=1", "checkpoint.keep=2", "evaluation.interval=2", "iterations=4")


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of an S3 server in a process of its own."""
    with running() as port:
        yield port


@pytest.fixture
def s3(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket; credentials and server are in the environment, as for users."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server}", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    system = owner(server)
    system.create_dir(BUCKET)
    yield f"s3://{BUCKET}/runs"
    system.delete_dir(BUCKET)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("s3") if request.param == "s3" else f"file://{tmp_path}/mirrors"


def place(url: str) -> Place:
    return place_of(url, "a test")


def files(url: str) -> dict[str, int]:
    return Store(place(url)).files()


def mirrored(url: str, *more: str) -> list[str]:
    return [f"tracking.mirror.url={url}", "tracking.mirror.interval_s=0.2", *ALL, *more]


def rows(folder: Path) -> list[dict[str, Any]]:
    with RunFolder.open(folder) as opened:
        return [untimed(row) for row in opened.metrics()]


def copier(folder: Path, url: str, name: str = "r1", resumed_from: int = 0) -> Copier:
    return Copier(folder, place(url).below(folder.name), name, resumed_from)


# --------------------------------------------------------------------------------------------------- a run and its copy


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all others of these tests ought to equal, without any mirror."""
    return run_experiment(small(*ALL, base=MESSAGES), tmp_path_factory.mktemp("plain") / "run", quiet=True).run_dir


def test_a_run_is_copied_and_its_numbers_are_those_without_a_copy(
    url: str, tmp_path: Path, undisturbed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_experiment(small(*mirrored(url), base=MESSAGES), tmp_path / "runs" / "first", quiet=True).run_dir
    assert rows(run) == rows(undisturbed)
    there = files(f"{url}/first")
    assert there == at_home(run)
    assert {
        "config.yaml",
        "metrics.jsonl",
        "run.json",
        "evaluation.json",
        "report.html",
        "transcripts/000004.jsonl",
    } <= set(there)
    assert {name.split("/")[1] for name in there if name.startswith("checkpoints/")} == {"000003", "000004"}, (
        "the others were pruned"
    )
    fetched = fetch_mirror(f"{url}/first", tmp_path / "elsewhere" / "copy")
    assert everything(fetched / "checkpoints", fetched / "transcripts") == everything(
        run / "checkpoints", run / "transcripts"
    )
    assert load_checkpoint(fetched / "checkpoints").iteration == 4
    assert "warning" not in capfd.readouterr().err


def test_a_run_goes_on_from_its_copy_on_another_machine(url: str, tmp_path: Path, undisturbed: Path) -> None:
    run_experiment(small(*mirrored(url, "iterations=2"), base=MESSAGES), tmp_path / "one" / "run", quiet=True)
    there = local_run(f"{url}/run", tmp_path / "other" / "run")
    resumed = resume_experiment(there, iterations=4, quiet=True).run_dir
    assert resumed == tmp_path / "other" / "run"
    assert rows(resumed) == rows(undisturbed)
    assert files(f"{url}/run") == at_home(resumed), "the other machine keeps the copy up to date"


def test_the_same_command_goes_on_wherever_it_is_given(
    url: str, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --or-resume a new machine takes up what another began, even where that had not come to its first iteration."""
    (tmp_path / "config.yaml").write_text(config_to_yaml(small(*mirrored(url), base=MESSAGES)))

    def given(machine: str, *more: str) -> Result:
        command = [
            "train",
            str(tmp_path / "config.yaml"),
            "--run-dir",
            str(tmp_path / machine / "run"),
            "--or-resume",
            "--quiet",
            *more,
        ]
        return CliRunner().invoke(app, command)

    for machine, iterations in (("one", "4"), ("two", "4"), ("three", "4")):
        done = given(machine, "--iterations", iterations)
        assert done.exit_code == 0, done.output
        if machine == "one":
            only_begun = Store(place(f"{url}/run"))
            for name in set(only_begun.files()) - {"config.yaml", "run.json"}:
                only_begun.remove(name)
        else:
            assert rows(tmp_path / machine / "run") == rows(undisturbed)
            assert files(f"{url}/run") == at_home(tmp_path / machine / "run")
    if url.startswith("s3"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        done = given("four")
        assert done.exit_code == 2
        assert "cannot be queried for the run" in done.stderr
        assert not (tmp_path / "four").exists()


def test_the_first_machine_does_not_undo_what_another_has_done(
    s3: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = run_experiment(
        small(*mirrored(s3, "iterations=2"), base=MESSAGES), tmp_path / "one" / "run", quiet=True
    ).run_dir
    resume_experiment(local_run(f"{s3}/run", tmp_path / "other" / "run"), iterations=4, quiet=True)
    before = files(f"{s3}/run")
    capfd.readouterr()
    resume_experiment(one, iterations=3, quiet=True)
    assert "has iteration 4, which another machine made" in capfd.readouterr().err
    assert files(f"{s3}/run") == before


@pytest.mark.slow
def test_no_credential_is_in_any_file_or_message(s3: str, server: int, tmp_path: Path) -> None:
    config = write_small(tmp_path / "c.yaml", *mirrored(s3), base=MESSAGES)
    done = nip_ray("train", config, "--run-dir", tmp_path / "runs" / "run", check=0)
    elsewhere = ("--iterations", "1", "--set", f"tracking.mirror.url=s3://{CANARY}/x")
    broken = nip_ray("train", config, "--run-dir", tmp_path / "runs" / "broken", *elsewhere, check=0)
    assert "warning: tracker mirror: s3://[secret]/x/broken cannot be written" in broken.stderr.replace(
        CANARY, "[secret]"
    )
    fetched = fetch_mirror(f"{s3}/run", tmp_path / "fetched")
    kept = everything(tmp_path / "runs" / "run", fetched)
    said = done.stdout + done.stderr + re.sub(rf"s3://{CANARY}/x", "", broken.stderr)
    for secret in KEYS["AWS_ACCESS_KEY_ID"], CANARY:
        assert secret.encode() not in kept
        assert secret not in said


# --------------------------------------------------------------------------------------------------------- what is
# copied


def test_what_is_new_or_changed_is_copied_and_what_is_removed_goes(url: str, tmp_path: Path) -> None:
    run = made_by_hand(tmp_path / "run", 1, 2)
    (run / "transcripts").mkdir()
    (run / "transcripts" / "000002.jsonl").write_text("{}\n")
    copy = copier(run, url)
    assert copy.copy() is False
    assert files(f"{url}/run") == at_home(run)

    checkpoint(run, 3)
    (run / "metrics.jsonl").write_text("{}\n")
    (run / "transcripts" / "000002.jsonl").unlink()
    for file in (run / "checkpoints" / "000001").iterdir():
        file.unlink()
    (run / "checkpoints" / "000001").rmdir()
    assert copy.copy() is False
    assert files(f"{url}/run") == at_home(run)
    assert "checkpoints/000001/manifest.json" not in files(f"{url}/run")

    checkpoint(run, 3, "other tensors")  # as after a restart
    assert copy.copy() is False
    assert Store(place(f"{url}/run")).read("checkpoints/000003/training.pt") == b"other tensors of 3"


def test_a_copy_of_what_was_lost_here_is_kept(url: str, tmp_path: Path) -> None:
    run = made_by_hand(tmp_path / "run", 1, 2)
    copier(run, url).copy()
    shutil.rmtree(run / "checkpoints" / "000002")
    with pytest.raises(NotOurs, match=r"iteration 2, newer than all of .*; `nip-ray resume .*/run` continues"):
        copier(run, url, resumed_from=1).copy()
    assert "checkpoints/000002/manifest.json" in files(f"{url}/run")
    Copier(run, place(url).below("run"), "r1", 1, taken_over=True).copy()  # a trial that went back to another's
    assert "checkpoints/000002/manifest.json" not in files(f"{url}/run")


def test_what_is_there_already_is_not_copied_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_by_hand(tmp_path / "run", 1, 2)
    first = copier(run, url)
    first.copy()
    put: list[str] = []
    real = Store.put
    monkeypatch.setattr(Store, "put", lambda self, name, file: (put.append(name), real(self, name, file)))
    first.copy()
    assert put == []
    copier(run, url, resumed_from=2).copy()  # a process that knows nothing of the first
    assert sorted(put) == ["config.yaml", "run.json"], "checkpoints are known by their manifests"


def test_hidden_files_links_and_the_library_of_weights_and_biases_stay_at_home(url: str, tmp_path: Path) -> None:
    run = made_by_hand(tmp_path / "run", 1)
    (tmp_path / "outside").write_text("private")
    (run / "link").symlink_to(tmp_path / "outside")
    (run / "linked").symlink_to(tmp_path)
    for name in (
        ".lock",
        ".half.tmp-1",
        "checkpoints/.000002.tmp-9/training.pt",
        "wandb/run/logs.txt",
        "events/tfevents.1",
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
    copier(run, url).copy()
    names = set(files(f"{url}/run"))
    assert names == {
        *(f"checkpoints/000001/{name}" for name in CHECKPOINT),
        "config.yaml",
        "run.json",
        "events/tfevents.1",
    }


CHECKPOINT = ("training.pt", "state.json", "manifest.json")


def test_the_manifest_goes_up_last_and_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, url = made_by_hand(tmp_path / "run", 1), f"file://{tmp_path}/mirrors"
    (run / "metrics.jsonl").write_text("{}\n")
    said: list[str] = []
    put, remove = Store.put, Store.remove
    monkeypatch.setattr(Store, "put", lambda self, name, file: (said.append(f"+{name}"), put(self, name, file)))
    monkeypatch.setattr(Store, "remove", lambda self, name: (said.append(f"-{name}"), remove(self, name)))
    copy = copier(run, url)
    copy.copy()
    assert said[:2] == ["+run.json", "+config.yaml"], "first of all whose copy it is"
    assert said[2:] == [
        "+metrics.jsonl",
        *(f"+checkpoints/000001/{name}" for name in ("state.json", "training.pt", "manifest.json")),
    ]
    said.clear()
    checkpoint(run, 1, "other tensors")
    copy.copy()
    assert said[0] == "-checkpoints/000001/manifest.json"
    assert said[-1] == "+checkpoints/000001/manifest.json"


def test_where_a_run_of_language_models_stands_goes_up_last_and_is_no_newer_than_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, url = made_by_hand(tmp_path / "run"), f"file://{tmp_path}/mirrors"
    (run / "state.json").write_text("sample")
    (run / "zeal.json").write_text("1")
    put = Store.put

    def going_on(self: Store, name: str, file: Any) -> None:
        if name == "zeal.json":  # meanwhile a stage ends
            (run / "rollouts.jsonl").write_text("made in it")
            (run / "aside").write_text("train")
            (run / "aside").replace(run / "state.json")
        put(self, name, file)

    monkeypatch.setattr(Store, "put", going_on)
    copy, store = copier(run, url), Store(place(f"{url}/run"))
    copy.copy()
    assert store.read("state.json") == b"sample"
    copy.copy()
    assert (store.read("state.json"), store.read("rollouts.jsonl")) == (b"train", b"made in it")


def test_a_checkpoint_that_is_pruned_while_it_goes_up_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the older one there stays until a newer one has come."""
    run, url = made_by_hand(tmp_path / "run", 1), f"file://{tmp_path}/mirrors"
    copy = copier(run, url)
    copy.copy()
    (run / "checkpoints" / "000001").rename(run / "checkpoints" / ".000001.trash-1")
    checkpoint(run, 2)
    put = Store.put

    def pruning(self: Store, name: str, file: Any) -> None:
        if name == "checkpoints/000002/state.json":
            checkpoint(run, 3)
            (run / "checkpoints" / "000002").rename(run / "checkpoints" / ".000002.trash-1")
        put(self, name, file)

    monkeypatch.setattr(Store, "put", pruning)
    assert copy.copy() is False
    assert "checkpoints/000002/manifest.json" in files(f"{url}/run")
    assert copy.copy() is False
    assert {name.split("/")[1] for name in files(f"{url}/run") if name.startswith("checkpoints/")} == {"000003"}


def test_a_folder_that_is_gone_takes_no_copy_with_it(tmp_path: Path) -> None:
    run, url = made_by_hand(tmp_path / "run", 1), f"file://{tmp_path}/mirrors"
    copy = copier(run, url)
    copy.copy()
    before = files(f"{url}/run")
    run.rename(tmp_path / "moved")
    with pytest.raises(OSError, match="left as it is"):
        copy.copy()
    assert files(f"{url}/run") == before


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"run.json": '{"run_id": "r2"}'}, "the copy of another run"),
        ({"data.npz": "x"}, "something else"),
        ({"run.json": "[1"}, "another run"),
    ],
)
def test_what_is_not_ours_is_left_alone(there: dict[str, str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "mirrors" / "run"
    folder.mkdir(parents=True)
    for name, content in there.items():
        (folder / name).write_text(content)
    with pytest.raises(NotOurs, match=said):
        copier(made_by_hand(tmp_path / "run", 1), f"file://{tmp_path}/mirrors").copy()
    assert {path.name: path.read_text() for path in folder.iterdir()} == there


def test_what_lies_beside_a_copy_is_not_removed(url: str, tmp_path: Path) -> None:
    run = made_by_hand(tmp_path / "run", 1)
    copier(run, url).copy()
    (note := tmp_path / "note").write_text("of a user")
    with note.open("rb") as file:
        Store(place(f"{url}/run")).put("README", file)
    checkpoint(run, 2)
    copier(run, url, resumed_from=1).copy()
    assert "README" in files(f"{url}/run")


# ------------------------------------------------------------------------------------------------------ kills and
# failures


@pytest.mark.crash
@pytest.mark.parametrize(
    "closed", [b"000004/manifest.json", b"000004/training.pt", b"DELETE /proofs", b"PUT /proofs/runs/run/metrics.jsonl"]
)
def test_a_kill_in_the_middle_of_an_upload_leaves_a_run_that_goes_on(
    closed: bytes, s3: str, server: int, tmp_path: Path, undisturbed: Path
) -> None:
    """Killed by signal 9 while the server hangs in the middle of that request."""
    one = run_experiment(
        small(*mirrored(s3, "iterations=2"), base=MESSAGES), tmp_path / "one" / "run", quiet=True
    ).run_dir
    with gate(server, closed) as between:
        env = {**environment(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{between.port}"}
        process = subprocess.Popen(command(["resume", one, "--iterations", "4", "--quiet"]), env=env)
        try:
            assert between.stuck.wait(120)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    there = local_run(f"{s3}/run", tmp_path / "other" / "run")
    newest = load_checkpoint(there / "checkpoints")
    assert newest.skipped == [], "half of one counts as none"
    assert newest.iteration in ((2, 3) if b"000004" in closed else (2, 3, 4))
    assert rows(resume_experiment(there, iterations=4, quiet=True).run_dir) == rows(undisturbed)
    assert files(f"{s3}/run") == at_home(there)


def silent(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def impatient(finish_s: float) -> str:
    return (
        "import nip_ray.storage.mirror as m, nip_ray.tracking.mirror as t; "
        f"m._CONNECT_S, m._ANSWER_S, t._FINISH_S, t._TELL_S = 1.0, 1.0, {finish_s}, 0.5"
    )


@pytest.mark.slow
@pytest.mark.parametrize("finish_s", [60.0, 1.0])
def test_a_store_that_hangs_costs_a_warning(finish_s: float, s3: str, tmp_path: Path, undisturbed: Path) -> None:
    """Whether its own limits end it, or ours of waiting for it, while the thread is still at it when the process
    exits."""
    config = write_small(tmp_path / "c.yaml", *mirrored(s3), base=MESSAGES)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", silent(listener))
        began = time.monotonic()
        done = nip_ray("train", config, "--run-dir", tmp_path / "run", "--quiet", code=impatient(finish_s), check=0)
        took = time.monotonic() - began
    lacking = [line for line in done.stderr.splitlines() if "lacks the end of the run" in line]
    assert len(lacking) == 1
    assert ("it took longer than 1 s" in lacking[0]) is (finish_s == 1.0)
    assert "Traceback" not in done.stderr
    assert took < 150
    assert rows(tmp_path / "run") == rows(undisturbed)


def test_a_store_that_refuses_costs_a_warning_and_is_tried_again(
    s3: str, server: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There is no such bucket, and then there is."""
    run = made_by_hand(tmp_path / "run", 1)
    about = RunInfo(run, "r1", "proofs", {})
    made = tracker.start(MirrorSettings("s3://later/runs", 0.2), about)
    system = owner(server)
    try:
        made.checkpoint(run / "checkpoints" / "000001", 1)
        said = waited_for(lambda: capfd.readouterr().err)
        assert said.count("warning: tracker mirror: s3://later/runs/run cannot be written") == 1
        assert "NO_SUCH_BUCKET" in said or "NoSuchBucket" in said
        time.sleep(1.0)
        assert capfd.readouterr().err == "", "one warning is enough"
        system.create_dir("later")
        assert "up to date again" in waited_for(lambda: capfd.readouterr().err)
        checkpoint(run, 2)
    finally:
        made.finish(False)
    try:
        assert files("s3://later/runs/run") == at_home(run)
        assert capfd.readouterr().err == ""
    finally:
        system.delete_dir("later")


def waited_for(look: Callable[[], str]) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if said := look():
            return said
        time.sleep(0.05)
    raise AssertionError("nothing came")


def test_rows_are_copied_after_the_interval_and_training_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, url = made_by_hand(tmp_path / "run"), f"file://{tmp_path}/mirrors"
    put, slow = Store.put, threading.Event()

    def slowly(self: Store, name: str, file: Any) -> None:
        slow.wait(60)
        put(self, name, file)

    monkeypatch.setattr(Store, "put", slowly)
    made = tracker.start(MirrorSettings(url, 0.5), RunInfo(run, "r1", "proofs", {}))
    try:
        began = time.monotonic()
        for iteration in range(1, 200):
            made.log({"iteration": iteration})
            made.checkpoint(run, iteration)
        assert time.monotonic() - began < 20, "the store hangs, and nobody waits"
        (run / "metrics.jsonl").write_text("{}\n")
        slow.set()
        made.log({"iteration": 200})
        end = time.monotonic() + 120
        while "metrics.jsonl" not in files(f"{url}/run") and time.monotonic() < end:
            time.sleep(0.02)
        assert "metrics.jsonl" in files(f"{url}/run")
        time.sleep(1.0)
        assert made._due is None, "nothing is due where nothing is new"  # pyright: ignore
    finally:
        slow.set()
        made.finish(False)


# --------------------------------------------------------------------------------------------------------------
# addresses


SECRETS = [
    "s3://key:hunter22@bucket/x",
    "s3://key:hun/ter22@bucket/x",
    "gs://hunter22@bucket",
    "file://u:hunter22@/x",
    "u:hunter22@bucket",
    "u:hunter22@s3://x",
]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("bucket/path", "has no scheme"),
        ("", "has no scheme"),
        ("http://bucket/path", "the scheme 'http' is unknown"),
        ("s3:///path", "the bucket is missing"),
        ("file://host/path", "without a host"),
        ("s3://bucket/a/../b", "dots"),
        ("s3://bucket/a\nb", "control characters"),
        ("s3://bucket/x?secret_key=hunter22", "? or #"),
        ("s3://[bucket/x", "no name of one"),
        *((secret, "") for secret in SECRETS),
    ],
)
def test_an_address_that_is_none_is_refused_before_training(url: str, said: str, tmp_path: Path) -> None:
    settings = TrackingSettings(mirror=MirrorSettings(url))
    told = refusal(lambda: check_trackers(settings))
    assert told.startswith("tracking.mirror.url: ")
    assert said in told
    assert "hunter22" not in told
    assert "ter22" not in told
    assert "write s3://BUCKET/PATH" in told
    config = small("iterations=1", base=MESSAGES).model_copy(update={"tracking": settings})
    assert refusal(lambda: run_experiment(config, tmp_path / "run", quiet=True)) == told
    assert not (tmp_path / "run").exists()


def test_what_an_address_means() -> None:
    assert place("s3://bucket/a b/c/") == Place("s3", "bucket/a b/c", "s3://bucket/a b/c")
    assert place("gs://bucket").below("run").path == "bucket/run"
    assert place("file:///mnt/a%20b").path == "/mnt/a b"
    assert place("s3://bucket/me@home").path == "bucket/me@home"
    for url in ("s3://bucket/x", "file:///x", "gs://bucket/x"):
        assert is_mirror(url)
        assert is_mirror(Path(url))
        assert place(str(Path(url))) == place(url), "the command line makes a path of it"
        assert is_artifact(url)
        assert absolute(url) == url
    assert not any(is_mirror(path) for path in ("runs/s3", "s3", "./s3:/x", "wandb:a/b/c:v1", "http://x/y"))


# ---------------------------------------------------------------------------------------------------------------
# fetching


def test_a_copy_stands_for_its_run_wherever_one_can_be_named(url: str, tmp_path: Path) -> None:
    run = run_experiment(
        small(*mirrored(url, "iterations=2"), base=MESSAGES), tmp_path / "runs" / "first", quiet=True
    ).run_dir
    assert load_config(f"{url}/first", ["seed=9"]) == load_config(run, ["seed=9"])
    config = small("iterations=1", f"initial_weights.prover.run_dir={url}/first", base=MESSAGES)
    weights, notes = initial_weights(config, tmp_path / "new")
    ours = load_checkpoint(run / "checkpoints").tensors["training"]["modules"]["prover"]
    assert notes == []
    assert weights["prover"].keys() == ours.keys()
    assert all(bool((weights["prover"][key] == ours[key]).all()) for key in ours)
    with run_folder(f"{url}/first") as folder:
        assert {path.name for path in folder.iterdir()} == {"config.yaml", "checkpoints"}, "only what is needed"
        evaluated = CliRunner().invoke(app, ["evaluate", str(folder), "--json"])
    assert json.loads(evaluated.stdout)["iteration"] == 2
    assert not folder.exists()


def test_a_fetch_takes_one_step_and_leaves_out_what_is_unfinished(url: str, tmp_path: Path) -> None:
    run = made_by_hand(tmp_path / "run", 1, 2)
    copier(run, url).copy()
    Store(place(f"{url}/run")).remove("checkpoints/000002/manifest.json")
    fetched = fetch_mirror(f"{url}/run", tmp_path / "new" / "fetched")
    assert set(at_home(fetched)) == {"config.yaml", "run.json", *(f"checkpoints/000001/{name}" for name in CHECKPOINT)}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["fetched"]


def test_programs_are_not_fetched(tmp_path: Path) -> None:
    """A config that was fetched with them could name them as plugins."""
    run = made_by_hand(tmp_path / "there" / "run")
    for name in ("plugin.py", "package/__init__.PY", "fast.so"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("print('ran')\n")
    assert set(at_home(fetch_mirror(f"file://{run}", tmp_path / "fetched"))) == {"config.yaml", "run.json"}


def test_local_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copier(made_by_hand(tmp_path / "home" / "run", 1), f"file://{tmp_path}/mirrors").copy()
    source = f"file://{tmp_path}/mirrors/run"
    assert local_run("runs/a") == Path("runs/a")
    assert local_run(Path("runs/a")) == Path("runs/a")
    assert "--run-dir" in refusal(lambda: local_run("runs/a", tmp_path / "b"))
    assert local_run(Path(source)) == Path("runs/run")
    assert (tmp_path / "runs" / "run" / "checkpoints" / "000001" / "manifest.json").is_file()
    assert "holds a run already; continue with it by `nip-ray resume runs/run`" in refusal(lambda: local_run(source))
    assert "holds something already" in refusal(lambda: local_run(source, tmp_path / "home"))
    assert "no run here (there is nothing)" in refusal(lambda: local_run(f"{source}s"))
    assert "no run here (it has no config.yaml)" in refusal(lambda: local_run(f"file://{tmp_path}/mirrors"))
    assert "the scheme 'http' is unknown" in refusal(lambda: local_run("http://bucket/run"))
    assert "hunter22" not in refusal(lambda: local_run(Path(SECRETS[0])))
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"run"}


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/etc/escaped", "checkpoints//b", "back\\slash"])
def test_names_that_lead_out_are_refused(name: str, s3: str, server: int, tmp_path: Path) -> None:
    """Such keys are legal in a bucket."""
    copier(made_by_hand(tmp_path / "run", 1), s3).copy()
    put_raw(server, f"runs/run/{name}")
    try:
        told = refusal(lambda: fetch_mirror(f"{s3}/run", tmp_path / "a" / "b" / "fetched"))
    finally:
        delete_raw(server, f"runs/run/{name}")
    assert "would be outside its folder; nothing was fetched" in told or "//" in name
    assert not list(tmp_path.rglob("*escaped*"))
    assert not (tmp_path / "a").exists() or not any((tmp_path / "a" / "b").iterdir())


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    copier(made_by_hand(tmp_path / "run", 1), f"file://{tmp_path}/mirrors").copy()
    (tmp_path / "private").write_text("private")
    (tmp_path / "mirrors" / "run" / "notes").symlink_to(tmp_path / "private")
    assert "'notes' would be outside its folder" in refusal(
        lambda: fetch_mirror(f"file://{tmp_path}/mirrors/run", tmp_path / "fetched")
    )
    assert not (tmp_path / "fetched").exists()
