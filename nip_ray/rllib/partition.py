"""Agents whose networks learn in processes of their own, on this machine (`learners.partition: agents`): what one agent learns from touches
no other agent's network.

Decisions that matter here:
- a process is a fork of this one, made before its first update: data, networks and optimizers are there, and nothing is built twice. It
  gives back all that an update changed, so that this process always has everything: play, evaluation and checkpoints know nothing of it;
- what was changed here since (a state was loaded) is noticed before an update, by comparing; the process is then made again;
- minibatches are joint: each process draws the same permutation. Where gradients are clipped jointly every step waits for the norms of
  all, which stand in one order: numbers are those of one process that learns with one thread, to the last bit;
- each process has one thread: OpenMP's others do not survive a fork;
- a process that is gone, or silent for too long, is a lost learner: nothing is sent or received without a limit.
"""

# pyright: basic, reportAttributeAccessIssue=false
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nip_ray.errors import LearnerLost, UserError
from nip_ray.learning.groups import FlatOptimizer
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.calls import Failure, ReturnErrors, unwrap

_NO_STEP = -1.0
"""In the place of a norm, which is never negative, of an agent that takes no step."""
_LAST_WORDS_S = 1.0


class PeerGone(Exception):
    """Another process of the same update has ended, or is silent."""


class Channel:
    """One end of a connection between two processes. Both methods raise PeerGone when the other one is gone, or `limit_s` seconds went by
    in which nothing moved (None: there is no limit)."""

    def __init__(self, end: socket.socket) -> None:
        self.end, self.torn = end, False  # torn: part of a message may have been read

    def send(self, message: bytes, limit_s: float | None) -> None:
        """All of it."""
        try:
            self.end.settimeout(limit_s)
            self.end.sendall(struct.pack("Q", len(message)) + message)
        except OSError as error:
            raise PeerGone from error

    def receive(self, limit_s: float | None) -> bytes:
        """The next message."""
        if self.torn:
            raise PeerGone
        try:
            self.end.settimeout(limit_s)
            return self._read(*struct.unpack("Q", self._read(8)))
        except (OSError, EOFError) as error:
            self.torn = True
            raise PeerGone from error

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            if not (part := self.end.recv(min(count - len(found), 1 << 20))):
                raise EOFError
            found += part
        return bytes(found)


@dataclass(frozen=True)
class Ask:
    """To a process: an update of the agents `learn`. peers: whose norms its steps wait for. extra: see `ProtocolLearner.extra_state`."""

    rollout: Rollout
    iteration: int
    lr: float
    learn: tuple[str, ...]
    peers: tuple[int, ...]
    extra: Mapping[str, Any]


class Norms:
    """The norms of the gradients of a step, wherever they are. parts: the agents of each process that takes part, by its number."""

    def __init__(self, parts: Mapping[int, tuple[str, ...]], here: int, peers: Mapping[int, Channel], limit_s: float | None) -> None:
        self.parts, self.here, self.peers, self.limit_s = parts, here, peers, limit_s

    def __call__(self, stepping: Mapping[str, FlatOptimizer], optimizers: Mapping[str, FlatOptimizer]) -> list[Tensor]:
        """All of them, in the order of `optimizers`. stepping: the agents here that have a gradient. Raises PeerGone."""
        found = {agent: [torch.linalg.vector_norm(flat.grad) for flat in optimizer.flats] for agent, optimizer in stepping.items()}
        own = [found.get(agent, [_NO_STEP] * len(optimizers[agent].flats)) for agent in self.parts[self.here]]
        message = np.array([float(norm) for norms in own for norm in norms]).tobytes()
        for peer in self.peers.values():
            peer.send(message, self.limit_s)
        for number, peer in self.peers.items():
            theirs = iter(np.frombuffer(peer.receive(self.limit_s)).tolist())
            for agent in self.parts[number]:
                norms = [(next(theirs), flat.dtype) for flat in optimizers[agent].flats]
                if all(norm != _NO_STEP for norm, _ in norms):
                    found[agent] = [torch.tensor(norm, dtype=dtype) for norm, dtype in norms]
        return [norm for agent in optimizers for norm in found.get(agent, ())]


