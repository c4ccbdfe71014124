"""Checkpoints: exact, verified, and whole after a kill at any moment."""

import hashlib
import itertools
import json
import os
import pickle
import resource
import shutil
import signal
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.storage import checkpoint as module
from nip_ray.storage.checkpoint import has_checkpoint, load_checkpoint, rewind_checkpoints, save_checkpoint
from nip_ray.storage.fingerprint import fingerprint

MINE = fingerprint({"seed": 1})
FILES = ("manifest.json", "state.json", "prover.pt", "verifier.pt")


def content(iteration: int) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors = {
        "prover": {"w": torch.full((3, 4), float(iteration)), "step": iteration},
        "verifier": [torch.arange(5) + iteration, {"lr": 0.1, 0: None}],
    }
    return tensors, {"iteration": iteration, "seed": 2**63 - 1, "list": [1, 2.5, None, "é"]}


def save(folder: Path, *iterations: int, keep: int | None = None) -> None:
    for iteration in iterations:
        save_checkpoint(folder, iteration, *content(iteration), MINE, keep)


def assert_is(loaded: module.Checkpoint, iteration: int) -> None:
    tensors, state = content(iteration)
    assert loaded.iteration == iteration
    assert loaded.state == state
    assert torch.equal(loaded.tensors["prover"]["w"], tensors["prover"]["w"])
    assert loaded.tensors["prover"]["step"] == iteration
    assert torch.equal(loaded.tensors["verifier"][0], tensors["verifier"][0])
    assert loaded.tensors["verifier"][1] == tensors["verifier"][1]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def flip(path: Path, at: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def reseal(path: Path) -> None:
    """Give the manifest of a changed checkpoint right sums."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {
        file.name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "bytes": file.stat().st_size}
        for file in path.iterdir()
        if file.name != "manifest.json"
    }
    del manifest["sha256"]
    (path / "manifest.json").write_text(json.dumps({**manifest, "sha256": module.checksum(manifest)}))


# --- saving and loading


def test_there_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    network(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    noise = torch.Generator().manual_seed(5)
    torch.rand(7, generator=noise)
    table = torch.arange(1000.0)
    saved = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rest": {
            "rng": noise.get_state(),
            "view": table[3:5],
            "nan": torch.tensor([float("nan"), float("-inf")]),
            "float": float("inf"),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "numpy": np.arange(3, dtype=np.int64),
            "scalar": np.float32(0.5),
            "tuple": (1, "a", True),
            "ordered": OrderedDict(a=torch.nn.Parameter(torch.ones(1))),
        },
    }
    path = save_checkpoint(folder, 7, saved, {"a": (1, 2)}, MINE, 1)
    got = load_checkpoint(folder, fingerprint=MINE)
    assert (got.path, got.iteration, got.fingerprint, got.state, got.skipped) == (path, 7, MINE, {"a": [1, 2]}, [])
    for key, tensor in network.state_dict().items():
        assert torch.equal(got.tensors["network"][key], tensor)
    torch.optim.Adam(network.parameters()).load_state_dict(got.tensors["optimizer"])
    again = torch.Generator()
    again.set_state(got.tensors["rest"]["rng"])
    assert torch.equal(torch.rand(3, generator=again), torch.rand(3, generator=noise))
    rest = got.tensors["rest"]
    assert torch.equal(rest["view"], table[3:5])
    assert (path / "rest.pt").stat().st_size < 10_000, "a view does not take its whole storage along"
    assert torch.equal(rest["nan"], saved["rest"]["nan"]) or bool(rest["nan"][0].isnan())
    assert rest["float"] == float("inf")
    assert rest["half"].dtype == torch.bfloat16
    assert rest["numpy"].tolist() == [0, 1, 2]
    assert (rest["scalar"], rest["tuple"]) == (0.5, (1, "a", True))
    assert not rest["ordered"]["a"].requires_grad


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("tensors", "state"),
    [
        ({"a": object()}, {}),
        ({"a": {"b": [Colour.RED]}}, {}),
        ({"a": {(1, 2): 1}}, {}),
        ({"a": np.array(["x"])}, {}),
        ({"../a": 1}, {}),
        ({".a": 1}, {}),
        ({}, {"a": float("nan")}),
        ({}, {"a": {1: 2}}),
        ({}, {"a": torch.ones(1)}),
    ],
)
def test_what_could_not_be_read_back_is_refused_at_once(tmp_path: Path, tensors: dict, state: dict) -> None:
    with pytest.raises(ValueError):
        save_checkpoint(tmp_path, 1, tensors, state, MINE, None)
    assert names(tmp_path) == []


def test_older_ones_are_removed(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    assert names(tmp_path) == ["000010", "000020", "000030"]
    save(tmp_path, 40, keep=2)
    assert names(tmp_path) == ["000030", "000040"]
    save(tmp_path, 1_000_000, keep=2)
    assert names(tmp_path) == ["000040", "1000000"]
    assert_is(load_checkpoint(tmp_path), 1_000_000)
    assert_is(load_checkpoint(tmp_path, 40), 40)


def test_going_back(tmp_path: Path) -> None:
    """Later checkpoints are not counted, so that the one just written is never the one removed."""
    save(tmp_path, 10, 20, 30)
    save(tmp_path, 15, keep=1)
    assert names(tmp_path) == ["000015", "000020", "000030"]
    (tmp_path / ".000030.old-1").mkdir()  # must not come back once 30 is gone
    rewind_checkpoints(tmp_path, 15)
    assert names(tmp_path) == ["000015"]
    rewind_checkpoints(tmp_path / "nothing", 1)


@pytest.mark.parametrize("keep", [1, None])
def test_a_valid_checkpoint_at_every_step_of_a_save(
    tmp_path: Path, keep: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the second save at each of its steps in turn: the first or the second one must load, and a third save tidy
    up."""

    class Stop(BaseException):
        """A kill."""

    def stopping(function: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
        def stopped(*args: Any, **kwargs: Any) -> Any:
            if left[0] <= 0:
                raise Stop
            left[0] -= 1
            return function(*args, **kwargs)

        return stopped

    for second in (10, 20):  # replaced, added
        stop = 0
        for stop in itertools.count():
            folder = tmp_path / f"{second}-{stop}"
            save_checkpoint(folder, 10, {"first": 1}, {}, MINE, keep)
            left = [stop]
            with monkeypatch.context() as patch:
                for owner, name in (
                    (Path, "rename"),
                    (shutil, "rmtree"),
                    (os, "fsync"),
                    (torch, "save"),
                    (Path, "write_bytes"),
                ):
                    patch.setattr(owner, name, stopping(getattr(owner, name), left))
                try:
                    save(folder, second, keep=keep)
                    break
                except Stop:
                    pass
            got = load_checkpoint(folder, fingerprint=MINE)
            assert got.skipped == []
            if "first" in got.tensors:
                assert (got.iteration, got.tensors) == (10, {"first": 1})
            else:
                assert_is(got, second)
            save(folder, second, keep=keep)
            assert_is(load_checkpoint(folder), second)
            assert [name for name in names(folder) if name.startswith(".")] == []
        assert stop > 8


def test_killed_twice_while_replacing_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First between the two renames, then in the next save before anything is written."""
    save(tmp_path, 10)
    (tmp_path / "000010").rename(tmp_path / ".000010.old-1")
    assert_is(load_checkpoint(tmp_path), 10)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 20, keep=1)
    assert_is(load_checkpoint(tmp_path), 10)


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_full_disk(tmp_path: Path) -> None:
    save(tmp_path, 10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        for tensors, state in (({"big": torch.zeros(100_000)}, {}), ({}, {"big": "x" * 100_000})):
            with pytest.raises(UserError, match=r"000020: the checkpoint cannot be written \(File too large\)"):
                save_checkpoint(tmp_path, 20, tensors, state, MINE, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == ["000010"]
    assert_is(load_checkpoint(tmp_path), 10)


# --- damage


def damages(name: str) -> dict[str, Callable[[Path], object]]:

    def cut(path: Path, size: int) -> None:
        path.write_bytes(path.read_bytes()[:size])

    made: dict[str, Callable[[Path], object]] = {
        "deleted": lambda path: path.unlink(),
        "empty": lambda path: cut(path, 0),
        "half": lambda path: cut(path, path.stat().st_size // 2),
        "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
        "folder": lambda path: (path.unlink(), path.mkdir()),
        "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    }
    if name != "manifest.json":
        made["flipped"] = lambda path: flip(path, path.stat().st_size // 2)
    return made


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in FILES for kind in damages(name)])
def test_damage_is_named_and_the_one_before_is_used(tmp_path: Path, name: str, kind: str) -> None:
    save(tmp_path, 10, 20)
    damages(name)[kind](tmp_path / "000020" / name)
    got = load_checkpoint(tmp_path, fingerprint=MINE)
    assert_is(got, 10)
    assert len(got.skipped) == 1
    assert str(tmp_path / "000020") in got.skipped[0]
    assert name in got.skipped[0]
    with pytest.raises(UserError, match=rf"000020 is damaged: {name}.*choose another"):
        load_checkpoint(tmp_path, 20)
    assert_is(load_checkpoint(tmp_path, 10), 10)


def test_flipped_bits_all_over_the_manifest(tmp_path: Path) -> None:
    """Found, or harmless (white space): never another content, never another kind of error."""
    save(tmp_path, 10, 20)
    manifest = tmp_path / "000020" / "manifest.json"
    whole, found = manifest.read_bytes(), 0
    for at in range(0, len(whole), 2):
        flip(manifest, at, 1 << at % 8)
        got = load_checkpoint(tmp_path, fingerprint=MINE)
        assert_is(got, 20 if not got.skipped else 10)
        found += len(got.skipped)
        manifest.write_bytes(whole)
    assert found > 0.35 * len(whole)


def test_files_of_another_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    shutil.copytree(tmp_path / "000020", tmp_path / "000030")
    got = load_checkpoint(tmp_path)
    assert_is(got, 20)
    assert "manifest.json is of iteration 20" in got.skipped[0]


def test_nothing_falls_back_from_what_a_newer_version_wrote(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    manifest = tmp_path / "000020" / "manifest.json"
    content = {**json.loads(manifest.read_text()), "version": 2, "new": "thing"}
    del content["sha256"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    manifest.write_text(json.dumps({**content, "sha256": hashlib.sha256(canonical).hexdigest()}))
    with pytest.raises(
        UserError, match="000020 has the format version 2, and this nip_ray knows those up to 1; use a newer one"
    ):
        load_checkpoint(tmp_path)
    assert_is(load_checkpoint(tmp_path, 10), 10)


def test_nothing_left(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match="there is no checkpoint"):
            load_checkpoint(folder)
    save(tmp_path, 10, 20)
    (tmp_path / "000010" / "state.json").unlink()
    (tmp_path / "000020" / "prover.pt").write_bytes(b"")
    with pytest.raises(
        UserError,
        match=r"no undamaged.*000020 is damaged: prover\.pt has 0 bytes.*000010 is damaged: state\.json is missing",
    ):
        load_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"no checkpoint of iteration 15 \(there is: 10, 20\)"):
        load_checkpoint(tmp_path, 15)


def test_whether_there_is_one(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path / "missing")
    (tmp_path / ".000010.tmp-999999999").mkdir()
    assert not has_checkpoint(tmp_path), "the first save was killed"
    save(tmp_path, 10)
    (tmp_path / "000010" / "state.json").unlink()
    assert has_checkpoint(tmp_path)
    (tmp_path / "000010").rename(tmp_path / ".000010.old-1")
    assert has_checkpoint(tmp_path)


def test_another_config(tmp_path: Path) -> None:
    save(tmp_path, 10)
    other = fingerprint({"seed": 2})
    with pytest.raises(UserError, match=f"000010 is a checkpoint of another config.*{MINE}.*{other}"):
        load_checkpoint(tmp_path, fingerprint=other)
    assert_is(load_checkpoint(tmp_path), 10)


# --- hostile content


class Attack:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["torch", "pickle", "text"])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # has no say where weights_only is given
    save(tmp_path, 10, 20)
    target, path = tmp_path / "pwned", tmp_path / "000020" / "prover.pt"
    if how == "torch":
        torch.save({"w": Attack(target)}, path)
    elif how == "pickle":
        path.write_bytes(pickle.dumps(Attack(target), protocol=2))
    else:
        path.write_text("weights")
    reseal(tmp_path / "000020")
    with pytest.raises(UserError, match=r"prover\.pt holds something else") as caught:
        load_checkpoint(tmp_path, fingerprint=MINE)
    assert not target.exists()
    assert "weights_only" not in str(caught.value), "no advice to read it all the same"
    if how == "torch":
        assert "mkdir" in str(caught.value)
    assert_is(load_checkpoint(tmp_path, 10), 10)


@pytest.mark.parametrize("state", ["[1]", "{", "[" * 100_000])
def test_a_sealed_state_that_is_none(tmp_path: Path, state: str) -> None:
    save(tmp_path, 10)
    (tmp_path / "000010" / "state.json").write_text(state)
    reseal(tmp_path / "000010")
    with pytest.raises(UserError, match=r"state\.json"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../secret.pt", "/etc/passwd", "..", "a/b.pt", "x.txt"])
def test_a_manifest_names_files_of_its_own_folder_only(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    path = tmp_path / "000010" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest["files"][name] = manifest["files"]["prover.pt"]
    path.write_text(json.dumps({**manifest, "sha256": module.checksum(manifest)}))
    with pytest.raises(UserError, match="not of a checkpoint"):
        load_checkpoint(tmp_path)


# --- fingerprints


def test_fingerprint() -> None:
    assert fingerprint({"a": 1, "b": {"c": [1, 2], "d": None}}) == fingerprint({"b": {"d": None, "c": (1, 2)}, "a": 1})
    different = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": [1]}, {"a": None}, {"a": True}, {"b": 1}, {}, {"a": {"a": 1}}]
    assert len({fingerprint(config) for config in different}) == len(different)
    assert fingerprint({"a": 1}) == "015abd7f5cc57a2d"
    with pytest.raises(TypeError):
        fingerprint({"a": object()})
