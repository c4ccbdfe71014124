"""The local provider end to end, through Ray: chats, jobs, deaths."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest
import ray

from nip_ray.errors import TrainingError
from nip_ray.serving.fine_tuning_job import FINAL, FineTuneJob, FineTuneSpec
from nip_ray.serving.host import LocalHost, start_host, stop_host
from nip_ray.serving.scoring import Scorer
from nip_ray.settings.providers import LocalProvider
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from nip_ray.text.providers.local import LocalChat, LocalJobs

from .data import chats, supervised

SMALL = LocalProvider(num_cpus=0.1, method="full", num_threads=1)
SPEC = FineTuneSpec("f" * 64, "supervised", "default", "verifier", 96, 3000, num_epochs=4, learning_rate=3e-3)
ASK = [{"role": "user", "content": "Is it right?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def host(ray_session: None, folder: Path) -> Iterator[LocalHost]:
    made = start_host(SMALL, folder)
    yield made
    stop_host(made)


def ask(host: LocalHost, *requests: ChatRequest) -> list[ChatReply]:
    async def all_at_once() -> list[ChatReply]:
        return await asyncio.gather(*(LocalChat(host).complete(request) for request in requests))

    return asyncio.run(all_at_once())


async def finished(jobs: LocalJobs, job: FineTuneJob, limit_s: float = 240) -> FineTuneJob:
    end = time.monotonic() + limit_s
    while job.status not in FINAL and time.monotonic() < end:
        await asyncio.sleep(jobs.poll_interval_s)
        job = await jobs.poll(job.id)
    return job


def test_chat(host: LocalHost) -> None:
    first, again, other = ask(host, *(ChatRequest(key, "default", ASK, 8) for key in ("a", "a", "b")))
    assert first == again
    assert first.content != other.content
    assert first.prompt_tokens > 5
    assert 1 <= first.completion_tokens <= 8
    assert (first.cost_pusd, first.finish_reason in ("stop", "length")) == (0, True)
    seeded = [ask(host, ChatRequest(key, "default", ASK, 8, 0.7, 0.9, seed=4))[0] for key in ("a", "b")]
    assert seeded[0] == seeded[1]


@pytest.mark.slow
def test_learning_end_to_end(host: LocalHost, folder: Path) -> None:
    """A job by the interface makes a model that answers by the rule, under its new name; asked for again it is the same
    job."""

    async def run() -> FineTuneJob:
        jobs = LocalJobs(host)
        await jobs.check("default", "supervised")
        file_id = await jobs.upload("data.jsonl", supervised(chats(0, 96)))
        job = await jobs.submit(SPEC, file_id)
        done = await finished(jobs, job)
        assert await jobs.submit(SPEC, file_id) == done
        assert await jobs.find(SPEC.key) == [done]
        assert await jobs.cancel(done.id) == done
        return done

    done = asyncio.run(run())
    assert (done.status, done.key, done.model, done.error) == ("succeeded", SPEC.key, "verifier-ffffffffffff", None)
    assert done.trained_tokens
    held_out = chats(77, 12)
    before, after = Scorer(folder / "models" / "default"), Scorer(folder / "models" / str(done.model))
    assert mean(after.logprob(m, right) - before.logprob(m, right) for m, right, _ in held_out) > 10
    reply = ask(host, ChatRequest("x", str(done.model), held_out[0][0], 20, temperature=0))[0]
    assert (reply.content or "").startswith("Decision: ")
    assert reply.finish_reason == "stop"


@pytest.mark.crash
@pytest.mark.usefixtures("ray_session")
def test_jobs_survive_their_host(tmp_path: Path) -> None:
    """The host dies in the middle of a job; the next one on the folder finishes it, with the model an undisturbed host
    makes."""

    async def submit(host: LocalHost) -> FineTuneJob:
        jobs = LocalJobs(host)
        job = await jobs.submit(SPEC, await jobs.upload("data.jsonl", supervised(chats(0, 96))))
        while job.status == "pending":
            await asyncio.sleep(0.02)
            job = await jobs.poll(job.id)
        return job

    first = start_host(SMALL, tmp_path / "died")
    job = asyncio.run(submit(first))
    assert job.status == "running"
    stop_host(first)
    with pytest.raises(TrainingError):
        ask(first, ChatRequest("a", "default", ASK, 8))
    hosts = [start_host(SMALL, tmp_path / name) for name in ("died", "undisturbed")]
    try:
        asyncio.run(submit(hosts[1]))
        done = [asyncio.run(finished(LocalJobs(host), job)) for host in hosts]
        assert [one.status for one in done] == ["succeeded", "succeeded"]
        paths = [
            next((tmp_path / name / "models" / str(done[0].model)).rglob("*.safetensors"))
            for name in ("died", "undisturbed")
        ]
        weights = {path.read_bytes() for path in paths}
        assert len(weights) == 1
    finally:
        for host in hosts:
            stop_host(host)


@pytest.mark.crash
def test_actors_come_back_by_themselves(host: LocalHost) -> None:
    """A killed chat actor is restarted and the call repeated: the caller sees the same reply."""
    before = ask(host, ChatRequest("k", "default", ASK, 8))[0]
    ray.kill(host.chat, no_restart=False)
    assert ask(host, ChatRequest("k", "default", ASK, 8))[0] == before
