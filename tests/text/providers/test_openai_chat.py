"""The chat client against a real server on the loopback: every fault once, what is retried, what is billed, what is
said."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import TrainingError, UserError
from nip_ray.runs.experiment import run_experiment
from nip_ray.settings.providers import BudgetSettings, OpenAIProvider, PriceSettings
from nip_ray.text.costs.budget import Budget, Limiter
from nip_ray.text.costs.prices import NOTHING, Amount, BudgetExhausted, uncertain_of
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from nip_ray.text.providers.openai import OpenAIChat
from nip_ray.text.providers.openai_service import OpenAIService, refused, retry_after_s
from tests.docs.blocks import ROOT, blocks_of
from tests.text import provider_service
from tests.text.chat_server import API_KEY, Attempt, ChatServer
from tests.text.provider import provider_thread

PRICES = {
    "gpt-4o-mini": PriceSettings(0.15, 0.6, 3.0),
    "o4-mini": PriceSettings(1.1, 4.4),
    "gpt-5": PriceSettings(9, 9),
}


WORST = Amount(78 * 150_000 + 64 * 600_000, 78 + 64)
"""Of `request()`: a token for each of 14 bytes, 32 around the message and around the reply."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    with ChatServer() as running:
        yield running


def request(key: str = "k", model: str = "gpt-4o-mini", **changes: Any) -> ChatRequest:
    messages = [{"role": "user", "content": f"Is {key} true?"}]
    return ChatRequest(key, model, messages, **({"max_tokens": 64} | changes))


def first(fault: str, times: int = 1) -> Callable[[Attempt], str]:
    """The first `times` attempts of every key fail."""
    return lambda attempt: fault if attempt.number < times else "ok"


Use = Callable[[OpenAIChat], Coroutine[Any, Any, Any]]


def run(server: ChatServer, use: Use, budget: Budget | None = None, **settings: Any) -> Any:
    provider = OpenAIProvider(
        base_url=server.url, **({"max_retries": 3, "timeout_s": 20.0, "prices": PRICES} | settings)
    )

    async def main() -> Any:
        client = OpenAIChat(provider, Limiter(), budget or Budget(), max_in_flight=32)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(main())


def complete(
    server: ChatServer, sent: ChatRequest | None = None, budget: Budget | None = None, **settings: Any
) -> ChatReply:
    return run(server, lambda client: client.complete(sent or request()), budget, **settings)


def test_a_reply_is_what_the_server_billed(server: ChatServer) -> None:
    budget = Budget()
    reply = complete(server, request(temperature=0.5, top_p=0.9, seed=3), budget)
    (bill,) = server.bills
    assert (reply.prompt_tokens, reply.completion_tokens) == (bill.prompt_tokens, bill.completion_tokens)
    assert reply.cost_pusd == 150_000 * bill.prompt_tokens + 600_000 * bill.completion_tokens
    assert budget.spending.amount == Amount(reply.cost_pusd, bill.prompt_tokens + bill.completion_tokens)
    assert budget.reserved == Amount()
    assert reply.finish_reason == "stop"
    assert server.attempts[0].body["temperature"] == 0.5
    assert server.attempts[0].body["seed"] == 3


@pytest.mark.parametrize(
    "fault", ["429", "429-ms", "429-date", "500", "503", "529", "408", "409", "drop_before", "malformed"]
)
def test_passing_faults_are_retried_under_one_key(server: ChatServer, fault: str) -> None:
    server.plan = first(fault, 2)
    reply = complete(server)
    assert reply.content
    assert [attempt.key for attempt in server.attempts] == ["k"] * 3
    assert len(server.bills) == 1


@pytest.mark.parametrize("fault", ["drop_after", "malformed", "late"])
def test_a_lost_reply_is_billed_once_where_keys_are_honoured(server: ChatServer, fault: str) -> None:
    server.plan, server.late_s = first(fault), 3.0
    budget = Budget()
    reply = complete(server, budget=budget, timeout_s=1.0)
    assert len(server.bills) == 1
    assert budget.spending.models["gpt-4o-mini"].calls == 1
    assert reply.uncertain.pusd > reply.cost_pusd
    assert budget.spending.uncertain == reply.uncertain


