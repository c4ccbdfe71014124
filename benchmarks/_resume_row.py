"""The output of every part of benchmarks/resume_table.py: a row per iteration, and one at the point of resuming.

It runs in the interpreters of the peers, so it only needs torch and numpy, and nothing of this package.
"""

import argparse
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

INTERVAL = 1
"""Iterations between checkpoints."""


def digest(state: Any) -> str:
    """Sixteen hexadecimal digits of the contents of nested mappings, sequences, arrays, tensors and plain values, exact
    to the last bit."""
    sums = hashlib.sha256()
    _add(state, sums)
    return sums.hexdigest()[:16]


def _add(state: Any, sums: Any) -> None:
    if isinstance(state, torch.Tensor):
        state = state.detach().cpu().contiguous().numpy()
    if isinstance(state, np.ndarray):
        sums.update(f"{state.dtype}{state.shape}".encode() + state.tobytes())
    elif hasattr(state, "items"):
        for key, value in sorted(state.items(), key=lambda item: str(item[0])):
            sums.update(f"{{{key}".encode())
            _add(value, sums)
    elif isinstance(state, list | tuple):
        sums.update(f"[{len(state)}".encode())
        for value in state:
            _add(value, sums)
    else:
        sums.update(repr(state).encode())


def optimizer_digest(optimizer: torch.optim.Optimizer) -> str:
    """The digest of moments and steps, parameter by parameter in the optimizer's order; learning rates have their own
    column."""
    return digest([optimizer.state.get(weight, {}) for group in optimizer.param_groups for weight in group["params"]])


def generators(*more: Any) -> str:
    """The digest of the global generators of Python, NumPy and torch, and of `more`, such as an environment's."""
    return digest([random.getstate(), np.random.get_state(), torch.get_rng_state(), *more])


class Rows:
    """Appends to a folder's `rows.jsonl`; `resume`: True if this process continues another's run, `iterations`: the
    end."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("iterations", type=int)
        parser.add_argument("--resume", action="store_true")
        parser.add_argument("--variant", default="")
        arguments = parser.parse_args()
        self.folder, self.iterations = arguments.folder.resolve(), arguments.iterations
        self.resume, self.variant = arguments.resume, arguments.variant
        torch.set_num_threads(1)

    def write(self, event: str, iteration: int, figures: dict[str, float] | None = None, **state: Any) -> None:
        """event: "row" after an iteration, or "restored". state: counter, lr, and digests named optimizer, generators,
        replay."""
        with (self.folder / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "iteration": iteration, **state, "figures": figures or {}}) + "\n")
