"""`ProtocolLearner`: the common base of our learners.

Decisions that matter here:
- a learner gets whole rollouts as ids and tokens and rebuilds the observations of own turns itself;
- minibatches are joint: one permutation of copies for all modules, so that agents stay in lock-step;
- every one of several learners sees all copies, draws the same permutation and works on its slice of each minibatch;
  gradients of the slices are summed by one all-reduce. So several learners learn what one would, up to the order of
  float sums; metrics are means over learners;
- plain all-reduce instead of DDP, whose hooks do not see gradients of gradients; every learner starts from the same
  seeds;
- per minibatch: one backward, one norm per clip group, one optimizer kernel per module, no device synchronisation;
  finiteness is checked once per update;
- parts pass results by return values: `prepare` gives `Prepared`, `losses` a `Loss` for each agent, `minibatch_step` a
  `Step`.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import itertools
import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_TRAINED, NUM_ENV_STEPS_TRAINED_LIFETIME
from torch import Tensor, nn

from nip_ray.errors import TrainingError
from nip_ray.learning.groups import FlatOptimizer, clip_gradients, in_minibatches, learning_mode, refresh_norms
from nip_ray.learning.policy_gradient import mean_and_deviation, mean_over_steps, own_turn_advantages
from nip_ray.learning.verdicts import Verdicts, taught_turns
from nip_ray.play.rollout import AgentRows, Rollout, RolloutSamples, concatenate, final_rows, own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.rllib.compat import WithoutDDP, number_weights, weights_number
from nip_ray.rllib.shared import scenario_of
from nip_ray.rllib.similarity import Compared, compared_turns, similarity_losses
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.ppo import OnPolicySettings

Metrics = Mapping[str, Tensor]
"""Name -> scalar."""


@dataclass(frozen=True)
class Prepared:
    """The data of an update. agents: agent -> its data, with its `AgentRows` as `rows`; metrics: agent -> logged once
    per update; compared: under zero knowledge, the turns whose similarity is paid for (filled in by `update`)."""

    agents: Mapping[str, Any]
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    compared: Compared | None = None


@dataclass(frozen=True)
class JointMinibatch:
    """The copies of one joint minibatch: this learner's, and all of them. number: counted from 0 in an update;
    iteration: of the update, which seeds its draws."""

    number: int
    iteration: int
    all_copies: Tensor
    own_copies: Tensor


@dataclass(frozen=True)
class Loss:
    """An agent's loss on a minibatch. value: minimised, a scalar; metrics: logged as means over minibatches.

    sums: over this learner's rows, without a graph, for `after_minibatch` and `after_update`.
    """

    value: Tensor
    metrics: Metrics = field(default_factory=dict)
    sums: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """An agent's optimizer step: metrics and sums of its loss without their graph, and the gradient's norm before
    clipping (scalar)."""

    metrics: Metrics
    norm: Tensor
    sums: Tensor | None = None


class RuleSettings(Protocol):
    """The settings of every learner. `clip_gradients`, `minibatch_copies` and `optimizer` are used if present."""

    @property
    def lr(self) -> float:
        """Learning rate at the start of the run."""
        ...

    @property
    def num_epochs(self) -> int:
        """Passes over the data of an iteration."""
        ...

    @property
    def minibatch_size(self) -> int:
        """Frames in a minibatch."""
        ...

    @property
    def max_grad_norm(self) -> float | None:
        """Maximum norm of an agent's gradient; a longer one is scaled down to it. None: gradients are not clipped."""
        ...


S = TypeVar("S", bound=RuleSettings)


