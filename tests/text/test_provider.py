"""The test provider itself: what it teaches its tables, what it bills, and how it fails. Over real HTTP, by the real SDK."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from nip_ray.text.openai_jobs import dpo_line, encode, supervised_line
from tests.text.provider import API_KEY, Provider, provider_process, provider_thread
from tests.text.provider_tables import BadData, Examples, Role, default_situation, dpo, draw, index_of, probabilities, role_of, supervised

ROLES = [
    {"name": "prover", "marker": "You are the prover", "replies": ["It works.", "It is broken.", "I do not know."]},
    {"name": "verifier", "marker": "You are the verifier", "replies": ["Decision: accept", "Decision: reject"], "prior": [3, 1]},
]
PROVER, VERIFIER = (Role(r["name"], r["marker"], tuple(r["replies"]), tuple(r["prior"]) if "prior" in r else None) for r in ROLES)


def chat(role: str, text: str) -> list[Any]:
    return [{"role": "system", "content": f"You are the {role}."}, {"role": "user", "content": text}]


def client(provider: Provider, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=provider.base_url, api_key=API_KEY, **{"max_retries": 0, "timeout": 30, **options})


def trained(api: openai.OpenAI, data: bytes, method: str, model: str = "base", **chosen: Any) -> Any:
    file = api.files.create(file=("x.jsonl", data), purpose="fine-tune")
    how: Any = {"type": method, method: {"hyperparameters": chosen}}
    job = api.fine_tuning.jobs.create(model=model, training_file=file.id, method=how, suffix="x")
    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(0.02)
        job = api.fine_tuning.jobs.retrieve(job.id)
    return job


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with provider_thread(tmp_path, roles=ROLES) as running:
        yield running


def test_supervised_update_is_the_mixture_it_claims() -> None:
    examples = Examples()
    examples.chosen["verifier", "s"].update({0: 1, 1: 3})
    new = supervised({}, [PROVER, VERIFIER], examples, epochs=2, rate=0.5)
    share = 1 - 0.5**2
    assert new["verifier"]["s"] == pytest.approx([(1 - share) * 0.75 + share * 0.25, (1 - share) * 0.25 + share * 0.75])
    assert probabilities(new, VERIFIER, "elsewhere") == [0.75, 0.25]


def test_dpo_update_is_gradient_descent_on_the_dpo_loss() -> None:
    """Against automatic differentiation of the loss as the paper writes it."""
    start = {"prover": {"s": [0.5, 0.3, 0.2]}}
    pairs = [(0, 1), (0, 1), (2, 1), (1, 0)]
    new = dpo(start, [PROVER], Examples(pairs=[("prover", "s", *pair) for pair in pairs]), epochs=3, step=0.7, steps=4, beta=0.4)
    reference = torch.tensor(start["prover"]["s"], dtype=torch.float64).log()
    z = reference.clone().requires_grad_()
    for _ in range(12):
        ratio = z.log_softmax(0) - reference
        loss = -torch.stack([torch.nn.functional.logsigmoid(0.4 * (ratio[better] - ratio[worse])) for better, worse in pairs]).mean()
        (slope,) = torch.autograd.grad(loss, z)
        z = (z - 0.7 * slope).detach().requires_grad_()
    assert new["prover"]["s"] == pytest.approx(z.softmax(0).tolist())
    assert start["prover"]["s"] == [0.5, 0.3, 0.2]


def test_draws_follow_the_table_and_depend_on_the_key_alone() -> None:
    p = [0.5, 0.3, 0.2]
    drawn = [draw(p, 1, f"call {n}") for n in range(4000)]
    assert drawn == [draw(p, 1, f"call {n}") for n in range(4000)]
    for number, share in enumerate(p):
        assert drawn.count(number) / 4000 == pytest.approx(share, abs=0.03)
    assert probabilities({"prover": {"s": p}}, PROVER, "s", temperature=0) == [1, 0, 0]


def test_roles_and_replies() -> None:
    assert role_of([PROVER, VERIFIER], chat("verifier", "?")) is VERIFIER
    assert default_situation([*chat("prover", "why?"), {"role": "assistant", "content": "because"}]) == "why?"
    assert index_of(VERIFIER, " Decision: reject\n") == 1
    with pytest.raises(BadData):
        index_of(VERIFIER, "Decision: perhaps")
    with pytest.raises(BadData):
        role_of([PROVER], chat("verifier", "?"))


def test_what_is_learnt_is_what_is_said(provider: Provider) -> None:
    api = client(provider)
    data = encode(supervised_line(chat("verifier", "is it?"), "Decision: reject") for _ in range(4))
    job = trained(api, data, "supervised", n_epochs=3)
    assert job.status == "succeeded"

    def says(model: str) -> str | None:
        reply = api.chat.completions.create(model=model, messages=chat("verifier", "is it?"), temperature=0)
        return reply.choices[0].message.content

    assert says("base") == "Decision: accept"
    assert says(job.fine_tuned_model) == "Decision: reject"
    pair = dpo_line(chat("verifier", "is it?"), "Decision: accept", "Decision: reject")
    second = trained(api, encode([pair]), "dpo", job.fine_tuned_model, n_epochs=100, beta=1.0)
    assert second.fine_tuned_model.startswith("ft:base:test:")
    assert says(second.fine_tuned_model) == "Decision: accept"


def test_bills_once(provider: Provider) -> None:
    api = client(provider)
    header = {"Idempotency-Key": "call-1"}
    replies = [
        api.chat.completions.create(model="base", messages=chat("prover", "well?"), extra_headers=header).choices[0].message.content
        for _ in range(3)
    ]
    assert len(set(replies)) == 1
    (bill,) = provider.ledger("chat")
    said = len(str(replies[0]).split())
    assert bill["pusd"] == (4 + 4 + 4 + 1) * 150_000 + said * 600_000
    for _ in range(2):
        api.chat.completions.create(model="base", messages=chat("prover", "well?"))
    assert len(provider.ledger("chat")) == 3
    data = encode([supervised_line(chat("prover", "well?"), "It works.")])
    job = trained(api, data, "supervised", n_epochs=2)
    api.fine_tuning.jobs.retrieve(job.id)
    (bill,) = provider.ledger("job")
    assert bill["pusd"] == job.trained_tokens * 3_000_000
    assert job.trained_tokens == 2 * len(data.split())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"messages": [{"role": "user", "content": "hm"}]}\n', "line 1"),
        (encode([supervised_line(chat("verifier", "x"), "maybe")]), "verifier cannot say"),
        (b"no json\n", "line 1"),
    ],
)
def test_bad_data_fails_the_job_and_costs_nothing(provider: Provider, data: bytes, reason: str) -> None:
    job = trained(client(provider), data, "supervised")
    assert job.status == "failed"
    assert reason in job.error.message
    assert not provider.ledger()


def test_is_strict(provider: Provider) -> None:
    api = client(provider)
    ask = api.chat.completions.create
    with pytest.raises(openai.NotFoundError):
        ask(model="none", messages=chat("prover", "?"))
    with pytest.raises(openai.BadRequestError):
        ask(model="base", messages=chat("prover", "?"), extra_body={"surprise": 1})
    with pytest.raises(openai.BadRequestError):
        ask(model="base", messages=[])
    with pytest.raises(openai.AuthenticationError):
        api.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError):
        api.fine_tuning.jobs.create(model="base", training_file="file-9", method={"type": "supervised"})
    assert not provider.ledger()


def test_pages_filters_events_cancel(tmp_path: Path) -> None:
    with provider_thread(tmp_path, roles=ROLES, job_s=600, fsync=False) as provider:
        api = client(provider)
        file = api.files.create(file=("x.jsonl", b"{}\n"), purpose="fine-tune")
        for n in range(25):
            api.fine_tuning.jobs.create(
                model="base", training_file=file.id, method={"type": "supervised"}, metadata={"nip_key": str(n % 5)}
            )
        assert len(api.fine_tuning.jobs.list(limit=10).data) == 10
        assert len(list(api.fine_tuning.jobs.list(limit=10))) == 25
        mine = list(api.fine_tuning.jobs.list(limit=2, metadata={"nip_key": "3"}))
        assert len(mine) == 5
        assert api.fine_tuning.jobs.cancel(mine[0].id).status == "cancelled"
        with pytest.raises(openai.BadRequestError):
            api.fine_tuning.jobs.cancel(mine[0].id)
        assert list(api.fine_tuning.jobs.list_events(mine[0].id))


FAULTY = {
    "late": openai.APITimeoutError,
    "drop_before": openai.APIConnectionError,
    "drop_after": openai.APIConnectionError,
    "storm": openai.RateLimitError,
    "server_error": openai.InternalServerError,
    "unsure": openai.InternalServerError,
}


@pytest.mark.parametrize("fault", FAULTY)
def test_faults_do_what_they_say(tmp_path: Path, fault: str) -> None:
    """The client sees the failure, the ledger tells what was done, and after `limit` failures the request gets through."""
    details = {"late_s": 0.8, "limit": 2}
    with provider_thread(tmp_path, roles=ROLES, faults={fault: 1.0}, fault_details=details) as provider:
        api = client(provider, timeout=0.4)

        def call() -> Any:
            return api.chat.completions.create(model="base", messages=chat("prover", "?"), extra_headers={"Idempotency-Key": "k"})

        for _ in range(2):
            with pytest.raises(FAULTY[fault]) as caught:
                call()
        if fault == "storm":
            assert {"retry-after", "retry-after-ms"} & set(caught.value.response.headers)  # type: ignore[attr-defined]
        assert len(provider.ledger()) == (fault in ("late", "drop_after", "unsure"))
        assert call().choices[0].message.content
        assert len(provider.ledger()) == 1


def test_duplicates_late_registrations_and_fates(tmp_path: Path) -> None:
    details = {"limit": 1, "registered_after_s": 0.3}
    with provider_thread(tmp_path, roles=ROLES, fault_details=details) as provider:
        api = client(provider)
        api.files.create(file=("x.jsonl", encode([supervised_line(chat("prover", "?"), "It works.")])), purpose="fine-tune")

        def create(key: str) -> Any:
            header = {"Idempotency-Key": key}
            return api.fine_tuning.jobs.create(
                model="base", training_file="file-000000", method={"type": "supervised"}, extra_headers=header
            )

        provider.set_faults(duplicate=1.0)
        create("twice")
        assert len(provider.jobs()) == 2
        provider.set_faults(registered_late=1.0)
        with pytest.raises(openai.APIConnectionError):
            create("late")
        assert len(provider.jobs()) == 2
        while provider.num_registered_late():
            time.sleep(0.05)
        assert len(provider.jobs()) == 3
        provider.set_faults(job_failed=1.0)
        create("fails")
        provider.set_faults(job_cancelled=1.0)
        create("cancelled")
        time.sleep(0.2)
        assert [job["status"] for job in provider.jobs()] == ["succeeded"] * 3 + ["failed", "cancelled"]
        assert len(provider.ledger("job")) == 3
        with pytest.raises(Exception, match="500"):
            provider.set_faults(no_such_fault=1.0)


def test_refusals_stay(tmp_path: Path) -> None:
    with provider_thread(tmp_path, roles=ROLES, faults={"refusal": 0.5}) as provider:
        api = client(provider)
        ends = []
        for n in [*range(20), *range(20)]:
            header = {"Idempotency-Key": str(n)}
            choice = api.chat.completions.create(model="base", messages=chat("prover", "?"), extra_headers=header).choices[0]
            assert (choice.message.content is None) == (choice.finish_reason == "content_filter")
            ends.append(choice.finish_reason)
        assert ends[:20] == ends[20:]
        assert 2 < ends[:20].count("content_filter") < 18


def test_survives_its_own_kill(tmp_path: Path) -> None:
    with provider_process(tmp_path, roles=ROLES, skew_s=-7200.0) as provider:
        api, address = client(provider), provider.base_url
        data = encode([supervised_line(chat("prover", "?"), "It works.")])
        job = trained(api, data, "supervised")
        assert job.created_at < time.time() - 7000
        said = api.chat.completions.create(model=job.fine_tuned_model, messages=chat("prover", "?"), extra_headers={"Idempotency-Key": "a"})
        before = provider.jobs(), provider.files(), provider.ledger()
        provider.kill()
        with (provider.folder / "ledger.jsonl").open("ab") as file:
            file.write(json.dumps({"kind": "chat"}).encode()[:-3])
        provider.start()
        assert provider.base_url == address
        assert (provider.jobs(), provider.files(), provider.ledger()) == before
        again = api.chat.completions.create(
            model=job.fine_tuned_model, messages=chat("prover", "?"), extra_headers={"Idempotency-Key": "a"}
        )
        assert again.choices[0].message.content == said.choices[0].message.content
        assert provider.ledger() == before[2]


def test_many_at_once(provider: Provider) -> None:
    """200 calls in flight, each billed once."""

    async def all_of_them() -> None:
        async with openai.AsyncOpenAI(base_url=provider.base_url, api_key=API_KEY, timeout=60) as api:
            calls = [
                api.chat.completions.create(model="base", messages=chat("prover", str(n)), extra_headers={"Idempotency-Key": str(n)})
                for n in range(200)
            ]
            await asyncio.gather(*calls)

    asyncio.run(all_of_them())
    assert len(provider.ledger("chat")) == 200