def test_what_a_service_without_idempotency_bills_is_within_certain_and_uncertain(server: ChatServer) -> None:
    server.honours_keys, server.plan = False, first("drop_after", 2)
    budget = Budget()
    complete(server, budget=budget)
    billed = sum(150_000 * bill.prompt_tokens + 600_000 * bill.completion_tokens for bill in server.bills)
    assert len(server.bills) == 3
    assert budget.spending.amount.pusd < billed <= budget.spending.at_most.pusd


def test_a_429_holds_everyone_back(server: ChatServer) -> None:
    """One caller is told to wait; a call that starts later waits too."""
    server.plan, server.wait_s = (lambda attempt: "429" if attempt.arrival == 0 else "ok"), 1.0

    async def two(client: OpenAIChat) -> None:
        slow = asyncio.create_task(client.complete(request("a")))
        while not server.attempts:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await asyncio.gather(slow, client.complete(request("b")))

    run(server, two)
    assert min(server.arrived_s[1:]) - server.arrived_s[0] >= 0.9


def test_giving_up_says_why(server: ChatServer) -> None:
    server.plan = lambda attempt: "503"
    with pytest.raises(TrainingError, match=r"failed 3 times, last: .*503: error 503") as caught:
        complete(server, max_retries=2)
    assert uncertain_of(caught.value) == WORST + WORST + WORST
    assert len(server.attempts) == 3


def test_used_up_credit_is_not_retried(server: ChatServer) -> None:
    server.plan = lambda attempt: "quota"
    with pytest.raises(TrainingError, match=r"credit .* is used up"):
        complete(server)
    assert len(server.attempts) == 1


def test_a_filtered_reply_is_a_reply(server: ChatServer) -> None:
    server.plan = lambda attempt: "finish content_filter"
    reply = complete(server)
    assert (reply.finish_reason, bool(reply.content)) == ("content_filter", True)
    assert len(server.attempts) == 1


def says(status: int, message: str, **more: Any) -> str:
    return f"answer {status} {json.dumps({'error': {'message': message, **more}})}"


@pytest.mark.parametrize(
    "told",
    [
        "policy",
        says(400, "Content Exists Risk", code="invalid_request_error"),
        says(400, "Input data may contain inappropriate content.", code="data_inspection_failed"),
        says(400, "Output blocked by content filtering policy"),
        says(403, "Your input was flagged", metadata={}),
        says(451, "no"),
        "answer 200 " + json.dumps({"error": {"message": "PROHIBITED_CONTENT", "code": 400}}),
    ],
)
def test_a_call_refused_for_its_content_is_a_reply(server: ChatServer, told: str) -> None:
    """In the words of several services; nothing is billed, and the words are kept."""
    server.plan = lambda attempt: told
    budget = Budget()
    with pytest.warns(UserWarning, match="this call of gpt-4o-mini counts as a reply that cannot be used"):
        reply = complete(server, budget=budget)
    assert (reply.content, reply.finish_reason, reply.uncertain) == (None, "refused", NOTHING)
    assert reply.refusal is not None
    assert reply.refusal.startswith(server.url)
    assert len(server.attempts) == 1
    assert budget.spending.at_most == budget.reserved == NOTHING


def at_long_ones(told: str) -> Callable[[Attempt], str]:
    return lambda attempt: told if len(json.dumps(attempt.body["messages"])) > 100 else "ok"


@pytest.mark.parametrize(
    "told",
    [
        says(400, "This model's maximum context length is 8192 tokens.", code="context_length_exceeded"),
        "answer 413 <html><title>413</title>Request Entity Too Large</html>",
        'answer 422 {"detail": [{"loc": ["body", "messages", 0], "msg": "an odd word", "type": "value_error"}]}',
        (
            "answer 403 <html><head><title>Access denied</title><style>a {}</style></head><body>Blocked by the"
            " firewall</body></html>"
        ),
        says(400, "for a reason of its own"),
    ],
)
def test_a_call_refused_for_its_words_is_a_reply(server: ChatServer, told: str) -> None:
    """Whatever the service calls it: the same call with other words is answered. What that may cost is uncertain."""
    server.plan = at_long_ones(told)
    budget, sent = Budget(), request("k" * 100, seed=5)
    with pytest.warns(UserWarning, match="cannot be used"):
        reply = complete(server, sent, budget)
    assert (reply.content, reply.finish_reason) == (None, "refused")
    refused_, other = server.attempts
    assert {**refused_.body, "messages": [{"role": "user", "content": "Hello"}]} == other.body
    assert budget.spending.at_most == budget.spending.uncertain == reply.uncertain
    assert reply.uncertain.pusd >= 150_000 * server.bills[0].prompt_tokens + 600_000 * server.bills[0].completion_tokens
    assert budget.reserved == NOTHING


