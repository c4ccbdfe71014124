"""A model of the time of an iteration on several machines, from measured parts, to use before renting machines.

Decisions that matter here:
- the copies of an iteration are fixed, and shared among the env runners: the prediction is for the same work on more
  machines;
- every part is measured on one machine by benchmarks/scaling.py; more machines add bytes over bandwidth, and latencies;
- nothing is fitted to the rows that the model is checked against: the parts come from the main process alone, from
  empty calls and from bare all-reduces;
- a GPU is a factor set by the user, since none was measured: there is no default.

Assumptions: processes are spread over the nodes in turn, beginning with the main process's; busy processes beyond a
node's CPUs take turns; sampling, learning and sending weights do not overlap, unless play is ahead; a node fetches an
object once for all its processes; the main process's network card serves one transfer at a time; learners reduce
gradients around a ring; nothing else uses the network; no evaluation. With play ahead, playing and taking it in are
beside learning.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError

FORMAT = 1


@dataclass(frozen=True)
class Parts:
    """The parts of an iteration of one experiment: seconds on one CPU thread, and bytes.

    copies: copies of the protocol in an iteration, all env runners together. epochs: passes over them.
    minibatch_copies: copies of a joint minibatch. sample_fixed_s, sample_copy_s: playing takes fixed + copies * copy.
    prepare_copy_s: per copy and learner, once per update, not shared among learners (rows, values, advantages).
    minibatch_fixed_s, minibatch_copy_s: one gradient step takes fixed + copies * copy. rest_s: the main process's own
    bookkeeping. call_s: calling one more process and reading its reply. weights_s: taking weights from a learner and
    loading them into runners, in parallel. all_reduce_s: one all-reduce between two processes of a machine.
    rollout_copy_bytes: a played copy. weights_bytes: all weights, as sent. gradient_bytes: all gradients, as reduced.
    """

    copies: int
    epochs: int
    minibatch_copies: int
    sample_fixed_s: float
    sample_copy_s: float
    prepare_copy_s: float
    minibatch_fixed_s: float
    minibatch_copy_s: float
    rest_s: float
    call_s: float
    weights_s: float
    all_reduce_s: float
    rollout_copy_bytes: float
    weights_bytes: float
    gradient_bytes: float


@dataclass(frozen=True)
class Machines:
    """The machines.

    nodes: machines. runners, learners: remote env runners and learners in all (0: in the main process). cpus: CPUs of a
    node. gpus: GPUs of a node, used by learners. gpu_speedup: of a GPU over one CPU thread in the part of learning that
    grows with the copies. bandwidth: bytes per second between nodes. latency_s: seconds of one message between nodes.
    ahead: runners play while learners learn (`play.max_staleness` 1).
    """

    nodes: int = 1
    runners: int = 0
    learners: int = 0
    cpus: int = 8
    gpus: int = 0
    gpu_speedup: float | None = None
    bandwidth: float = 1.25e9
    latency_s: float = 2e-4
    ahead: bool = False


@dataclass(frozen=True)
class IterationTime:
    """Seconds of an iteration, by part.

    sample: playing. collect: calling runners and receiving their rollouts. learn: gradient steps, and each learner's
    computations on all copies. hand_out: calling learners and sending them the rollouts. reduce: all-reduces. weights:
    back to the runners. rest: bookkeeping. beside: the saving by playing beside learning, a negative number.
    """

    sample: float
    collect: float
    learn: float
    hand_out: float
    reduce: float
    weights: float
    rest: float
    beside: float = 0.0

    @property
    def total(self) -> float:
        """The total."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def bottleneck(self) -> str:
        """The longest part; with play ahead, on the longer of the two ways."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.beside:
            played, learned = ("sample", "collect"), ("learn", "hand_out", "reduce")
            hidden = played if sum(parts[name] for name in played) < sum(parts[name] for name in learned) else learned
            parts = {name: seconds for name, seconds in parts.items() if name not in hidden}
        return max(parts, key=lambda name: parts[name])


def iteration_time(parts: Parts, machines: Machines) -> IterationTime:
    """The expected time of one iteration. Raises UserError for impossible `machines`."""
    _check(machines)
    rollout_bytes = parts.copies * parts.rollout_copy_bytes
    handed = rollout_bytes * _others(machines, machines.learners)
    found = IterationTime(
        sample=_sample(parts, machines),
        collect=machines.runners * parts.call_s
        + _network(machines, _away(machines, machines.runners) * rollout_bytes, machines.runners),
        learn=_learn(parts, machines),
        hand_out=machines.learners * parts.call_s + _network(machines, handed, machines.learners),
        reduce=_steps(parts) * _all_reduce(parts, machines),
        weights=_weights(parts, machines),
        rest=parts.rest_s,
    )
    return replace(found, beside=-_saved(found, machines)) if machines.ahead else found


def _saved(found: IterationTime, machines: Machines) -> float:
    """Saving by play beside learning: the shorter of the two, but at most what the CPUs of the fullest node allow."""
    played, learned = found.sample + found.collect, found.learn + found.hand_out + found.reduce
    busy = math.ceil((machines.runners + max(1, machines.learners)) / machines.nodes)
    alone_s = (
        found.sample * min(machines.cpus, machines.runners)
        + found.learn * min(machines.cpus, max(1, machines.learners))
    ) / machines.cpus
    return max(0.0, min(played, learned, played + learned - (alone_s if busy > machines.cpus else 0.0)))


def load_parts(path: Path, experiment: str) -> tuple[Parts, list[dict[str, Any]]]:
    """The parts of an experiment, and the rows measured with them, from a file by benchmarks/scaling.py.

    Raises UserError for another kind of file, or one without the experiment.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; write it with benchmarks/scaling.py --out {path}") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); write it with benchmarks/scaling.py --out {path}") from error
    if (
        not isinstance(document, dict)
        or document.get("format") != FORMAT
        or not isinstance(document.get("experiments"), dict)
    ):
        raise UserError(f"{path}: not a file of benchmarks/scaling.py in format {FORMAT}; write it again")
    known = document["experiments"]
    if experiment not in known:
        raise UserError(f"{path}: nothing measured of {experiment!r}; it has {', '.join(sorted(known))}")
    try:
        return Parts(**known[experiment]["parts"]), known[experiment]["rows"]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: experiments.{experiment} is incomplete ({error}); write it again with benchmarks/scaling.py"
        ) from error


