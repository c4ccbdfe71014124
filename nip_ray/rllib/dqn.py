"""Deep Q-learning for several roles, each from its own replay buffer, in lock-step.

The rule is in `nip_ray.learning.dqn`; this module has the config, the schedule of play, the data flow, and the gradient
step.

Decisions that matter here:
- a step is one gradient step of every trained role, in their order; roll-outs for the roles that are due follow it.
  Between two roll-outs there are only gradient steps, so these go to the learners in one call (a chunk), and weights go
  to remote env runners once a chunk;
- an iteration is a number of steps; step numbers, and with them learning rates and exploration, follow from the
  iteration's;
- in one process the runner plays with the learner's own networks, and transitions are passed without a copy;
- a role's values are the logits of its one message, or its advantages if `dueling`, where its value output is added. So
  other code need not know that a network was trained by this rule;
- a gradient step sees batch statistics (batch norms in training mode) and moves the running ones, by which targets and
  play normalise. The choice of the best next move by the trained network (`double`) is a move, so it uses the mode of
  play;
- all learners hold the same buffers and draw the same rows; each works on its slice, and gradients, errors and running
  statistics are shared. So they stay equal, and give the results of one learner, except where batch norms see slices;
- between two roll-outs roles are independent, so on a CPU each has a thread of its own, with its part of the cores:
  small layers gain little from more. Not if a network draws random numbers, for which there is one stream;
- the draws of a step are seeded by (seed, role, step): nothing random has a state. Checkpoints hold buffers and target
  networks.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Self

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.learning_rules import value_learners
from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.annealing import rate_at
from nip_ray.learning.dqn import (
    build_optimizer,
    dueling,
    legal_moves,
    low_products,
    taken,
    target_is_due,
    td_loss,
    td_target,
    update_target,
)
from nip_ray.learning.groups import FlatOptimizer, clip_gradients, is_frozen_norm
from nip_ray.learning.replay import Field, Priorities, Replay
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.exploration import Exploration, Explorer
from nip_ray.play.rollout import Rollout, Rows, concatenate, joined_rows
from nip_ray.play.scenario import Scenario
from nip_ray.progress import say
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.calls import RollOut
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import Prepared, ProtocolLearner, Step, cpu_copy
from nip_ray.rllib.opponents import Opponent, names_of, opponent_of
from nip_ray.rllib.shared import scenario_of
from nip_ray.seeding import generator
from nip_ray.settings.dqn import DQNSettings, role_settings

_FRUITLESS = 20  # consecutive roll-outs without a turn of a role that should learn


class ProtocolDQNConfig(ProtocolAlgorithmConfig):
    """Config of `ProtocolDQN`; settings: `DQNSettings`."""

    settings_class = DQNSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.learning_agents: tuple[str, ...] = ()
        super().__init__(algo_class=algo_class or ProtocolDQN)
        self.explore = False  # roll-outs have the roles' own exploration

    def experiment(self, config: ExperimentConfig | Mapping[str, Any]) -> Self:
        """See `ProtocolAlgorithmConfig.experiment`. Raises UserError also for a trained role whose turns have more than
        one choice."""
        made = config if isinstance(config, ExperimentConfig) else ExperimentConfig.model_validate(config)
        super().experiment(made)
        scenario = scenario_of(self.env_config["experiment"])
        self.learning_agents = value_learners(made, scenario.protocol.agents)
        for role in self.learning_agents:
            _refuse_unfit(scenario, role)
        return self

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """As for all our algorithms. Raises UserError also for `explore`: values are not logits to sample from."""
        if self.explore:
            raise UserError(
                "explore: got true, which is for policies; the share of random moves is roles.<role>.exploration"
            )
        super().validate()

    def trained(self) -> tuple[str, ...]:
        """The roles that are trained, in the order of their gradient steps."""
        return self.settings().trained_roles or self.learning_agents

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our DQN learner."""
        return DQNLearner


