"""The common part of the benchmarks: a yardstick of the machine, timing, and the plain torch PPO loop of the examples,
without RLlib."""

import json
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import load_config

ROOT = Path(__file__).resolve().parents[1]
NIP_RAY = str(Path(sys.executable).parent / "nip-ray")
"""The command of this environment."""
sys.path.append(str(ROOT / "examples"))
from ppo_loop import PlainLoop  # noqa: E402

__all__ = [
    "NIP_RAY", "ROOT", "PlainLoop", "config", "final_models", "in_turns", "kernels", "machine", "peak_gflops", "plot",
    "put_between", "show", "timed", "work", "yardstick_ms",
]  # fmt: skip


def yardstick_ms() -> float:
    """Milliseconds for a fixed piece of work (forward and backward of a small graph network and an attention block)."""
    generator_ = torch.Generator().manual_seed(0)
    adjacency = (torch.rand(256, 22, 22, generator=generator_) < 0.4).float()
    features = torch.randn(256, 22, 16, generator=generator_)
    layers = [(nn.Linear(16, 64), nn.Linear(64, 16)) for _ in range(5)]
    joint = nn.Linear(16, 48)

    def work() -> None:
        x = features
        for up, down in layers:
            x = down(torch.tanh(up(torch.tanh(x) + adjacency @ x))) / 8
        q, k, v = joint(x).view(256, 22, 3, 4, 4).permute(2, 0, 3, 1, 4)
        F.scaled_dot_product_attention(q, k, v).pow(2).mean().backward()

    for _ in range(5):
        work()
    return statistics.median(timed(work) for _ in range(20)) * 1e3


def timed(function: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_gflops() -> float:
    """Billions of floating-point operations per second in one large product, with torch's current threads."""
    x = torch.randn(2048, 2048)
    return 2 * 2048**3 / min(timed(lambda: x @ x) for _ in range(5)) / 1e9


def work(experiment: ExperimentConfig) -> dict[str, float]:
    """The work of an iteration by torch's own kernels: billions of operations in products, and kernels per gradient
    step and round of play.

    Counted in the plain loop, whose mathematics is the same.
    """
    with FlopCounterMode(display=False) as flops:
        loop = PlainLoop(experiment)
        found = kernels(loop)
    return {"gflop": round(flops.get_total_flops() / 1e9, 2), **found}


def kernels(loop: PlainLoop) -> dict[str, float]:
    """Kernels per round of play and per gradient step, including the preparation of each iteration."""
    with Kernels() as playing:
        rollout = loop.sample()
    with Kernels() as learning:
        loop.learn(rollout)
    settings, copies = loop.settings, rollout.num_copies
    size = min(copies, settings.minibatch_copies or max(1, settings.minibatch_size // rollout.num_rounds))
    steps = settings.num_epochs * math.ceil(copies / size)
    return {
        "kernels_a_round": round(playing.count / rollout.num_rounds, 1),
        "kernels_a_step": round(learning.count / steps, 1),
    }


class Kernels(TorchDispatchMode):
    """Counts computations while it is entered: calls of operators, without views, allocations and bookkeeping."""

    count = 0
    _NONE = ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::scalar_tensor", "profiler::")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(given.alias_info is not None and not given.alias_info.is_write for given in func._schema.returns)
        self.count += not views and not func._schema.name.startswith(self._NONE)
        return func(*args, **(kwargs or {}))


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, `repeats` times, one after the other; a first round for warming up is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            taken = timed(call)
            if repeat:
                seconds[name].append(taken)
    return seconds


def machine() -> str:
    """One line on the machine."""
    threads = torch.get_num_threads()
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {threads} threads, yardstick"
        f" {yardstick_ms():.1f} ms"
    )


def config(name: str, *overrides: str) -> ExperimentConfig:
    """A config of `tune_configs`."""
    return load_config(ROOT / "tune_configs" / f"{name}.yaml", overrides)


@contextmanager
def final_models(run: Path) -> Iterator[Any]:
    """The trainer of a finished run on tokens, in a copy of its folder, with its final models."""
    from nip_ray.storage.folder import RunFolder
    from nip_ray.text.parts import load_state, prepare
    from nip_ray.text.training.trainer import begin

    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(run, Path(place) / "run")
        found = load_config(copy / "config.yaml")
        assert isinstance(found, TextExperimentConfig)
        with RunFolder.open(copy, write=True) as folder:
            trainer = begin(found, folder, prepare(found, copy), load_state(folder))
            yield trainer
            trainer.close()


def show(title: str, figures: dict[str, Any]) -> None:
    """Print one result as a JSON line."""
    print(json.dumps({"benchmark": title, **figures}))


@contextmanager
def plot(name: str, rows: int = 1, columns: int = 1, *, salt: str, font: float = 9, **options: Any) -> Iterator[Any]:
    """(figure, its axes), saved as docs/NAME.svg at the end: the same bytes for the same content. options: of
    `pyplot.subplots`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": salt, "font.size": font}):
        figure, axes = pyplot.subplots(rows, columns, layout="constrained", **options)
        yield figure, axes
        figure.savefig(ROOT / "docs" / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


def put_between(text: str, begin: str, end: str, made: str) -> str:
    """A page's text with `made` between two marks, in place of what is there."""
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end, 1)[1]}"