def test_what_is_refused_with_any_words_is_for_the_user_to_mend(server: ChatServer) -> None:
    server.plan = lambda attempt: says(400, "maximum context length is 10 tokens")
    with pytest.raises(UserError, match="400: maximum context length is 10 tokens"):
        complete(server)
    server.plan = lambda attempt: says(403, "not in your country")
    with pytest.raises(
        UserError, match=r"does not allow this with the key in \$OPENAI_API_KEY \(not in your country\)"
    ):
        complete(server)
    assert not server.bills


def test_a_longer_call_than_one_that_was_answered_asks_nothing_more(server: ChatServer) -> None:
    server.plan = at_long_ones(says(400, "prompt is too long"))

    async def both(client: OpenAIChat) -> list[str]:
        return [(await client.complete(request(key))).finish_reason for key in ("k", "k" * 100)]

    with pytest.warns(UserWarning, match="too long"):
        assert run(server, both) == ["stop", "refused"]
    assert len(server.attempts) == 2


@pytest.mark.parametrize(
    ("told", "finish"),
    [
        ("eos", "stop"),
        ("null", "stop"),
        ("tool_calls", "stop"),
        ("MAX_TOKENS", "length"),
        ("error", "unknown"),
        ("sensitive", "content_filter"),
    ],
)
def test_words_of_other_services_for_the_end_of_a_reply(server: ChatServer, told: str, finish: str) -> None:
    server.plan = lambda attempt: f"finish {told}"
    reply = complete(server)
    assert (reply.finish_reason, bool(reply.content)) == (finish, True)


def test_a_word_that_is_not_known_is_no_whole_reply(server: ChatServer) -> None:
    server.plan = lambda attempt: "finish tired"
    with pytest.warns(UserWarning, match="not known here, 'tired'"):
        assert complete(server).finish_reason == "unknown"


def test_members_of_a_request_can_be_left_out(server: ChatServer) -> None:
    """An error that names one says how."""
    complete(server, request(seed=3, temperature=0.5, extra={"seed": None, "temperature": None}))
    assert server.attempts[0].body.keys() == {"model", "messages", "max_tokens"}
    server.plan = lambda attempt: (
        says(400, 'Unknown name "seed": Cannot find field.') if "seed" in attempt.body else "ok"
    )
    with pytest.raises(UserError, match=r"""extra_body: '{"seed": null}' leaves it out of requests"""):
        complete(server, request("other", seed=3))


def test_a_model_that_was_made_a_moment_ago(server: ChatServer) -> None:
    """It may be unknown for some seconds."""
    server.plan = first(says(404, "The model `gpt-4o-mini` does not exist", code="model_not_found"), 2)
    assert complete(server).content
    assert len(server.attempts) == 3


def test_models_that_no_list_has(server: ChatServer) -> None:
    """One call decides; where there is no list at all the service is trusted."""
    server.unlisted = ("gpt-4o:nitro",)
    with pytest.warns(UserWarning, match=r"does not list the model 'gpt-4o:nitro', but answers"):
        run(server, lambda client: client.check_models(["gpt-4o-mini", "gpt-4o:nitro"]))
    assert [attempt.body["model"] for attempt in server.attempts] == ["gpt-4o:nitro"]
    with pytest.raises(
        UserError, match=r"does not list the model 'gpt-4o-mine', and refuses .* does not exist .*near it: gpt-4o-mini"
    ):
        run(server, lambda client: client.check_models(["gpt-4o-mine"]))


@pytest.mark.parametrize("fault", ["answer 400 {}", "answer 200 <html></html>", "answer 500 {}"])
def test_a_list_that_cannot_be_read_ends_nothing(server: ChatServer, fault: str) -> None:
    server.list_fault, server.unlisted = fault, ("mine",)
    with pytest.warns(UserWarning, match="answers"):
        run(server, lambda client: client.check_models(["mine"]), max_retries=0)


