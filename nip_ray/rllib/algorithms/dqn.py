"""`ProtocolDQN`: deep Q-learning on a batched protocol, as an RLlib `Algorithm`.

Decisions that matter here:
- a step is one gradient step of every trained role, in their order; roll-outs for the roles that are due follow it. Between two roll-outs
  nothing but gradient steps happens, so these go to the learners in one call (a chunk), and weights go to remote env runners once a chunk;
- an iteration is so many steps; step numbers, and with them learning rates and exploration, follow from the iteration's;
- in one process the runner plays with the learner's own networks, and transitions are handed over, not copied.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Self

import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.learning_rules import value_learners
from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.annealing import rate_at
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.exploration import Exploration, Explorer, Rows
from nip_ray.play.rollout import Rollout, concatenate
from nip_ray.play.scenario import Scenario
from nip_ray.rllib.algorithms.base import ProtocolAlgorithm
from nip_ray.rllib.algorithms.config import ProtocolAlgorithmConfig
from nip_ray.rllib.compat import local_learner
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.samples import RolloutSamples
from nip_ray.runs.progress import say
from nip_ray.settings.dqn import DQNSettings, role_settings

_FRUITLESS = 20  # roll-outs in a row without a turn of a role that is to learn


class ProtocolDQNConfig(ProtocolAlgorithmConfig):
    """Config of `ProtocolDQN`; settings: `DQNSettings`."""

    settings_class = DQNSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.learning_agents: tuple[str, ...] = ()
        super().__init__(algo_class=algo_class or ProtocolDQN)
        self.explore = False  # outside roll-outs, whose exploration is the roles'

    def experiment(self, config: ExperimentConfig | Mapping[str, Any]) -> Self:
        """See `ProtocolAlgorithmConfig.experiment`. Raises UserError also for a trained role whose turns are more than one choice."""
        made = config if isinstance(config, ExperimentConfig) else ExperimentConfig.model_validate(config)
        super().experiment(made)
        from nip_ray.rllib.shared import scenario_of

        scenario = scenario_of(self.env_config["experiment"])
        self.learning_agents = value_learners(made, scenario.protocol.agents)
        for role in self.learning_agents:
            _refuse_unfit(scenario, role)
        return self

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """As all our algorithms'. Raises UserError also for `explore`: values are no logits that moves could be drawn by."""
        if self.explore:
            raise UserError("explore: got true, which is for policies; the share of random moves is roles.<role>.exploration")
        super().validate()

    def trained(self) -> tuple[str, ...]:
        """The roles that are trained, in the order of their gradient steps."""
        return self.settings().trained_roles or self.learning_agents

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our DQN learner."""
        from nip_ray.rllib.learners.dqn import DQNLearner

        return DQNLearner


class ProtocolDQN(ProtocolAlgorithm):
    """Deep Q-learning; see `nip_ray.rllib.learners.dqn` for the gradient step and `nip_ray.play.exploration` for roll-outs."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ProtocolDQNConfig:
        """A `ProtocolDQNConfig`."""
        return ProtocolDQNConfig()

    @override(Algorithm)
    def setup(self, config: AlgorithmConfig) -> None:
        """As all our algorithms; nobody has another opponent than the networks yet."""
        self.opponents: dict[str, nn.Module] = {}
        self._opponent_names: dict[str, list[str] | None] = {}  # of those set by name; None of a module
        self._opponent_refs: dict[str, list[ray.ObjectRef]] = {}
        super().setup(config)

    @override(Algorithm)
    def training_step(self) -> None:
        """One iteration: `steps_per_iteration` steps. Its figures are in `self.row`; see docs/metrics.md."""
        self.seconds = dict.fromkeys(("sample", "learn", "send_weights"), 0.0)
        self.rollouts: list[Rollout] = []
        settings: DQNSettings = self.config.settings()
        roles = self._learning_now()
        first = self.train_iteration * settings.steps_per_iteration
        rows = self._fill(settings, roles, first)
        for start, stop, due in chunks(first, settings, roles):
            self._learn_steps(rows, (start, stop), roles, last=False)
            rows = self._roll_out(settings, due, stop - 1) if due else {}
        self._join_rollouts()
        steps = self.rollout.env_steps()
        results = self._learn_steps(rows, (first + settings.steps_per_iteration,) * 2, roles, last=True, env_steps=steps)
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
        """Who plays `role` in roll-outs from now on, a role that is not trained.

        A state of its network: weights to play with, which belong to the run's state from now on. A module of the same form (whose
        most likely moves are played; drawn ones, where it has nothing to train), or the names of players without weights, in scenarios that
        have such: they stand in its place. Checkpoints hold names, not modules: whoever restores one sets those again, and is told so.
        None: its network. Raises UserError for a role that is trained or does not play and for what is no opponent, RuntimeError for
        weights that do not fit.
        """
        agents = self.scenario.protocol.agents
        if role not in agents:
            raise UserError(f"role: got {role}, which does not play, there are {', '.join(agents)}")
        if role in self.config.trained():
            raise UserError(f"role: got {role}, which is trained; name the others in algorithm.trained_roles to put another in its place")
        if isinstance(opponent, Mapping):
            state = {name: value.detach().cpu() for name, value in opponent.items()}
            self._foreach_learner(methodcaller("load_weights", role, state))
            self.send_weights()
        in_place = None if opponent is None or isinstance(opponent, Mapping) else _player(self.scenario, role, opponent)
        for kept in (self.opponents, self._opponent_refs, self._opponent_names):
            kept.pop(role, None)
        if in_place is not None:
            names = [opponent] if isinstance(opponent, str) else opponent
            self._opponent_names[role] = None if isinstance(names, nn.Module) else list(names)
            self.opponents[role] = in_place
            if self.env_runner_group.num_remote_env_runners():
                self._opponent_refs[role] = [ray.put(in_place)]

    # ----------------------------------------------------------------------------------------------------------- state

    def training_state(self) -> dict[str, Any]:
        """As all our algorithms', and who was set in the place of a network, among the counters."""
        state = super().training_state()
        return {**state, "counters": {**state["counters"], "opponents": dict(self._opponent_names)}}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`."""
        super().load_training_state(state)
        self._restore_opponents(state["counters"].get("opponents"))

    @override(Algorithm)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """As all our algorithms', and who was set in the place of a network."""
        state = super().get_state(components, not_components=not_components, **kwargs)
        state["nip_ray"]["opponents"] = dict(self._opponent_names)
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        super().set_state(state)
        self._restore_opponents(state.get("nip_ray", {}).get("opponents"))

    def _restore_opponents(self, names: Mapping[str, list[str] | None] | None) -> None:
        """None: a state that says nothing of them leaves them as they are. A module that was set here already stays."""
        if names is None:
            return
        for role in [*self.opponents]:
            if role not in names:
                self.set_opponent(role, None)
        for role, own in names.items():
            if own is not None:
                self.set_opponent(role, own)
            elif self._opponent_names.get(role, ()) is not None:
                self.set_opponent(role, None)
                say(f"warning: {role} was played by a module, which no checkpoint holds; its network plays until set_opponent is called")

    # ------------------------------------------------------------------------------------------------------- roll-outs

    def _learning_now(self) -> tuple[str, ...]:
        """The trained roles that do not rest in this iteration."""
        now = self.config.who_learns(self.train_iteration)
        return tuple(role for role in self.config.trained() if role in now)

    def _fill(self, settings: DQNSettings, roles: Sequence[str], step: int) -> dict[str, Rows]:
        """Play until every buffer holds what a first gradient step needs; returns what was played last, which learners have yet to get."""
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
        """Transitions of `roles`, with the exploration of `step`. attempt: from 1 on, one of the roll-outs that fill buffers."""
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
            samples = self._all_shares(lambda workers: RollOut(plan, workers, self._opponent_refs))
        else:
            samples = [group.local_env_runner.roll_out(plan, opponents=self.opponents)]
        self.rollouts += [sample.rollout for sample in samples]
        self.seconds["sample"] += time.perf_counter() - began
        return _joined([sample.rows for sample in samples])

    def _timed_send(self) -> None:
        began = time.perf_counter()
        self.send_weights()
        self.seconds["send_weights"] += time.perf_counter() - began

    def _join_rollouts(self) -> None:
        if self.rollouts:
            self.rollout = concatenate(self.rollouts)
        else:  # everybody rests
            nothing = torch.zeros(0, dtype=torch.int64)
            self.rollout = play_rollout(BatchedPlay(self.scenario), {}, nothing, nothing, None)
        self.rollouts = []

    # ---------------------------------------------------------------------------------------------------------- learn

    def _learn_steps(self, rows: Mapping[str, Rows], steps: tuple[int, int], roles: Sequence[str], **figures: Any) -> list[Any]:
        """What the learners say of these gradient steps, before which they take in `rows`."""
        began = time.perf_counter()
        arguments = {"steps": steps, "roles": tuple(roles), "iteration": self.train_iteration, **figures}
        if self.learner_group.is_local:
            results = [local_learner(self.learner_group).update(rows=rows, **arguments)]
        else:
            results = self._foreach_learner(LearnSteps(ray.put(rows), arguments))
        self.seconds["learn"] += time.perf_counter() - began
        return results


def chunks(first: int, settings: DQNSettings, roles: Sequence[str]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """The steps of an iteration that begins with step `first`, cut after every one that is followed by roll-outs.

    (first step, step after the last, the roles whose roll-outs follow; none may in the last chunk).
    """
    intervals = {role: role_settings(settings, role).steps_between_rollouts for role in roles}
    start, end = first, first + settings.steps_per_iteration
    for step in range(first, end):
        due = tuple(role for role in roles if step % intervals[role] == 0)
        if due or step == end - 1:
            yield start, step + 1, due
            start = step + 1


class RollOut:
    """To an env runner: play these workers' shares of a roll-out. opponents: role -> a list with who plays it instead of its network."""

    def __init__(self, plan: Exploration, workers: tuple[int, ...], opponents: Mapping[str, list[ray.ObjectRef]]) -> None:
        self.plan, self.workers, self.opponents = plan, workers, dict(opponents)

    def __call__(self, runner: ProtocolEnvRunner) -> tuple[list[RolloutSamples], Any]:
        opponents = {role: ray.get(place[0]).to(runner.device) for role, place in self.opponents.items()}
        return [runner.roll_out(self.plan, worker, opponents) for worker in self.workers], runner.get_metrics()


class LearnSteps:
    """To a learner: take in these transitions, and do some gradient steps."""

    def __init__(self, rows: ray.ObjectRef, arguments: dict[str, Any]) -> None:
        self.rows, self.arguments = [rows], arguments  # a list keeps Ray from resolving the reference in transit

    def __call__(self, learner: Any) -> Any:
        return learner.update(rows=ray.get(self.rows[0]), **self.arguments)


def _joined(shares: Sequence[Mapping[str, Rows]]) -> dict[str, Rows]:
    """The transitions of all shares, in their order."""
    if len(shares) == 1:
        return dict(shares[0])
    roles = dict.fromkeys(role for share in shares for role in share)
    parts = {role: [share[role] for share in shares if role in share] for role in roles}
    return {role: {name: torch.cat([part[name] for part in own]) for name in own[0]} for role, own in parts.items()}


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
            f"algorithm.trained_roles: dqn is for agents whose turn is one choice of one symbol, and {role} {fault}, name others or use ppo"
        )


def _player(scenario: Any, role: str, opponent: nn.Module | str | Sequence[str]) -> nn.Module:
    """The module that plays `role`. Raises UserError for what is none, and for names of nobody."""
    if isinstance(opponent, nn.Module):
        if not callable(getattr(opponent, "groups", None)):
            raise UserError(f"opponent: got a {type(opponent).__name__}, which has no groups(), expected a network of the same form")
        return opponent
    names = [opponent] if isinstance(opponent, str) else opponent
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"opponent: got {opponent!r}, expected weights, a module, the name of a player or several names")
    if not hasattr(scenario, "scripted_agent"):
        raise UserError(f"opponent: {scenario.name} has no players without weights, give a module or weights")
    return scenario.scripted_agent(role, *names)
