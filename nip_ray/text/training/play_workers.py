"""Dialogues of an iteration held by Ray actors, each with all models and a share of the dialogues.

Decisions that matter here:
- an actor plays whole dialogues: weights are sent to it once an iteration, through the object store, and nothing else
  until its share is done;
- seeds depend on a dialogue's number, so the replies are the same for any number of actors; log-probabilities differ in
  their last bits, as they do between batches. With the same number of actors results are bit-identical;
- play is a function of its input, so a lost actor is restarted, and plays its share again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray

from nip_ray.cluster.resources import worker_bundle
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, speaking_providers
from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import LocalProvider
from nip_ray.text.costs.token_bills import Allowance, TokenBills, Use
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.training.model_play import ModelPlay, Reply, Talk
from nip_ray.text.training.past import PastAgents
from nip_ray.text.training.policies import Policy, model_for
from nip_ray.text.worker_pool import Call, WorkerPool, parts_of


class PlayWorker:
    """One process that plays. An actor."""

    def __init__(self, config: dict[str, Any], run_dir: Path, threads: int) -> None:
        """config: dumped."""
        import torch

        torch.set_num_threads(threads)
        self._config, self._run_dir = TextExperimentConfig.model_validate(config), run_dir
        opponents = self._config.opponents
        self._past = None if opponents is None else PastAgents(self._config, opponents, run_dir).load

    @cached_property
    def _models(self) -> dict[str, Policy]:
        """Loaded by the first call: an error in the constructor of an actor would end it, not the run."""
        return {group: model_for(self._config, group, self._run_dir) for group in groups(self._config)}

    def play(
        self,
        weights: Mapping[str, Any],
        scenario: LanguageScenario,
        tasks: Sequence[Task],
        split: str,
        iteration: int,
        allowed: int | None,
    ) -> Talk:
        """See `ModelPlay.play`. weights: by group, of learners. allowed: the maximum number of tokens."""
        self._take(weights)
        return ModelPlay(self._config, self._models, Allowance(allowed), self._past).play(
            scenario, tasks, split, iteration
        )

    def logprobs(self, weights: Mapping[str, Any], group: str, turns: Sequence[Turn]) -> list[list[float]]:
        """See `Policy.logprobs`."""
        self._take(weights)
        return ModelPlay(self._config, self._models, Allowance(0)).logprobs(group, turns)

    def _take(self, weights: Mapping[str, Any]) -> None:
        for group, own in weights.items():
            self._models[group].take(own)


class PlayWorkers:
    """The driver's side. Ray must be running, and all nodes see the run folder."""

    apart = True
    booked: Mapping[str, Use] = MappingProxyType({})

    def __init__(
        self, config: TextExperimentConfig, run_dir: Path, models: Mapping[str, Policy], bills: TokenBills
    ) -> None:
        """models: of the driver, which learn."""
        rule, bundle = config.algorithm, worker_bundle(config)
        assert isinstance(rule, TokenTrainingSettings)
        self._models, self._bills, self._size = models, bills, rule.group_size
        self._groups = groups(config)
        self._weights: Any = None
        local = [provider for provider in speaking_providers(config).values() if isinstance(provider, LocalProvider)]
        threads = max(provider.threads for provider in local)
        options = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0)}
        arguments = [(config.model_dump(mode="json"), run_dir.resolve(), threads)] * rule.num_rollout_workers
        self.pool = WorkerPool(PlayWorker, options, arguments, config.fault_tolerance.hang_timeout_s)

    def take(self, weights: Mapping[str, Any]) -> None:
        """Play with these weights, by group, from now on."""
        self._weights = ray.put(dict(weights))
        for group, own in weights.items():  # computations here use the same
            if self._models[group].samples_apart:
                self._models[group].take(own)

    def play(self, scenario: LanguageScenario, tasks: Sequence[Task], split: str, iteration: int) -> Talk:
        """See `ModelPlay.play`. Raises TrainingError if an actor dies repeatedly at the same dialogues."""
        left, known, weights = self._bills.left, ray.put(scenario), self._weights
        self.booked = {}

        def call(own: list[Task]) -> Call:
            allowed = None if left is None else left * len(own) // len(tasks)
            return lambda worker: worker.play.remote(weights, known, own, split, iteration, allowed)

        shares = parts_of(tasks, len(self.pool.actors), self._size if split == "train" else 1)
        made = Talk([], [], {group: Use() for group in self._groups})
        for part in asyncio.run(self.pool.work([call(own) for own in shares])):
            made.replies += [replace(reply, place=reply.place + len(made.dialogues)) for reply in part.replies]
            made.dialogues += part.dialogues
            made.used = {group: use + part.used[group] for group, use in made.used.items()}
        self._order(made.replies, tasks)
        for group, use in made.used.items():
            self._bills.book(self._bills.ask(group, use), use)
            self.booked = {**self.booked, group: use}
        return made

    def _order(self, replies: list[Reply], tasks: Sequence[Task]) -> None:
        """Sort into the order of `ModelPlay`, on which minibatches and moving baselines depend."""
        snapshot = {one: place for place, one in enumerate(dict.fromkeys(task.snapshot for task in tasks))}
        group = {agent: place for place, members in enumerate(self._groups.values()) for agent in members}
        replies.sort(key=lambda one: (snapshot[one.snapshot], one.round, one.attempt, group[one.agent]))

    def logprobs(self, group: str, turns: Sequence[Turn]) -> list[list[float]]:
        """See `Policy.logprobs`; by the playing weights."""
        calls = [lambda worker: worker.logprobs.remote(self._weights, group, list(turns))]
        return asyncio.run(self.pool.work(calls))[0]

    def close(self) -> None:
        """End the actors."""
        self.pool.close()