# ------------------------------------------------------------------------------------------------------------ the parts


def _sample(parts: Parts, machines: Machines) -> float:
    """The slowest runner: its share of the copies, and waiting for a CPU."""
    share = math.ceil(parts.copies / max(1, machines.runners))
    return (parts.sample_fixed_s + share * parts.sample_copy_s) * _turns(machines, machines.runners)


def _learn(parts: Parts, machines: Machines) -> float:
    """All copies once on every learner, and gradient steps on a learner's slice of each minibatch."""
    on_gpu = machines.gpus > 0
    speed = (machines.gpu_speedup or 1.0) if on_gpu else 1.0
    share = math.ceil(parts.minibatch_copies / max(1, machines.learners))
    prepare = parts.copies * parts.prepare_copy_s / speed
    step = parts.minibatch_fixed_s + share * parts.minibatch_copy_s / speed
    turns = 1.0 if on_gpu else _turns(machines, machines.learners)
    return (prepare + _steps(parts) * step) * turns


def _all_reduce(parts: Parts, machines: Machines) -> float:
    """One all-reduce around a ring: each learner sends 2 (n - 1) pieces of 1/n of the gradients."""
    learners = machines.learners
    if learners < 2:
        return 0.0
    pieces = 2 * (learners - 1)
    if min(machines.nodes, learners) == 1:
        return parts.all_reduce_s * pieces / 2
    # on every edge of the ring that leaves a node: a piece over the wire, and the cost of the call, which two processes
    # of a node have too
    return pieces * (parts.all_reduce_s / 2 + machines.latency_s + parts.gradient_bytes / learners / machines.bandwidth)


def _weights(parts: Parts, machines: Machines) -> float:
    """The first learner is on the main process's node; every other node with runners fetches the weights once."""
    if machines.runners == 0 and machines.learners == 0:
        return 0.0
    calls = parts.weights_s + max(0, machines.runners - 1) * parts.call_s
    return calls + _network(machines, _others(machines, machines.runners) * parts.weights_bytes, machines.runners)


def _steps(parts: Parts) -> int:
    return parts.epochs * max(1, parts.copies // parts.minibatch_copies)


def _turns(machines: Machines, processes: int) -> float:
    """The factor by which the processes of the fullest node slow down because they share its CPUs."""
    return max(1.0, math.ceil(max(1, processes) / machines.nodes) / machines.cpus)


def _others(machines: Machines, processes: int) -> int:
    """The number of nodes with such processes, apart from the main process's node."""
    return max(0, min(machines.nodes, processes) - 1)


def _away(machines: Machines, processes: int) -> float:
    """The share of such processes on nodes other than the main process's."""
    return 1 - math.ceil(processes / machines.nodes) / processes if processes else 0.0


def _network(machines: Machines, sent: float, processes: int) -> float:
    """Seconds for `sent` bytes through the main process's network card, with a request and a reply."""
    return 2 * machines.latency_s + sent / machines.bandwidth if _others(machines, processes) else 0.0


def _check(machines: Machines) -> None:
    for name in ("nodes", "cpus"):
        if getattr(machines, name) < 1:
            raise UserError(f"{name}: got {getattr(machines, name)}, must be at least 1")
    for name in ("runners", "learners", "gpus", "latency_s"):
        if getattr(machines, name) < 0:
            raise UserError(f"{name}: got {getattr(machines, name)}, must be at least 0")
    if not machines.bandwidth > 0:
        raise UserError(f"bandwidth: got {machines.bandwidth}, must be above 0")
    if machines.ahead and not machines.runners:
        raise UserError("ahead: nothing plays beside learners, use runners")
    if machines.gpus and (machines.gpu_speedup is None or not machines.gpu_speedup > 0):
        raise UserError(
            "gpu_speedup: no GPU was measured, so with GPUs it must be given, above 0 (time benchmarks/gpu_core.py"
            " there)"
        )
    if machines.gpus and max(1, machines.learners) > machines.nodes * machines.gpus:
        raise UserError(
            f"learners: got {machines.learners}, but {machines.nodes} nodes have {machines.nodes * machines.gpus} GPUs"
        )
