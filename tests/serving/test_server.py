"""The server, driven by the unmodified openai SDK."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import ray
from jsonschema import validate

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.parse import SCALES, reply_schema
from nip_ray.serving.app import ServerSettings, free_port, server_settings, start_server
from nip_ray.serving.shelf import ModelFolders
from nip_ray.settings.providers import LocalProvider
from nip_ray.text.providers.openai_service import http_library

from .data import chats, supervised

KEY = "key-of-the-test"
SCHEMA = reply_schema({"main": "message"}, SCALES["accept_reject"])
ASK: Any = [{"role": "user", "content": "Is it right?"}]
HYPER: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 8}}}


@pytest.fixture(scope="module")
def base_url(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from ray import serve

    folders = ModelFolders(tmp_path_factory.mktemp("served"), any_path=False)
    settings = ServerSettings(folders, max_batch_size=8, key_digest=sha256(KEY.encode()).hexdigest())
    provider = LocalProvider(num_cpus=0.1, method="full", num_threads=1)
    url, training = start_server(settings, provider, num_cpus=0.1)
    yield url
    serve.shutdown()
    ray.kill(training)


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def file_id(client: openai.OpenAI) -> str:
    return client.files.create(file=("train.jsonl", supervised(chats(0, 24))), purpose="fine-tune").id


def wait_for(client: openai.OpenAI, job_id: str, *wanted: str) -> Any:
    end = time.monotonic() + 240
    while (job := client.fine_tuning.jobs.retrieve(job_id)).status not in wanted:
        assert time.monotonic() < end, job
        time.sleep(0.1)
    return job


def test_chat(client: openai.OpenAI) -> None:
    options: Any = {"model": "default", "messages": ASK, "max_tokens": 10, "seed": 3}
    reply = client.chat.completions.create(**options)
    again = client.chat.completions.create(**options)
    assert reply.choices[0].message.content == again.choices[0].message.content
    assert reply.id != again.id
    assert (reply.object, reply.model, reply.choices[0].message.role) == ("chat.completion", "default", "assistant")
    assert 1 <= reply.usage.completion_tokens <= 10
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.choices[0].finish_reason in ("stop", "length")
    unseeded = {
        client.chat.completions.create(model="default", messages=ASK, max_completion_tokens=10)
        .choices[0]
        .message.content
        for _ in "ab"
    }
    assert len(unseeded) == 2


def test_stream(client: openai.OpenAI) -> None:
    options: Any = {"model": "default", "messages": ASK, "max_tokens": 30, "seed": 3}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(chunks) > 8
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_a_reply_is_held_to_a_schema(client: openai.OpenAI) -> None:
    """The default model knows nothing of JSON. A stream is the same text."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": SCHEMA}}
    options: Any = {"model": "default", "messages": ASK, "max_tokens": 60, "seed": 3, "response_format": form}
    whole = client.chat.completions.create(**options).choices[0].message.content or ""
    validate(json.loads(whole), SCHEMA)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_a_closed_stream_frees_its_slot(client: openai.OpenAI) -> None:
    """More endless streams than slots, each closed after its first words, do not keep the next reply from coming."""
    for seed in range(12):
        stream = client.chat.completions.create(model="default", messages=ASK, max_tokens=8000, seed=seed, stream=True)
        next(iter(stream))
        stream.close()
    started = time.monotonic()
    client.chat.completions.create(model="default", messages=ASK, max_tokens=2)
    assert time.monotonic() - started < 30