class ProtocolLearner(WithoutDDP, TorchLearner, Generic[S]):
    """Learns from rollouts. Subclasses define an agent's data (`prepare`) and loss (`losses`).

    S: the class of its settings. updated: the agents that learn in this update.
    """

    def build(self) -> None:
        """Modules, optimizers, and the agents of this update."""
        super().build()
        # RLlib's deterministic mode does it to each new tensor, needlessly
        torch.utils.deterministic.fill_uninitialized_memory = False
        experiment = self.config.env_config["experiment"]
        self.seed: int = experiment["seed"]
        self.scenario: Scenario = scenario_of(experiment, self.device)
        order = sorted(self.module.keys(), key=self.scenario.protocol.agents.index)  # RLlib's is that of a set
        self.networks: dict[str, nn.Module] = {agent: self.module[agent].unwrapped().network for agent in order}
        self.optimizers = {agent: self.optimizers[agent] for agent in order if agent in self.optimizers}
        self.updated: frozenset[str] = frozenset()
        # by agent, over iterations; with `average_weights`, after the first
        self.averages: dict[str, dict[str, Tensor]] = {}

    # of non-finite metrics
    remedy = "Lower algorithm.lr, set a lower algorithm.max_grad_norm, and check the rewards"

    @cached_property
    def settings(self) -> S:
        """The algorithm's settings, put together once."""
        return self.config.settings()

    @abstractmethod
    def prepare(self, rollout: Rollout) -> Prepared:
        """Loss data of each of `self.updated` with a turn, computed once per update with the current networks."""

    def agent_loss(self, agent: str, data: Any, own: Tensor, all_rows: Tensor) -> Loss:
        """Mean loss of an agent over the rows `own`, this learner's of `all_rows` of a minibatch (see `normalised`).

        A rule whose agents do not learn independently overrides `minibatch_step` instead.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither a loss for each agent nor its own minibatch_step")

    def losses(self, prepared: Prepared, minibatch: JointMinibatch) -> dict[str, Loss]:
        """The loss of each agent: the share of this learner's copies in the mean over the whole minibatch."""
        found = {}
        for agent, data in prepared.agents.items():
            own = all_rows = data.rows.of_copies(minibatch.all_copies)
            if len(minibatch.own_copies) < len(minibatch.all_copies):
                own = data.rows.of_copies(minibatch.own_copies)
            if len(own):
                loss = self.agent_loss(agent, data, own, all_rows)
                found[agent] = replace(loss, value=loss.value * (len(own) / len(all_rows)))
            elif len(all_rows):  # another learner has rows: take part in the step
                found[agent] = Loss(torch.zeros((), device=self.device))
        if prepared.compared is not None:
            for agent, value in self.similarity_losses(prepared.compared, minibatch).items():
                found[agent] = (
                    replace(found[agent], value=found[agent].value + value) if agent in found else Loss(value)
                )
        return found

    def similarity_losses(self, compared: Compared, minibatch: JointMinibatch) -> dict[str, Tensor]:
        """Additional losses of the two agents that are compared under zero knowledge."""
        total = compared.turns(minibatch.all_copies)
        return similarity_losses(compared, self.networks, minibatch.own_copies, total, self.updated)

    def minibatch_step(self, prepared: Prepared, minibatch: JointMinibatch) -> dict[str, Step]:
        """One step of every agent that has a loss, along the gradients of all learners together.

        An agent without a loss takes none: neither stale gradients nor old momentum move it.
        """
        found = self.losses(prepared, minibatch)
        losses = {agent: found[agent] for agent in self.optimizers if agent in found}
        total = [loss.value for loss in losses.values() if loss.value.requires_grad]
        parameters = [p for agent in losses for p in self.optimizers[agent].parameters]
        gradients = iter(torch.autograd.grad(total, parameters, allow_unused=True) if total else ())
        for agent in losses:
            self.optimizers[agent].set_gradients([next(gradients, None) for _ in self.optimizers[agent].parameters])
        self._all_reduce(losses)
        norms = self._step(losses)
        return {
            agent: Step({name: value.detach() for name, value in loss.metrics.items()}, norms[agent], loss.sums)
            for agent, loss in losses.items()
        }

    def after_minibatch(self, prepared: Prepared, steps: Mapping[str, Step]) -> None:
        """Called after each minibatch with its steps."""

    def after_update(self, prepared: Prepared, steps: Mapping[str, list[Step]]) -> None:
        """Called after the last minibatch with the steps of all of them."""

    def rounds_per_copy(self, rollout: Rollout) -> int:
        """The number of frames of a copy, for ``minibatch_size``."""
        return rollout.num_rounds

    @override(Learner)
    def update(
        self,
        *,
        episodes: Sequence[RolloutSamples] | None = None,
        training_data: Any = None,
        iteration: int | None = None,
        lr: float | None = None,
        updated: Collection[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Learn from `episodes` (or ``training_data.episodes``).

        iteration: seeds the permutations (None: counts the updates). lr: base learning rate from now on. updated: the
        agents that learn now (None: all); the others' weights, gradients and optimizers are unchanged. Raises
        TrainingError when a gradient is not finite; the caller's last checkpoint then still holds the last good
        weights.
        """
        samples = episodes or (training_data.episodes if training_data is not None else None)
        if not samples:
            raise ValueError("ProtocolLearner.update needs episodes=[RolloutSamples, ...]")
        rollout = concatenate([sample.rollout for sample in sorted(samples, key=lambda s: s.worker)]).to(self.device)
        iteration = weights_number(self) if iteration is None else iteration
        number_weights(self, weights_number(self) + 1)
        self.set_learning_rates(self.settings.lr if lr is None else lr)
        self.updated = frozenset(self.optimizers if updated is None else updated) & set(self.optimizers)
        if not self.updated:
            return self._results({}, {}, rollout.env_steps(), iteration)
        for network in self.networks.values():
            learning_mode(network)
        prepared = self.prepare(rollout)
        if (extra := self.scenario.protocol.zero_knowledge) is not None:
            prepared = replace(prepared, compared=compared_turns(self.scenario, rollout, extra))
        steps: dict[str, list[Step]] = {}
        with self._seeded_noise(iteration):
            for minibatch in self.minibatches(rollout, iteration):
                found = self.minibatch_step(prepared, minibatch)
                self.after_minibatch(prepared, found)
                for agent, step in found.items():
                    steps.setdefault(agent, []).append(step)
        for agent in self.updated & prepared.agents.keys():
            refresh_norms(self.networks[agent], prepared.agents[agent].rows.obs)
        self.after_update(prepared, steps)
        if (decay := getattr(self.settings, "average_weights", None)) is not None:
            average_into(self.averages, self.networks, decay)
        return self._results(prepared.metrics, steps, rollout.env_steps(), iteration)

    def minibatches(self, rollout: Rollout, iteration: int) -> Iterator[JointMinibatch]:
        """num_epochs passes over the copies, in minibatches of minibatch_copies or minibatch_size / rounds; a remainder
        joins the last."""
        (world, rank), number = self._world(), itertools.count()
        copies = getattr(
            self.settings, "minibatch_copies", None
        ) or self.settings.minibatch_size // self.rounds_per_copy(rollout)
        permute = generator(self.seed, "minibatches", iteration)
        for _ in range(self.settings.num_epochs):
            order = torch.randperm(rollout.num_copies, generator=permute).to(self.device)
            for all_copies in in_minibatches(order, max(1, copies)):
                yield JointMinibatch(next(number), iteration, all_copies, all_copies[rank::world])

    @override(TorchLearner)
    def configure_optimizers(self) -> None:
        """One flat optimizer per module over its explicit parameter groups; a module with nothing to train has none."""
        self.optimizers: dict[str, FlatOptimizer] = {}
        for agent, module in self.module.items():
            optimizer = FlatOptimizer(
                module.unwrapped().network.groups(),
                self.settings.lr,
                getattr(self.settings, "optimizer", "adam") == "sgd",
            )
            if optimizer.inner is not None:
                self.register_optimizer(module_id=agent, optimizer=optimizer.inner, params=optimizer.flats)
                self.optimizers[agent] = optimizer

    @override(TorchLearner)
    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Tensor:
        """Stock RLlib's entry for one module's loss; ours are joint."""
        raise NotImplementedError(f"{type(self).__name__} learns from rollouts: call update(episodes=[...])")

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Load `state`. Unlike stock learners, this accepts older weights: a restore means what it says."""
        number_weights(self, -1)
        super().set_state(state)

    def training_state(self, agents: Collection[str] | None = None) -> dict[str, Any]:
        """The full state of learning, on the CPU. agents: of these (None: all).

        modules: the weights of the agents for evaluation: averages if `average_weights` is set, and then `trained` has
        the weights that learning continues from. optimizers: Adam's. extra: from subclasses.
        """
        optimizers = {
            agent: own.state_dict() for agent, own in self.optimizers.items() if agents is None or agent in agents
        }
        state = {"modules": self.weights(agents), "optimizers": cpu_copy(optimizers), "extra": self.extra_state()}
        if self.averages:
            averages = {agent: self.averages[agent] for agent in state["modules"]}
            state |= {"modules": cpu_copy(averages), "trained": state["modules"]}
        return state

    def learning_agents(self) -> tuple[str, ...]:
        """Agents with trainable parameters, in the protocol's order."""
        return tuple(agent for agent in self.scenario.protocol.agents if agent in self.optimizers)

    def weights(self, agents: Collection[str] | None = None) -> dict[str, dict[str, Tensor]]:
        """A copy of the networks' states on the CPU. agents: of these (None: all)."""
        return {
            agent: cpu_copy(network.state_dict())
            for agent, network in self.networks.items()
            if agents is None or agent in agents
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`."""
        for agent, weights in state.get("trained", state["modules"]).items():
            self.networks[agent].load_state_dict(weights)
        self.load_averages(state["modules"] if "trained" in state else {})
        for agent, optimizer in state["optimizers"].items():
            self.optimizers[agent].load_state_dict(optimizer)
        self.load_extra_state(state["extra"])

    def averages_copy(self) -> dict[str, dict[str, Tensor]]:
        """The averages of the weights, on the CPU; empty without `average_weights` and before the first update."""
        return cpu_copy(self.averages)

    def load_averages(self, averages: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue averaging from these (None: from the weights after the next update)."""
        device = self.device
        # else they would never move again
        averages = averages if getattr(self.settings, "average_weights", None) is not None else {}
        self.averages = {
            agent: {k: v.detach().to(device, copy=True) for k, v in own.items()} for agent, own in averages.items()
        }

    def extra_state(self) -> dict[str, Any]:
        """State of an algorithm between updates apart from weights and optimizers."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`."""

    @contextmanager
    def _seeded_noise(self, iteration: int) -> Iterator[None]:
        """Noise and dropout use torch's global generators: seeded by iteration and learner here, and then restored."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(stable_seed(self.seed, "learning noise", iteration, self._world()[1]))
            yield

    def set_learning_rates(self, lr: float) -> None:
        """Set the base learning rate of every agent."""
        for agent, optimizer in self.optimizers.items():
            optimizer.set_learning_rate(self.own_lr(agent, lr))

    def own_lr(self, agent: str, lr: float) -> float:
        """An agent's learning rate when the base is `lr`: this, or its own of the config, annealed equally."""
        own = self.config.algorithm_config_overrides_per_module.get(agent, {}).get("lr")
        return lr if own is None else own * (lr / self.settings.lr)

    def _step(self, agents: Iterable[str]) -> dict[str, Tensor]:
        """Clip the gradients of these agents and take a step of each; their norms before."""
        stepping, limit = {agent: self.optimizers[agent] for agent in agents}, self.settings.max_grad_norm
        if getattr(self.settings, "clip_gradients", "agent") == "joint":
            norms = dict.fromkeys(stepping, clip_gradients(stepping.values(), limit))
        else:
            norms = {agent: clip_gradients([optimizer], limit) for agent, optimizer in stepping.items()}
        for optimizer in stepping.values():
            optimizer.step()
        return norms

    def _world(self) -> tuple[int, int]:
        if not self.distributed:
            return 1, 0
        return torch.distributed.get_world_size(), torch.distributed.get_rank()

    def _all_reduce(self, agents: Iterable[str]) -> None:
        if not self.distributed:
            return
        flats = [flat for agent in agents for flat in self.optimizers[agent].flats]
        if not flats:
            return
        joint = torch.cat([flat.grad for flat in flats])
        torch.distributed.all_reduce(joint)
        for flat, piece in zip(flats, joint.split([flat.numel() for flat in flats]), strict=True):
            flat.grad = piece

    def _results(
        self, once: Mapping[str, Metrics], steps: Mapping[str, list[Step]], env_steps: int, iteration: int
    ) -> Any:
        """Log means over the steps and the metrics in `once`, refuse non-finite values, and return the metrics."""
        found: dict[str, dict[str, float]] = {}
        for agent in self.networks:
            done, values = steps.get(agent, []), found.setdefault(agent, {})
            if logged := [step.metrics for step in done if step.metrics]:
                values |= mean_over_steps(logged)
            if done:
                values["grad_norm"] = float(torch.stack([step.norm for step in done]).double().mean())
            values |= {name: float(value) for name, value in once.get(agent, {}).items()}
        if not all(math.isfinite(value) for values in found.values() for value in values.values()):
            agent = min(found, key=lambda agent: _first_not_finite(once.get(agent, {}), steps.get(agent, [])))
            bad = [name for name, value in found[agent].items() if not math.isfinite(value)]
            raise TrainingError(
                f"iteration {iteration + 1}: {', '.join(bad)} of agent {agent!r} is not finite; the last checkpoint is"
                f" untouched. {self.remedy}"
            )
        for agent, values in found.items():
            for name, value in values.items():
                self.metrics.log_value((agent, name), value, window=1)
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED), env_steps, reduce="sum")
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), env_steps, reduce="lifetime_sum")
        return self.metrics.reduce()


