"""Parts of a run of language agents: scenario, items, providers, budget, journal of jobs; and its state (`TextState`).

Decisions that matter here:
- `prepare` reads all user input (plugins, prompts, data) and `check_providers` queries every hosted provider for the
  required abilities, before a run folder is made and before anything is paid for;
- with `talk.num_talkers` dialogues are held by Ray actors; budget and limits are then kept by actors too, which the
  driver creates;
- in a trial of a sweep limits are kept by an actor in any case: other trials may have the same key. Budgets are per
  run;
- a trial's actors can only use the trial's own resources (Ray puts them into its placement group), so
  `nip_ray.cluster.resources.trial_bundles` has room for all of them. Workers of Ray Train are the exception: they need
  extra room, and would wait forever with trials that fill a cluster. So in a trial one process fine-tunes.
"""

import asyncio
import json
import math
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from nip_ray.cluster.liveness import ActorWatch
from nip_ray.cluster.ray_session import start_ray
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.plugins import import_plugins
from nip_ray.config.text_rules import groups, language_agents, learns_from_tokens, speaking_providers
from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.protocols import NUM_SEEDS, from_settings
from nip_ray.protocols.conformance import refuse_labels
from nip_ray.scenarios.language import LanguageScenarioKind, language_kind
from nip_ray.serving.fine_tuning_job import Method
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.storage.fingerprint import checksum
from nip_ray.storage.folder import RunFolder, write_document
from nip_ray.text.context_room import check_room
from nip_ray.text.costs.budget import Budget, BudgetLike, Throttle
from nip_ray.text.costs.prices import Spending, price_list, sum_of
from nip_ray.text.dialogues.records import ClientPool, total
from nip_ray.text.dialogues.runner import Brake, DialogueRunner, Progress, StageContext, Task
from nip_ray.text.items import store_items, stored_items
from nip_ray.text.jobs import Entry, Journal, bills, under_way
from nip_ray.text.providers.interface import ChecksModels, Connection, FineTuneBackend, fine_tune_backend, provider_of
from nip_ray.text.training.rules import rule_of
from nip_ray.text.written_models import refuse_wordless, write_models

STATE = "state.json"
ROLES = "roles.json"
"""The roles that the episodes of an attack draw; runs that draw all have no such file."""
Stage = Literal["format_warmup", "sample", "log", "test", "create_jobs", "await_jobs"]
STAGES: tuple[Stage, ...] = ("format_warmup", "sample", "log", "test", "create_jobs", "await_jobs")


@dataclass(frozen=True)
class GroupState:
    """A group of agents with one model. base: the start of a fine-tuning from scratch: the config's model, or the one
    after the format warm-up. model: the current one.

    job_key: of the fine-tuning under way (None: none); the journal of jobs has the rest.
    """

    base: str
    model: str
    job_key: str | None = None


@dataclass(frozen=True)
class TextState:
    """The state of a run: `state.json`, written in one step after every stage.

    iteration, stage: the next to do (iterations count from 0); `over` once there is none. groups: for each, its model,
    and the job under way. history: for each iteration whose row is written: group -> the model that it sampled with.
    run_id: random, made once: part of the keys of all calls and jobs, so that two runs of one config never share any.
    """

    run_id: str
    groups: Mapping[str, GroupState]
    iteration: int = 0
    stage: Stage = "sample"
    over: bool = False
    history: tuple[Mapping[str, str], ...] = ()

    def group(self, name: str, **changes: Any) -> "TextState":
        """This state with changes in one group."""
        return replace(self, groups={**self.groups, name: replace(self.groups[name], **changes)})

    def models(self) -> dict[str, str]:
        """Group -> its current model."""
        return {name: group.model for name, group in self.groups.items()}


def first_state(bases: Mapping[str, str]) -> TextState:
    """The initial state. bases: group -> the config's model."""
    return TextState(uuid.uuid4().hex, {name: GroupState(base, base) for name, base in bases.items()})


def save_state(folder: RunFolder, state: TextState) -> None:
    """Write `state` to the run folder, in one step."""
    content = asdict(state)
    folder.write_json(STATE, {"state": content, "sha256": checksum(content)})