class ProtocolDQN(ProtocolAlgorithm):
    """Deep Q-learning; see `nip_ray.play.exploration` for roll-outs, and `DQNLearner` for the gradient step."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ProtocolDQNConfig:
        """A `ProtocolDQNConfig`."""
        return ProtocolDQNConfig()

    @override(Algorithm)
    def setup(self, config: AlgorithmConfig) -> None:
        """As for all our algorithms, without other opponents than the networks."""
        self.opponents: dict[str, Opponent] = {}
        super().setup(config)

    @override(Algorithm)
    def training_step(self) -> None:
        """One iteration: `steps_per_iteration` steps. Its metrics are in `self.row`; see docs/metrics.md."""
        self.seconds = dict.fromkeys(("sample", "learn", "send_weights"), 0.0)
        self.rollouts: list[Rollout] = []
        settings: DQNSettings = self.config.settings()
        now = self.config.who_learns(self.train_iteration)
        roles = tuple(role for role in self.config.trained() if role in now)  # that do not rest in this iteration
        first = self.train_iteration * settings.steps_per_iteration
        rows = self._fill(settings, roles, first)
        for start, stop, due in chunks(first, settings, roles):
            self._learn_steps(rows, (start, stop), roles, last=False)
            rows = self._roll_out(settings, due, stop - 1) if due else {}
        if self.rollouts:
            self.rollout = concatenate(self.rollouts)
        else:  # all rest
            nothing = torch.zeros(0, dtype=torch.int64)
            self.rollout = play_rollout(BatchedPlay(self.scenario), {}, nothing, nothing, None)
        self.rollouts = []
        steps = self.rollout.env_steps()
        results = self._learn_steps(
            rows, (first + settings.steps_per_iteration,) * 2, roles, last=True, env_steps=steps
        )
        self.env_steps_total += steps
        self.train_iteration += 1
        self.row = {
            **{f"time/{name}_s": spent for name, spent in self.seconds.items()},
            "env_steps": steps,
            "env_steps_total": self.env_steps_total,
            "episodes": self.rollout.num_copies,
            **self._learned(results, roles),
        }
        if self.env_runner_group.num_remote_env_runners() == 0:
            self.metrics.aggregate([self.env_runner_group.local_env_runner.get_metrics()], key=ENV_RUNNER_RESULTS)
        self._timed_send()

    def set_opponent(self, role: str, opponent: nn.Module | Mapping[str, Tensor] | str | Sequence[str] | None) -> None:
        """Set the player of `role`, which is not trained, in roll-outs from now on.

        opponent: a state of its network: weights to play with, part of the run's state from now on. A module of the
        same form (its most likely moves are played; sampled ones if it has nothing to train), or names of players
        without weights, in scenarios that have them, in its place. Checkpoints hold names, not modules: set a module
        again after a restore, which warns. None: its network. Raises UserError for a trained or unknown role and for an
        invalid opponent, RuntimeError for weights that do not fit.
        """
        agents = self.scenario.protocol.agents
        if role not in agents:
            raise UserError(f"role: got {role}, which does not play, expected one of {', '.join(agents)}")
        if role in self.config.trained():
            raise UserError(
                f"role: got {role}, which is trained; name the others in algorithm.trained_roles to put another in its"
                " place"
            )
        if isinstance(opponent, Mapping):
            state = {name: value.detach().cpu() for name, value in opponent.items()}
            self._foreach_learner(methodcaller("load_weights", role, state))
            self.send_weights()
        if opponent is None or isinstance(opponent, Mapping):
            self.opponents.pop(role, None)
        else:
            self.opponents[role] = opponent_of(
                self.scenario, role, opponent, self.env_runner_group.num_remote_env_runners() > 0
            )

    def counters(self) -> dict[str, Any]:
        """As for all our algorithms, plus the opponents in place of networks."""
        return {**super().counters(), "opponents": names_of(self.opponents)}

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        """The inverse of `counters`."""
        super().load_counters(counters)
        self._restore_opponents(counters.get("opponents"))

    def _restore_opponents(self, names: Mapping[str, list[str] | None] | None) -> None:
        """None: a state without opponents leaves them unchanged. A module that is already set here stays."""
        if names is None:
            return
        for role in [*self.opponents]:
            if role not in names:
                self.set_opponent(role, None)
        for role, own in names.items():
            if own is not None:
                self.set_opponent(role, own)
            elif role not in self.opponents or self.opponents[role].names is not None:
                self.set_opponent(role, None)
                say(
                    f"warning: {role} was played by a module, which no checkpoint holds; its network plays until"
                    " set_opponent is called"
                )

    def _fill(self, settings: DQNSettings, roles: Sequence[str], step: int) -> dict[str, Rows]:
        """Play until every buffer has enough for a first gradient step; returns the last transitions, which learners do
        not have yet."""
        sizes: dict[str, int] = self._first_learner(methodcaller("buffer_sizes"))
        rows: dict[str, Rows] = {}
        attempt, fruitless = 0, 0
        while short := [role for role in roles if sizes.get(role, 0) < settings.warm_up]:
            if rows:
                self._learn_steps(rows, (step, step), roles, last=False)
            attempt += 1
            rows = self._roll_out(settings, short, step, attempt)
            fruitless = 0 if set(rows) >= set(short) else fruitless + 1
            if fruitless == _FRUITLESS:
                never = ", ".join(role for role in short if role not in rows)
                raise TrainingError(f"{never}: no turn in {_FRUITLESS} roll-outs, so there is nothing to learn from")
            for role, own in rows.items():
                sizes[role] = sizes.get(role, 0) + len(own["action"])
        return rows

    def _roll_out(self, settings: DQNSettings, roles: Sequence[str], step: int, attempt: int = 0) -> dict[str, Rows]:
        """Transitions of `roles`, with the exploration of `step`. attempt: from 1 on, the number of the roll-out that
        fills buffers."""
        explorers = {}
        for role in roles:
            own = role_settings(settings, role)
            copies = own.initial_rollout_size if attempt else own.rollout_size
            explorers[role] = Explorer(copies, rate_at(own.exploration, step), own.gamma)
        plan = Exploration(step, attempt, explorers, settings.n_step, settings.bootstrap_cutoffs)
        self._timed_send()
        began = time.perf_counter()
        group = self.env_runner_group
        if group.num_remote_env_runners():
            opponents = {role: opponent.refs for role, opponent in self.opponents.items()}
            samples = self._all_shares(lambda workers: RollOut(plan, workers, opponents))
        else:
            opponents = {role: opponent.module for role, opponent in self.opponents.items()}
            samples = [group.local_env_runner.roll_out(plan, opponents=opponents)]
        self.rollouts += [sample.rollout for sample in samples]
        self.seconds["sample"] += time.perf_counter() - began
        return joined_rows(samples)

    def _timed_send(self) -> None:
        began = time.perf_counter()
        self.send_weights()
        self.seconds["send_weights"] += time.perf_counter() - began

    def _learn_steps(
        self, rows: Mapping[str, Rows], steps: tuple[int, int], roles: Sequence[str], **figures: Any
    ) -> list[Any]:
        """The learners' results of these gradient steps, after adding `rows`."""
        began = time.perf_counter()
        arguments = {"steps": steps, "roles": tuple(roles), "iteration": self.train_iteration, **figures}
        results = self._update("rows", rows, arguments)
        self.seconds["learn"] += time.perf_counter() - began
        return results


