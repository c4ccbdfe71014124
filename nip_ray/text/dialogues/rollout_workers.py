"""Dialogues held by Ray actors: the driver hands out parts of a stage's tasks, and hands a part out again when its rollout worker dies.

Decisions that matter here:
- a rollout worker that comes after another makes the same calls under the same keys, and finds what was answered in the records of the run
  folder, which all nodes must see: so a lost node costs no reply;
- budget and limits are kept by actors. The budget's belongs to the run's main process. The limits' belongs to nobody in particular: whoever
  comes first makes it (in a sweep that is a trial), and when it has ended with its maker, whoever asks next makes it again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from nip_ray.cluster.liveness import ActorWatch, watchable
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.plugins import send_by_value
from nip_ray.errors import TrainingError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.secrets import secret
from nip_ray.serving.host import as_ours
from nip_ray.settings.providers import ProviderSettings
from nip_ray.text.costs.budget import Reservation, Throttle
from nip_ray.text.costs.prices import NOTHING, Amount, BudgetExhausted, Spending
from nip_ray.text.costs.shared import SharedBudget, SharedLimiter, budget_actor, limiter_actor
from nip_ray.text.dialogues.records import ClientPool
from nip_ray.text.dialogues.runner import Brake, DialogueRunner, Progress, StageContext, Task
from nip_ray.tracking import RunInfo, traces

_PARTS_PER_WORKER = 4
_MAX_DEATHS = 5
"""Of the rollout workers that were given one part, after which the stage fails."""
_MAX_SEARCHES, _SEARCH_S = 60, 1.0
"""For an actor that is gone: as long as Ray may take to notice that a node is."""


class RolloutWorker:
    """One process that talks. An actor on an event loop, one part of a stage at a time."""

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

    async def hold(self, models: Mapping[str, str], context: StageContext, tasks: Sequence[Task], num_responses: int | None) -> list[Any]:
        """Dialogues, or with `num_responses` trees, of these tasks."""
        config = self._config
        traces.begin(config.tracking, RunInfo(self._run_dir, context.run, config.name, self._dumped))
        budget = SharedBudget(self._keeper, self._worker, config.budget.usd is not None)
        throttles: dict[str, Throttle] = {
            name: LastingLimiter(self._limiters[name], partial(_keeper, provider)) for name, provider in _limited(config).items()
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
    """The driver's side. Ray must be running."""

    def __init__(
        self, config: TextExperimentConfig, scenario: LanguageScenario, run_dir: Path, hosts: Mapping[str, Any], spent: Spending
    ) -> None:
        """hosts: of local providers. spent: before, by the same run. Raises UserError for a missing key."""
        function = scenario.protocol.payment.function
        send_by_value(type(scenario), *([] if function is None else [function]))
        self._config = config
        self._keeper = budget_actor(config.budget, spent)
        limiters = {name: _keeper(provider) for name, provider in _limited(config).items()}
        dumped, run_dir = config.model_dump(mode="json"), run_dir.resolve()

        def worker(number: int) -> Any:
            kind = watchable(RolloutWorker)
            options = kind.options(num_cpus=config.talk.num_cpus_per_talker, max_restarts=-1)
            return options.remote(dumped, scenario, run_dir, str(number), self._keeper, hosts, limiters)

        self._workers = [worker(number) for number in range(config.talk.num_talkers)]
        named = {f"rollout worker {number}": actor for number, actor in enumerate(self._workers)}
        self._watch = ActorWatch(named, config.fault_tolerance.hang_timeout_s)

    async def hold(
        self, models: Mapping[str, str], context: StageContext, tasks: Sequence[Task], num_responses: int | None, progress: Progress | None
    ) -> list[Any]:
        """See `RolloutWorker.hold`; in the order of the tasks. Raises what a worker raises, once the parts on their way are over."""
        parts = _parts(tasks, len(self._workers) * _PARTS_PER_WORKER)
        waiting = list(enumerate(parts))
        made: dict[int, list[Any]] = {}

        async def work(number: int) -> None:
            while waiting:
                index, part = waiting.pop(0)
                made[index] = await self._held(number, (models, context, part, num_responses))
                if progress is not None:
                    progress(sum(map(len, made.values())), len(tasks))

        done = await asyncio.gather(*(work(number) for number in range(len(self._workers))), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error
        return [one for index in range(len(parts)) for one in made[index]]

    def spending(self) -> Spending:
        """What the run has cost so far."""
        return ray.get(self._keeper.spending.remote())

    def book(self, spending: Spending, released: Amount = NOTHING) -> None:
        """Book what was spent; `released` was held for it."""
        ray.get(self._keeper.let_go.remote(released, spending))

    async def reserve_for_jobs(self, amount: Amount) -> Reservation:
        """See `Budget.reserve_for_jobs`."""
        refusal = await self._keeper.reserve_for_jobs.remote(amount)
        if refusal is not None:
            raise BudgetExhausted(refusal)
        return Reservation(amount, lambda released, spending: self.book(spending, released))

    def stop(self) -> None:
        """End the actors."""
        self._watch.close()
        for actor in (*self._workers, self._keeper):
            ray.kill(actor)

    async def _held(self, number: int, work: tuple[Any, ...]) -> list[Any]:
        for _ in range(_MAX_DEATHS):
            try:
                return await self._workers[number].hold.remote(*work)
            except RayActorError:
                await self._keeper.forfeit.remote(str(number))
            except RayError as error:
                raise as_ours(error, "a rollout worker") from None
        raise TrainingError(f"rollout worker {number} died {_MAX_DEATHS} times at the same dialogues; see Ray's logs, then resume the run")


class LastingLimiter:
    """A `SharedLimiter` that outlives its actor: when that went with the process that made it, it is made again, or found if somebody else
    was quicker. Of pauses the new one knows nothing; providers say them again.
    """

    def __init__(self, keeper: Any, again: Callable[[], Any]) -> None:
        """keeper: handle of the actor. again: finds or makes it; called in a thread."""
        self._shared, self._again = SharedLimiter(keeper), again
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> None:
        """See `Throttle.acquire`. Raises TrainingError when the actor cannot be made again."""
        for _ in range(_MAX_SEARCHES):
            asked = self._shared
            try:
                return await asked.acquire(tokens)
            except TrainingError:  # its actor is gone
                await self._renew(asked)
        raise TrainingError(f"the actor that keeps the rate limits was made again {_MAX_SEARCHES} times in vain; resume the run")

    def correct(self, estimated: int, used: int) -> None:
        """See `Throttle.correct`."""
        self._shared.correct(estimated, used)

    def pause(self, seconds: float) -> None:
        """See `Throttle.pause`."""
        self._shared.pause(seconds)

    async def _renew(self, lost: SharedLimiter) -> None:
        async with self._turn:
            if self._shared is not lost:  # another call did it meanwhile
                return
            try:
                self._shared = SharedLimiter(await asyncio.to_thread(self._again))
            except RayActorError:  # for a moment the name still stands for the one that is gone
                await asyncio.sleep(_SEARCH_S)


def shared_limiter(provider: ProviderSettings) -> Throttle:
    """The limits of the provider's key, shared with everyone on this Ray who has it. Raises UserError for a missing key."""
    return LastingLimiter(_keeper(provider), partial(_keeper, provider))


def _limited(config: TextExperimentConfig) -> dict[str, ProviderSettings]:
    return {name: provider for name, provider in config.providers.items() if provider.limits is not None}


def _keeper(provider: ProviderSettings) -> Any:
    address, variable = str(provider.address or type(provider).__name__).rstrip("/"), getattr(provider, "api_key_variable", None)
    requests, tokens = provider.limits or (None, None)
    return limiter_actor(address, "" if variable is None else secret(variable, address), requests, tokens)


def _parts(tasks: Sequence[Task], count: int) -> list[list[Task]]:
    """At most `count` runs of consecutive tasks, about equally long."""
    size = max(1, -(-len(tasks) // count))
    return [list(tasks[start : start + size]) for start in range(0, len(tasks), size)]