def load_state(folder: RunFolder) -> TextState:
    """The state in a run folder. Raises UserError when it is missing or damaged."""
    document = folder.read_json(STATE)
    found: Any = document.get("state")
    if "sha256" in document and document["sha256"] != checksum(found):  # states of earlier versions have none
        raise UserError(f"{folder.path / STATE} is damaged: its checksum is another; go back to a copy of the folder")
    try:
        groups = {name: GroupState(**group) for name, group in found["groups"].items()}
        # the name in the previous version
        stage = {"rehearse": "format_warmup"}.get(found["stage"], found["stage"])
        state = TextState(**{**found, "stage": stage, "groups": groups, "history": tuple(found["history"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder.path / STATE} is damaged ({error}); go back to a copy of the folder") from None
    if state.stage not in STAGES:
        raise UserError(
            f"{folder.path / STATE} is damaged: it has no stage {state.stage!r}; go back to a copy of the folder"
        )
    return state


# ----------------------------------------------------------------------------------------------------------------------
# The parts of a run of language agents: read (`Prepared`) and open (`Parts`).

JOBS = "jobs.jsonl"
PROVIDERS = "providers.json"
"""Abilities of providers that were queried."""
_BYTES_PER_TOKEN = 3


@dataclass(frozen=True)
class Prepared:
    """The user's input, read. kind: of the scenario. items: by split. roles: that episodes draw, () for all of the
    protocol's. speakers: one of these has a turn in each episode, () for any."""

    kind: LanguageScenarioKind
    scenario: LanguageScenario
    items: dict[str, list[Any]]
    roles: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()

    def drawn(self, tasks: Sequence[Task]) -> list[Task]:
        """The same tasks, in episodes that draw one of `roles` and give one of `speakers` a turn."""
        if not self.roles and not self.speakers:
            return list(tasks)
        import torch

        seed_B = torch.tensor([task.seed % NUM_SEEDS for task in tasks])
        seeds = self.scenario.protocol.seeds_within(self.roles, seed_B, self.speakers).tolist()
        return [replace(task, seed=seed) for task, seed in zip(tasks, seeds, strict=True)]


def prepare(config: TextExperimentConfig, run_dir: Path | None = None) -> Prepared:
    """Read everything. run_dir: of a run that already has its items. Raises UserError for unusable input."""
    import_plugins(config.plugins)
    kind = language_kind(config.scenario)
    scenario = kind.build(from_settings(config.protocol), config.scenario)
    _check_schemas(config, scenario)
    refuse_wordless(config, scenario)
    items = stored_items(run_dir, kind) if run_dir is not None else None
    if items is None:
        items = kind.items(config.scenario, config.seed)
        asked, there = config.algorithm.num_test_items, len(items["test"])
        if asked is not None and asked > there:
            raise UserError(
                f"algorithm.num_test_items: got {asked}, but there are {there} held-out items, use at most that or null"
                " (all)"
            )
    _refuse_half_characters(items, kind)
    refuse_labels(scenario.protocol, config.scenario.name, (item.y for found in items.values() for item in found))
    check_room(config, scenario, items["train"])
    _check_examples(config, scenario, items["train"][0])
    if run_dir is None or not (run_dir / ROLES).exists():
        return Prepared(kind, scenario, items)
    with RunFolder.open(run_dir) as folder:
        stored = folder.read_json(ROLES)
    return Prepared(kind, scenario, items, tuple(stored["roles"]), tuple(stored.get("speakers", ())))


def store_roles(folder: RunFolder, roles: Sequence[str], speakers: Sequence[str]) -> None:
    """Store the roles that a run's episodes draw, and the speakers of which one has a turn in each, for resuming."""
    folder.write_json(ROLES, {"roles": list(roles), "speakers": list(speakers)})


def _refuse_half_characters(items: Mapping[str, Sequence[Any]], kind: LanguageScenarioKind) -> None:
    """Raise UserError for an item, from a file or a custom scenario, with text that no file or request can hold."""
    for split, item in ((split, item) for split, found in items.items() for item in found):
        try:
            json.dumps(kind.write_item(item), ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start]).strip("'")
            raise UserError(
                f"scenario: {split} item {item.id} holds {half}, half of a surrogate pair, write whole characters"
            ) from None


def _check_schemas(config: TextExperimentConfig, scenario: LanguageScenario) -> None:
    """Raise UserError if an agent learns from sampled tokens and its replies are held to a schema."""
    for agent, own in language_agents(config).items():
        if learns_from_tokens(config) and not own.frozen and scenario.reply_schema(agent) is not None:
            raise UserError(
                f"scenario.agents.{agent}.frozen: {config.scenario.name} holds its replies to a schema, under which"
                " tokens are not drawn from its own distribution, set it to true or choose another algorithm"
            )


def _check_examples(config: TextExperimentConfig, scenario: LanguageScenario, item: Any) -> None:
    """Raise UserError if the warm-up needs the scenario's own examples, and the scenario has none. item: any."""
    rule = config.algorithm
    steps = rule.format_warmup if isinstance(rule, TextTrainingSettings) else rule.warmup_steps
    asked = rule.warmup_agents
    agents = [agent for agent, own in language_agents(config).items() if not own.frozen] if asked is None else asked
    without = [agent for agent in agents if steps and scenario.warm_example(item, agent, 0) is None]
    if without and (asked is not None or len(without) == len(agents)):
        key, right = ("warmup_steps", "set it to 0") if asked is None else ("warmup_agents", "leave out")
        raise UserError(
            f"algorithm.{key}: {config.scenario.name} has no examples of its own for {', '.join(without)}, {right}"
        )


class Parts:
    """The open parts of a run; see the module. budget: pays for calls and jobs. `close` releases everything."""

    def __init__(
        self, config: TextExperimentConfig, folder: RunFolder, prepared: Prepared, *, in_trial: bool = False
    ) -> None:
        """in_trial: other runs on this Ray may have the same keys.

        Starts Ray if actors are needed. Raises UserError for missing keys and libraries.
        """
        self.config, self.run_dir = config, folder.path
        self.kind, self.scenario, self.items, self.drawn = (
            prepared.kind,
            prepared.scenario,
            prepared.items,
            prepared.drawn,
        )
        self.by_id = {split: {item.id: item for item in found} for split, found in self.items.items()}
        if stored_items(folder.path, self.kind) is None:
            store_items(folder.path, self.items, self.kind)
        self.journal = Journal(folder.path / JOBS)
        spent = spent_before(folder.path, list(self.journal.entries()))
        self._booked = {bill.id for bill in bills(self.journal.entries())}
        self._stack = ExitStack()
        write_models(config, self.scenario, self.items["train"], folder.path)
        self._hosts = self._stack.enter_context(local_hosts(config, list(speaking_providers(config)), folder.path))
        self._workers = None
        if config.talk.num_talkers:
            from nip_ray.text.dialogues.rollout_workers import RolloutWorkers

            self._workers = RolloutWorkers(config, self.scenario, folder.path, self._hosts, spent)
        self.budget: BudgetLike = Budget(config.budget, spent) if self._workers is None else self._workers.budget
        self.clients = ClientPool(
            config, folder.path, self.budget, self._hosts, _shared_limiters(config) if in_trial else {}
        )
        self._brake = Brake(config.talk)
        self._backends: dict[str, FineTuneBackend] = {}

    # ------------------------------------------------------------------------------------------------------------- talk

    async def play(
        self,
        models: Mapping[str, str],
        context: StageContext,
        tasks: Sequence[Task],
        num_responses: int | None = None,
        progress: Progress | None = None,
    ) -> list[Any]:
        """One dialogue for each task, with `num_responses` one tree (`Node`). models: group -> its model.

        Raises the clients' errors.
        """
        if self._workers is not None:
            return await self._workers.hold(models, context, tasks, num_responses, progress)
        async with self.clients.agent_clients(models, context.iteration) as clients:
            runner = DialogueRunner(self.scenario, clients, context, self.config.talk.max_in_flight, self._brake)
            if num_responses is None:
                return await runner.dialogues(tasks, progress)
            return await runner.trees(tasks, num_responses, progress)

    # ------------------------------------------------------------------------------------------------------------ money

    def spending(self) -> Spending:
        """The run's cost so far; the possible cost of jobs under way is uncertain."""
        found = self.budget.spending
        found.uncertain += under_way(self.journal.entries())
        return found

    def new_bills(self, key: str) -> Spending:
        """The cost of the jobs with this key that was not booked yet; it counts as booked from now on."""
        new = [bill for bill in bills(self.journal.entries()) if bill.key == key and bill.id not in self._booked]
        self._booked |= {bill.id for bill in new}
        return sum_of(bill.spending for bill in new)

    def training_price(self, group: str, model: str) -> int:
        """Picodollars per token for training `model`."""
        return (
            price_list(self.config.providers[self._provider_of(group)], self.config.budget.usd is not None)
            .of(model)
            .training
        )

    def count_tokens(self, group: str, data: bytes, method: Method) -> int:
        """Approximate billed tokens of an epoch on a fine-tuning file, rather too many than too few."""
        passes = self.config.providers[self._provider_of(group)].dpo_passes if method == "dpo" else 1
        return math.ceil(len(data) / _BYTES_PER_TOKEN) * passes

    # ------------------------------------------------------------------------------------------------------------- jobs

    def backend(self, group: str) -> FineTuneBackend:
        """The backend that fine-tunes the model of `group`. Raises UserError for a missing key or library."""
        name = self._provider_of(group)
        if name not in self._backends:
            self._backends[name] = fine_tune_backend(
                Connection(self.config.providers[name], name, self.run_dir, self._hosts.get(name))
            )
        return self._backends[name]

    def _provider_of(self, group: str) -> str:
        return language_agents(self.config)[groups(self.config)[group][0]].provider

    async def close(self) -> None:
        """Close connections, actors and files."""
        self.journal.close()
        await asyncio.gather(*(backend.close() for backend in self._backends.values()))
        if self._workers is not None:
            self._workers.stop()
        self._stack.close()


async def check_providers(config: TextExperimentConfig, known: Sequence[str] = ()) -> list[str]:
    """Query every hosted provider for its models and methods. Raises UserError for missing ones, before any payment.

    known: results of earlier checks, which are not repeated: a method is checked by a job that the provider has to
    refuse.
    """
    settings, found = language_agents(config), list(known)
    methods: list[Method] = []
    if isinstance(config.algorithm, TextTrainingSettings):
        methods = [rule_of(config.algorithm).method, *(["supervised"] if config.algorithm.format_warmup else [])]
    for name, provider in speaking_providers(config).items():
        if not provider.hosted:
            continue
        with TemporaryDirectory() as folder:
            connection = Connection(
                provider, name, Path(folder), max_in_flight=config.talk.max_in_flight, budget=Budget(config.budget)
            )
            make = provider_of(provider).chat
            assert make is not None  # hosted providers have one
            client = make(connection)
            tuned = sorted(_to_be_tuned(config, name))
            backend = fine_tune_backend(connection) if provider.can_fine_tune and tuned else None
            try:
                if isinstance(client, ChecksModels):
                    await client.check_models(
                        sorted({agent.model for agent in settings.values() if agent.provider == name})
                    )
                for model, method in product(tuned, methods):
                    ability = f"{getattr(client, 'where', name)} fine-tunes {model} by {method}"
                    if backend is not None and ability not in found:
                        await backend.check(model, method)
                        found.append(ability)
            finally:
                await client.close()
                if backend is not None:
                    await backend.close()
    return found


def known_abilities(path: Path) -> list[str]:
    """Results of `check_providers` from `store_abilities`; none if the file cannot be read."""
    try:
        found = json.loads(path.read_bytes())["abilities"]
        return [str(ability) for ability in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def store_abilities(path: Path, abilities: Sequence[str]) -> None:
    """Store them at `path`; without any no file is made."""
    if abilities:
        write_document(path, {"abilities": list(abilities)})


def _to_be_tuned(config: TextExperimentConfig, provider: str) -> set[str]:
    """The base models of a provider that will be fine-tuned."""
    rerun = config.base_run is not None and config.base_run.kind == "rerun_tests"
    rule = config.algorithm
    if (
        not isinstance(rule, TextTrainingSettings)
        or rerun
        or (config.iterations == 1 and not rule.fine_tune_after_last and not rule.format_warmup)
    ):
        return set()
    return {
        agent.model for agent in language_agents(config).values() if agent.provider == provider and not agent.frozen
    }


def spent_before(run_dir: Path, journal: Sequence[Entry]) -> Spending:
    """The cost of a run so far: its recorded calls, and the finished jobs of its journal."""
    return sum_of([total(run_dir), *(bill.spending for bill in bills(journal))])


def base_state(config: TextExperimentConfig, state: TextState) -> TextState:
    """`state`, starting from the models of the config's base run. Raises UserError if that run has none for a group."""
    base = config.base_run
    if base is None:
        return state
    if base.kind == "rerun_tests":
        return replace(with_base_models(config, state), stage="test")
    return _with_models(config, state, _other(base.run_dir).models(), base.run_dir)


def with_base_models(config: TextExperimentConfig, state: TextState) -> TextState:
    """`state` with the models of the base run's iteration of the same number. Raises UserError if there is none."""
    run_dir = "" if config.base_run is None else config.base_run.run_dir
    history = _other(run_dir).history
    if not history:
        raise UserError(
            f"base_run.kind: rerun_tests, but {run_dir} names no models of its iterations (policy gradient keeps those"
            " of its end), use models, or name a run of expert iteration or malt that was tested"
        )
    if state.iteration >= len(history):
        raise UserError(f"iterations: the base run {run_dir} has {len(history)} only; use at most that")
    return _with_models(config, state, history[state.iteration], run_dir)


def _other(run_dir: str) -> TextState:
    with RunFolder.open(run_dir) as folder:
        return load_state(folder)


def _with_models(config: TextExperimentConfig, state: TextState, models: Mapping[str, str], run_dir: str) -> TextState:
    """Local models by their folders in the other run."""
    members = groups(config)
    for group in state.groups:
        if group not in models:
            raise UserError(
                f"base_run.run_dir: {run_dir} has no group {group!r}, it has {', '.join(models)}; let groups agree"
            )
        provider = language_agents(config)[members[group][0]].provider
        there = Path(run_dir) / provider / "models" / models[group]
        local = config.providers[provider].local_models and (there / "config.json").is_file()
        state = state.group(group, model=str(there.resolve()) if local else models[group])
    return state


def works_on_ray(config: TextExperimentConfig) -> bool:
    """True if a run of this config starts or joins Ray."""
    if isinstance(rule := config.algorithm, TokenTrainingSettings):
        actors = bool(rule.num_rollout_workers or rule.num_learners)
    else:
        hosted = any(provider_of(provider).start is not None for provider in speaking_providers(config).values())
        actors = hosted or bool(config.talk.num_talkers)
    return actors or bool(config.runtime.ray_address)


@contextmanager
def local_hosts(config: TextExperimentConfig, names: Sequence[str], run_dir: Path) -> Iterator[dict[str, Any]]:
    """Actors of those of these providers that have some, until the end; Ray is started or joined if they or rollout
    workers need it.

    Raises UserError for missing libraries.
    """
    local = {name: provider for name in names if provider_of(provider := config.providers[name]).start is not None}
    talking = max(config.talk.num_talkers * config.talk.num_cpus_per_talker, 1.0) if config.talk.num_talkers else 0.0
    actors = sum(actor["CPU"] for provider in local.values() for actor in provider.actors)
    start_ray(config.runtime, actors + sum(provider.training_workers for provider in local.values()) + talking)
    hosts: dict[str, Any] = {}
    watches: list[ActorWatch] = []
    try:
        for name, provider in local.items():
            if (start := provider_of(provider).start) is not None:
                hosts[name] = start(provider, run_dir / name)
            if (actors := provider_of(provider).actors) is not None:
                watches.append(ActorWatch(actors(hosts[name]), config.fault_tolerance.hang_timeout_s))
        yield hosts
    finally:
        for watch in watches:
            watch.close()
        for name, host in hosts.items():
            if (stop := provider_of(local[name]).stop) is not None:
                stop(host)


def _shared_limiters(config: TextExperimentConfig) -> dict[str, Throttle]:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():  # a trial outside of Tune, alone in its process
        return {}
    from nip_ray.text.costs.shared import SharedLimiter, limiter_of

    limited = {name: provider for name, provider in speaking_providers(config).items() if provider.limits is not None}
    return {
        name: SharedLimiter(limiter_of(provider), partial(limiter_of, provider)) for name, provider in limited.items()
    }
