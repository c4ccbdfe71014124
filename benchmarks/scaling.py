"""One iteration with its env runners and learners in processes of their own, in turns with everything in one process.

    python benchmarks/scaling.py --out benchmarks/scaling.json      # both experiments
    python benchmarks/scaling.py --quick                            # the message game only, few copies: does it work?

Decisions that matter here:
- the machine's speed drifts, so all variants are alive at once, take turns, and are compared by the ratio to (0, 0) of
  the same round;
- every process has one thread, so that a row shows the effect of processes; one more row has all threads in the main
  process instead;
- the copies of an iteration are the same in every variant: each of n runners plays an n-th of them;
- bytes are those that Ray serialises: the driver's `SerializationContext` is watched, through which every `ray.put`,
  every argument of an actor's constructor or method and every value that the driver reads passes. What learners send to
  each other (gradients) does not pass the driver, and is counted by size. Runners and learners fetch objects from the
  store once per node;
- the parts for the model (`benchmarks/_scaling.py`) are timed in the main process, by empty calls and by bare
  all-reduces, never from the rows that the model is checked against, except for sending weights, which has no smaller
  parts.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import ray
import torch
from _common import config, machine, show, timed, yardstick_ms
from _scaling import FORMAT, Machines, Parts, iteration_time
from ray._private.serialization import SerializationContext
from ray._private.worker import Worker
from ray.actor import ActorClass

from nip_ray.cluster.process import prepare_process
from nip_ray.cluster.ray_session import start_ray
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.play.rollout import RolloutSamples
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.rllib.compat import local_learner
from nip_ray.settings.experiment import RuntimeSettings


class Variant(NamedTuple):
    """Env runners, learners, torch threads of the main process; `play.max_staleness`."""

    runners: int
    learners: int
    threads: int = 1
    staleness: int = 0


ALONE, ONE_RUNNER, TWO_RUNNERS, TWO_LEARNERS = Variant(0, 0), Variant(1, 0), Variant(2, 0), Variant(0, 2)
AHEAD = Variant(1, 0, staleness=1)
PARTS = (ALONE, ONE_RUNNER, TWO_RUNNERS, TWO_LEARNERS)  # used for measuring parts
VARIANTS = (*PARTS, Variant(0, 1), Variant(2, 2), AHEAD, Variant(2, 2, staleness=1))
LARGE = Machines(nodes=8, runners=64, learners=8)  # for the prediction
PHASES = {"_play": "sample", "_learn": "learn", "send_weights": "weights"}
QUICK = ("play.num_copies=64", "algorithm.num_epochs=2", "algorithm.minibatch_size=256")


# ----------------------------------------------------------------------------------------------------------- what moves


@dataclass(frozen=True)
class Moved:
    """One value that went through the driver's serialisation.

    kind: put, constructor, argument (of a method) or read. phase: what the driver was doing. what: the actor's class
    for a constructor, else the value's type. size: bytes. Constructor arguments are listed whether they travel by value
    or as references to what was put.
    """

    kind: str
    phase: str
    what: str
    size: int


class Traffic:
    """Watches what this process puts, sends to actors, and reads; see the module."""

    def __init__(self) -> None:
        self.moved: list[Moved] = []
        self.phase = ""
        self._kind, self._what = "argument", ""
        self._put: dict[ray.ObjectRef, int] = {}

    def total(self, kind: str, phase: str = "") -> int:
        """Bytes of a kind, in one phase or in all."""
        return sum(found.size for found in self.of(kind, phase))

    def of(self, kind: str, phase: str = "") -> list[Moved]:
        """The values of a kind that moved, in one phase or in all."""
        return [found for found in self.moved if found.kind == kind and (not phase or found.phase == phase)]

    @contextmanager
    def watching(self) -> Iterator["Traffic"]:
        """Within it, everything is recorded."""
        serialize, deserialize = SerializationContext.serialize, SerializationContext.deserialize_objects

        def serialized(context: Any, value: Any) -> Any:
            found = serialize(context, value)
            self.moved.append(Moved(self._kind, self.phase, self._what or type(value).__name__, found.total_bytes))
            return found

        def deserialized(context: Any, objects: Any, *arguments: Any) -> Any:
            values = deserialize(context, objects, *arguments)
            for raw, value in zip(objects, values, strict=True):
                size = raw[0].size if raw[0] is not None else 0
                self.moved.append(Moved("read", self.phase, type(value).__name__, size))
            return values

        with ExitStack() as stack:
            stack.enter_context(patch.object(SerializationContext, "serialize", serialized))
            stack.enter_context(patch.object(SerializationContext, "deserialize_objects", deserialized))
            stack.enter_context(patch.object(Worker, "put_object", self._putting(Worker.put_object)))
            stack.enter_context(patch.object(ActorClass, "_remote", self._constructing(ActorClass._remote)))
            yield self

    @contextmanager
    def phases(self, algorithm: Any, seconds: dict[str, float]) -> Iterator[None]:
        """Within it, moved values are labelled by the phase of `algorithm`, and `seconds` has the duration of each."""
        with ExitStack() as stack:
            for method, phase in PHASES.items():
                stack.enter_context(
                    patch.object(algorithm, method, self._phase(getattr(algorithm, method), phase, seconds))
                )
            yield

    def _putting(self, put: Callable[..., Any]) -> Callable[..., Any]:
        def called(worker: Any, value: Any, *arguments: Any, **options: Any) -> Any:
            with self._as("put", ""):
                reference = put(worker, value, *arguments, **options)
            self._put[reference] = self.moved[-1].size
            return reference

        return called

    def _constructing(self, construct: Callable[..., Any]) -> Callable[..., Any]:
        def called(owner: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            name = owner.__ray_metadata__.class_name.rpartition(".")[2]
            for value in (*(args or ()), *(kwargs or {}).values()):
                if isinstance(value, ray.ObjectRef):
                    self.moved.append(Moved("constructor", self.phase, name, self._put[value]))
            with self._as("constructor", name):
                return construct(owner, args, kwargs, **options)

        return called

    @contextmanager
    def _as(self, kind: str, what: str) -> Iterator[None]:
        before = self._kind, self._what
        self._kind, self._what = kind, what
        try:
            yield
        finally:
            self._kind, self._what = before

    def _phase(self, function: Callable[..., Any], phase: str, seconds: dict[str, float]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            before, self.phase = self.phase, phase
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
                self.phase = before

        return called


# ------------------------------------------------------------------------------------------------------------- the rows


class Case:
    """One variant, alive: its algorithm, and its measurements."""

    def __init__(
        self, experiment: ExperimentConfig, runners: int, learners: int, threads: int = 1, staleness: int = 0
    ) -> None:
        self.name = name = Variant(runners, learners, threads, staleness)
        share = experiment.play.num_copies // max(1, name.runners)
        play = replace(experiment.play, num_env_runners=name.runners, num_copies=share, max_staleness=name.staleness)
        settings = replace(experiment.learners, num_learners=name.learners)
        self.traffic = Traffic()
        with self.traffic.watching():
            start = time.perf_counter()
            self.algorithm = build_algorithm(experiment.model_copy(update={"play": play, "learners": settings}))
            self.start_s = time.perf_counter() - start
        self.constructors = _largest(self.traffic)
        self.rounds: list[dict[str, float]] = []

    def train(self, counts: bool) -> None:
        """One iteration; kept if it counts."""
        self.traffic.moved.clear()
        torch.set_num_threads(self.name.threads)
        seconds: dict[str, float] = {}
        with self.traffic.watching(), self.traffic.phases(self.algorithm, seconds):
            whole = timed(self.algorithm.train)
        if counts:
            self.rounds.append(
                {
                    **seconds,
                    "rest": whole - sum(seconds.values()),
                    "iteration": whole,
                    "env_steps": self.algorithm.row["env_steps"],
                }
            )

    def bytes_moved(self) -> dict[str, int]:
        """Bytes of the last iteration, and the number of puts."""
        traffic, learners = self.traffic, self.name.learners
        gradients = 4 * _gradient_numbers(self.algorithm) * _steps(self.algorithm)
        return {
            "rollouts_to_driver": traffic.total("read", "sample"),
            "rollouts_put_for_learners": traffic.total("put", "learn"),
            "weights_to_driver": traffic.total("read", "weights"),
            "weights_put_for_runners": traffic.total("put", "weights"),
            "figures_to_driver": traffic.total("read", "learn"),
            "requests": traffic.total("argument"),
            "gradients_reduced": gradients if learners > 1 else 0,
            "puts": len(traffic.of("put")),
        }

    def row(self, alone: list[dict[str, float]]) -> dict[str, Any]:
        """The results; alone: the rounds of (0, 0)."""
        whole = [found["iteration"] for found in self.rounds]
        ratio = statistics.median(mine / other["iteration"] for mine, other in zip(whole, alone, strict=True))
        parts = {
            f"{name}_s": round(self.median(name), 5) for name in ("iteration", "sample", "learn", "weights", "rest")
        }
        return {
            **self.name._asdict(),
            "ratio": round(ratio, 3),
            **parts,
            "spread_s": [round(min(whole), 4), round(max(whole), 4)],
            "env_steps": self.median("env_steps"),
            "start_s": round(self.start_s, 2),
            "constructor_bytes": self.constructors,
            "bytes": self.bytes_moved(),
        }

    def median(self, name: str) -> float:
        """The median of a measurement over the rounds that count."""
        return statistics.median(found.get(name, 0.0) for found in self.rounds)


def _largest(traffic: Traffic) -> dict[str, int]:
    """By class of actor, the bytes of the largest argument of a constructor."""
    found: dict[str, int] = {}
    for moved in traffic.of("constructor"):
        found[moved.what] = max(moved.size, found.get(moved.what, 0))
    return found


def _gradient_numbers(algorithm: Any) -> int:
    return sum(p.numel() for network in algorithm.networks().values() for p in network.parameters() if p.requires_grad)


def _minibatch_copies(algorithm: Any) -> int:
    settings, rounds = algorithm.config.settings(), algorithm.rollout.num_rounds
    return max(1, min(algorithm.rollout.num_copies, settings.minibatch_size // rounds))


def _steps(algorithm: Any) -> int:
    return algorithm.config.settings().num_epochs * (algorithm.rollout.num_copies // _minibatch_copies(algorithm))


# ------------------------------------------------------------------------------------------------------------ the parts


class Fit:
    """Times the parts of an iteration in the main process, with (0, 0)'s own runner and learner, and leaves its weights
    as they were."""

    def __init__(self, algorithm: Any) -> None:
        self.algorithm, self.learner = algorithm, local_learner(algorithm.learner_group)
        self.runner = algorithm.env_runner_group.local_env_runner
        self.found: dict[str, list[float]] = {}

    def round(self) -> None:
        """Every part once."""
        copies, epochs = self.algorithm.rollout.num_copies, self.learner.settings.num_epochs
        size = _minibatch_copies(self.algorithm)
        count = copies // size
        quarter = max(1, size // 4)
        few, many = max(1, copies // 4), copies
        sample = {number: timed(lambda number=number: self._play(number)) for number in (few, many)}
        per_copy = (sample[many] - sample[few]) / max(1, many - few)
        self._note("sample_copy_s", per_copy)
        self._note("sample_fixed_s", sample[many] - many * per_copy)
        more = max(2, epochs)
        one, all_ = self._learn(1, size), self._learn(more, size)
        epoch = (all_ - one) / (more - 1)
        extra = copies // quarter - count
        fixed = max(0.0, (self._learn(1, quarter) - one) / extra) if extra else 0.0
        self._note("prepare_copy_s", (one - epoch) / copies)
        self._note("minibatch_fixed_s", fixed)
        self._note("minibatch_copy_s", (epoch - count * fixed) / copies)

    def medians(self) -> dict[str, float]:
        """Of all rounds; values made negative by noise are 0."""
        return {name: max(0.0, statistics.median(values)) for name, values in self.found.items()}

    def _note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def _play(self, copies: int) -> None:
        self.runner.play_share(self.algorithm.train_iteration, 0, copies, True)

    def _learn(self, epochs: int, copies: int) -> float:
        state, settings = self.algorithm.training_state(), self.learner.settings
        frames = copies * self.algorithm.rollout.num_rounds
        self.learner.settings = replace(settings, num_epochs=epochs, minibatch_size=frames)
        try:
            samples = [RolloutSamples(self.algorithm.rollout, 0)]
            return timed(
                lambda: self.learner.update(episodes=samples, iteration=self.algorithm.train_iteration, lr=settings.lr)
            )
        finally:
            self.learner.settings = settings
            self.algorithm.load_training_state(state)


def _nothing(actor: Any) -> None:
    """An empty call to an actor."""


def _all_reduces(learner: Any, numbers: int, times: int) -> float:
    """Seconds of one all-reduce, on a learner, while the others do the same."""
    joint = torch.zeros(numbers)
    torch.distributed.all_reduce(joint)
    start = time.perf_counter()
    for _ in range(times):
        torch.distributed.all_reduce(joint)
    return (time.perf_counter() - start) / times


def call_seconds(algorithm: Any) -> float:
    """An empty call to one of two runners, and its reply: two calls minus one, or half of two if that is noise."""
    group = algorithm.env_runner_group
    one = statistics.median(
        timed(lambda: group.foreach_env_runner(_nothing, local_env_runner=False, remote_worker_ids=[1]))
        for _ in range(20)
    )
    two = statistics.median(
        timed(lambda: group.foreach_env_runner(_nothing, local_env_runner=False)) for _ in range(20)
    )
    return max(two - one, two / 2)


def all_reduce_seconds(algorithm: Any) -> float:
    """One all-reduce of all gradients between the learners of `algorithm`."""
    found = algorithm.learner_group.foreach_learner(_all_reduces, numbers=_gradient_numbers(algorithm), times=50)
    return max(answer.get() for answer in found)


def measured_parts(cases: Mapping[Variant, Case], fit: Fit, calls: list[float], reduces: list[float]) -> Parts:
    """The parts of the model, from all measurements."""
    alone, one = cases[ALONE], cases[ONE_RUNNER]
    algorithm = alone.algorithm
    copies = algorithm.rollout.num_copies
    moved = one.bytes_moved()
    return Parts(
        copies=copies,
        epochs=algorithm.config.settings().num_epochs,
        minibatch_copies=_minibatch_copies(algorithm),
        **fit.medians(),
        rest_s=alone.median("rest"),
        call_s=statistics.median(calls),
        weights_s=one.median("weights"),
        all_reduce_s=statistics.median(reduces),
        rollout_copy_bytes=moved["rollouts_to_driver"] / copies,
        weights_bytes=moved["weights_put_for_runners"],
        gradient_bytes=4 * _gradient_numbers(algorithm),
    )


# ------------------------------------------------------------------------------------------------------------- the runs


def measure(
    experiment: ExperimentConfig, iterations: int, variants: tuple[Variant, ...]
) -> tuple[list[dict[str, Any]], Parts]:
    """All variants in turns, with their own Ray, which ends with them."""
    cases: dict[Variant, Case] = {}
    calls, reduces = [], []
    threads = len(os.sched_getaffinity(0))
    try:
        cases[ALONE] = Case(experiment, *ALONE)  # before there is a Ray, as when it is alone
        workers = sum(variant.runners + variant.learners for variant in variants)
        start_ray(RuntimeSettings(ray_num_cpus=workers + 1), workers)
        for variant in (*variants[1:], *([Variant(0, 0, threads)] if threads > 1 else [])):
            cases[variant] = Case(experiment, *variant)
        fit = Fit(cases[ALONE].algorithm)
        for number in range(iterations + 1):  # the first one warms up
            for case in cases.values():
                case.train(counts=number > 0)
            torch.set_num_threads(1)
            if number:
                fit.round()
                calls.append(call_seconds(cases[TWO_RUNNERS].algorithm))
                reduces.append(all_reduce_seconds(cases[TWO_LEARNERS].algorithm))
        return [case.row(cases[ALONE].rounds) for case in cases.values()], measured_parts(cases, fit, calls, reduces)
    finally:
        for case in cases.values():
            case.algorithm.stop()
        ray.shutdown()


def merged(runs: list[tuple[list[dict[str, Any]], Parts]]) -> dict[str, Any]:
    """Medians over the repeats; bytes and counts are those of the last."""
    rows = []
    for same in zip(*(rows for rows, _ in runs), strict=True):
        row = dict(same[-1])
        for name in [*(key for key in row if key.endswith("_s") and key != "spread_s"), "ratio", "env_steps"]:
            row[name] = round(statistics.median(found[name] for found in same), 5)
        row["spread_s"] = [min(found["spread_s"][0] for found in same), max(found["spread_s"][1] for found in same)]
        rows.append(row)
    parts = asdict(runs[-1][1])
    for name in (key for key in parts if key.endswith("_s")):
        parts[name] = float(f"{statistics.median(getattr(found, name) for _, found in runs):.4g}")
    parts["rollout_copy_bytes"] = round(parts["rollout_copy_bytes"], 1)
    for row in rows:
        row["predicted"] = round(predicted(Parts(**parts), row), 3)
    return {"parts": parts, "rows": rows}


def predicted(parts: Parts, row: Mapping[str, Any]) -> float:
    """The model's ratio to (0, 0) of a row, on this machine."""
    cpus = len(os.sched_getaffinity(0))
    here = Machines(runners=row["runners"], learners=row["learners"], cpus=cpus, ahead=bool(row["staleness"]))
    return iteration_time(parts, here).total / iteration_time(parts, Machines(cpus=cpus)).total


