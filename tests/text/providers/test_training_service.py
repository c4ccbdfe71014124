"""Fine-tuning step by step, against a stand-in of the service whose model really learns."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.settings.providers import BudgetSettings, PriceSettings, TrainingServiceProvider
from nip_ray.text.costs.budget import Budget
from nip_ray.text.costs.prices import NOTHING, Amount, BudgetExhausted, price_list, uncertain_of
from nip_ray.text.jobs import Journal, await_job, ensure_job
from nip_ray.text.providers.interface import ChatReply, ChatRequest, MeteredChat, dpo_line, encode, supervised_line
from nip_ray.text.providers.training_service import TrainingServiceChat, TrainingServiceJobs, dpo_loss, steps
from tests.text import training_service
from tests.text.training_service import BIGRAMS, KEY, Service, V

T = TypeVar("T")
CHAT = [{"role": "user", "content": "well?"}]
DATA = encode([supervised_line(CHAT, text) for text in ("abc", "abd", "abc", "abc", "xyz")])
PAIRS = encode([dpo_line(CHAT, "abc", "xyz")] * 5)
SPEC = FineTuneSpec("5e" * 32, "supervised", BIGRAMS, "s", 5, 50, num_epochs=8, batch_size=2, learning_rate=0.05)
PROVIDER = TrainingServiceProvider(max_retries=3, prices={"_default": PriceSettings(input=1.0, output=2.0)})


@pytest.fixture(autouse=True)
def the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)


def using(server: Service, folder: Path, use: Callable[[TrainingServiceJobs], Awaitable[T]], every: int = 3) -> T:
    async def run() -> T:
        backend = TrainingServiceJobs(
            PROVIDER, folder, server, checkpoint_every=every, poll_interval_s=0.005, first_wait_s=0.001
        )
        try:
            return await use(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def finish(server: Service, folder: Path, spec: FineTuneSpec = SPEC, data: bytes = DATA, every: int = 3) -> Any:
    """The job, by the way that the trainer goes."""

    async def use(backend: TrainingServiceJobs) -> Any:
        with Journal(folder / "journal.jsonl") as journal:
            await backend.check(spec.model, spec.method)
            return await await_job(backend, journal, await ensure_job(backend, journal, spec, data, "x"))

    return using(server, folder, use, every)


def table(server: Service, model: str) -> torch.Tensor:
    return server.kept[model]["weights"]["table"]


def test_the_loss_is_the_papers() -> None:
    policy, reference = torch.tensor([[-1.0, -2.0], [-3.0, -1.0]]), torch.tensor([[-1.5, -1.5], [-2.0, -2.0]])
    margins = [((-1 + 1.5) - (-2 + 1.5)), ((-3 + 2) - (-1 + 2))]
    expected = -sum(torch.sigmoid(torch.tensor(0.3 * m)).log() for m in margins) / 2
    assert dpo_loss(policy, reference, 0.3).item() == pytest.approx(float(expected))


def test_every_example_is_taken_once_an_epoch() -> None:
    plan = steps(5, SPEC)
    assert [len(rows) for rows in plan] == [2, 2, 1] * 8
    assert all(sorted(sum(plan[n : n + 3], [])) == [0, 1, 2, 3, 4] for n in range(0, 24, 3))  # noqa: RUF017
    assert plan == steps(5, SPEC) != steps(5, replace(SPEC, seed=1))


def test_supervised_learning(tmp_path: Path) -> None:
    server = Service()
    job = finish(server, tmp_path, replace(SPEC, num_epochs=40))
    assert job.trained_tokens == 40 * 5 * (len("<user>well?<assistant>") + 4)
    weights = table(server, job.model)
    p = weights[ord("b")].softmax(0)
    assert [p[ord("c")].item(), p[ord("d")].item()] == pytest.approx([0.75, 0.25], abs=0.12)
    assert weights[ord("u")].equal(torch.zeros(V, dtype=torch.float64))  # prompts are not learnt


def test_dpo(tmp_path: Path) -> None:
    """The better reply gains on the worse; going on from the first model starts from its weights."""
    server = Service()
    first = finish(server, tmp_path)
    second = finish(server, tmp_path, replace(SPEC, key="6f" * 32, method="dpo", model=first.model, beta=0.5), PAIRS)
    before, after = (table(server, job.model)[ord(">")].log_softmax(0) for job in (first, second))
    assert (after[ord("a")] - after[ord("x")]) > (before[ord("a")] - before[ord("x")]) + 0.5
    assert server.requests["forward"] == 1
    spec = replace(SPEC, key="7f" * 32, method="dpo", model=first.model, beta=0.5, nll_coefficient=2.0)
    held = table(server, finish(server, tmp_path, spec, PAIRS).model)[ord(">")].log_softmax(0)
    assert held[ord("a")] > after[ord("a")] + 0.1, "and in itself, where that is asked for"


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_interrupted_at_any_step_it_ends_with_the_same_weights(tmp_path: Path, method: Any) -> None:
    spec, data = (SPEC, DATA) if method == "supervised" else (replace(SPEC, method="dpo"), PAIRS)
    straight = Service()
    expected = table(straight, finish(straight, tmp_path / "straight", spec, data).model)
    server, folder = Service(), tmp_path / "interrupted"

    async def a_while(backend: TrainingServiceJobs) -> None:
        jobs = await backend.find(spec.key)
        job = jobs[0] if jobs else await backend.submit(spec, await backend.upload("x", data))
        since = server.requests["optim_step"]
        while server.requests["optim_step"] < since + 5 and job.status not in ("succeeded", "failed"):
            job = await backend.poll(job.id)
            await asyncio.sleep(0)

    for _ in range(4):
        using(server, folder, a_while)
    job = finish(server, folder, spec, data)
    assert torch.equal(table(server, job.model), expected)
    assert server.requests["create"] >= 4
    repeated = server.requests["optim_step"] - straight.requests["optim_step"]
    assert 0 < repeated <= 4 * 3
    assert job.trained_tokens == server.tokens, "what was done again is billed again"
    assert finish(server, folder, spec, data) == job


def test_lost_answers_are_got_over_and_a_lost_service_is_told(tmp_path: Path) -> None:
    straight, server = Service(), Service()
    expected = table(straight, finish(straight, tmp_path / "straight").model)
    server.fail.update(forward_backward=1, save_state=1, create=1)
    assert torch.equal(table(server, finish(server, tmp_path / "shaky").model), expected)
    server.fail.update(create=100)
    with pytest.raises(TrainingError, match="APIConnectionError"):
        finish(server, tmp_path / "gone")
    server.fail.clear()
    finish(server, tmp_path / "gone")


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="it has bigrams"):
        finish(Service(), tmp_path / "a", replace(SPEC, model="other"))
    with pytest.raises(UserError, match="made by another run"):
        finish(Service(), tmp_path / "e", replace(SPEC, model="tinker://x/sampler_weights/y"))
    with pytest.raises(TrainingError, match="training data cannot be used"):
        finish(Service(), tmp_path / "b", data=b'{"messages": [{"role": "user", "content": "x"}]}\n')
    monkeypatch.setenv("TINKER_API_KEY", "wrong-and-secret")
    with pytest.raises(UserError, match=r"\$TINKER_API_KEY") as caught:
        finish(Service(), tmp_path / "c")
    assert "secret" not in str(caught.value)
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(UserError, match="TINKER_API_KEY is not set"):
        finish(Service(), tmp_path / "d")


def test_cancelled(tmp_path: Path) -> None:
    async def use(backend: TrainingServiceJobs) -> None:
        job = await backend.submit(SPEC, await backend.upload("x", DATA))
        assert (await backend.poll(job.id)).status == "running"
        assert (await backend.cancel(job.id)).status == "cancelled"
        assert (await backend.cancel(job.id)).status == "cancelled"
        assert [found.status for found in await backend.find(SPEC.key)] == ["cancelled"]

    using(Service(), tmp_path, use)


def test_chats(tmp_path: Path) -> None:
    server = Service()
    model = finish(server, tmp_path, replace(SPEC, num_epochs=60), encode([supervised_line(CHAT, "abc")])).model
    budget = Budget()

    async def ask(key: str, **changes: Any) -> Any:
        chat = MeteredChat(TrainingServiceChat(PROVIDER, server), budget, price_list(PROVIDER, budget.in_usd))
        try:
            return await chat.complete(
                ChatRequest(**{"key": key, "model": model, "messages": CHAT, "max_tokens": 9, **changes})
            )
        finally:
            await chat.close()

    reply = asyncio.run(ask("k", temperature=0.0))
    assert (reply.content, reply.finish_reason, reply.completion_tokens) == ("abc", "stop", 4)
    assert reply.cost_pusd == reply.prompt_tokens * 1_000_000 + 4 * 2_000_000
    assert budget.spending.amount.pusd == reply.cost_pusd
    assert asyncio.run(ask("k", model=BIGRAMS)) == asyncio.run(ask("k", model=BIGRAMS))
    assert asyncio.run(ask("k", model=BIGRAMS)) != asyncio.run(ask("l", model=BIGRAMS))
    assert asyncio.run(ask("k", max_tokens=2, temperature=0.0)).finish_reason == "length"
    server.fail.update(sample=1)
    with pytest.raises(TrainingError, match="APIConnectionError"):
        asyncio.run(ask("k"))
    assert budget.reserved.pusd == 0

    budget = Budget(BudgetSettings(usd=1e-5))
    with pytest.raises(BudgetExhausted) as spent:
        asyncio.run(ask("k"))
    assert uncertain_of(spent.value) == NOTHING, "it was not sent, which records of calls have to know"


def test_a_client_may_count_cached_tokens_and_not_know_a_cost() -> None:
    class Counts:
        async def complete(self, request: ChatRequest) -> ChatReply:
            return ChatReply("a", "stop", 100, 10, cached_tokens=90, uncertain=Amount(7, 3))

        async def close(self) -> None:
            """Nothing."""

    provider = replace(PROVIDER, prices={"m": PriceSettings(input=1.0, output=2.0, cached_input=0.1)})
    budget = Budget()
    chat = MeteredChat(Counts(), budget, price_list(provider, False))
    reply = asyncio.run(chat.complete(ChatRequest("k", "m", CHAT, 20)))
    assert reply.cost_pusd == 10 * 1_000_000 + 90 * 100_000 + 10 * 2_000_000
    assert (budget.spending.amount.pusd, budget.spending.uncertain) == (reply.cost_pusd, Amount(7, 3))


@pytest.mark.slow
def test_the_stand_in_has_the_librarys_signatures() -> None:
    """Where the library is installed: every name and parameter that is used here exists there."""
    tinker = pytest.importorskip("tinker")
    ours = [(getattr(training_service, name), getattr(tinker, name)) for name in ("TrainingClient", "SamplingClient")]
    for stand_in, theirs in [*ours, (Service, tinker.ServiceClient), (Service, tinker.RestClient)]:
        for method, function in inspect.getmembers(stand_in, inspect.isfunction):
            if (
                method.startswith("_")
                or method in ("logprobs", "weights")
                or (stand_in is Service and not hasattr(theirs, method))
            ):
                continue
            assert set(inspect.signature(function).parameters) <= set(
                inspect.signature(getattr(theirs, method)).parameters
            ), method
