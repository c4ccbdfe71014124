"""`ProtocolLearner`: one learner base for all our algorithms.

Decisions that matter here:
- a learner gets whole rollouts as ids and tokens and rebuilds the observations of own turns itself;
- minibatches are joint: one permutation of copies for all modules, so that agents stay in lock-step;
- every one of several learners sees all copies, draws the same permutation and works on its slice of each minibatch; gradients
  of the slices are summed by one all-reduce. So several learners give the numbers of one, up to the order of float sums;
- plain all-reduce instead of DDP, whose hooks do not see gradients of gradients;
- per minibatch: one backward, one norm per clip group, one optimizer kernel per module, no device synchronisation;
  whether everything stayed finite is asked once per update.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_TRAINED, NUM_ENV_STEPS_TRAINED_LIFETIME
from torch import Tensor, nn

from nip_ray.errors import TrainingError
from nip_ray.learning.groups import FlatOptimizer, clip_gradients
from nip_ray.learning.modes import learning_mode, refresh_norms
from nip_ray.play.rollout import Rollout, concatenate
from nip_ray.play.scenario import Scenario
from nip_ray.rllib.learners.simulation import Compared, compared_turns, similarity_losses
from nip_ray.rllib.shared import scenario_of
from nip_ray.seeding import generator, stable_seed


@dataclass(frozen=True)
class JointMinibatch:
    """The copies of one joint minibatch: all of them, and those that this learner works on."""

    all_copies: Tensor
    own_copies: Tensor


class ProtocolLearner(TorchLearner):
    """Learns from rollouts. Subclasses say what an agent's data are (`prepare`) and what is minimised (`losses`)."""

    def build(self) -> None:
        """Modules, optimizers, and the statistics of the current update."""
        super().build()
        torch.utils.deterministic.fill_uninitialized_memory = False  # what RLlib's deterministic mode does to each new tensor: for nothing
        self.experiment: dict[str, Any] = self.config.env_config["experiment"]
        self.scenario: Scenario = scenario_of(self.experiment, self._device)
        self.networks: dict[str, nn.Module] = {agent: module.unwrapped().network for agent, module in self.module.items()}
        self.sums: dict[str, list[Tensor]] = {}  # what `losses` logged, a tensor per minibatch
        self.norms: dict[str, list[Tensor]] = {}  # gradient norms before clipping
        self.once: dict[str, dict[str, Tensor]] = {}  # figures that there is one of per update
        self.updated: frozenset[str] = frozenset()  # who learns in this update
        self.update_iteration = 0  # what seeds this update
        self.compared: Compared | None = None  # under zero knowledge: the turns whose similarity is paid for

    # ------------------------------------------------------------------------------------------------ for subclasses

    remedy = "Lower algorithm.lr, set a lower algorithm.max_grad_norm, and check the rewards"  # of figures that are not finite

    @cached_property
    def settings(self) -> Any:
        """The algorithm's settings (lr, num_epochs, minibatch_size, max_grad_norm, clip_gradients ...), put together once."""
        return self.config.settings()

    @abstractmethod
    def prepare(self, rollout: Rollout) -> dict[str, Any]:
        """What the losses need of each agent, with its `AgentRows` as `rows`, computed once per update with the current networks."""

    def agent_loss(self, agent: str, data: Any, own: Tensor, all_rows: Tensor) -> Tensor:
        """The mean loss of an agent over the rows `own`, this learner's of the rows `all_rows` of a minibatch.

        A rule whose agents do not learn apart from each other replaces `minibatch_gradients` instead.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither a loss for each agent nor its own minibatch_gradients")

    def losses(self, prepared: Mapping[str, Any], minibatch: JointMinibatch) -> dict[str, Tensor]:
        """Scalar loss per module: the share of this learner's copies in the mean over the whole minibatch."""
        found = {}
        for agent, data in prepared.items():
            all_rows = data.rows.of_copies(minibatch.all_copies)
            own = all_rows if len(minibatch.own_copies) == len(minibatch.all_copies) else data.rows.of_copies(minibatch.own_copies)
            if len(own):
                found[agent] = self.agent_loss(agent, data, own, all_rows) * (len(own) / len(all_rows))
            elif len(all_rows):  # another learner has rows: take part in the step
                found[agent] = torch.zeros((), device=self._device)
        for agent, loss in self.similarity_losses(minibatch).items():
            found[agent] = found[agent] + loss if agent in found else loss
        return found

    def similarity_losses(self, minibatch: JointMinibatch) -> dict[str, Tensor]:
        """Under zero knowledge, what the two agents that are compared follow besides; see `nip_ray.rllib.learners.simulation`."""
        if self.compared is None:
            return {}
        return similarity_losses(self.compared, self.networks, minibatch.own_copies, minibatch.all_copies, self.updated)

    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """Names of what `losses` appends to `self.sums[module]` (one tensor of that length per minibatch)."""

    def minibatch_gradients(self, prepared: Mapping[str, Any], minibatch: JointMinibatch) -> None:
        """Put the gradients of a minibatch, those of all learners together, into the optimizers of `self.stepping`."""
        self.compute_gradients(self.losses(prepared, minibatch))

    def after_minibatch(self, prepared: Any) -> None:
        """Called after each optimizer step."""

    def after_update(self, prepared: Any) -> None:
        """Called after the last minibatch."""

    def rounds_per_copy(self, rollout: Rollout) -> int:
        """Frames that a copy counts as, in ``minibatch_size``."""
        return rollout.num_rounds

    # --------------------------------------------------------------------------------------------------- the update

    @override(Learner)
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Learn from ``episodes`` (or ``training_data.episodes``): a list of `RolloutSamples`.

        iteration: seeds the permutations. lr: base learning rate from now on. updated: the agents that learn now (None: all); the
        others' weights, gradients and optimizers are not touched. Raises TrainingError when a gradient is not finite;
        the caller's last checkpoint then still holds the last good weights.
        """
        training_data = kwargs.get("training_data")
        samples = kwargs.get("episodes") or (training_data.episodes if training_data is not None else None)
        if not samples:
            raise ValueError("ProtocolLearner.update needs episodes=[RolloutSamples, ...]")
        rollout = concatenate([sample.rollout for sample in sorted(samples, key=lambda s: s.worker)]).to(self._device)
        iteration = self.update_iteration = kwargs.get("iteration", self._weights_seq_no)
        self._weights_seq_no += 1
        lr, updated = kwargs.get("lr"), kwargs.get("updated")
        self.set_learning_rates(self.settings.lr if lr is None else lr)
        self.updated = frozenset(self.optimizers if updated is None else updated) & set(self.optimizers)
        self.sums, self.norms, self.once = {}, {}, {}
        if not self.updated:
            return self._results(rollout.env_steps(), iteration)
        for network in self.networks.values():
            learning_mode(network)
        prepared = self.prepare(rollout)
        self.compared = compared_turns(self.scenario, rollout)
        with self._seeded_noise(iteration):
            for minibatch in self.minibatches(rollout, iteration):
                self.minibatch_gradients(prepared, minibatch)
                self._step()
                self.after_minibatch(prepared)
        for agent in self.updated & prepared.keys():  # the same on every learner
            refresh_norms(self.networks[agent], prepared[agent].rows.obs)
        self.after_update(prepared)
        return self._results(rollout.env_steps(), iteration)

    def minibatches(self, rollout: Rollout, iteration: int) -> Iterator[JointMinibatch]:
        """num_epochs passes over the copies, in minibatches of minibatch_copies or minibatch_size / rounds; a remainder joins the last."""
        num_copies = rollout.num_copies
        wanted = getattr(self.settings, "minibatch_copies", None) or self.settings.minibatch_size // self.rounds_per_copy(rollout)
        size = max(1, min(num_copies, wanted))
        count = num_copies // size
        permute = generator(self.experiment["seed"], "minibatches", iteration)
        world, rank = self._world()
        for _ in range(self.settings.num_epochs):
            order = torch.randperm(num_copies, generator=permute).to(self._device)
            for i in range(count):
                copies = order[i * size : num_copies if i == count - 1 else (i + 1) * size]
                yield JointMinibatch(copies, copies[rank::world])

    @override(TorchLearner)
    def compute_gradients(self, loss_per_module: Mapping[str, Tensor], **kwargs: Any) -> dict[str, Any]:
        """Gradients of the sum of all losses, laid flat and summed over learners; they are with the optimizers.

        An agent without a loss takes no step: neither stale gradients nor old momentum move it.
        """
        total = [loss for loss in loss_per_module.values() if loss.requires_grad]
        agents = [agent for agent in self.optimizers if agent in loss_per_module]
        parameters = [p for agent in agents for p in self.optimizers[agent].parameters]
        found = iter(torch.autograd.grad(total, parameters, allow_unused=True) if total else ())
        self.stepping = {agent: self.optimizers[agent] for agent in agents}
        for optimizer in self.stepping.values():
            optimizer.set_gradients([next(found, None) for _ in optimizer.parameters])
        self._all_reduce()
        return {}

    @override(TorchLearner)
    def configure_optimizers(self) -> None:
        """One flat optimizer per module over its explicit parameter groups; a module with nothing to train has none."""
        self.optimizers: dict[str, FlatOptimizer] = {}
        for agent, module in self.module.items():
            optimizer = FlatOptimizer(
                module.unwrapped().network.groups(), self.settings.lr, getattr(self.settings, "optimizer", "adam") == "sgd"
            )
            if optimizer.inner is not None:
                self.register_optimizer(module_id=agent, optimizer=optimizer.inner, params=optimizer.flats)
                self.optimizers[agent] = optimizer

    @override(TorchLearner)
    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Tensor:
        """Stock RLlib's entry for one module's loss; ours are joint."""
        raise NotImplementedError(f"{type(self).__name__} learns from rollouts: call update(episodes=[...])")

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """No DDP: every learner starts from the same seeds, and gradients are all-reduced by `compute_gradients`."""

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `state` holds. Unlike stock learners, older weights are taken too: a restore means what it says."""
        self._weights_seq_no = -1
        super().set_state(state)

    # ------------------------------------------------------------------------------------------------- for checkpoints

    def training_state(self) -> dict[str, Any]:
        """All that learning needs to go on: weights and optimizers on the CPU, and what subclasses add."""
        return {
            "modules": {agent: cpu_copy(network.state_dict()) for agent, network in self.networks.items()},
            "optimizers": {agent: cpu_copy(optimizer.state_dict()) for agent, optimizer in self.optimizers.items()},
            "extra": self.extra_state(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`."""
        for agent, weights in state["modules"].items():
            self.networks[agent].load_state_dict(weights)
        for agent, optimizer in state["optimizers"].items():
            self.optimizers[agent].load_state_dict(optimizer)
        self.load_extra_state(state["extra"])

    def extra_state(self) -> dict[str, Any]:
        """What an algorithm keeps between updates beside weights and optimizers."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`."""

    # ------------------------------------------------------------------------------------------------------- the parts

    @contextmanager
    def _seeded_noise(self, iteration: int) -> Iterator[None]:
        """Noise and dropout draw from torch's global generators: seeded by iteration and learner here, and left as they were."""
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(stable_seed(self.experiment["seed"], "learning noise", iteration, self._world()[1]))
            yield

    def set_learning_rates(self, lr: float) -> None:
        """Set the base learning rate of every agent."""
        for agent, optimizer in self.optimizers.items():
            optimizer.set_learning_rate(self.own_lr(agent, lr))

    def own_lr(self, agent: str, lr: float) -> float:
        """What an agent learns at where the base is `lr`: this, or its own of the config, annealed alike."""
        own = self.config.algorithm_config_overrides_per_module.get(agent, {}).get("lr")
        return lr if own is None else own * (lr / self.settings.lr)

    def _step(self) -> None:
        limit = self.settings.max_grad_norm
        if self.settings.clip_gradients == "joint":
            norms = dict.fromkeys(self.stepping, clip_gradients(self.stepping.values(), limit))
        else:
            norms = {agent: clip_gradients([optimizer], limit) for agent, optimizer in self.stepping.items()}
        for agent, optimizer in self.stepping.items():
            optimizer.step()
            self.norms.setdefault(agent, []).append(norms[agent])

    def _world(self) -> tuple[int, int]:
        if not self.distributed:
            return 1, 0
        return torch.distributed.get_world_size(), torch.distributed.get_rank()

    def _all_reduce(self) -> None:
        if not self.distributed:
            return
        flats = [flat for optimizer in self.stepping.values() for flat in optimizer.flats]
        if not flats:
            return
        joint = torch.cat([flat.grad for flat in flats])
        torch.distributed.all_reduce(joint)
        for flat, piece in zip(flats, joint.split([flat.numel() for flat in flats]), strict=True):
            flat.grad = piece

    def _results(self, env_steps: int, iteration: int) -> Any:
        """Log means over the minibatches, refuse what is not finite, and return the reduced metrics."""
        names = self.metric_names()
        found: dict[str, dict[str, float]] = {}
        for agent in self.networks:
            values = found[agent] = {}
            if agent in self.sums:
                values |= dict(zip(names, torch.stack(self.sums[agent]).double().mean(0).tolist(), strict=True))
            if agent in self.norms:
                values["grad_norm"] = float(torch.stack(self.norms[agent]).double().mean())
            values |= {name: float(value) for name, value in self.once.get(agent, {}).items()}
        if not all(math.isfinite(value) for values in found.values() for value in values.values()):
            agent = min(found, key=self._first_not_finite)
            bad = [name for name, value in found[agent].items() if not math.isfinite(value)]
            raise TrainingError(
                f"iteration {iteration + 1}: {', '.join(bad)} of agent {agent!r} is not finite; the last checkpoint is untouched. "
                f"{self.remedy}"
            )
        for agent, values in found.items():
            for name, value in values.items():
                self.metrics.log_value((agent, name), value, window=1)
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED), env_steps, reduce="sum")
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), env_steps, reduce="lifetime_sum")
        return self.metrics.reduce()

    def _first_not_finite(self, agent: str) -> float:
        """When in the update something of `agent` was first not finite: one agent's trouble reaches others through joint clipping."""
        if not all(bool(torch.isfinite(value)) for value in self.once.get(agent, {}).values()):
            return -1.0
        for position, values in enumerate(self.sums.get(agent, [])):
            if not bool(torch.isfinite(values).all()):
                return position
        bad_norm = not all(bool(torch.isfinite(norm)) for norm in self.norms.get(agent, []))
        return len(self.sums.get(agent, [])) if bad_norm else math.inf


def cpu_copy(state: Any) -> Any:
    """A detached copy of a nested state on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, Mapping):
        return {key: cpu_copy(value) for key, value in state.items()}
    return [cpu_copy(value) for value in state] if isinstance(state, list | tuple) else state
