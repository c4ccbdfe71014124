"""One case of the gate, in its own process: a line on standard input runs it once, and the reply is its wall and
processor seconds.

    python benchmarks/_gate_cases.py play        # of the package on the path, which may be another commit's

It only uses long-standing parts of the package, so that earlier commits can be timed by it too.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "tune_configs"
TINY_GI = (
    "play.num_copies=48",
    "algorithm.minibatch_size=72",
    "scenario.data.num_train=300",
    "scenario.data.num_test=60",
)
CALLS = 128
Unit = Callable[[], object]


@contextmanager
def iterations(name: str, *overrides: str, count: int = 1) -> Iterator[Unit]:
    """Iterations of a config in `tune_configs`: play, advantages, update, metrics."""
    from nip_ray.config.load import load_config
    from nip_ray.rllib.cluster import build_algorithm

    algorithm = build_algorithm(load_config(CONFIGS / f"{name}.yaml", ["runtime.num_threads=1", *overrides]))  # type: ignore[arg-type]
    yield lambda: [algorithm.train() for _ in range(count)]
    algorithm.stop()


@contextmanager
def play() -> Iterator[Unit]:
    """Episodes of graph isomorphism, without learning."""
    from nip_ray.config.load import load_config
    from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
    from nip_ray.protocols import from_settings
    from nip_ray.scenarios.registry import build_agents, build_scenario
    from nip_ray.seeding import generator

    config = load_config(CONFIGS / "gi_published.yaml", ["scenario.data.num_train=300", "scenario.data.num_test=60"])
    scenario = build_scenario(from_settings(config.protocol), config.scenario)  # type: ignore[union-attr]
    agents, played = build_agents(scenario, config.scenario, 0), BatchedPlay(scenario, "cpu")  # type: ignore[arg-type]
    id_B, seed_B = instance_ids(scenario, "train", 0, 0, 128), episode_seeds(0, 0, 128)
    yield lambda: [
        play_rollout(played, agents, id_B, seed_B, generator(0, "play", 0, 0, device="cpu"), True) for _ in range(10)
    ]


@contextmanager
def chat_calls() -> Iterator[Unit]:
    """Chat calls, recorded, limited and under a budget, against a server on loopback that answers at once."""
    from nip_ray.settings.providers import BudgetSettings, OpenAIProvider, PriceSettings
    from nip_ray.text.costs.budget import Budget, Limiter
    from nip_ray.text.dialogues.records import RecordedChat
    from nip_ray.text.providers.interface import ChatRequest
    from nip_ray.text.providers.openai import OpenAIChat

    os.environ["OPENAI_API_KEY"] = "sk-canary-5f1d0c2b9a7e4e6d8c3b"  # the server's own
    command = [sys.executable, "-m", "tests.text.chat_server", "--latency-ms", "0"]
    messages = [
        {"role": "system", "content": "You are a prover. " * 50},
        {"role": "user", "content": "Is this correct? " * 80},
    ]
    loop = asyncio.new_event_loop()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["url"]
        provider = OpenAIProvider(base_url=address, prices={"gpt-4o-mini": PriceSettings(0.15, 0.6, 3.0)})

        async def calls() -> None:
            with tempfile.TemporaryDirectory() as folder:
                chat = OpenAIChat(provider, Limiter(6e6, 6e9), Budget(BudgetSettings(usd=1000.0)), max_in_flight=16)
                recorded = RecordedChat(chat, folder, 0, prices=chat.prices)
                requests = [
                    ChatRequest(f"{time.monotonic_ns()}-{n}", "gpt-4o-mini", messages, 100) for n in range(CALLS)
                ]
                await asyncio.gather(*(recorded.complete(request) for request in requests))
                await recorded.close()

        yield lambda: loop.run_until_complete(calls())
        server.stdin.close()


@contextmanager
def first_row() -> Iterator[Unit]:
    """From the start of `nip-ray train` to its end, of two iterations of the message game."""
    command = [
        sys.executable,
        "-m",
        "nip_ray.cli",
        "train",
        str(CONFIGS / "message_game.yaml"),
        "--quiet",
        "--iterations",
        "2",
    ]

    def start() -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*command, "--run-dir", f"{folder}/run"], check=True, stdout=subprocess.DEVNULL)

    yield start


CASES = {
    "message_game": lambda: iterations("message_game", count=2),
    "tiny_gi": lambda: iterations("gi_fast", *TINY_GI),
    "play": play,
    "hironaka": lambda: iterations("hironaka_agent", "algorithm.steps_per_iteration=10", "algorithm.warm_up=200"),
    "chat_calls": chat_calls,
    "first_row": first_row,
}
WARM_UP = {"first_row": 0}
"""Number of units that are not timed, if not three."""


def clocks() -> tuple[float, float]:
    """Wall seconds, and processor seconds of this process and of those that it started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Answer each line until there are no more."""
    name, answers = sys.argv[1], os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # others' output must not come between the replies
    with CASES[name]() as unit:
        for _ in range(WARM_UP.get(name, 3)):
            unit()
        # cores differ, above all if they are shared
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print("ready", file=answers, flush=True)
        for _ in sys.stdin:
            start = clocks()
            unit()
            print(*(after - before for after, before in zip(clocks(), start, strict=True)), file=answers, flush=True)


if __name__ == "__main__":
    main()