class Partition:
    """The processes in which a learner's agents learn; those of part 0 learn in this one."""

    def __init__(self, learner: Any) -> None:
        """learner: a `ProtocolLearner` with its networks and optimizers."""
        self.learner = learner
        self.limit_s: float | None = None  # how long a process may be silent
        self.parts: dict[int, tuple[str, ...]] = {}
        self._asked: dict[int, Channel] = {}
        self._peers: dict[int, Channel] = {}
        self._left: dict[int, Any] = {}  # what each process has
        self._processes: list[Any] = []
        self._end: Callable[[], Any] = lambda: None

    def learn(self, rollout: Rollout, iteration: int, lr: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """`ProtocolLearner.learn` of everybody in `learner.updated`.

        Raises LearnerLost when a process is gone or gives no answer in `limit_s`, TrainingError when something was raised in one.
        """
        learner, updated, threads = self.learner, self.learner.updated, torch.get_num_threads()
        agents = tuple(learner.optimizers)
        count = min(len(agents), threads)
        if count < 2:
            return learner.learn(rollout, iteration)
        parts = {number: agents[number::count] for number in range(count)}
        if parts != self.parts or not self._up_to_date():
            self.close()
            self._fork(parts)
        learning = {number: tuple(agent for agent in part if agent in updated) for number, part in parts.items()}
        busy = [number for number, part in learning.items() if part]
        waits = tuple(busy) if learner.settings.clip_gradients == "joint" else ()
        torch.set_num_threads(1)
        try:
            played, extra = _numbers(rollout), learner.extra_state()
            for number in filter(None, busy):
                ask = Ask(played, iteration, lr, learning[number], waits, extra)
                self._asked[number].send(pickle.dumps(ask), self.limit_s)
            once, steps = self._own(rollout, iteration, learning[0], waits) if learning[0] else ({}, {})
            answers = {number: unwrap(pickle.loads(self._asked[number].receive(self.limit_s))) for number in filter(None, busy)}
            for number, answer in answers.items():
                found = _tensors(answer)
                self._take(number, learning[number], found["state"])
                once |= found["once"]
                steps |= found["steps"]
            return once, steps
        except PeerGone as error:
            told = self._last_words()
            self.close()
            if told is not None:
                unwrap(told)
            raise LearnerLost("the process in which an agent learns (learners.partition) is gone, or gives no answer") from error
        except BaseException:
            self.close()
            raise
        finally:
            torch.set_num_threads(threads)

    def norms(self, here: int, peers: Mapping[int, Channel], waits: tuple[int, ...]) -> Norms | None:
        """What a step of the process with the number `here` waits for; None where it waits for nobody."""
        others = {number: peer for number, peer in peers.items() if number in waits}
        return Norms(self.parts, here, others, None if here else self.limit_s) if others else None

    def close(self) -> None:
        """End the processes."""
        self._end()
        self._end = lambda: None
        self.parts, self._asked, self._peers, self._left, self._processes = {}, {}, {}, {}, []

    def _own(self, rollout: Rollout, iteration: int, agents: tuple[str, ...], waits: tuple[int, ...]) -> Any:
        learner, updated = self.learner, self.learner.updated
        learner.updated, learner.norms = frozenset(agents), self.norms(0, self._peers, waits)
        try:
            return learner.learn(rollout, iteration)
        finally:
            learner.updated, learner.norms = updated, None

    def _fork(self, parts: dict[int, tuple[str, ...]]) -> None:
        context, self.parts = multiprocessing.get_context("fork"), parts
        pairs = {(i, j): _pair() for i in parts for j in parts if i < j}
        ends = {(i, j): pair[0] for (i, j), pair in pairs.items()} | {(j, i): pair[1] for (i, j), pair in pairs.items()}
        asked = {number: _pair() for number in parts if number}
        for number, (_, theirs) in asked.items():
            peers = {other: ends[number, other] for other in parts if other != number}
            process = context.Process(target=_serve, args=(self, number, theirs, peers), daemon=True)
            process.start()
            self._processes.append(process)
            self._left[number] = _weights(self.learner, parts[number])
        self._asked = {number: ours for number, (ours, _) in asked.items()}
        self._peers = {number: ends[0, number] for number in asked}
        for channel in [*(theirs for _, theirs in asked.values()), *(end for (i, _), end in ends.items() if i)]:
            channel.end.close()
        self._end = weakref.finalize(self.learner, _stop, self._processes, [*self._asked.values(), *self._peers.values()])

    def _up_to_date(self) -> bool:
        """Whether all processes live and have what this one has."""
        alive = bool(self._processes) and all(process.is_alive() for process in self._processes)
        return alive and all(_equal(left, _weights(self.learner, self.parts[number])) for number, left in self._left.items())

    def _take(self, number: int, agents: tuple[str, ...], state: dict[str, Any]) -> None:
        """What the networks and optimizers of a process have become."""
        theirs, mine = state["extra"], self.learner.extra_state()
        extra = {name: {**mine[name], **{agent: theirs[name][agent] for agent in agents}} for name in mine}
        self.learner.load_training_state({**state, "extra": extra})
        self._left[number] = _weights(self.learner, self.parts[number])

    def _last_words(self) -> Failure | None:
        """The error that another process met before it ended, if it says one."""
        for channel in self._asked.values():
            with suppress(PeerGone):
                if isinstance(said := pickle.loads(channel.receive(_LAST_WORDS_S)), Failure):
                    return said
        return None


def partition_of(learner: Any) -> Partition | None:
    """What `learners.partition: agents` asks for. Raises UserError where processes cannot be forked."""
    if learner.experiment["learners"]["partition"] != "agents" or len(learner.optimizers) < 2:
        return None
    why = ""
    if sys.platform != "linux":
        why = f"processes cannot be forked safely on {sys.platform}"
    elif learner.device.type != "cpu" or torch.cuda.is_available():
        why = "a process that sees a GPU cannot be forked"
    if why:
        raise UserError(f"learners.partition: got agents, but {why}; set it to copies")
    return Partition(learner)


# ---------------------------------------------------------------------------------------------------------- in the other process


def _serve(partition: Partition, number: int, asked: Channel, peers: Mapping[int, Channel]) -> None:
    """Do updates until nobody asks any more."""
    for number in (signal.SIGINT, signal.SIGHUP):  # which a terminal sends to all: the first process decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kept = {0, 1, 2, *(channel.end.fileno() for channel in (asked, *peers.values()))}
    for number_of_file in set(map(int, os.listdir("/proc/self/fd"))) - kept:
        with suppress(OSError):  # that of the listing is closed already
            os.close(number_of_file)  # locks, sockets, others' ends: all are the first process's
    gc.freeze()  # what is collected here need not look through all that was there before
    torch.set_num_threads(1)
    with suppress(PeerGone):
        while True:
            ask: Ask = pickle.loads(asked.receive(None))
            norms = partition.norms(number, peers, ask.peers)
            answer = ReturnErrors(lambda learner, ask=ask, norms=norms: _answered(learner, ask, norms))(partition.learner)
            if answer is not None:
                asked.send(pickle.dumps(answer), None)
            if answer is None or isinstance(answer, Failure):
                return


def _answered(learner: Any, ask: Ask, norms: Norms | None) -> dict[str, Any] | None:
    """What was found; None where another process has ended."""
    learner.load_extra_state(ask.extra)
    learner.set_learning_rates(ask.lr)
    learner.updated, learner.norms, learner.update_iteration = frozenset(ask.learn), norms, ask.iteration
    try:
        once, steps = learner.learn(_tensors(ask.rollout), ask.iteration)
    except PeerGone:
        return None
    return _numbers({"once": once, "steps": steps, "state": learner.training_state(ask.learn)})


# -------------------------------------------------------------------------------------------------------------- what is handed over


def _weights(learner: Any, agents: Sequence[str]) -> Any:
    """A copy of what updates change, but for learning rates, which are set anew before each."""
    state = learner.training_state(agents)
    return [state["modules"], [optimizer.get("state") for optimizer in state["optimizers"].values()]]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _numbers(tree: Any) -> Any:
    """Tensors as NumPy's arrays, which pickle sooner."""
    return mapped(tree, Tensor, lambda x: x.detach().numpy())


def _tensors(tree: Any) -> Any:
    """The inverse of `_numbers`."""
    return mapped(tree, np.ndarray, lambda x: torch.from_numpy(x.copy()))


def mapped(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """A nested state with every `kind` in it replaced by what `function` makes of it."""
    if isinstance(tree, kind):
        return function(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return type(tree)(**{name: mapped(value, kind, function) for name, value in vars(tree).items()})
    if isinstance(tree, Mapping):
        return {key: mapped(value, kind, function) for key, value in tree.items()}
    return [mapped(value, kind, function) for value in tree] if isinstance(tree, list | tuple) else tree


def _pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def _stop(processes: Sequence[Any], channels: Sequence[Channel]) -> None:
    for channel in channels:
        channel.end.close()
    for process in processes:
        process.kill()  # it has nothing to save
        process.join()
