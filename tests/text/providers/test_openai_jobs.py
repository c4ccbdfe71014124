"""`OpenAIJobs` against the test provider: forms, lookups, what is repeated and what never, and how refusals are
told."""

import asyncio
import json
import re
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import pytest
from openai import BadRequestError

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.jobs import Busy
from nip_ray.text.providers.interface import InDoubt, dpo_line, encode, file_name, supervised_line
from nip_ray.text.providers.openai_jobs import OpenAIJobs, _as_job, method_of
from nip_ray.text.providers.openai_service import Failure, refused, told_in_answer
from tests.text.provider import API_KEY, Provider, provider_thread

T = TypeVar("T")
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
DATA = encode([supervised_line(CHAT, "yes"), supervised_line(CHAT, "no")])
SPEC = FineTuneSpec(
    key="ab" * 32, method="supervised", model="base", suffix="prover-3", num_examples=2, num_tokens=20, num_epochs=2
)


@pytest.fixture(autouse=True)
def the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", API_KEY)


def settings(provider: Provider, **changes: Any) -> OpenAIProvider:
    given = {"timeout_s": 30.0, "max_retries": 4, "poll_interval_s": 0.02, "doubt_s": 0.5, **changes}
    return OpenAIProvider(base_url=provider.base_url, api_key_variable="TEST_KEY", **given)


