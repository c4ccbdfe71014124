"""The cost of a replay buffer: rows added and sampled per second, uniformly and by priority, against a binary sum tree
in plain Python.

python benchmarks/replay.py --capacity 100000 --batch 256
"""

import argparse
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
from _common import machine, show, timed

from nip_ray.learning.replay import Field, Priorities, Replay
from nip_ray.seeding import generator

FLAG, NUMBER = torch.bool, torch.int64
SCHEMA = {
    "obs": Field((20, 3)),
    "legal": Field((4,), FLAG),
    "action": Field((), NUMBER),
    "reward": Field(),
    "discount": Field(),
    "next_obs": Field((20, 3)),
    "next_legal": Field((4,), FLAG),
}


class PythonTree:
    """The usual binary sum tree over a list: one row at a time."""

    def __init__(self, capacity: int) -> None:
        self.leaves = 1 << (capacity - 1).bit_length()
        self.sums = [0.0] * (2 * self.leaves)

    def set(self, slots: list[int], weights: list[float]) -> None:
        """Give leaves new weights."""
        sums = self.sums
        for slot, weight in zip(slots, weights):
            node = self.leaves + slot
            sums[node] = weight
            while node > 1:
                node //= 2
                sums[node] = sums[2 * node] + sums[2 * node + 1]

    def sample(self, count: int) -> list[int]:
        """One leaf from each of `count` equal parts of all weight."""
        sums, found = self.sums, []
        for part in range(count):
            mass, node = (part + random.random()) / count * sums[1], 1
            while node < self.leaves:
                node *= 2
                if mass >= sums[node]:
                    mass -= sums[node]
                    node += 1
            found.append(node - self.leaves)
        return found


def main() -> None:
    """Time everything in turns, so that other load affects all alike; only ratios matter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(machine())
    ways = _ways(options.capacity, options.batch, options.device)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.repeat + 10):
        for name, way in ways.items():
            seconds = timed(way)
            if turn >= 10:
                times[name].append(seconds)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, median in medians.items():
        show(f"replay: {name}", {"rows_per_s": round(options.batch / median), "median_us": round(median * 1e6)})
    for what in ("set", "find"):
        ratio = medians[f"python tree: {what}"] / medians[f"tensor tree: {what}"]
        show(f"replay: python tree over tensor tree, {what}", {"ratio": round(ratio, 1)})
    for what in ("add", "sample"):
        show(
            f"replay: prioritised over uniform, {what}",
            {"ratio": round(medians[f"prioritised: {what}"] / medians[f"uniform: {what}"], 2)},
        )


def _ways(capacity: int, batch: int, device: str) -> dict[str, Callable[[], Any]]:
    draw = torch.Generator().manual_seed(0)
    rows = {name: torch.ones(batch, *field.shape).to(device, field.dtype) for name, field in SCHEMA.items()}
    many = {name: torch.ones(capacity, *field.shape).to(field.dtype) for name, field in SCHEMA.items()}
    buffers = {
        "uniform": Replay(SCHEMA, capacity, device),
        "prioritised": Replay(SCHEMA, capacity, device, Priorities(0.6, 1e-6)),
    }
    ways: dict[str, Callable[[], Any]] = {}
    for name, buffer in buffers.items():
        buffer.add(many)
        ways[f"{name}: add"] = _finished(lambda buffer=buffer: buffer.add(rows), device)
        ways[f"{name}: sample"] = _finished(lambda buffer=buffer: buffer.sample(batch, draw), device)
    ways["generator of a step"] = lambda: generator(0, "replay", "host", 0)
    tree, plain = buffers["prioritised"].tree, PythonTree(capacity)
    assert tree is not None
    weights = torch.rand(capacity, generator=draw, dtype=torch.float64)
    tree.fill(0, capacity, weights.to(device))
    plain.set(list(range(capacity)), weights.tolist())
    slots = torch.randint(capacity, (batch,), generator=draw)
    on_device, fresh = slots.to(device), weights[:batch].to(device)
    listed, fresh_list = slots.tolist(), fresh.tolist()
    total = tree.total()
    spread = (torch.arange(batch, device=device) + 0.5) / batch * total
    ways["tensor tree: set"] = _finished(lambda: tree.set(on_device, fresh), device)
    ways["tensor tree: find"] = _finished(lambda: tree.find(spread), device)
    ways["python tree: set"] = lambda: plain.set(listed, fresh_list)
    ways["python tree: find"] = lambda: plain.sample(batch)
    return ways


def _finished(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """`work`, awaited if the device is asynchronous."""
    if not device.startswith("cuda"):
        return work

    def both() -> None:
        work()
        torch.cuda.synchronize()

    return both


if __name__ == "__main__":
    main()
