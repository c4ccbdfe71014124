"""Records of calls: replay, the ledger against the server's, damage, and processes killed in the middle."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nip_ray.errors import TrainingError, UserError
from nip_ray.settings.providers import OpenAIProvider, PriceSettings
from nip_ray.text.costs.budget import Budget, Limiter
from nip_ray.text.costs.prices import Amount, PriceList, Spending, with_uncertain
from nip_ray.text.dialogues.records import RecordedChat, fingerprint, read_calls, total
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from nip_ray.text.providers.openai import OpenAIChat
from tests.text.chat_server import API_KEY, Attempt, ChatServer

PRICES = PriceList({"m": PriceSettings(1.0, 2.0)})


class Counted:
    """Answers from a function and counts; raises what the function returns if that is an exception."""

    def __init__(self, reply: Callable[[ChatRequest], ChatReply | BaseException]) -> None:
        self.reply, self.calls = reply, 0

    async def complete(self, sent: ChatRequest) -> ChatReply:
        self.calls += 1
        await asyncio.sleep(0)
        found = self.reply(sent)
        if isinstance(found, BaseException):
            raise found
        return found

    async def close(self) -> None:
        """Nothing to give back."""


def echo(sent: ChatRequest) -> ChatReply:
    return ChatReply(
        f"reply to {sent.key} \n “ü\ud800”",
        "stop",
        10,
        5,
        20,
        "hm",
        cached_tokens=2,
        model="m-1",
        fingerprint="fp",
        uncertain=Amount(3, 4),
    )


def request(key: str = "k", content: str = "hello", model: str = "m") -> ChatRequest:
    return ChatRequest(key, model, [{"role": "user", "content": content}], 7, temperature=0.5, agent="prover")


def use(
    client: Counted, run: Path, action: Callable[[RecordedChat], Awaitable[object]], iteration: int = 0, worker: int = 0
) -> object:
    async def main() -> object:
        recorded = RecordedChat(client, run, iteration, worker, PRICES)
        try:
            return await action(recorded)
        finally:
            await recorded.close()

    return asyncio.run(main())


def complete(
    client: Counted, run: Path, *requests: ChatRequest, iteration: int = 0, worker: int = 0
) -> list[ChatReply]:
    async def action(recorded: RecordedChat) -> list[ChatReply]:
        return await asyncio.gather(*(recorded.complete(each) for each in requests))

    found = use(client, run, action, iteration, worker)
    assert isinstance(found, list)
    return found


def test_a_recorded_reply_is_not_asked_for_again(tmp_path: Path) -> None:
    client, asked = Counted(echo), [request(f"k{number}") for number in range(5)]
    first = complete(client, tmp_path, *asked)
    assert complete(client, tmp_path, *asked, worker=3) == first  # another worker now has the dialogue
    assert client.calls == 5
    # another iteration, should it use the same keys, has its own replies
    complete(client, tmp_path, *asked, iteration=1)
    assert client.calls == 10
    assert sorted(path.name for path in (tmp_path / "calls").iterdir()) == [
        "000000-0.jsonl",
        "000000-3.jsonl",
        "000001-0.jsonl",
    ]


def test_the_ledger_adds_up(tmp_path: Path) -> None:
    complete(Counted(echo), tmp_path, *(request(f"k{number}") for number in range(5)))
    complete(Counted(echo), tmp_path, request("other"), iteration=1)
    found = total(tmp_path)
    assert found.models["m"].calls == 6
    assert found.amount == Amount(120, 90)
    assert found.uncertain == Amount(18, 24)
    records = list(read_calls(tmp_path, 1))
    assert [record.event for record in records] == ["begin", "reply"]
    assert (records[1].agent, records[1].model, records[1].request) == ("prover", "m", fingerprint(request("other")))
    assert records[0].worst == Amount(1_000_000 * (9 + 64) + 2_000_000 * 7, 9 + 64 + 7)


def test_another_request_under_a_recorded_key_is_an_error(tmp_path: Path) -> None:
    complete(Counted(echo), tmp_path, request())
    with pytest.raises(UserError, match=r"000000-0\.jsonl:2: the key 'k' has the reply to another request"):
        complete(Counted(echo), tmp_path, request(content="goodbye"))


def test_fingerprints_tell_all_that_decides_a_reply() -> None:
    base = request()
    others = [
        ChatRequest("k", "n", base.messages, 7, 0.5),
        ChatRequest("k", "m", base.messages, 8, 0.5),
        ChatRequest("k", "m", base.messages, 7, None),
        ChatRequest("k", "m", base.messages, 7, 0.5, 0.9),
        ChatRequest("k", "m", base.messages, 7, 0.5, None, 1),
        ChatRequest("k", "m", [*base.messages, {"role": "assistant", "content": ""}], 7, 0.5),
    ]
    assert len({fingerprint(each) for each in [base, *others]}) == 7


def test_one_key_is_not_asked_twice_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two calls at once"):
        complete(Counted(echo), tmp_path, request(), request())


@pytest.mark.parametrize(
    ("error", "uncertain"),
    [
        (with_uncertain(TrainingError("refused"), Amount()), Amount()),
        (with_uncertain(TrainingError("two were lost"), Amount(11, 2)), Amount(11, 2)),
        (RuntimeError("who knows"), Amount(87_000_000, 80)),
        (asyncio.CancelledError(), Amount(87_000_000, 80)),
    ],
)
def test_calls_without_a_reply(tmp_path: Path, error: BaseException, uncertain: Amount) -> None:
    with pytest.raises(type(error)):
        complete(Counted(lambda sent: error), tmp_path, request())
    assert total(tmp_path) == Spending(uncertain=uncertain)
    complete(Counted(echo), tmp_path, request())
    assert total(tmp_path).uncertain == uncertain + Amount(3, 4)
    assert total(tmp_path).amount == Amount(20, 15)


def test_a_torn_end_is_cut_and_every_earlier_line_kept(tmp_path: Path) -> None:
    """Whatever was written of the last line when the process died."""
    asked = [request("a"), request("b")]
    complete(Counted(echo), tmp_path, *asked)
    path = tmp_path / "calls" / "000000-0.jsonl"
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        client = Counted(echo)
        assert len(complete(client, tmp_path, *asked)) == 2
        assert client.calls == 1
        found = total(tmp_path)
        assert found.models["m"].calls == 2
        assert found.uncertain == Amount(6 + 87_000_000, 8 + 80)  # the torn reply's call was sent twice


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"\n", b"\xff\n", b"[1]\n", b'{"event":"reply","version":1}\n', b'{"event":"rep', b"null\n"]
)
@pytest.mark.parametrize("number", [0, 1])
def test_damage_elsewhere_is_an_error_that_names_the_line(tmp_path: Path, damage: bytes, number: int) -> None:
    complete(Counted(echo), tmp_path, request())
    path = tmp_path / "calls" / "000000-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = damage
    path.write_bytes(b"".join(lines))
    if damage.endswith(b"\n") or number == 0:
        with pytest.raises(UserError, match=rf"000000-0\.jsonl:{number + 1} is damaged"):
            total(tmp_path)
    else:
        assert total(tmp_path).models == {}


def test_calls_in_a_hole_that_a_power_failure_left_are_made_again(tmp_path: Path) -> None:
    asked = request("a"), request("b"), request("c")
    complete(Counted(echo), tmp_path, *asked)
    path = tmp_path / "calls" / "000000-0.jsonl"
    data = path.read_bytes()
    at = data.index(b'"event":"reply"')
    path.write_bytes(data[:at] + bytes(40) + data[at + 40 :])
    client = Counted(echo)
    with pytest.warns(UserWarning, match=r"000000-0\.jsonl:4 was not on disk whole"):
        complete(client, tmp_path, *asked)
    assert client.calls == 1


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    async def twice(recorded: RecordedChat) -> None:
        with pytest.raises(UserError, match="another process"):
            RecordedChat(Counted(echo), tmp_path, 0)
        RecordedChat(Counted(echo), tmp_path, 0, worker=1)

    use(Counted(echo), tmp_path, twice)


def talker(url: str, run: Path) -> str:
    """A process that makes 300 calls, 16 at once, and says when it is done."""
    return textwrap.dedent(f"""
        import asyncio
        from nip_ray.settings.providers import BudgetSettings, OpenAIProvider, PriceSettings
        from nip_ray.text.costs.budget import Budget
        from nip_ray.text.providers.interface import ChatRequest
        from nip_ray.text.costs.budget import Limiter
        from nip_ray.text.providers.openai import OpenAIChat
        from nip_ray.text.dialogues.records import RecordedChat, total

        async def main():
            provider = OpenAIProvider(base_url={url!r}, prices={{"gpt-4o-mini": PriceSettings(0.15, 0.6)}})
            budget = Budget(BudgetSettings(usd=10.0), total({str(run)!r}))
            chat = OpenAIChat(provider, Limiter(), budget, max_in_flight=16)
            recorded = RecordedChat(chat, {str(run)!r}, 0, prices=chat.prices)
            keys = iter(range(300))
            async def caller():
                for key in keys:
                    said = [{{"role": "user", "content": str(key)}}]
                    await recorded.complete(ChatRequest(f"call-{{key}}", "gpt-4o-mini", said, 20))
            await asyncio.gather(*(caller() for _ in range(16)))
            await recorded.close()

        asyncio.run(main())
        print("done", flush=True)
        """)


@pytest.mark.crash
@pytest.mark.parametrize("honours_keys", [True, False])
def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honours_keys: bool) -> None:
    """kill -9 in the middle of the calls, five times: no reply that was received is asked for again, the ledger is the
    server's."""
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)

    def plan(attempt: Attempt) -> str:
        return "drop_after" if attempt.arrival % 50 == 7 else "ok"

    with ChatServer(latency_s=0.02, honours_keys=honours_keys, plan=plan) as server:
        command = [sys.executable, "-c", talker(server.url, tmp_path)]
        recorded: set[str] = set()
        for kill in range(1, 7):
            before = len(server.attempts)
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            ) as process:
                while kill < 6 and process.poll() is None and len(server.attempts) < 50 * kill:
                    time.sleep(0.002)
                if kill < 6:
                    process.send_signal(signal.SIGKILL)
                out, _ = process.communicate(timeout=120)
            assert (out == "done\n") is (kill == 6)
            assert not recorded & {attempt.key for attempt in server.attempts[before:]}
            recorded = {record.key for record in read_calls(tmp_path) if record.reply is not None}
        found, bills = total(tmp_path), list(server.bills)
    assert len(recorded) == found.models["gpt-4o-mini"].calls == 300
    billed = sum(150_000 * bill.prompt_tokens + 600_000 * bill.completion_tokens for bill in bills)
    if honours_keys:
        assert found.amount.pusd == billed
        assert len(bills) == 300
    else:
        assert found.amount.pusd < billed <= found.at_most.pusd
    assert found.uncertain.pusd > 0