def using(provider: Provider, use: Callable[[OpenAIJobs], Awaitable[T]], **changes: Any) -> T:
    async def run() -> T:
        backend = OpenAIJobs(settings(provider, **changes), first_wait_s=0.01)
        try:
            return await use(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def test_forms() -> None:
    assert supervised_line(CHAT, "yes")["messages"][-1] == {"role": "assistant", "content": "yes"}
    line = dpo_line(CHAT, "yes", "no")
    assert line["input"]["messages"] == CHAT
    assert [line[side][0]["content"] for side in ("preferred_output", "non_preferred_output")] == ["yes", "no"]
    assert encode([{"b": "ü", "a": 1}]) == encode([{"a": 1, "b": "ü"}]) == '{"a": 1, "b": "ü"}\n'.encode()
    assert [json.loads(row) for row in DATA.splitlines()] == [supervised_line(CHAT, "yes"), supervised_line(CHAT, "no")]
    assert file_name(DATA) != file_name(DATA + b" ")
    assert method_of(SPEC) == {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    chosen = replace(
        SPEC, method="dpo", beta=0.2, batch_size=4, learning_rate_multiplier=0.5, learning_rate=1.0, num_epochs=None
    )
    expected = {"beta": 0.2, "batch_size": 4, "learning_rate_multiplier": 0.5}
    assert method_of(chosen) == {"type": "dpo", "dpo": {"hyperparameters": expected}}


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_a_job_from_end_to_end(tmp_path: Path, method: Any) -> None:
    data = DATA if method == "supervised" else encode([dpo_line(CHAT, "yes", "no")])
    spec = replace(SPEC, method=method, seed=2**62)

    async def use(backend: OpenAIJobs) -> None:
        await backend.check("base", method)
        file_id = await backend.upload("iteration 3", data)
        assert await backend.upload("another name", data) == file_id
        assert await backend.find(spec.key) == []
        job = await backend.submit(spec, file_id)
        assert job.key == spec.key
        assert job.status in ("pending", "running")
        while (job := await backend.poll(job.id)).status != "succeeded":
            await asyncio.sleep(0.02)
        assert job.key == spec.key
        assert job.trained_tokens == 2 * len(data.split())
        assert await backend.find(spec.key) == [job]
        assert await backend.cancel(job.id) == job
        await backend.check(str(job.model), method)

    with provider_thread(tmp_path, job_s=1.0) as provider:
        using(provider, use)
        (file,) = provider.files()
        assert file["name"] == file_name(data)
        assert provider.content(file["id"]) == data
        (job,) = provider.jobs()
        assert job["body"]["suffix"] == "prover-3-abababababababab"
        assert job["body"]["idempotency_key"] == spec.key


def test_the_same_content_is_uploaded_once_by_many(tmp_path: Path) -> None:
    async def use(backend: OpenAIJobs) -> list[str]:
        return await asyncio.gather(*(backend.upload(f"group {n}", DATA) for n in range(5)))

    with provider_thread(tmp_path) as provider:
        assert len(set(using(provider, use))) == 1
        assert len(provider.files()) == 1


@pytest.mark.parametrize("odd", [{"ignores_filter": True}, {"drops_metadata": True}])
def test_services_that_ignore_the_filter_or_drop_metadata(tmp_path: Path, odd: dict[str, bool]) -> None:
    """Jobs are found all the same, among more than a page of others."""

    async def use(backend: OpenAIJobs) -> None:
        file_id = await backend.upload("x", DATA)
        for n in range(120):
            await backend.submit(replace(SPEC, key=f"{n:064x}"[::-1]), file_id)
        first, second = f"{5:064x}"[::-1], f"{119:064x}"[::-1]
        assert [job.key for job in await backend.find(first)] == [first]
        assert [job.key for job in await backend.find(second)] == [second]
        assert await backend.find("f" * 64) == []

    with provider_thread(tmp_path, **odd) as provider:
        using(provider, use)


def test_several_jobs_with_a_key_come_oldest_first(tmp_path: Path) -> None:
    async def use(backend: OpenAIJobs) -> list[str]:
        file_id = await backend.upload("x", DATA)
        for _ in range(3):
            await backend.submit(SPEC, file_id)
        return [job.id for job in await backend.find(SPEC.key)]

    with provider_thread(tmp_path, job_s=30) as provider:
        assert using(provider, use) == ["ftjob-000000", "ftjob-000001", "ftjob-000002"]


@pytest.mark.parametrize("fault", ["storm", "server_error", "drop_before", "drop_after", "late"])
def test_what_may_be_repeated_is(tmp_path: Path, fault: str) -> None:
    async def use(backend: OpenAIJobs) -> None:
        await backend.check("base", "supervised")
        file_id = await backend.upload("x", DATA)
        assert file_id == "file-000000"
        assert await backend.find(SPEC.key) == []

    with provider_thread(tmp_path, faults={fault: 1.0}, fault_details={"late_s": 1.0, "limit": 1}) as provider:
        using(provider, use, timeout_s=0.5)
        assert len(provider.files()) == 1


@pytest.mark.parametrize(
    ("fault", "raised", "made"),
    [
        ("late", InDoubt, 1),
        ("drop_before", InDoubt, 0),
        ("drop_after", InDoubt, 1),
        ("registered_late", InDoubt, 1),
        ("server_error", InDoubt, 0),
        ("unsure", InDoubt, 1),
        ("storm", Busy, 0),
    ],
)
def test_a_creation_is_sent_once(tmp_path: Path, fault: str, raised: type[InDoubt], made: int) -> None:
    async def use(backend: OpenAIJobs) -> None:
        file_id = await backend.upload("x", DATA)
        provider.set_faults(**{fault: 1.0})
        with pytest.raises(raised) as caught:
            await backend.submit(SPEC, file_id)
        assert type(caught.value) is raised
        assert getattr(caught.value, "wait_s", 0.05) == pytest.approx(0.05)
        provider.set_faults()
        while provider.num_registered_late():
            await asyncio.sleep(0.05)

    with provider_thread(tmp_path, fault_details={"late_s": 1.5}) as provider:
        using(provider, use, timeout_s=0.7)
        assert len(provider.jobs()) == made
        assert provider.requests()["POST /v1/fine_tuning/jobs"] == 1


def test_members_that_a_service_refuses_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One refusal may name one of them alone. The job is found again by its suffix."""
    asked: list[set[str]] = []

    async def use(backend: OpenAIJobs) -> None:
        jobs = backend._client.fine_tuning.jobs
        create = jobs.create

        async def picky(**given: Any) -> Any:
            asked.append({"seed", "metadata"} & given.keys())
            for name in ("seed", "metadata"):
                if name in given:
                    request = httpx.Request("POST", "http://here/v1")
                    body = {"error": {"message": f"Unknown name {name}"}}
                    raise BadRequestError(name, response=httpx.Response(400, request=request, json=body), body=body)
            return await create(**given)

        monkeypatch.setattr(jobs, "create", picky)
        file_id = await backend.upload("x", DATA)
        with pytest.warns(UserWarning, match="takes no (seed|metadata) of fine-tuning jobs: left out"):
            job = await backend.submit(SPEC, file_id)
        assert [one.id for one in await backend.find(SPEC.key)] == [job.id]
        await backend.submit(replace(SPEC, key="cd" * 32), file_id)

    with provider_thread(tmp_path) as provider:
        using(provider, use)
    assert asked == [{"seed", "metadata"}, {"metadata"}, set(), set()]


def told(provider: Provider, use: Callable[[OpenAIJobs], Awaitable[Any]], **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        using(provider, use, **changes)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_refusals_before_any_money_is_spent(tmp_path: Path) -> None:
    with provider_thread(tmp_path, methods=["supervised"]) as provider:
        assert "no model 'gpt-9'" in told(provider, lambda backend: backend.check("gpt-9", "supervised"))
        assert "fine_tuning: false" in told(provider, lambda backend: backend.check("base", "dpo"), fine_tuning=False)

        async def dpo(backend: OpenAIJobs) -> None:
            await backend.submit(replace(SPEC, method="dpo"), await backend.upload("x", DATA))

        message = told(provider, dpo)
        assert "by dpo, nothing was charged: " in message
        assert "not available" in message
        assert not provider.jobs()
    with provider_thread(tmp_path / "bare", has_fine_tuning=False) as provider:
        message = told(provider, lambda backend: backend.check("base", "supervised"))
        assert "has no fine-tuning jobs" in message
        assert "`local`" in message


def answered(status: int, body: Any) -> Failure:
    return refused(status, json.dumps(body), {}, "http://here/v1", "KEY", "")


@pytest.mark.parametrize(
    ("failure", "raised", "said"),
    [
        (
            answered(
                400,
                {"error": {"message": "File file-1 is not ready to be used for fine-tuning. Please try again later."}},
            ),
            Busy,
            "not ready",
        ),
        (answered(400, {"error": {"message": "The file is still being processed"}}), Busy, "still being processed"),
        (
            answered(400, {"error": {"message": "At most 4 jobs a day", "code": "daily_rate_limit_exceeded"}}),
            Busy,
            "4 jobs a day",
        ),
        (
            answered(400, {"error": {"message": "bad suffix"}}),
            UserError,
            "the fine-tuning job on 'base' was refused, nothing was charged: .*bad suffix",
        ),
        (
            answered(422, {"detail": [{"loc": ["body", "seed"], "msg": "not permitted"}]}),
            UserError,
            "refused, .*body.seed: not permitted",
        ),
        (answered(400, {"error": {"message": "this method is for others"}}), UserError, "not fine-tuned by supervised"),
        (told_in_answer({"error": {"message": "no credit", "code": 402}}, "here", "KEY", ""), UserError, "no credit"),
        (told_in_answer({"error": "asleep"}, "here", "KEY", ""), InDoubt, "asleep"),
    ],
)
def test_what_a_refused_creation_means(
    monkeypatch: pytest.MonkeyPatch, failure: Failure, raised: type[Exception], said: str
) -> None:
    """What a later request may not meet is waited for; else the words of the service stand there, and no guess."""
    found = OpenAIJobs(OpenAIProvider(base_url="http://here/v1", api_key_variable="TEST_KEY"))._refused(failure, SPEC)
    assert type(found) is raised
    assert re.search(said, str(found))


def test_a_model_that_is_not_listed_may_be_fine_tuned(tmp_path: Path) -> None:
    """A job on a file that does not exist shows whether the service knows it."""

    async def check(backend: OpenAIJobs) -> None:
        async def unlisted(model: str) -> bool:
            return False

        monkeypatched: Any = backend
        monkeypatched._is_listed = unlisted
        await backend.check("base", "supervised")

    with provider_thread(tmp_path) as provider:
        using(provider, check)
        assert not provider.jobs()
        message = told(provider, lambda backend: backend.check("gpt-9", "supervised"))
        assert "no model 'gpt-9' to fine-tune: it is not listed, and" in message


def test_a_wrong_key_names_the_variable_and_not_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with provider_thread(tmp_path) as provider:
        monkeypatch.setenv("TEST_KEY", "sk-canary-and-wrong")
        for use in (
            lambda b: b.check("base", "supervised"),
            lambda b: b.submit(SPEC, "file-0"),
            lambda b: b.upload("x", DATA),
        ):
            message = told(provider, use)
            assert "$TEST_KEY" in message
            assert "canary" not in message
        monkeypatch.delenv("TEST_KEY")
        assert "TEST_KEY is not set" in told(provider, lambda backend: backend.find("k"))


def test_a_provider_that_stays_away(tmp_path: Path) -> None:
    with provider_thread(tmp_path) as provider:
        gone = replace(settings(provider), max_retries=2, timeout_s=2.0)

    async def use() -> None:
        backend = OpenAIJobs(gone, first_wait_s=0.01)
        for call in (lambda: backend.find("k"), lambda: backend.poll("j"), lambda: backend.upload("x", DATA)):
            with pytest.raises(TrainingError, match="resume the run"):
                await call()
        with pytest.raises(InDoubt):
            await backend.submit(SPEC, "file-0")
        await backend.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use())


def test_what_services_say_of_jobs() -> None:
    """A model without a name is none, and so are tokens that are no count; a status that is not known is told of, and
    waited for."""

    def told(**fields: Any) -> Any:
        return SimpleNamespace(
            id="ftjob-1", **{"status": "succeeded", "fine_tuned_model": "m", "trained_tokens": 5, **fields}
        )

    assert (_as_job(told()).model, _as_job(told()).trained_tokens) == ("m", 5)
    for model, tokens in (("", 0), ({}, -5), (5, True), (None, "12")):
        job = _as_job(told(fine_tuned_model=model, trained_tokens=tokens))
        assert (job.model, job.trained_tokens) == (None, None)
    for error in ({"message": "no"}, ["no"], "no", SimpleNamespace(message="no"), {"code": "no"}):
        assert _as_job(told(error=error)).error == "no"
    assert [_as_job(told(error=error)).error for error in (None, {}, [], "")] == [None] * 4
    for word, status in (
        ("SUCCESS", "succeeded"),
        ("notRunning", "pending"),
        ("expired", "failed"),
        ("cancelling", "running"),
    ):
        assert _as_job(told(status=word)).status == status
    with pytest.warns(UserWarning, match="'stalled', which is an unknown status"):
        job = _as_job(told(status="stalled"))
    assert (job.status, job.unknown) == ("running", "stalled")
