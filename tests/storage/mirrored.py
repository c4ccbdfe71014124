"""What tests of mirrors share: run folders to copy, and an S3 server on loopback, with a gate before it that can be
shut in the middle of a request."""

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import S3FileSystem

from nip_ray.errors import UserError

BUCKET = "proofs"


def refusal(call: Callable[[], object]) -> str:
    """The one line that a mistake is answered with."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def at_home(folder: Path) -> dict[str, int]:
    """What of a run folder ought to be copied."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.stat().st_size
        for name, path in found.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def everything(*folders: Path) -> bytes:
    return b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())


def made_by_hand(folder: Path, *iterations: int, name: str = "r1") -> Path:
    """A run folder whose checkpoints hold nothing of interest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("name: proofs\n")
    (folder / "run.json").write_text(json.dumps({"format": "nip_ray.run", "version": 1, "run_id": name}))
    for iteration in iterations:
        checkpoint(folder, iteration)
    return folder


def checkpoint(folder: Path, iteration: int, content: str = "tensors") -> None:
    made = folder / "checkpoints" / f"{iteration:06d}"
    made.mkdir(parents=True, exist_ok=True)
    for name in ("training.pt", "state.json"):
        (made / name).write_text(f"{content} of {iteration}")
    (made / "manifest.json").write_text(json.dumps({"iteration": iteration, "content": content}))


@contextmanager
def running() -> Iterator[int]:
    """The port of a server in a process of its own, which ends with the context. It takes any credentials."""
    code = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        port = next(
            int(found[1]) for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))
        )
        threading.Thread(target=process.stderr.read, daemon=True).start()  # else it stops when the pipe is full
        yield port
    finally:
        process.kill()
        process.wait()


def owner(port: int) -> S3FileSystem:
    """Whoever made the bucket, and looks into it without our code."""
    at = {"endpoint_override": f"http://127.0.0.1:{port}", "region": "us-east-1"}
    return S3FileSystem(access_key="a", secret_key="b", allow_bucket_creation=True, allow_bucket_deletion=True, **at)


def bucket(port: int) -> Any:
    """The S3 library for keys that pyarrow does not write."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


def put_raw(port: int, key: str) -> None:
    bucket(port).put_object(Bucket=BUCKET, Key=key, Body=b"x")


def delete_raw(port: int, key: str) -> None:
    bucket(port).delete_object(Bucket=BUCKET, Key=key)


class Gate:
    """Passes bytes on to the S3 server. stuck: set once a request for `closed` came, from when on nothing is passed on
    any more."""

    def __init__(self, port: int, closed: bytes) -> None:
        self.closed, self.stuck = closed, threading.Event()
        self._open = ExitStack()
        self._server = port
        self._listener = self._open.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._open.enter_context(self._listener.accept()[0])
            except OSError:
                return
            server = self._open.enter_context(socket.create_connection(("127.0.0.1", self._server)))
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, looked_at: bool) -> None:
        try:
            while data := source.recv(65536):
                if looked_at and self.closed in data:
                    self.stuck.set()
                if self.stuck.is_set():
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._open.close()


@contextmanager
def gate(port: int, closed: bytes) -> Iterator[Gate]:
    made = Gate(port, closed)
    try:
        yield made
    finally:
        made.close()
