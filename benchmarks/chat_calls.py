"""The cost of our part of a chat call: recorded, limited and budgeted calls against the bare SDK, in one run, in turns.

    python benchmarks/chat_calls.py
    python benchmarks/chat_calls.py --calls 500 --repeats 1
    python benchmarks/chat_calls.py --shared            # limits and budget kept by Ray actors

A server in a process of its own answers after `--latency-ms`. Prints calls per second and processor time of this
process per call: of the SDK's documented method, of the SDK as we use it, and of our client; and the difference.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nip_ray.settings.providers import BudgetSettings, OpenAIProvider, PriceSettings  # noqa: E402
from nip_ray.text.costs.budget import Budget, Limiter  # noqa: E402
from nip_ray.text.costs.shared import SharedBudget, SharedLimiter, budget_actor, limiter_actor  # noqa: E402
from nip_ray.text.dialogues.records import RecordedChat, total  # noqa: E402
from nip_ray.text.providers.interface import ChatRequest  # noqa: E402
from nip_ray.text.providers.openai import OpenAIChat, idempotency_key  # noqa: E402
from nip_ray.text.providers.openai_service import http_library, openai_client  # noqa: E402
from tests.text.chat_server import API_KEY  # noqa: E402

MESSAGES = [
    {"role": "system", "content": "You are a prover. " * 50},
    {"role": "user", "content": "Is this correct? " * 80},
]
LIMITS = (6e6, 6e9)
Call = Callable[[int], Awaitable[Any]]


def main() -> None:
    """Time all three in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = API_KEY
    with server(arguments.latency_ms) as url:
        asyncio.run(compare(url, arguments))


async def compare(url: str, arguments: argparse.Namespace) -> None:
    """Print the medians over the repeats."""
    provider = OpenAIProvider(base_url=url, prices={"gpt-4o-mini": PriceSettings(0.15, 0.6, 3.0)})
    rows: dict[str, list[tuple[float, float]]] = {}
    for repeat in range(arguments.repeats):
        for name, run in (("sdk_typed", sdk_typed), ("sdk_post", sdk_post), ("ours", ours)):
            rows.setdefault(name, []).append(await run(provider, repeat, arguments))
    rate = {name: statistics.median(row[0] for row in found) for name, found in rows.items()}
    cpu = {name: statistics.median(row[1] for row in found) for name, found in rows.items()}
    for name in rows:
        print(json.dumps({"path": name, "calls_per_s": round(rate[name]), "cpu_ms_per_call": round(cpu[name], 3)}))
    beyond = {
        "cpu_ms_beyond_sdk_post": round(cpu["ours"] - cpu["sdk_post"], 3),
        "beyond_sdk_typed": round(cpu["ours"] - cpu["sdk_typed"], 3),
    }
    print(json.dumps({**beyond, "ceiling_calls_per_s": round(arguments.in_flight / arguments.latency_ms * 1000)}))


async def sdk_typed(provider: OpenAIProvider, repeat: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """`chat.completions.create` of a default client."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=provider.base_url, max_retries=0)

    async def call(number: int) -> None:
        headers = {"Idempotency-Key": f"typed-{repeat}-{number}"}
        await client.chat.completions.create(
            model="gpt-4o-mini", messages=MESSAGES, max_tokens=100, extra_headers=headers
        )  # type: ignore[arg-type]

    return await timed(call, client.close, arguments)


async def sdk_post(provider: OpenAIProvider, repeat: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """The SDK as we configure and use it, without our code around it."""
    client = openai_client(provider, arguments.in_flight)

    async def call(number: int) -> None:
        options: Any = {"headers": {"Idempotency-Key": idempotency_key(f"post-{repeat}-{number}")}}
        body = {"model": "gpt-4o-mini", "messages": MESSAGES, "max_tokens": 100}
        response = await client.post("/chat/completions", cast_to=http_library().Response, body=body, options=options)
        assert json.loads(response.content)["choices"][0]["message"]["content"]

    return await timed(call, client.close, arguments)


async def ours(provider: OpenAIProvider, repeat: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Recorded, limited, budgeted. The records must have the spending."""
    limiter, budget, spending = shared(provider, repeat) if arguments.shared else alone()
    with tempfile.TemporaryDirectory() as folder:
        chat = OpenAIChat(provider, limiter, budget, max_in_flight=arguments.in_flight)
        recorded = RecordedChat(chat, folder, 0, prices=chat.prices)

        async def call(number: int) -> None:
            await recorded.complete(ChatRequest(f"ours-{repeat}-{number}", "gpt-4o-mini", MESSAGES, 100))

        found = await timed(call, recorded.close, arguments)
        assert total(folder).amount == (await spending()).amount
        assert total(folder).models["gpt-4o-mini"].calls == arguments.calls + arguments.in_flight
    return found


def alone() -> tuple[Any, Any, Callable[[], Awaitable[Any]]]:
    """Limits and budget of one process."""
    budget = Budget(BudgetSettings(usd=1000.0))

    async def spending() -> Any:
        return budget.spending

    return Limiter(*LIMITS), budget, spending


def shared(provider: OpenAIProvider, repeat: int) -> tuple[Any, Any, Callable[[], Awaitable[Any]]]:
    """Limits and budget kept by actors."""
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning")
    keeper = budget_actor(BudgetSettings(usd=1000.0))
    budget = SharedBudget(keeper, f"worker-{repeat}", in_usd=True)

    async def spending() -> Any:
        await budget.flush()
        return await keeper.spending.remote()

    keeper_of_limits = limiter_actor(str(provider.base_url), API_KEY, *LIMITS)
    return SharedLimiter(keeper_of_limits, lambda: keeper_of_limits), budget, spending


async def timed(call: Call, close: Callable[[], Awaitable[Any]], arguments: argparse.Namespace) -> tuple[float, float]:
    """(calls per second, milliseconds of processor time per call) with `in_flight` at once, after a first round that
    opens connections."""
    await asyncio.gather(*(call(-1 - number) for number in range(arguments.in_flight)))
    numbers = iter(range(arguments.calls))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(arguments.in_flight)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    await close()
    return arguments.calls / seconds, 1000 * cpu / arguments.calls


@contextmanager
def server(latency_ms: float) -> Any:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "tests.text.chat_server", "--latency-ms", str(latency_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.stdin.close()
            process.wait(30)


if __name__ == "__main__":
    main()
