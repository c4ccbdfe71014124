"""Deep Q-learning for several roles, each from its own replay buffer, in lock-step.

The rule is in `nip_ray.learning.dqn`; here stands what is done with which rows.

Decisions that matter here:
- a role's values are the logits of its one message, its advantages if `dueling`, where its value output is added. So nothing else has to
  know that a network was trained by this rule;
- a gradient step sees batch statistics (batch norms in training mode) and moves the running ones, by which targets and play normalise.
  The choice of the best next move by the trained network (`double`) is a move, so it is made as in play;
- all of several learners hold the same buffers and draw the same rows; each works on its slice, and gradients, errors and running
  statistics are shared. So they stay equal, and give the numbers of one learner, except where batch norms see slices;
- between two roll-outs roles have nothing to do with each other, so on a processor each has a thread of its own, with its part of the
  cores: small layers gain little from more. Not where a network draws random numbers, for which there is one stream;
- what a step draws is seeded by (seed, role, step): nothing random has a state. Buffers and target networks are what checkpoints keep.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from torch import Tensor, nn

from nip_ray.learning.annealing import rate_at
from nip_ray.learning.dqn import build_optimizer, dueling, legal_moves, taken, target_is_due, td_loss, td_target, update_target
from nip_ray.learning.groups import FlatOptimizer, clip_gradients
from nip_ray.learning.replay import Field, Priorities, Replay
from nip_ray.play.exploration import Rows
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.learners.base import ProtocolLearner, cpu_copy
from nip_ray.seeding import generator
from nip_ray.settings.dqn import DQNSettings, role_settings

_METRICS = ("loss", "q", "target", "td_error")


class DQNLearner(ProtocolLearner):
    """Values of every trained role, their targets and replay buffers. `update` takes transitions in and does gradient steps."""

    remedy = "Lower algorithm.roles.<role>.lr, set a lower algorithm.max_grad_norm, and check the rewards"

    def build(self) -> None:
        """Also target networks; buffers are made when the first transitions come, which say what an observation is made of."""
        super().build()
        self.roles = {role: role_settings(self.settings, role) for role in self.optimizers}
        self.modules = {role: list(self.networks[role].modules()) for role in self.optimizers}
        self.targets = {role: copy.deepcopy(self.networks[role]).eval().requires_grad_(False) for role in self.optimizers}
        self.replay: dict[str, Replay] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._draw: dict[str, bool] = {}  # role -> whether its network draws random numbers
        self.seconds: dict[str, tuple[float, int]] = {}  # spent in gradient steps of a role in this iteration, and how many

    @override(TorchLearner)
    def configure_optimizers(self) -> None:
        """A flat optimizer for each trained role."""
        settings: DQNSettings = self.settings
        self.optimizers: dict[str, FlatOptimizer] = {}
        for role in self.config.trained():
            own = role_settings(settings, role)
            lr = rate_at(own.lr, 0)
            groups = self.module[role].unwrapped().network.groups()
            optimizer = FlatOptimizer(groups, lr, build=lambda chosen, own=own, lr=lr: build_optimizer(chosen, own, lr))
            if optimizer.inner is not None:
                self.register_optimizer(module_id=role, optimizer=optimizer.inner, params=optimizer.flats)
                self.optimizers[role] = optimizer

    @override(Learner)
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Take in transitions, then do gradient steps.

        rows: role -> transitions (none: of nobody). steps: (first, after the last) gradient steps. roles: who takes them, in this order.
        iteration, env_steps: for figures, which are returned where `last` is true (default), and None otherwise: those of all
        calls since then. Raises TrainingError where something of them is not finite, ValueError for a role without transitions.
        """
        for role, rows in (kwargs.get("rows") or {}).items():
            self._take(role, rows)
        first, after = kwargs.get("steps", (0, 0))
        roles: Sequence[str] = kwargs.get("roles", tuple(self.optimizers))
        if first == 0 and after:
            for role, target in self.targets.items():  # weights may have been put in since, also for those who rest in these steps
                update_target(target, self.networks[role], 1.0)
        with self._seeded_noise(first):
            with _low_products(self.settings.precision == "bfloat16" and self._device.type == "cpu"):
                self._steps(roles, range(first, after))
        if not kwargs.get("last", True):
            return None
        for role in roles:
            self.once[role] = self._figures(role, max(0, after - 1))
        try:
            return self._results(kwargs.get("env_steps", 0), kwargs.get("iteration", 0))
        finally:
            self.sums, self.norms, self.once, self.seconds = {}, {}, {}, {}

    def metric_names(self) -> tuple[str, ...]:
        """Means over gradient steps."""
        return _METRICS

    def prepare(self, rollout: Rollout) -> dict[str, Any]:
        """Not asked for: transitions come ready."""
        raise NotImplementedError("DQNLearner learns from transitions: call update(rows=..., steps=...)")

    # -------------------------------------------------------------------------------------------------- gradient steps

    def _steps(self, roles: Sequence[str], steps: range) -> None:
        """Gradient steps of all roles, in their order, or each in a thread of its own."""
        if not steps or not roles:
            return
        threads = torch.get_num_threads()
        if not self._side_by_side(roles, threads):
            for step in steps:
                for role in roles:
                    self._timed_steps(role, [step], None)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.roles))
        try:
            others = [self._pool.submit(self._timed_steps, role, steps, threads // len(roles)) for role in roles[1:]]
            self._timed_steps(roles[0], steps, threads // len(roles))
            for other in others:
                other.result()
        finally:
            torch.set_num_threads(threads)

    def _side_by_side(self, roles: Sequence[str], threads: int) -> bool:
        if len(roles) == 1 or threads < len(roles) or self.distributed or self._device.type != "cpu":
            return False
        return not any(self._draws(role) for role in roles)

    @torch.no_grad()
    def _draws(self, role: str) -> bool:
        """Whether the network of `role` draws random numbers while it learns."""
        if role not in self._draw:
            rows = self.replay[role].ring.read(torch.arange(2) % self.replay[role].size)
            before = torch.get_rng_state()
            copy.deepcopy(self.networks[role]).train()(_part(rows, "obs_"), True, self.settings.dueling)
            self._draw[role] = not torch.equal(before, torch.get_rng_state())
        return self._draw[role]

    def _timed_steps(self, role: str, steps: Sequence[int], threads: int | None) -> None:
        """threads: how many torch may use for them (None: as it is)."""
        if threads is not None:
            torch.set_num_threads(threads)
        began = time.perf_counter()
        for step in steps:
            self._gradient_step(role, step)
        spent, count = self.seconds.get(role, (0.0, 0))
        self.seconds[role] = spent + time.perf_counter() - began, count + len(steps)

    def _gradient_step(self, role: str, step: int) -> None:
        settings, own, network, optimizer = self.settings, self.roles[role], self.networks[role], self.optimizers[role]
        if target_is_due(own, step):
            update_target(self.targets[role], network, own.target_tau)
        optimizer.set_learning_rate(rate_at(own.lr, step))
        beta = rate_at(settings.importance, step) if settings.prioritised else 1.0
        sample = self.replay[role].sample(own.batch_size, generator(self.experiment["seed"], "replay", role, step), beta)
        world, rank = self._world()
        mine = slice(rank, None, world)
        rows = {name: part[mine].to(self._device) for name, part in sample.rows.items()}
        weight_N = None if sample.weight_N is None else sample.weight_N[mine].to(self._device)
        target_N = self._targets(role, rows)
        self._set_mode(role, training=True)
        q_N = taken(self._values(network, _part(rows, "obs_"))[0], rows["action"])
        self._set_mode(role, training=False)
        loss, error_N = td_loss(q_N, target_N, settings, weight_N)
        loss_here = loss if world == 1 else loss * (len(q_N) / own.batch_size)
        optimizer.set_gradients(torch.autograd.grad(loss_here, optimizer.parameters, allow_unused=True))
        if self.distributed:
            self.stepping = {role: optimizer}
            self._all_reduce()
        self.norms.setdefault(role, []).append(clip_gradients([optimizer], settings.max_grad_norm))
        optimizer.step()
        self._share(role)
        if settings.prioritised:
            self.replay[role].update_priorities(sample.slot_N, self._all_errors(error_N, mine, own.batch_size))
        figures = (loss.detach(), q_N.detach().mean(), target_N.mean(), error_N.abs().mean())
        self.sums.setdefault(role, []).append(torch.stack(figures))

    @torch.no_grad()
    def _targets(self, role: str, rows: Rows) -> Tensor:
        """(N,): what the taken moves were worth."""
        next_obs = _part(rows, "next_obs_")
        target_q_NK, legal_NK = self._values(self.targets[role], next_obs)
        online_q_NK = self._values(self.networks[role], next_obs)[0] if self.settings.double else None
        return td_target(rows["reward"], rows["discount"], target_q_NK, legal_NK, online_q_NK)

    def _values(self, network: nn.Module, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(q_NK, legal_NK) of observations, float32 whatever the network computes with."""
        low = self.settings.precision == "bfloat16" and self._device.type != "cpu"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=low):
            policy, value_N = network(obs, True, self.settings.dueling)
        q_NK = policy.message[:, 0].float()
        legal_NK = legal_moves(obs, q_NK)
        return (dueling(value_N.float(), q_NK, legal_NK) if self.settings.dueling else q_NK), legal_NK

    def _set_mode(self, role: str, training: bool) -> None:
        """What `network.train(training)` does, without walking through the network anew in every step."""
        for module in self.modules[role]:
            module.training = training

    def _figures(self, role: str, step: int) -> dict[str, Tensor]:
        """What there is one of per iteration, as of gradient step `step`."""
        own = self.roles[role]
        spent, count = self.seconds.get(role, (0.0, 0))
        found = {"lr": rate_at(own.lr, step), "epsilon": rate_at(own.exploration, step), "buffer_size": self.buffer_sizes().get(role, 0)}
        return {name: torch.tensor(float(value)) for name, value in {**found, "steps_per_s": count / spent if spent else 0.0}.items()}

    # ----------------------------------------------------------------------------------------------- several learners

    def _share(self, role: str) -> None:
        """Running statistics: the means over learners, who have seen different rows."""
        if not self.distributed:
            return
        buffers = [buffer for buffer in self.networks[role].buffers() if buffer.is_floating_point()]
        if buffers:
            joint = torch.cat([buffer.flatten() for buffer in buffers])
            torch.distributed.all_reduce(joint)
            for buffer, piece in zip(buffers, (joint / self._world()[0]).split([b.numel() for b in buffers]), strict=True):
                buffer.copy_(piece.view_as(buffer))

    def _all_errors(self, error_N: Tensor, mine: slice, count: int) -> Tensor:
        """(count,): the errors of all rows that were drawn, on the buffers' device."""
        if not self.distributed:
            return error_N.to(self._buffer_device())
        every_N = torch.zeros(count, device=self._device)
        every_N[mine] = error_N
        torch.distributed.all_reduce(every_N)
        return every_N.to(self._buffer_device())

    # --------------------------------------------------------------------------------------------------------- buffers

    def buffer_sizes(self) -> dict[str, int]:
        """Role -> transitions that its buffer holds."""
        return {role: replay.size for role, replay in self.replay.items()}

    def _take(self, role: str, rows: Rows) -> None:
        if role not in self.replay:
            self._make_buffer(role, rows)
        self.replay[role].add(rows)

    def _make_buffer(self, role: str, rows: Mapping[str, Tensor]) -> None:
        settings: DQNSettings = self.settings
        schema = {name: Field(tuple(part.shape[1:]), part.dtype) for name, part in rows.items()}
        priorities = Priorities(settings.priority_exponent, settings.priority_floor) if settings.prioritised else None
        self.replay[role] = Replay(schema, settings.buffer_size, self._buffer_device(), priorities)

    def _buffer_device(self) -> torch.device:
        return self._device if self.settings.buffer_device == "learner" else torch.device("cpu")

    def load_weights(self, role: str, weights: Mapping[str, Tensor]) -> None:
        """Other weights for the network of `role`, and nothing else. Raises RuntimeError where they do not fit."""
        self.networks[role].load_state_dict(weights)

    def extra_state(self) -> dict[str, Any]:
        """Target networks, and replay buffers where they are to be kept."""
        targets = {role: cpu_copy(target.state_dict()) for role, target in self.targets.items()}
        if not self.settings.save_buffer:
            return {"targets": targets}
        return {"targets": targets, "replay": {role: replay.state_dict() for role, replay in self.replay.items()}}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`; without saved buffers they are empty. Raises UserError for buffers of another size or kind."""
        for role, target in state["targets"].items():
            self.targets[role].load_state_dict(target)
        self.replay = {}
        for role, saved in state.get("replay", {}).items():
            self._make_buffer(role, saved["ring"]["rows"])
            self.replay[role].load_state_dict(saved)


@contextmanager
def _low_products(wanted: bool) -> Iterator[None]:
    """Within it matrix products of float32 tensors round their factors to bfloat16, on processors that have instructions for these.

    Faster than autocast, which converts activations and gradients from layer to layer: everything but the products is as it was.
    """
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    if wanted:
        settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _part(rows: Rows, prefix: str) -> dict[str, Tensor]:
    """The fields that begin with `prefix`, called by what follows it."""
    return {name.removeprefix(prefix): part for name, part in rows.items() if name.startswith(prefix)}