def test_idempotency(client: openai.OpenAI) -> None:
    headers = {"Idempotency-Key": "one-call"}
    options: Any = {"model": "default", "messages": ASK, "max_tokens": 10, "extra_headers": headers}
    first, again = (client.chat.completions.create(**options) for _ in "ab")
    assert first == again
    with pytest.raises(openai.BadRequestError, match="another request"):
        client.chat.completions.create(**{**options, "max_tokens": 11})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 3}, "temperature"),
        ({"n": 2}, "n: "),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: this parameter"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, "context of this model is 8192"),
        ({"max_tokens": 9000}, "context of this model is 8192"),
        ({"response_format": {"type": "json_object"}}, "response_format: "),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "object"}}}},
            "schema: .*expected",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
            "max_tokens: 5, but the schema",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(client: openai.OpenAI, changes: dict[str, Any], message: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        client.chat.completions.create(
            **{"model": "default", "messages": ASK, "max_tokens": 5, "stream": stream, **changes}
        )
    assert refused.value.type == "invalid_request_error"
    assert (refused.value.code == "context_length_exceeded") == ("context" in message)


def test_unknown_things(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-x", messages=ASK)
    assert missing.value.code == "model_not_found"
    for call in (
        lambda: client.chat.completions.create(model="/etc", messages=ASK),
        lambda: client.models.retrieve("gpt-x"),
        lambda: client.files.content("file-..%2F..%2Fx"),
        lambda: client.fine_tuning.jobs.retrieve("ftjob-x"),
        lambda: client.embeddings.create(model="default", input="x"),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_raw_garbage(base_url: str) -> None:
    with http_library().Client(base_url=base_url, headers={"Authorization": f"Bearer {KEY}"}) as raw:
        for content in (b"", b"{", b"[]", b"\xff", b'{"model": 1}'):
            answer = raw.post("/chat/completions", content=content)
            assert answer.status_code == 400
            assert answer.json()["error"]["type"] == "invalid_request_error"
        assert raw.post("/files", content=b"x").status_code == 400


def test_the_key_is_asked_for(base_url: str) -> None:
    with (
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_files(client: openai.OpenAI) -> None:
    content = b"line one\r\n--not a boundary\r\n\xff\x00\n"
    made = client.files.create(file=("a b.jsonl", BytesIO(content)), purpose="fine-tune")
    assert (made.filename, made.bytes, made.purpose) == ("a b.jsonl", len(content), "fine-tune")
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    assert made.id in [file.id for file in client.files.list(purpose="fine-tune")]
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("x", b"x"), purpose="vision")


def test_a_job_makes_a_model(client: openai.OpenAI, file_id: str) -> None:
    wanted: Any = {"nip_key": "a-key"}
    job = client.fine_tuning.jobs.create(
        model="default", training_file=file_id, suffix="judge", seed=5, metadata=wanted, method=HYPER
    )
    assert (job.status in ("queued", "running"), job.training_file, job.metadata) == (True, file_id, wanted)
    done = wait_for(client, job.id, "succeeded", "failed")
    assert (done.status, done.error, done.seed) == ("succeeded", None, 5)
    assert done.trained_tokens
    assert done.finished_at
    assert done.fine_tuned_model
    assert done.fine_tuned_model.startswith("judge-")
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=4))
    assert [event.data["step"] for event in events] == [6, 5, 4, 3, 2, 1], "pages, the newest first"  # type: ignore[index]
    assert done.fine_tuned_model in [model.id for model in client.models.list()]
    reply = client.chat.completions.create(model=done.fine_tuned_model, messages=ASK, max_tokens=5)
    assert reply.model == done.fine_tuned_model
    found = client.fine_tuning.jobs.list(metadata=wanted)
    assert [one.id for one in found.data] == [job.id]
    with pytest.raises(openai.BadRequestError, match="over"):
        client.fine_tuning.jobs.cancel(job.id)


def test_jobs_are_made_once_by_key(client: openai.OpenAI, file_id: str) -> None:
    headers = {"Idempotency-Key": "one-job"}
    options: Any = {"model": "default", "training_file": file_id, "method": HYPER, "extra_headers": headers}
    first, again = (client.fine_tuning.jobs.create(**options) for _ in "ab")
    assert first.id == again.id
    with pytest.raises(openai.BadRequestError, match="another job"):
        client.fine_tuning.jobs.create(**options, seed=8)
    wait_for(client, first.id, "succeeded")


def test_cancel_and_pages(client: openai.OpenAI, file_id: str) -> None:
    endless: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 100_000}}}
    jobs = [client.fine_tuning.jobs.create(model="default", training_file=file_id, method=endless) for _ in range(3)]
    newest = client.fine_tuning.jobs.list(limit=2)
    assert [one.id for one in newest.data] == [jobs[2].id, jobs[1].id]
    assert newest.has_more
    assert jobs[0].id in [one.id for one in client.fine_tuning.jobs.list(limit=1)], "the SDK walks the pages"
    wait_for(client, jobs[0].id, "running")
    for job in reversed(jobs):
        client.fine_tuning.jobs.cancel(job.id)
    assert {wait_for(client, job.id, "cancelled").status for job in jobs} == {"cancelled"}


