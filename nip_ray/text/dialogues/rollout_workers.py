"""Dialogues by Ray actors: the driver distributes parts of a stage's tasks, and reassigns a part if its worker dies.

Decisions that matter here:
- a replacement makes the same calls under the same keys, and finds earlier replies in the records of the run folder,
  which all nodes must see, so a lost node costs no reply;
- budget and limits are kept by actors (`nip_ray.text.costs.shared`); the budget's belongs to the run's main process.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.plugins import send_by_value
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.settings.providers import ProviderSettings
from nip_ray.text.costs.budget import Throttle
from nip_ray.text.costs.prices import Spending
from nip_ray.text.costs.shared import SharedBudget, SharedLimiter, budget_actor, limiter_of
from nip_ray.text.dialogues.records import ClientPool
from nip_ray.text.dialogues.runner import Brake, DialogueRunner, Progress, StageContext, Task
from nip_ray.text.worker_pool import Call, WorkerPool, parts_of
from nip_ray.tracking import RunInfo, traces

_PARTS_PER_WORKER = 4


class RolloutWorker:
    """One process that holds dialogues. An actor on an event loop, one part of a stage at a time."""

    def __init__(
        self,
        config: dict[str, Any],
        scenario: LanguageScenario,
        run_dir: Path,
        worker: str,
        keeper: Any,
        hosts: Mapping[str, Any],
        limiters: Mapping[str, Any],
    ) -> None:
        """config: dumped. worker: its name. keeper, hosts, limiters: handles of actors."""
        self._config, self._scenario = TextExperimentConfig.model_validate(config), scenario
        self._run_dir, self._worker = run_dir, worker
        self._keeper, self._hosts, self._limiters = keeper, hosts, limiters
        self._dumped = config
        self._brake = Brake(self._config.talk)

    async def hold(
        self, models: Mapping[str, str], context: StageContext, tasks: Sequence[Task], num_responses: int | None
    ) -> list[Any]:
        """Dialogues, or with `num_responses` trees, of these tasks."""
        config = self._config
        traces.begin(config.tracking, RunInfo(self._run_dir, context.run, config.name, self._dumped))
        budget = SharedBudget(self._keeper, self._worker, config.budget.usd is not None)
        throttles: dict[str, Throttle] = {
            name: SharedLimiter(self._limiters[name], partial(limiter_of, provider))
            for name, provider in _limited(config).items()
        }
        pool = ClientPool(config, self._run_dir, budget, self._hosts, throttles, self._worker)
        in_flight = -(-config.talk.max_in_flight // config.talk.num_talkers)
        try:
            async with pool.agent_clients(models, context.iteration) as clients:
                runner = DialogueRunner(self._scenario, clients, context, in_flight, self._brake)
                return await (runner.dialogues(tasks) if num_responses is None else runner.trees(tasks, num_responses))
        finally:
            await budget.flush()
            await asyncio.to_thread(traces.flush)


class RolloutWorkers:
    """The driver's side. Ray must be running. budget: pays for the driver and all workers."""

    def __init__(
        self,
        config: TextExperimentConfig,
        scenario: LanguageScenario,
        run_dir: Path,
        hosts: Mapping[str, Any],
        spent: Spending,
    ) -> None:
        """hosts: of local providers. spent: before, by the same run. Raises UserError for a missing key."""
        function = scenario.protocol.payment.function
        send_by_value(type(scenario), *([] if function is None else [function]))
        self._config = config
        self._keeper = budget_actor(config.budget, spent)
        self.budget = SharedBudget(self._keeper, "", config.budget.usd is not None)
        limiters = {name: limiter_of(provider) for name, provider in _limited(config).items()}
        dumped, run_dir = config.model_dump(mode="json"), run_dir.resolve()

        options = {"num_cpus": config.talk.num_cpus_per_talker}
        arguments = [
            (dumped, scenario, run_dir, str(number), self._keeper, hosts, limiters)
            for number in range(config.talk.num_talkers)
        ]
        self.pool = WorkerPool(RolloutWorker, options, arguments, config.fault_tolerance.hang_timeout_s)

    async def hold(
        self,
        models: Mapping[str, str],
        context: StageContext,
        tasks: Sequence[Task],
        num_responses: int | None,
        progress: Progress | None,
    ) -> list[Any]:
        """See `RolloutWorker.hold`; in the order of the tasks. Raises a worker's errors, after the parts in flight."""
        parts = parts_of(tasks, len(self.pool.actors) * _PARTS_PER_WORKER)

        def call(part: list[Task]) -> Call:
            return lambda worker: worker.hold.remote(models, context, part, num_responses)

        def over(made: Mapping[int, Any]) -> None:
            if progress is not None:
                progress(sum(map(len, made.values())), len(tasks))

        made = await self.pool.work(
            [call(part) for part in parts], over, lambda number: self._keeper.forfeit.remote(str(number))
        )
        return [one for part in made for one in part]

    def stop(self) -> None:
        """End the actors."""
        self.pool.close()
        ray.kill(self._keeper)


def _limited(config: TextExperimentConfig) -> dict[str, ProviderSettings]:
    return {name: provider for name, provider in config.providers.items() if provider.limits is not None}