def test_the_ledger_is_what_the_server_billed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a storm of faults, budget, records and server agree to the picodollar."""
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    faults = (
        "ok",
        "429-ms",
        "drop_after",
        "500",
        "malformed",
        "ok",
        "finish content_filter",
        "drop_before",
        "policy",
        "ok",
        "503",
    )

    async def main(url: str) -> Budget:
        budget = Budget()
        provider = OpenAIProvider(base_url=url, prices={"gpt-4o-mini": PriceSettings(0.15, 0.6)}, max_retries=20)
        chat = OpenAIChat(provider, Limiter(), budget, max_in_flight=16)
        recorded = RecordedChat(chat, tmp_path, 0, prices=chat.prices)
        await asyncio.gather(*(recorded.complete(request(f"k{number}", model="gpt-4o-mini")) for number in range(66)))
        await recorded.close()
        return budget

    def plan(attempt: Attempt) -> str:
        return faults[int(attempt.key[1:]) % len(faults)] if attempt.number == 0 else "ok"

    with ChatServer(plan=plan, wait_s=0.02) as server:
        budget = asyncio.run(main(server.url))
    billed = sum(150_000 * bill.prompt_tokens + 600_000 * bill.completion_tokens for bill in server.bills)
    found = total(tmp_path)
    assert found.amount.pusd == budget.spending.amount.pusd == billed > 0
    assert found.uncertain == budget.spending.uncertain
    assert len(server.bills) == 60
    assert json.dumps(budget.spending.summary())