def test_bad_jobs(client: openai.OpenAI, file_id: str) -> None:
    bad = client.files.create(file=("x.jsonl", b'{"messages": []}\n'), purpose="fine-tune").id
    with pytest.raises(openai.BadRequestError, match="line 1") as refused:
        client.fine_tuning.jobs.create(model="default", training_file=bad)
    assert refused.value.code == "invalid_training_file"
    with pytest.raises(openai.BadRequestError, match="form for dpo"):
        client.fine_tuning.jobs.create(model="default", training_file=file_id, method={"type": "dpo"})
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.fine_tuning.jobs.create(model="default", training_file=file_id, suffix="a/b")
    for model, file in (("none", file_id), ("default", "file-none")):
        with pytest.raises(openai.NotFoundError):
            client.fine_tuning.jobs.create(model=model, training_file=file)


def test_settings(tmp_path: Path, default_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no model here"):
        server_settings(tmp_path, tmp_path / "served")
    with pytest.raises(UserError, match="NIP_TEST_KEY is not set"):
        server_settings(default_dir, tmp_path / "served", api_key_variable="NIP_TEST_KEY")
    monkeypatch.setenv("NIP_TEST_KEY", "secret")
    made = server_settings(default_dir, tmp_path / "served", api_key_variable="NIP_TEST_KEY")
    assert made.folders.names() == ["model"]
    assert "secret" not in repr(made)


@pytest.mark.slow
def test_the_verbs_function_serves_until_interrupted(default_dir: Path, tmp_path: Path) -> None:
    """`serve_model` in a process of its own, with a Ray of its own: it says where, answers, and ends by SIGTERM,
    leaving $HOME alone.

    All that its replica listens on is on the loopback, and Ray has nothing to say of the end.
    """
    (tmp_path / "home").mkdir()
    port = free_port()
    source = (
        "from pathlib import Path; from nip_ray.serving.app import serve_model;"
        f" serve_model(Path({str(default_dir)!r}), {port}, "
    )
    source += f"folder=Path({str(tmp_path / 'served')!r}), api_key_variable='NIP_TEST_KEY')"
    env = {**os.environ, "HOME": str(tmp_path / "home"), "NIP_TEST_KEY": KEY}
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not (line := process.stdout.readline()).startswith("serving model at"):
            assert line, "it ended"
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
            assert made.chat.completions.create(model="model", messages=ASK, max_tokens=4).usage
        replicas = [
            one
            for one in psutil.Process(process.pid).children(recursive=True)
            if "ServeReplica" in " ".join(one.cmdline())
        ]
        listened = [
            one.laddr.ip for replica in replicas for one in replica.net_connections("inet") if one.status == "LISTEN"
        ]
        assert listened
        assert {address.removeprefix("::ffff:") for address in listened} == {"127.0.0.1"}
        process.send_signal(signal.SIGTERM)
        said = "".join(process.communicate(timeout=120))
        assert process.returncode != 0, "interrupted"
        assert "Interrupted: SIGTERM" in said
        assert not re.search("stack trace|failed|retries", said)
    finally:
        process.kill()
    assert [path.name for path in (tmp_path / "home").iterdir() if path.name != ".ray"] == []