def large(parts: Parts) -> None:
    """Print the model's prediction for many machines with the same work per machine."""
    more = replace(parts, copies=64 * parts.copies, minibatch_copies=64 * parts.minibatch_copies)
    alone = iteration_time(more, Machines()).total
    print(
        f"{LARGE.nodes} nodes, {LARGE.runners} env runners, {LARGE.learners} learners, 64 times the copies and"
        " minibatches"
    )
    for changes in ({}, {"ahead": True}):
        found = iteration_time(more, replace(LARGE, **changes))
        name, speed = " ".join(changes) or "in time", alone / found.total
        print(f"  {name:>12}: {found.total:.3f} s, {speed:.2f} times one process; longest: {found.bottleneck}")


def table(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows; milliseconds and kilobytes."""
    print(f"\n{name}: milliseconds, and the ratio to (0, 0) in the same round")
    print(
        "runners learners threads ahead iteration  sample   learn weights    rest  ratio  model  start s "
        " constructors kB"
    )
    for row in rows:
        parts = "".join(f"{row[f'{part}_s'] * 1e3:>8.1f}" for part in ("sample", "learn", "weights", "rest"))
        whole, size = row["iteration_s"] * 1e3, max(row["constructor_bytes"].values(), default=0) / 1e3
        print(
            f"{row['runners']:>7}{row['learners']:>9}{row['threads']:>8}{row['staleness']:>6}{whole:>10.1f}{parts}"
            f"{row['ratio']:>7.2f}{row['predicted']:>7.2f}{row['start_s']:>9.1f}{size:>17.1f}"
        )
    print("bytes of an iteration")
    for row in (row for row in rows if row["runners"] + row["learners"]):
        print(
            f"  ({row['runners']}, {row['learners']}): "
            + ", ".join(f"{key} {value:,}" for key, value in row["bytes"].items() if value)
        )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="*", default=["gi_published", "message_game"])
    parser.add_argument("--copies", type=int, help="copies of an iteration, all runners together (none: the config's)")
    parser.add_argument("--iterations", type=int, default=7, help="rounds that count")
    parser.add_argument("--repeat", type=int, default=3, help="times that everything is restarted")
    parser.add_argument("--quick", action="store_true", help="the message game with few copies, once")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers'
    prepare_process(1)
    print(machine())
    names, iterations, repeat = arguments.configs, arguments.iterations, arguments.repeat
    if arguments.quick:
        names, iterations, repeat = ["message_game"], min(iterations, 2), 1
    variants = (*PARTS, AHEAD) if arguments.quick else VARIANTS
    overrides = list(QUICK) if arguments.quick else []
    overrides += [f"play.num_copies={arguments.copies}"] if arguments.copies else []
    began, found = time.perf_counter(), {}
    for name in names:
        found[name] = merged([measure(config(name, *overrides), iterations, variants) for _ in range(repeat)])
        table(name, found[name]["rows"])
        large(Parts(**found[name]["parts"]))
        show(name, found[name])
    how = {"cpus": len(os.sched_getaffinity(0)), "iterations": iterations, "repeat": repeat, "quick": arguments.quick}
    document = {"format": FORMAT, "machine": {**how, "yardstick_ms": round(yardstick_ms(), 1)}, "experiments": found}
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
