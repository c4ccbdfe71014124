"""Seeds by a stable hash: every draw of an experiment comes from (config seed, purpose, worker, iteration, ...)."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def stable_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends only on its arguments: not on the process, the platform or Python's salted hash.

    ``stable_seed(7, "rollout", worker, iteration)`` is the idiom; two different purposes give independent streams.
    """
    text = "\x1f".join([str(int(seed)), *(f"{type(p).__name__}:{p}" for p in purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: str | int, device: "torch.device | str" = "cpu") -> "torch.Generator":
    """A torch generator on `device`, seeded with `stable_seed(seed, *purpose)`."""
    import torch

    made = torch.Generator(device=device)
    made.manual_seed(stable_seed(seed, *purpose))
    return made


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it, torch's global CPU generator starts at `seed`; its former state is restored afterwards.

    Not `torch.manual_seed`, which keeps the stack of every call for future devices.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
