"""Tokens per second of the local engine with the default model: reading prompts, one request at a time, and many
clients at once.

    python benchmarks/local_generation.py [--clients 16] [--requests 48] [--threads 2]

Both sides of the ratio come from one process, one engine and the same requests, and are measured in turns: three of
each, medians. Each side begins with empty slots, so neither profits from the other's cache. The last number is the cost
of one iteration of expert iteration: dialogues of three calls each under a system prompt of about 2,000 bytes, with
replies of 40 tokens.
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from _common import ROOT, machine, show, timed

from nip_ray.serving.default_model import save_default_model
from nip_ray.serving.engine import Engine
from nip_ray.serving.generation import GenerationRequest

TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))


def chat(number: int, system_bytes: int, user_bytes: int) -> list[dict[str, str]]:
    """A chat with a unique system prompt."""
    start = 1 + number * 997 % (len(TEXT) - system_bytes - user_bytes)
    middle = start + system_bytes
    return [
        {"role": "system", "content": TEXT[start:middle]},
        {"role": "user", "content": TEXT[middle : middle + user_bytes]},
    ]


def requests(
    engine: Engine, count: int, system_bytes: int, user_bytes: int, max_tokens: int
) -> list[GenerationRequest]:
    """Requests whose replies do not end early (the end is as unlikely as any token)."""
    prompts = [engine.chat.prompt(chat(number, system_bytes, user_bytes)) for number in range(count)]
    return [GenerationRequest(prompt, max_tokens, seed=number) for number, prompt in enumerate(prompts)]


def run(engine: Engine, wanted: list[GenerationRequest], clients: int) -> float:
    """Generated tokens per second with `clients` clients, each of which waits for its reply before the next request."""
    forget(engine)
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        made = list(pool.map(lambda one: engine.submit(one).result(), wanted))
    return sum(reply.completion_tokens for reply in made) / (time.perf_counter() - start)


def forget(engine: Engine) -> None:
    """Clear all caches."""
    engine.batch.forget()


def ratio(engine: Engine, clients: int, count: int, user_bytes: int, max_tokens: int) -> dict[str, float]:
    """Medians of three measurements of each side, in turns."""
    wanted = requests(engine, count, 200, user_bytes, max_tokens)
    run(engine, wanted[:clients], clients)
    alone, together = [], []
    for _ in range(3):
        alone.append(run(engine, wanted, 1))
        together.append(run(engine, wanted, clients))
    one, many = statistics.median(alone), statistics.median(together)
    return {
        "prompt_tokens": len(wanted[0].prompt),
        "reply_tokens": max_tokens,
        "one": one,
        "many": many,
        "ratio": many / one,
    }


def prefill(engine: Engine) -> float:
    """Prompt tokens per second: 32 prompts of about 700 tokens and one token of reply."""
    wanted = requests(engine, 32, 1500, 500, 1)
    forget(engine)
    return sum(len(one.prompt) for one in wanted) / timed(lambda: engine.generate(wanted))


def dialogues(engine: Engine, count: int = 64, calls: int = 3) -> float:
    """Seconds for `count` dialogues of three calls, each call with all earlier messages, all dialogues at once."""
    chats = [chat(number, 2000, 100) for number in range(count)]
    forget(engine)

    def play(number: int) -> None:
        messages = list(chats[number])
        for call in range(calls):
            wanted = GenerationRequest(engine.chat.prompt(messages), 40, seed=number * calls + call)
            messages.append({"role": "assistant", "content": engine.submit(wanted).result().text})
            messages.append({"role": "user", "content": "And what of the other case?"})

    with ThreadPoolExecutor(count) as pool:
        return timed(lambda: list(pool.map(play, range(count))))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine(save_default_model(Path(folder) / "model"), max_batch_size=32) as engine,
    ):
        for user_bytes, max_tokens in ((100, 96), (1500, 96), (1500, 40)):
            figures = ratio(engine, options.clients, options.requests, user_bytes, max_tokens)
            show(f"tokens/s, {options.clients} clients", {name: round(value, 2) for name, value in figures.items()})
        show("prefill", {"tokens_per_s": round(prefill(engine))})
        show("64 dialogues of 3 calls", {"seconds": round(dialogues(engine), 2)})


if __name__ == "__main__":
    main()
