"""`ProtocolAlgorithm`: the common base of our algorithms, as an RLlib `Algorithm`.

Decisions that matter here:
- an iteration is: every env runner plays its share, all learners learn from all shares, weights go back to the runners;
- the iteration number seeds all randomness in it and is part of the state: a restored run is identical;
- lost runners cost time, not results: a missing share is played by another runner, without waiting for recreated ones.
  A runner that does not answer in time counts as lost, and is ended;
- deterministic failures repeat: an error in an env runner or a learner ends the run at once, with its own message. Only
  lost processes are recreated, as often as the settings allow (stock RLlib retries anything for hours);
- learners wait for each other indefinitely, so the first that fails or is lost ends the others. So does one that does
  not answer in time, since it is unknown which of them hangs;
- weights reach remote runners by a blocking call, because RLlib's own sync can be dropped while another request is in
  flight;
- with `play.max_staleness` runners receive the request for the next iteration before learning begins, together with the
  weights of that moment: so a replacement plays with the same ones, and a checkpoint, which contains them, continues
  identically.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false, reportOptionalOperand=false, reportPrivateImportUsage=false
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import methodcaller
from statistics import fmean
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.exceptions import RayActorError, RayError
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS
from torch import nn

from nip_ray.cluster.liveness import REMEMBERED, hang_limit_s
from nip_ray.cluster.ray_session import first_words
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import LearnerLost, TrainingError
from nip_ray.play.rollout import Rollout, RolloutSamples, concatenate
from nip_ray.progress import say
from nip_ray.rllib.calls import (
    PlayShares,
    ReturnErrors,
    TakeWeights,
    Update,
    ask_learners,
    reason_of_death,
    said,
    unwrap,
)
from nip_ray.rllib.compat import WithoutLogFolder, actors_of, local_learner, remote_learners, runners_by_value
from nip_ray.rllib.options import REFUSED_CALLS, refused_call
from nip_ray.rllib.past import PastOpponents, PastPlay
from nip_ray.rllib.shared import networks_of, scenario_of

if TYPE_CHECKING:
    from nip_ray.rllib.config import ProtocolAlgorithmConfig

_ATTEMPTS = 3  # consecutive attempts in which no env runner returns anything
_AHEAD = "ahead"  # tag of requests that are not awaited


class ProtocolAlgorithm(WithoutLogFolder, Algorithm):
    """Plays, learns and sends weights; subclasses choose a learner."""

    config: "ProtocolAlgorithmConfig"

    @override(Algorithm)
    def setup(self, config: AlgorithmConfig) -> None:
        """Build runners and learners; a local runner plays with the local learner's networks."""
        self.train_iteration = 0
        self.env_steps_total = 0
        self.row: dict[str, Any] = {}
        self.durations: deque[float] = deque(maxlen=REMEMBERED)  # of iterations, in seconds
        self.past: PastOpponents | None = None
        # the weights of the next iteration's play, if they are not the current ones
        self._behind: dict[str, Any] | None = None
        self._ahead: Ahead | None = None  # the next iteration, once requested
        # we log lost runners in one line ourselves
        logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)
        with runners_by_value(store=self._needs_ray(config)), _learners_said():
            super().setup(config)
        self._refuse_broken_runners()
        self.scenario = scenario_of(self.config.env_config["experiment"])
        experiment = ExperimentConfig.model_validate(self.config.env_config["experiment"])
        if experiment.opponents is not None:
            learners = self._first_learner(methodcaller("learning_agents"))
            self.past = PastOpponents(experiment.opponents, experiment.seed, self.scenario.protocol, learners)
        self._share_modules()
        self.send_weights()

    def __repr__(self) -> str:
        """Like RLlib's, which fails for an algorithm whose config was refused: Ray then loses the reason."""
        return type(self).__name__ if self.config is None else super().__repr__()

    @override(Algorithm)
    def training_step(self) -> None:
        """One iteration: play, learn, send weights. Its metrics are in `self.row`; see docs/metrics.md."""
        started = time.perf_counter()
        samples, met = self._play()
        if self.config.max_staleness:
            met["learn/staleness"] = int(self._behind is not None)
            following, self._behind = self.train_iteration + 1, self._weights_of_now()
            self._ahead = self._ahead_by(self._behind, following, ask=following < self.config.total_iterations)
        played = time.perf_counter()
        results = self._learn(samples)
        learned = time.perf_counter()
        self.send_weights()
        sent = time.perf_counter()
        self.rollout: Rollout = concatenate([sample.rollout for sample in samples])
        steps = self.rollout.env_steps()
        self.env_steps_total += steps
        self.train_iteration += 1
        self.row = {
            "time/sample_s": played - started,
            "time/learn_s": learned - played,
            "time/send_weights_s": sent - learned,
            "env_steps": steps,
            "env_steps_total": self.env_steps_total,
            "episodes": self.rollout.num_copies,
            **met,
            **results,
        }

    @override(Algorithm)
    def step(self) -> dict[str, Any]:
        """RLlib's iteration results with our flat metrics under ``nip_ray``."""
        began = time.monotonic()
        results = super().step()
        self.durations.append(time.monotonic() - began)
        results["nip_ray"] = dict(self.row)
        return results

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """RLlib's evaluation, on held-out instances unless ``evaluation_config["env_config"]["split"]`` differs.

        It has its own env runners, made at the first call if the config names no interval; they start with the newest
        weights, even with `average_weights`, since training may continue meanwhile.
        """
        with self._no_needless_ray():
            if self.eval_env_runner_group is None:
                self.eval_env_runner_group = EnvRunnerGroup(
                    env_creator=self.env_creator,
                    config=self.evaluation_config,
                    logdir=self.logdir,
                    tune_trial_id=self.trial_id,
                )
            if (
                local := self.eval_env_runner_group.local_env_runner
            ) and self.config.evaluation_force_reset_envs_before_iteration:
                local.evaluated = 0  # stock RLlib only resets remote runners
            # RLlib drops its own sync if another request is in flight
            if self.eval_env_runner_group.num_remote_env_runners():
                state, limit = self._weights(), self.config.evaluation_sample_timeout_s
                take = TakeWeights([ray.put(state[COMPONENT_RL_MODULE])], self.train_iteration)
                self.eval_env_runner_group.foreach_env_runner(take, local_env_runner=False, timeout_seconds=limit)
            found = super().evaluate(parallel_train_future)
        if self.config.evaluation_duration == "auto" and not found.get(ENV_RUNNER_RESULTS):
            say(
                f"warning: iteration {self.iteration + 1} was over before an evaluation of it; evaluation_duration"
                " takes a number, too"
            )
        return found

    def _play(self) -> tuple[list[RolloutSamples], dict[str, Any]]:
        """All shares of this iteration, ordered by worker, and metrics of the opponents."""
        iteration, group = self.train_iteration, self.env_runner_group
        assert group is not None
        remote = group.num_remote_env_runners() > 0
        if self.config.max_staleness:
            ahead, self._ahead = (
                self._ahead or self._ahead_by(self._behind or self._weights_of_now(), iteration, ask=False),
                None,
            )
            plays, samples = ahead.plays, self._all_shares(ahead.request, ahead.calls)
        elif remote:
            plays = self._past_plays(iteration, remote)
            samples = self._all_shares(lambda workers: PlayShares(workers, iteration, plays))
        else:
            plays = self._past_plays(iteration, remote)
            samples = group.local_env_runner.sample(iteration=iteration, past=plays.get(0))
            self.metrics.aggregate([group.local_env_runner.get_metrics()], key=ENV_RUNNER_RESULTS)
        return samples, {} if self.past is None else self.past.record(samples, plays)

    def _ahead_by(self, weights: dict[str, Any], iteration: int, ask: bool) -> "Ahead":
        """An iteration to play with these weights; with `ask` runners start now."""
        plays = self._past_plays(iteration, remote=True, learned=iteration - 1)
        by = TakeWeights([ray.put(weights)], iteration)

        def request(workers: tuple[int, ...]) -> PlayShares:
            return PlayShares(workers, iteration, plays, by)

        calls: dict[int, Any] = {}
        if ask and (healthy := self.env_runner_group.healthy_env_runner_ids()):
            calls = _planned(range(1, self.config.num_env_runners + 1), request, healthy)
            told = list(map(ReturnErrors, calls.values()))
            actors_of(self.env_runner_group).foreach_actor_async(told, tag=_AHEAD, remote_actor_ids=list(calls))
        return Ahead(plays, request, calls)

    def _past_plays(self, iteration: int, remote: bool, learned: int | None = None) -> dict[int, PastPlay | None]:
        """Worker -> the past opponents of its share, after taking a snapshot if one is due. learned: iterations that
        the weights of now have learned from (None: all before)."""
        if self.past is None:
            return {}
        self.past.take(iteration if learned is None else learned, lambda: self._first_learner(methodcaller("weights")))
        learning, copies = self.config.who_learns(iteration), self.config.num_envs_per_env_runner
        workers = range(1, self.config.num_env_runners + 1) if remote else (0,)
        return {w: self.past.play(learning, copies, iteration, max(0, w - 1), remote) for w in workers}

    def _all_shares(
        self, request: Callable[[tuple[int, ...]], Any], calls: Mapping[int, Any] | None = None
    ) -> list[RolloutSamples]:
        """Shares of all remote runners, ordered by worker. request: workers -> a runner's request to play their shares.

        calls: runner -> the request that it already has.
        """
        shares = self._taken_in(self._ask_runners(calls or {}, asked=True))
        wanted = range(1, self.config.num_env_runners + 1)
        attempts_left = _ATTEMPTS
        while missing := [worker for worker in wanted if worker not in shares]:
            if not attempts_left:
                now = self.train_iteration + 1
                raise TrainingError(
                    f"env runners {missing} returned nothing in iteration {now}, and no other runner could replace them"
                )
            # the share of a lost runner goes to a healthy one
            found = self._taken_in(self._ask_runners(_planned(missing, request, self._healthy_runners())))
            attempts_left = _ATTEMPTS if found else attempts_left - 1
            shares |= found
        return [shares[worker] for worker in wanted]

    def _healthy_runners(self) -> list[int]:
        """Remote runners that answer. With none left, waits until Ray has restarted one, and sends it the weights.

        Raises TrainingError when none is left for good, or none comes back in time.
        """
        group = self.env_runner_group
        deadline = time.monotonic() + self.config.sample_timeout_s
        while not (healthy := group.healthy_env_runner_ids()):
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"no env runner came back within {self.config.sample_timeout_s:g} s"
                    " (fault_tolerance.sample_timeout_s)"
                )
            if group.probe_unhealthy_env_runners():
                self.send_weights()
            elif all(reasons := [reason_of_death(actor) for actor in actors_of(group).actors().values()]):
                times = self.config.max_num_env_runner_restarts
                raise TrainingError(
                    f"all env runners are lost for good (fault_tolerance.max_env_runner_restarts: {times}; the last:"
                    f" {reasons[-1]})"
                )
            else:
                time.sleep(0.1)
        return healthy

    def _taken_in(self, answers: Mapping[int, Any]) -> dict[int, RolloutSamples]:
        found: dict[int, RolloutSamples] = {}
        for samples, metrics in answers.values():
            self.metrics.aggregate([metrics], key=ENV_RUNNER_RESULTS)
            found |= {sample.worker: sample for sample in samples}
        return found

    def _ask_runners(self, calls: Mapping[int, Any], asked: bool = False) -> dict[int, Any]:
        """The answers of those runners, each to its call, that are neither lost nor silent for too long; the others are
        out of service from now on.

        asked: they already have their calls. Raises TrainingError with a runner's error message.
        """
        manager, limit = actors_of(self.env_runner_group), self._hang_limit_s()
        setting = "sample_timeout_s" if limit > self.config.sample_timeout_s else "hang_timeout_s"
        limit = min(limit, self.config.sample_timeout_s)
        if not calls:  # RLlib interprets an empty list of runners as all
            return {}
        if asked:
            found = manager.fetch_ready_async_reqs(tags=_AHEAD, timeout_seconds=limit)
        else:
            found = manager.foreach_actor(
                list(map(ReturnErrors, calls.values())), remote_actor_ids=list(calls), timeout_seconds=limit
            )
        answers = {answer.actor_id: answer for answer in found}
        for runner in calls:
            if runner in answers and not answers[runner].ok:
                say(f"warning: env runner {runner} is lost; others play for it until it is recreated")
            elif runner not in answers and manager.is_actor_healthy(runner):
                say(
                    f"warning: env runner {runner} gave no answer in {limit:g} s (fault_tolerance.{setting}) and is"
                    " recreated"
                )
                ray.kill(manager.actors()[runner], no_restart=False)  # else it would get requests, or answer late
                manager.set_actor_state(runner, healthy=False)
        return {runner: unwrap(answer.get()) for runner, answer in answers.items() if answer.ok}

    def _refuse_broken_runners(self) -> None:
        """Raise TrainingError if an env runner could not be created. One lost during creation counts as lost."""
        for group, what in (
            (self.env_runner_group, "env runner"),
            (self.eval_env_runner_group, "evaluation env runner"),
        ):
            if group is None or not group.num_remote_env_runners():
                continue
            for answer in actors_of(group).foreach_actor(methodcaller("ping"), healthy_only=False):
                error = answer.get()
                if isinstance(error, RayActorError) and error.actor_init_failed:
                    raise TrainingError(f"{what} {answer.actor_id} cannot be made: {said(error)}") from error

    def learn_from(self, samples: list[RolloutSamples]) -> dict[str, float]:
        """Learn from given rollouts, as one iteration; its metrics ``learn/<agent>/<name>``."""
        found = self._learn(samples)
        self.train_iteration += 1
        self.env_steps_total += sum(sample.env_steps() for sample in samples)
        return found

    def _learn(self, samples: list[RolloutSamples]) -> dict[str, float]:
        """Update all learners with all samples; returns flat metrics ``learn/<agent>/<name>``."""
        arguments = {"iteration": self.train_iteration, "lr": self.config.base_lr(self.train_iteration)}
        if self.config.schedules or self.config.policies_to_train is not None:
            arguments["updated"] = self.config.who_learns(self.train_iteration)
        flat = self._learned(
            self._update("episodes", samples, arguments), arguments.get("updated", self.scenario.protocol.agents)
        )
        flat["learn/lr"] = arguments["lr"]
        return flat

    def _update(self, name: str, played: Any, arguments: dict[str, Any]) -> list[Any]:
        """The results of all learners' `update` with these arguments, and with `played` under this name."""
        if self.learner_group.is_local:
            return [local_learner(self.learner_group).update(**{name: played}, **arguments)]
        return self._foreach_learner(Update(name, ray.put(played), arguments))

    def _learned(self, results: list[Any], learned: Iterable[str]) -> dict[str, float]:
        """The results of an update as flat metrics: means over learners, of the agents in `learned` alone.

        RLlib's logger keeps the names of agents that rest now.
        """
        flat: dict[str, float] = {}
        for agent in sorted(set().union(*results) & set(learned)):
            for name in dict.fromkeys(name for result in results for name in result.get(agent, {})):
                found = [result[agent][name] for result in results if name in result.get(agent, {})]
                values = [float(value.peek() if hasattr(value, "peek") else value) for value in found]
                if not name.startswith("num_"):  # RLlib counts parameters, once
                    flat[f"learn/{agent}/{name}"] = fmean(values)
        self.metrics.aggregate(results[:1], key=LEARNER_RESULTS)
        return flat

    def _share_modules(self) -> None:
        """With everything in one process the runner plays with the learner's own networks."""
        group = self.env_runner_group
        self.shares_modules = self.learner_group.is_local and group is not None and group.num_remote_env_runners() == 0
        if self.shares_modules:
            group.local_env_runner.module = local_learner(self.learner_group).module

    def send_weights(self) -> None:
        """Send the learners' weights to every runner, and wait for them."""
        if self.shares_modules or self.env_runner_group is None:
            return
        state = self._weights()
        if self.env_runner_group.local_env_runner is not None:
            self.env_runner_group.local_env_runner.set_state(state)
        if self.config.max_staleness:  # sent with the runners' requests
            self._sent = state[COMPONENT_RL_MODULE]
        elif self.env_runner_group.num_remote_env_runners():
            shared = ray.put(state[COMPONENT_RL_MODULE])
            healthy = self.env_runner_group.healthy_env_runner_ids()
            self._ask_runners(dict.fromkeys(healthy, TakeWeights([shared], self.train_iteration)))

    def _weights_of_now(self) -> dict[str, Any]:
        """A copy of the last sent weights, as tensors."""
        return {
            agent: {name: torch.tensor(value) for name, value in state.items()} for agent, state in self._sent.items()
        }

    def _weights(self) -> dict[str, Any]:
        state = self._first_learner(methodcaller("get_state", components=COMPONENT_RL_MODULE))
        return {COMPONENT_RL_MODULE: state[COMPONENT_RL_MODULE], "weights_seq_no": self.train_iteration}

    def training_state(self) -> dict[str, Any]:
        """Tensors of the first learner (all are equal) and the counters: the full state for an exact resume."""
        state = self._first_learner(methodcaller("training_state"))
        return {**state, "counters": self.counters(), **self._kept_weights()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`, for all learners and runners."""
        own = {key: state[key] for key in ("modules", "trained", "optimizers", "extra") if key in state}
        self._foreach_learner(methodcaller("load_training_state", own))
        self.load_counters(state["counters"])
        self._load_kept(state, state["counters"])
        self.send_weights()

    def counters(self) -> dict[str, Any]:
        """The state apart from tensors, as plain data."""
        books = {} if self.past is None else {"opponent_pool": self.past.pool.state()}
        return {"iteration": self.train_iteration, "env_steps_total": self.env_steps_total, **books}

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        """The inverse of `counters`."""
        self.train_iteration, self.env_steps_total = int(counters["iteration"]), int(counters["env_steps_total"])

    def _kept_weights(self) -> dict[str, Any]:
        """The snapshots' weights, and those of the next iteration's play if they are not the current ones."""
        past = {} if self.past is None else {"opponent_weights": self.past.stored_weights()}
        return past if self._behind is None else {**past, "weights_behind": self._behind}

    def _load_kept(self, state: Mapping[str, Any], counters: Mapping[str, Any]) -> None:
        if self.past is not None:
            self.past.load(counters["opponent_pool"], state["opponent_weights"])
        if self._ahead is not None and self._ahead.calls:  # forgotten, once runners are free again
            self._ask_runners(self._ahead.calls, asked=True)
        self._ahead = None
        self._behind = state.get("weights_behind")

    @override(Algorithm)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """RLlib's state, plus counters and an algorithm's state between updates."""
        state = super().get_state(components, not_components=not_components, **kwargs)
        extra = self._first_learner(methodcaller("extra_state"))
        averages = self._first_learner(methodcaller("averages_copy"))
        state["nip_ray"] = {**self.counters(), "extra": extra, "averages": averages, **self._kept_weights()}
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`; runners have the weights when it returns."""
        ours = state.get("nip_ray")
        with self._no_needless_ray():
            super().set_state({key: value for key, value in state.items() if key != "nip_ray"})
        if ours is not None:
            self.load_counters(ours)
            self._load_kept(ours, ours)
            self._foreach_learner(methodcaller("load_extra_state", ours["extra"]))
            self._foreach_learner(methodcaller("load_averages", ours.get("averages", {})))
        self._share_modules()
        self.send_weights()

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's restore, then a blocking send of the weights to all runners."""
        with self._no_needless_ray():
            super().restore_from_path(path, *args, **kwargs)
        self.send_weights()

    def networks(self) -> dict[str, nn.Module]:
        """All agents' networks, in this process, with their evaluation weights: averages with `average_weights`."""
        learner = local_learner(self.learner_group)
        if learner is not None and not learner.averages:
            return dict(learner.networks)
        if not hasattr(self, "_networks"):
            made = networks_of(self.config.env_config["experiment"])
            self._networks = (
                made if learner is None else {agent: made[agent].to(learner.device) for agent in learner.networks}
            )
        weights = (
            self._first_learner(methodcaller("training_state"))["modules"] if learner is None else learner.averages
        )
        for agent, own in weights.items():
            self._networks[agent].load_state_dict(own)
        return self._networks

    def _no_needless_ray(self) -> AbstractContextManager[None]:
        """Within it RLlib does not start Ray for a run in this process alone."""
        return nullcontext() if self._needs_ray(self.config) else runners_by_value(store=False)

    def _needs_ray(self, config: AlgorithmConfig) -> bool:
        return (
            bool(config.num_env_runners or config.num_learners or config.evaluation_num_env_runners)
            or ray.is_initialized()
        )

    def _foreach_learner(self, function: Any, only: list[int] | None = None) -> list[Any]:
        """The results of `function` on every learner, or on those numbered in `only`; see `ask_learners`."""
        if self.learner_group.is_local:
            return [function(local_learner(self.learner_group))]
        learners = remote_learners(self.learner_group)
        only = list(range(len(learners))) if only is None else only
        return ask_learners(learners, [function] * len(only), only, self._hang_limit_s())

    def _hang_limit_s(self) -> float:
        return hang_limit_s(self.config.hang_timeout_s, self.durations)

    @override(Algorithm)
    def cleanup(self) -> None:
        """End all processes. A hanging runner is not awaited: runners have nothing to save."""
        if getattr(self, "env_runner_group", None) is not None:
            actors_of(self.env_runner_group).clear()
        super().cleanup()

    def _first_learner(self, function: Any) -> Any:
        """The result of `function` on the first learner; all have the same state, so others need not send theirs."""
        return self._foreach_learner(function, only=[0])[0]


for _name in REFUSED_CALLS:
    setattr(ProtocolAlgorithm, _name, refused_call(_name))


@dataclass(frozen=True)
class Ahead:
    """An iteration with fixed weights. plays: worker -> its past opponents. request: workers -> a runner's request to
    play their shares. calls: runner -> the request that it already has."""

    plays: dict[int, PastPlay | None]
    request: Callable[[tuple[int, ...]], Any]
    calls: Mapping[int, Any]


def _planned(workers: Iterable[int], request: Callable[[tuple[int, ...]], Any], healthy: list[int]) -> dict[int, Any]:
    """Runner -> its request: for its own share, and for some of those of lost runners."""
    plan: dict[int, list[int]] = {}
    for i, worker in enumerate(workers):
        plan.setdefault(worker if worker in healthy else healthy[i % len(healthy)], []).append(worker)
    return {runner: request(tuple(own)) for runner, own in plan.items()}


@contextmanager
def _learners_said() -> Iterator[None]:
    """Raise TrainingError, with the cause, if remote learners cannot be created."""
    try:
        yield
    except RayActorError as error:
        raise LearnerLost(f"a learner was lost while it was made ({first_words(str(error))})") from error
    except RayError as error:
        raise TrainingError(f"a learner cannot be made: {said(error)}") from error