@pytest.mark.parametrize(
    ("told", "kind", "message"),
    [
        (
            'answer 200 {"error": {"message": "Insufficient credits", "code": 402}, "choices": null}',
            TrainingError,
            "credit .* is used up",
        ),
        ('answer 200 {"error": {"message": "no such thing", "code": 400}}', UserError, "answered 400: no such thing"),
        ('answer 200 {"error": "asleep"}', TrainingError, "answered with an error: asleep"),
        (
            'answer 422 {"detail": [{"loc": ["body", "top_k"], "msg": "not allowed"}]}',
            UserError,
            r"answered 422: body\.top_k: not allowed",
        ),
        ('answer 400 {"detail": "no"}', UserError, "answered 400: no"),
        (
            'answer 400 [{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}]',
            UserError,
            "answered 400: bad$",
        ),
        (
            'answer 404 {"detail": "Not Found"}',
            UserError,
            r"404: Not Found; check base_url \(of most services it ends in /v1\) and the model",
        ),
        (
            "answer 404 <html><title>nginx</title><body>Not here</body></html>",
            UserError,
            "404: nginx: nginx Not here; check base_url",
        ),
        # vLLM's, whose codes are numbers and whose guard knows text alone
        (
            says(404, "The model `gpt-4o-mini` does not exist.", type="NotFoundError", param="model", code=404),
            UserError,
            r"has no model 'gpt-4o-mini' \(The model `gpt-4o-mini` does not exist",
        ),
        ('answer 401 {"error": "Unauthorized"}', UserError, r"does not know the key in \$OPENAI_API_KEY"),
        (
            says(
                400,
                "This model's maximum context length is 8192 tokens. However, you requested 9002.",
                type="BadRequestError",
                code=400,
            ),
            UserError,
            "maximum context length is 8192 tokens",
        ),
    ],
)
def test_what_a_service_said_is_passed_on(server: ChatServer, told: str, kind: type[Exception], message: str) -> None:
    server.plan = lambda attempt: told
    with pytest.raises(kind, match=message):
        complete(server, max_retries=0)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:8000", "has no http:// or https://"),
        ("http://127.0.0.1:8000/v1/chat/completions", "ends in /chat/completions"),
        ("http://127.0.0.1:x/v1", "is no address"),
        ("http://127.0.0.1\x0b/v1", "a character that cannot be sent"),
    ],
)
def test_addresses_that_cannot_be_asked(
    server: ChatServer, address: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.url = address
    with pytest.raises(UserError, match=f"^base_url: .*{message}"):
        complete(server)
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(UserError, match=rf"^\$OPENAI_BASE_URL: .*{message}"):
        OpenAIChat(OpenAIProvider(), Limiter(), Budget())


def test_an_address_with_a_query_and_a_line_break(server: ChatServer) -> None:
    server.url += "/?api-version=1\n"
    assert complete(server).content


@pytest.mark.parametrize(
    ("key", "what"),
    [("sk-caf\u00e9-and-more", r"'\\xe9', which is not ASCII"), ("sk-one\nsk-two", "a blank or a line break")],
)
def test_keys_that_cannot_be_sent(server: ChatServer, key: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(
        UserError, match=rf"\$OPENAI_API_KEY cannot be sent as a key: its character 7 is {what}"
    ) as caught:
        complete(server)
    assert key not in str(caught.value)


def test_half_a_surrogate_pair_is_not_sent(server: ChatServer) -> None:
    budget = Budget()
    with pytest.raises(UserError, match="half of a surrogate pair"):
        complete(server, request("\ud83d"), budget)
    assert budget.spending.at_most == NOTHING


def test_an_unknown_certificate_is_named(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not tried again."""
    service = OpenAIService(OpenAIProvider(base_url=server.url))
    untrusted = ssl.SSLCertVerificationError("self-signed certificate")
    error = aiohttp.ClientConnectorCertificateError(SimpleNamespace(host="h", port=1, ssl=True), untrusted)  # type: ignore[arg-type]
    failure = service.failure(error)
    assert failure.reaction == "user"
    assert "certificate" in failure.message
    assert "SSL_CERT_FILE" in failure.message
    assert type(failure.error()) is UserError


def test_members_without_a_value_are_as_good_as_none(server: ChatServer) -> None:
    """As vLLM sends them."""
    server.plan = lambda attempt: "nulls"
    reply = complete(server)
    assert (len(reply.content or ""), reply.finish_reason, reply.reasoning, reply.cached_tokens) == (128, "stop", "", 0)
    assert reply.completion_tokens == server.bills[0].completion_tokens


def test_the_config_for_a_served_vllm_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of docs/serving.md, at a service without fine-tuning jobs."""
    (block,) = [
        one
        for one in blocks_of(ROOT / "docs" / "serving.md")
        if one.language == "yaml" and "provider: vllm" in one.text
    ]
    data = parse_yaml(block.text, str(block))
    data["scenario"]["data"] = {"source": "built_in", "num_train": 2, "num_test": 2}
    rule = {"name": "expert_iteration", "rollouts_per_iteration": 4, "num_test_items": 2}
    says = [{"name": "any", "marker": "", "replies": ['{"message": null, "decision": "accept"}']}]
    monkeypatch.setenv("OPENAI_API_KEY", provider_service.API_KEY)
    with provider_thread(tmp_path, roles=says, base_models=["qwen"], has_fine_tuning=False) as provider:
        data["providers"]["vllm"]["base_url"] = provider.base_url
        metrics = run_experiment(
            config_from_dict({**data, "iterations": 1, "algorithm": rule}), tmp_path / "run", quiet=True
        ).metrics
        assert {bill["model"] for bill in provider.ledger("chat")} == {"qwen"}
    assert metrics["train/verifier/undecided"] == metrics["train/verifier/invalid_share"] == 0


def test_content_in_parts(server: ChatServer) -> None:
    server.plan = lambda attempt: "parts"
    reply = complete(server)
    assert (len(reply.content or ""), reply.reasoning) == (128, "Decision: reject?")


def test_reasoning_comes_beside_and_members_of_the_body_pass(server: ChatServer) -> None:
    reply = complete(server, request(extra={"reasoning_effort": "low", "top_k": 20}))
    assert (reply.reasoning, server.attempts[0].body["top_k"]) == ("Well, well.", 20)
    assert "Well" not in (reply.content or "")
    assert complete(server, request("other", schema={"type": "object"})).reasoning == ""
    named = {"name": "reply", "strict": True, "schema": {"type": "object"}}
    assert server.attempts[1].body["response_format"] == {"type": "json_schema", "json_schema": named}


@pytest.mark.parametrize("fault", ["no_usage", "no_count", "500", "503", "529", "598"])
def test_what_may_have_been_billed_is_uncertain(server: ChatServer, fault: str) -> None:
    """A reply without a count, and errors that may have come after the work."""
    server.plan = first(fault)
    budget = Budget()
    reply = complete(server, budget=budget)
    assert reply.uncertain == budget.spending.uncertain == WORST
    assert budget.spending.models["gpt-4o-mini"].calls == 1
    assert bool(reply.cost_pusd) == (not fault.startswith("no_"))
    assert (
        budget.spending.amount.pusd
        == reply.cost_pusd
        == reply.completion_tokens * 600_000 + reply.prompt_tokens * 150_000
    )


def test_who_answered_and_hidden_and_cached_tokens_are_known(server: ChatServer) -> None:
    """Tokens that stand in the total alone are paid as part of the reply; cached ones have a price if the table says
    so."""
    server.plan = lambda attempt: "details"
    budget = Budget()
    prices = {"gpt-4o-mini": PriceSettings(0.15, 0.6, cached_input=0.05)}
    reply = complete(server, budget=budget, prices=prices)
    (bill,) = server.bills
    assert reply.completion_tokens == bill.completion_tokens + 10
    assert reply.cost_pusd == 150_000 * (bill.prompt_tokens - 3) + 50_000 * 3 + 600_000 * (bill.completion_tokens + 10)
    detail = budget.spending.summary()["detail"]["gpt-4o-mini"]
    assert (detail["cached_prompt_tokens"], detail["reasoning_tokens"]) == (3, 5)
    assert detail["answered_by"] == {"gpt-4o-mini-2024-07-18 fp_1": 1}


def test_models_that_want_the_limit_by_another_name(server: ChatServer) -> None:
    async def calls(client: OpenAIChat) -> None:
        await asyncio.gather(*(client.complete(request(f"k{number}", "o4-mini")) for number in range(4)))
        before = len(server.attempts)
        await client.complete(request("last", "o4-mini"))
        assert len(server.attempts) == before + 1

    run(server, calls, max_retries=0)
    assert all("max_completion_tokens" in attempt.body for attempt in server.attempts)
    assert len(server.bills) == 5


def test_what_the_user_must_mend(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no model 'gpt-5'"):
        complete(server, request(model="gpt-5"), max_retries=0)
    with pytest.raises(UserError, match=r"400: messages must be a list"):
        complete(server, ChatRequest("k", "gpt-4o-mini", [], 5))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-wrong-wrong")
    with pytest.raises(UserError, match=r"does not know the key in \$OPENAI_API_KEY") as caught:
        complete(server)
    assert "sk-wrong" not in str(caught.value)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match=r"\$OPENAI_API_KEY is not set"):
        complete(server)
    assert not server.bills


def test_a_service_that_is_away(monkeypatch: pytest.MonkeyPatch, server: ChatServer) -> None:
    server.url = "http://127.0.0.1:1/v1"
    with pytest.raises(TrainingError, match="cannot be reached") as caught:
        complete(server, max_retries=1)
    assert uncertain_of(caught.value) == Amount()


def test_the_budget_is_never_exceeded_with_many_in_flight(server: ChatServer) -> None:
    """Calls are sent until the next one could exceed the limit; those in flight are all paid for."""
    server.latency_s = 0.01
    usd = 60 * 1e-6 * (0.15 * 12 + 0.6 * 32)
    budget = Budget(BudgetSettings(usd=usd))

    async def many(client: OpenAIChat) -> list[Any]:
        return await asyncio.gather(
            *(client.complete(request(f"k{number}")) for number in range(200)), return_exceptions=True
        )

    outcomes = run(server, many, budget)
    refused_ = [outcome for outcome in outcomes if isinstance(outcome, BudgetExhausted)]
    assert len(refused_) + len(server.bills) == 200
    assert all(isinstance(outcome, ChatReply | BudgetExhausted) for outcome in outcomes)
    worst = 150_000 * (len("user" + "Is k100 true?") + 64) + 600_000 * 64
    assert usd * 1e12 - worst < budget.spending.amount.pusd <= usd * 1e12
    assert "budget.usd" in str(refused_[0])


def test_a_budget_in_dollars_needs_prices(server: ChatServer) -> None:
    with pytest.raises(UserError, match=r"no price for 'gpt-4o'"):
        complete(server, request(model="gpt-4o"), Budget(BudgetSettings(usd=1.0)), prices={})


def test_a_cancelled_call_may_have_been_billed(server: ChatServer) -> None:
    server.latency_s = 5.0
    budget = Budget()

    async def cancel(client: OpenAIChat) -> None:
        task = asyncio.create_task(client.complete(request()))
        while not server.attempts:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(server, cancel, budget)
    assert budget.spending.uncertain.pusd > 0
    assert budget.reserved == Amount()


def test_reading_retry_after() -> None:
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "60"}, 0.0) == 1.5
    assert retry_after_s({"retry-after": "2"}, 0.0) == 2.0
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0) == 60.0
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 40.0) == 0.0
    assert [retry_after_s({"retry-after": text}, 0.0) for text in ("soon", "nan", "inf", "-3")] == [
        None,
        None,
        None,
        0.0,
    ]
    assert retry_after_s({}, time.time()) is None


def test_a_wait_beyond_patience_ends_the_run() -> None:
    failure = refused(429, b'{"error": {"message": "daily limit"}}', {"retry-after": "80000"}, "x", "V", "m")
    assert failure.reaction == "fatal"
    assert "80000 seconds" in failure.message


@pytest.mark.parametrize(
    "body", [b"<html>bad gateway</html>", b"[1]", b'"text"', b"\xff\xfe", b"", b'{"error": "flat"}', b'{"error": null}']
)
def test_errors_in_any_form_are_understood(body: bytes) -> None:
    assert refused(502, body, {}, "x", "V", "m").reaction == "retry"
    assert refused(502, body, {}, "x", "V", "m").lost
    assert refused(400, body, {}, "x", "V", "m").reaction == "user"


def test_a_key_at_the_cut_of_a_long_message_is_hidden_whole(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "sk-" + "wrong" * 120
    monkeypatch.setenv("OPENAI_API_KEY", wrong)
    with pytest.raises(UserError, match="does not know the key") as caught:
        complete(server)
    assert "wrongwrong" not in str(caught.value)