def chunks(first: int, settings: DQNSettings, roles: Sequence[str]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """The steps of an iteration that begins with step `first`, cut after every one that is followed by roll-outs.

    (first step, step after the last, the roles whose roll-outs follow; maybe none in the last chunk).
    """
    intervals = {role: role_settings(settings, role).steps_between_rollouts for role in roles}
    start, end = first, first + settings.steps_per_iteration
    for step in range(first, end):
        due = tuple(role for role in roles if step % intervals[role] == 0)
        if due or step == end - 1:
            yield start, step + 1, due
            start = step + 1


def _refuse_unfit(scenario: Scenario, role: str) -> None:
    protocol = scenario.protocol
    symbols = len(protocol.writes[role]) * scenario.message_size
    faults = {
        "decides": role in protocol.deciders,
        f"chooses {symbols} symbols": symbols != 1,
        "sends linear messages": scenario.linear_symbols,
    }
    for fault in (fault for fault, there in faults.items() if there):
        raise UserError(
            f"algorithm.trained_roles: dqn is for agents whose turn is one choice of one symbol, and {role} {fault},"
            " name others or use ppo"
        )


@dataclass(frozen=True)
class TimedStep(Step):
    """A gradient step of a role, and its seconds."""

    seconds: float = 0.0


class DQNLearner(ProtocolLearner):
    """Values of trained roles, their targets and replay buffers. `update` adds transitions and does gradient steps."""

    remedy = "Lower algorithm.roles.<role>.lr, set a lower algorithm.max_grad_norm, and check the rewards"

    def build(self) -> None:
        """Also target networks; buffers are made at the first transitions, which show the parts of observations."""
        super().build()
        self.roles = {role: role_settings(self.settings, role) for role in self.optimizers}
        self.modules = {
            role: [(module, not is_frozen_norm(module)) for module in self.networks[role].modules()]
            for role in self.optimizers
        }
        self.targets = {
            role: copy.deepcopy(self.networks[role]).eval().requires_grad_(False) for role in self.optimizers
        }
        self.replay: dict[str, Replay] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._draw: dict[str, bool] = {}  # role -> its network draws random numbers
        self.done: dict[str, list[TimedStep]] = {}  # by role, since the last metrics

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
        """Add transitions, then do gradient steps.

        rows: role -> transitions (None: none). steps: (first, after the last) gradient steps. roles: those that take
        them, in this order. iteration, env_steps: for metrics, which are returned if `last` is true (default), and None
        otherwise: those of all calls since then. Raises TrainingError for non-finite values, ValueError for a role
        without transitions.
        """
        for role, rows in (kwargs.get("rows") or {}).items():
            if role not in self.replay:
                self._make_buffer(role, rows)
            self.replay[role].add(rows)
        first, after = kwargs.get("steps", (0, 0))
        roles: Sequence[str] = kwargs.get("roles", tuple(self.optimizers))
        if first == 0 and after:
            # weights may have been set since, also for roles that rest in these steps
            for role, target in self.targets.items():
                update_target(target, self.networks[role], 1.0)
        with self._seeded_noise(first):
            with low_products(self.settings.precision == "bfloat16" and self.device.type == "cpu"):
                for role, own in self._steps(roles, range(first, after)).items():
                    self.done.setdefault(role, []).extend(own)
        if not kwargs.get("last", True):
            return None
        done, self.done = self.done, {}
        once = {role: self._figures(role, max(0, after - 1), done.get(role, [])) for role in roles}
        return self._results(once, done, kwargs.get("env_steps", 0), kwargs.get("iteration", 0))

    def prepare(self, rollout: Rollout) -> Prepared:
        """Not used: transitions arrive complete."""
        raise NotImplementedError("DQNLearner learns from transitions: call update(rows=..., steps=...)")

    def _steps(self, roles: Sequence[str], steps: range) -> dict[str, list[TimedStep]]:
        """Gradient steps of all roles, in order, or each in a thread of its own."""
        if not steps or not roles:
            return {}
        threads = torch.get_num_threads()
        one_by_one = len(roles) == 1 or threads < len(roles) or self.distributed or self.device.type != "cpu"
        if one_by_one or any(self._draws(role) for role in roles):
            by_step = [[self._gradient_step(role, step) for role in roles] for step in steps]
            return {role: list(own) for role, own in zip(roles, zip(*by_step, strict=True), strict=True)}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.roles))
        try:
            others = [self._pool.submit(self._in_thread, role, steps, threads // len(roles)) for role in roles[1:]]
            done = [self._in_thread(roles[0], steps, threads // len(roles)), *(other.result() for other in others)]
        finally:
            torch.set_num_threads(threads)
        return dict(zip(roles, done, strict=True))

    @torch.no_grad()
    def _draws(self, role: str) -> bool:
        """Return True if the network of `role` draws random numbers while it learns."""
        if role not in self._draw:
            rows = self.replay[role].ring.read(torch.arange(2) % self.replay[role].size)
            with torch.random.fork_rng(devices=[]):  # else the first steps after a resume would draw other noise
                before = torch.get_rng_state()
                copy.deepcopy(self.networks[role]).train()(_part(rows, "obs_"), True, self.settings.dueling)
                self._draw[role] = not torch.equal(before, torch.get_rng_state())
        return self._draw[role]

    def _in_thread(self, role: str, steps: range, threads: int) -> list[TimedStep]:
        torch.set_num_threads(threads)
        return [self._gradient_step(role, step) for step in steps]

    def _gradient_step(self, role: str, step: int) -> TimedStep:
        began = time.perf_counter()
        settings, own, network, optimizer = self.settings, self.roles[role], self.networks[role], self.optimizers[role]
        if target_is_due(own, step):
            update_target(self.targets[role], network, own.target_tau)
        optimizer.set_learning_rate(rate_at(own.lr, step))
        beta = rate_at(settings.importance, step) if settings.prioritised else 1.0
        sample = self.replay[role].sample(own.batch_size, generator(self.seed, "replay", role, step), beta)
        world, rank = self._world()
        mine = slice(rank, None, world)
        rows = {name: part[mine].to(self.device) for name, part in sample.rows.items()}
        weight_N = None if sample.weight_N is None else sample.weight_N[mine].to(self.device)
        self._set_mode(role, training=False)  # an evaluation, or torch's default, may have left another
        target_N = self._targets(role, rows)
        self._set_mode(role, training=True)
        q_N = taken(self._values(network, _part(rows, "obs_"))[0], rows["action"])
        self._set_mode(role, training=False)
        loss, error_N = td_loss(q_N, target_N, settings, weight_N)
        loss_here = loss if world == 1 else loss * (len(q_N) / own.batch_size)
        optimizer.set_gradients(torch.autograd.grad(loss_here, optimizer.parameters, allow_unused=True))
        if self.distributed:
            self._all_reduce([role])
        norm = clip_gradients([optimizer], settings.max_grad_norm)
        optimizer.step()
        self._share(role)
        if settings.prioritised:
            self.replay[role].update_priorities(sample.slot_N, self._all_errors(error_N, mine, own.batch_size))
        metrics = {
            "loss": loss.detach(),
            "q": q_N.detach().mean(),
            "target": target_N.mean(),
            "td_error": error_N.abs().mean(),
        }
        return TimedStep(metrics, norm, seconds=time.perf_counter() - began)

    @torch.no_grad()
    def _targets(self, role: str, rows: Rows) -> Tensor:
        """(N,): the targets of the taken moves."""
        next_obs = _part(rows, "next_obs_")
        target_q_NK, legal_NK = self._values(self.targets[role], next_obs)
        online_q_NK = self._values(self.networks[role], next_obs)[0] if self.settings.double else None
        return td_target(rows["reward"], rows["discount"], target_q_NK, legal_NK, online_q_NK)

    def _values(self, network: nn.Module, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(q_NK, legal_NK) of observations, float32 for any dtype of the network."""
        low = self.settings.precision == "bfloat16" and self.device.type != "cpu"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            policy, value_N = network(obs, True, self.settings.dueling)
        q_NK = policy.message[:, 0].float()
        legal_NK = legal_moves(obs, q_NK)
        return (dueling(value_N.float(), q_NK, legal_NK) if self.settings.dueling else q_NK), legal_NK

    def _set_mode(self, role: str, training: bool) -> None:
        """Like `network.train(training)`, without walking through the network in every step; the running statistics of
        frozen norms stay."""
        for module, learns in self.modules[role]:
            module.training = training and learns

    def _figures(self, role: str, step: int, done: Sequence[TimedStep]) -> dict[str, Tensor]:
        """Metrics once per iteration, as of gradient step `step`."""
        own, spent = self.roles[role], sum(one.seconds for one in done)
        found = {
            "lr": rate_at(own.lr, step),
            "epsilon": rate_at(own.exploration, step),
            "buffer_size": self.buffer_sizes().get(role, 0),
        }
        return {
            name: torch.tensor(float(value))
            for name, value in {**found, "steps_per_s": len(done) / spent if spent else 0.0}.items()
        }

    def _share(self, role: str) -> None:
        """Running statistics: the means over learners, which have seen different rows."""
        if not self.distributed:
            return
        buffers = [buffer for buffer in self.networks[role].buffers() if buffer.is_floating_point()]
        if buffers:
            joint = torch.cat([buffer.flatten() for buffer in buffers])
            torch.distributed.all_reduce(joint)
            for buffer, piece in zip(
                buffers, (joint / self._world()[0]).split([b.numel() for b in buffers]), strict=True
            ):
                buffer.copy_(piece.view_as(buffer))

    def _all_errors(self, error_N: Tensor, mine: slice, count: int) -> Tensor:
        """(count,): the errors of all drawn rows, on the buffers' device."""
        if not self.distributed:
            return error_N.to(self._buffer_device())
        every_N = torch.zeros(count, device=self.device)
        every_N[mine] = error_N
        torch.distributed.all_reduce(every_N)
        return every_N.to(self._buffer_device())

    def buffer_sizes(self) -> dict[str, int]:
        """Role -> number of transitions in its buffer."""
        return {role: replay.size for role, replay in self.replay.items()}

    def _make_buffer(self, role: str, rows: Mapping[str, Tensor]) -> None:
        settings: DQNSettings = self.settings
        schema = {name: Field(tuple(part.shape[1:]), part.dtype) for name, part in rows.items()}
        priorities = Priorities(settings.priority_exponent) if settings.prioritised else None
        self.replay[role] = Replay(schema, settings.buffer_size, self._buffer_device(), priorities)

    def _buffer_device(self) -> torch.device:
        return self.device if self.settings.buffer_device == "learner" else torch.device("cpu")

    def load_weights(self, role: str, weights: Mapping[str, Tensor]) -> None:
        """Replace only the weights of the network of `role`. Raises RuntimeError if they do not fit."""
        self.networks[role].load_state_dict(weights)

    def extra_state(self) -> dict[str, Any]:
        """Target networks, and replay buffers if configured."""
        targets = {role: cpu_copy(target.state_dict()) for role, target in self.targets.items()}
        if not self.settings.save_buffer:
            return {"targets": targets}
        return {"targets": targets, "replay": {role: replay.state_dict() for role, replay in self.replay.items()}}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`; without saved buffers they are empty. Raises UserError for buffers of another
        size or kind."""
        for role, target in state["targets"].items():
            self.targets[role].load_state_dict(target)
        self.replay = {}
        for role, saved in state.get("replay", {}).items():
            self._make_buffer(role, saved["ring"]["rows"])
            self.replay[role].load_state_dict(saved)


def _part(rows: Rows, prefix: str) -> dict[str, Tensor]:
    """The fields with this prefix, under the rest of their names."""
    return {name.removeprefix(prefix): part for name, part in rows.items() if name.startswith(prefix)}