def _first_not_finite(once: Metrics, steps: list[Step]) -> float:
    """The first non-finite point of the update: one agent's failure reaches others through joint clipping."""
    if not all(bool(torch.isfinite(value)) for value in once.values()):
        return -1.0
    for position, step in enumerate(steps):
        if not all(bool(torch.isfinite(value)) for value in step.metrics.values()):
            return position
    return math.inf if all(bool(torch.isfinite(step.norm)) for step in steps) else len(steps)


def average_into(averages: dict[str, dict[str, Tensor]], networks: Mapping[str, nn.Module], decay: float) -> None:
    """Move each average towards the current weights by 1 - decay (Polyak and Juditsky 1992, with exponential weights);
    missing ones start as a copy. Integer buffers are copied."""
    for agent, network in networks.items():
        own = averages.setdefault(agent, {})
        for name, value in network.state_dict().items():
            if name in own and value.is_floating_point():
                own[name].lerp_(value, 1 - decay)
            else:
                own[name] = value.detach().clone()


def cpu_copy(state: Any) -> Any:
    """A detached copy of a nested state on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, Mapping):
        return {key: cpu_copy(value) for key, value in state.items()}
    return [cpu_copy(value) for value in state] if isinstance(state, list | tuple) else state


@dataclass(frozen=True)
class AgentData:
    """One agent's rows with old values, advantages and value targets, each (N,).

    weight_N: the ratio of the actions' probabilities under the current weights to those under the playing ones; None if
    they are the same. y_N, verdicts: for a decider under ``verdict_gradient`` label and expected, the labels, and all
    decisions of its turns; else None. only_taught: all turns come from a search, which is the whole signal: values,
    advantages and targets are 0.
    """

    rows: AgentRows
    value_N: Tensor
    advantage_N: Tensor
    target_N: Tensor
    weight_N: Tensor | None = None
    y_N: Tensor | None = None
    verdicts: Verdicts | None = None
    only_taught: bool = False


@torch.no_grad()
def agent_data(
    scenario: Scenario, network: nn.Module, rollout: Rollout, agent: str, settings: OnPolicySettings
) -> AgentData | None:
    """The rows of `agent` with generalised advantages over its own turns; None if it had no turn."""
    rows = own_rows(scenario, rollout, agent)
    if len(rows.copy_N) == 0:
        return None
    if all_taught(rows):
        return taught_data(rows)
    network.eval()
    _, value_N = network(rows.obs, False, True)
    reward_BR = rewards_with_cuts(scenario, network, rollout, rows, value_N, settings.gamma)
    at = (rows.copy_N, rows.round_N)
    data = with_verdicts(AgentData(rows, value_N, value_N, value_N), scenario, network, rollout, settings)
    if data.verdicts is not None:
        reward_BR = reward_BR.index_put(at, data.verdicts.expected_pay(reward_BR[at]))
    advantage_BR, target_BR = own_turn_advantages(
        reward_BR, rows.spread(value_N), rows.row_BR >= 0, settings.gamma, settings.lam
    )
    learning_mode(network)
    return replace(data, advantage_N=advantage_BR[at], target_N=target_BR[at])


def all_taught(rows: AgentRows) -> bool:
    """Return True if all these turns come from a search."""
    return rows.taught_NFS is not None and bool(taught_turns(rows.taught_NFS).all())


def taught_data(rows: AgentRows) -> AgentData:
    """The data of an agent all of whose turns come from a search."""
    nothing_N = torch.zeros_like(rows.log_prob_N)
    return AgentData(rows, nothing_N, nothing_N, nothing_N, only_taught=True)


def with_verdicts(
    data: AgentData, scenario: Scenario, network: nn.Module, rollout: Rollout, settings: Any, before: bool = True
) -> AgentData:
    """`data` of a decider, with the additions of ``verdict_gradient``.

    before: include the decisions' current log-probabilities, of a network in evaluation mode; else they are 0. Raises
    TrainingError if play did not record what is needed.
    """
    rule, rows = getattr(settings, "verdict_gradient", "sampled"), data.rows
    if rule == "sampled" or rows.agent not in scenario.protocol.verifiers:
        return data
    if rule == "label":
        return replace(data, y_N=rollout.y_B[rows.copy_N])
    if rows.pay_ND is None:
        raise TrainingError(
            "verdict_gradient expected: the rollout has no pay of each decision (play_episodes, every_verdict)"
        )
    known_K = (~rows.pay_ND.isnan()).any(1).nonzero().flatten()
    log_prob_ND = torch.zeros_like(rows.pay_ND)
    if len(known_K) and before:
        log_prob_ND[known_K] = network(rows.obs_of(known_K), True, False)[0].normalised().decision
    return replace(data, verdicts=Verdicts(rows.pay_ND, log_prob_ND, rows.action["decision"]))


@torch.no_grad()
def rewards_with_cuts(
    scenario: Scenario, network: nn.Module, rollout: Rollout, rows: AgentRows, value_N: Tensor, gamma: float
) -> Tensor:
    """(B, R): an agent's rewards, including in the last round of a copy that was cut off the value of its continuation.

    If another agent would have moved next, the next state is not known yet: the value of its last own turn is used, as
    in other libraries' time-limit bootstrap. value_N: its values at `rows`.
    """
    reward_BR = rollout.reward_BRA[:, :, scenario.protocol.agents.index(rows.agent)]
    if rollout.cut_B is None:
        return reward_BR
    last_B = rows.row_BR.amax(1)  # rows of a copy are numbered in the order of its rounds
    beyond_B = torch.where(rollout.cut_B & (last_B >= 0), value_N[last_B.clamp_min(0)], 0.0)
    copy_K, obs = final_rows(scenario, rollout, rows.agent)
    if len(copy_K):
        beyond_B[copy_K] = network(obs, False, True)[1]
    place_B1 = (rollout.length_B - 1)[:, None]
    return reward_BR.scatter_add(1, place_B1, gamma * beyond_B[:, None])


def explained_variance(data: AgentData) -> Tensor:
    """1 - Var(target - value) / Var(target), scalar."""
    unexplained = (data.target_N - data.value_N).var(unbiased=False) / data.target_N.var(unbiased=False).clamp_min(1e-6)
    return 1 - unexplained


def normalised(data: AgentData, own: Tensor, all_rows: Tensor) -> Tensor:
    """The advantages of the rows `own` by `scale_of` the minibatch."""
    middle, deviation = scale_of(data, all_rows)
    return (data.advantage_N[own] - middle) / deviation


def scale_of(data: AgentData, all_rows: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """Mean and deviation of the advantages of a whole minibatch, on all learners, over the network's turns."""
    if data.rows.taught_NFS is not None:
        all_rows = all_rows[~taught_turns(data.rows.taught_NFS[all_rows])]
    return mean_and_deviation(data.advantage_N[all_rows])


def normalised_like(own_N: Tensor, all_N: Tensor) -> Tensor:
    """`own_N` by the mean and deviation of `all_N` (the same rows or more)."""
    mean, deviation = mean_and_deviation(all_N)
    return (own_N - mean) / deviation
