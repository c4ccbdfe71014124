"""Protocols between language models in Inspect: a task, or its parts (`instances`, `play`, `verdict`, `pay`) for a task of one's own.

    inspect eval nip_ray/protocol -T source=runs/talk --model openai/gpt-5 --model-role prover=anthropic/claude-opus-4-5

Decisions that matter here:
- every agent speaks by Inspect's model of the role that is called as the agent is, and where there is no such role by the model that is
  evaluated. So keys, limits, caches and the log of calls are Inspect's. `from_run` names agents that speak by a run's own models instead;
- turns, payment, unusable replies and verdicts are those of the protocol: dialogues are played by the same `DialogueRunner` as in a run;
- items and episode seeds are those of the run's test, epoch by epoch. With all agents `from_run` so are the seeds of calls, and with
  them the dialogues, unless the models learned from their own tokens: those were sampled in step, and not by the engine that answers here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.config.plugins import import_plugins
from nip_ray.config.text_rules import language_agents
from nip_ray.errors import UserError, require
from nip_ray.exports.inspect_log import models_at, shown, tested_iteration
from nip_ray.exports.inspect_samples import GAME, chat_messages, messages_of, outcome_of, output_of, pay_score, sample_parts, verdict_score
from nip_ray.play.dialogue_records import dialogue_record
from nip_ray.play.language_scenario import LanguageScenario
from nip_ray.protocols import NUM_SEEDS, from_settings
from nip_ray.scenarios.language import SPLITS, LanguageScenarioKind, language_kind
from nip_ray.seeding import stable_seed
from nip_ray.storage.folder import CONFIG, RunFolder
from nip_ray.text.dialogues.talk import AgentClient, DialogueRunner, StageContext
from nip_ray.text.dialogues.tasks import Task
from nip_ray.text.items import stored_items
from nip_ray.text.own_models import own_clients
from nip_ray.text.providers.chat import ChatReply, ChatRequest, FinishReason

require("inspect_ai", "inspect")

import inspect_ai  # noqa: E402
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.model import ContentReasoning, GenerateConfig, ResponseSchema, get_model  # noqa: E402
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr  # noqa: E402
from inspect_ai.solver import Generate, Solver, TaskState, solver  # noqa: E402
from inspect_ai.util import JSONSchema  # noqa: E402

Source = TextExperimentConfig | Mapping[str, Any] | Path | str
_REASONS: dict[str, FinishReason] = {"max_tokens": "length", "model_length": "length", "content_filter": "content_filter"}


@inspect_ai.task
def protocol(source: Source, split: str = "test", from_run: str | list[str] = "") -> inspect_ai.Task:
    """The protocol and the items of a run or a config. See `instances` and `play`."""
    game = _game(source)
    scorers = [verdict(), pay()] if game.scenario.protocol.verifier is not None else [pay()]
    return inspect_ai.Task(
        dataset=instances(source, split), solver=play(source, from_run), scorer=scorers, name=game.config.name, metadata=game.about()
    )


def instances(source: Source, split: str = "test") -> MemoryDataset:
    """The items of a run, or those that a config makes, as samples. source: a run folder, a YAML file, a config, or its keys.

    split: test (as many as the run tests) or train. Raises UserError for another split, and for a run of networks.
    """
    if split not in SPLITS:
        raise UserError(f"split: got {split!r}, expected {' or '.join(SPLITS)}")
    game = _game(source)
    chosen = game.items[split][: game.config.algorithm.num_test_items if split == "test" else None]
    made = (Sample(**sample_parts(game.kind, game.scenario.protocol, item, number)) for number, item in enumerate(chosen))
    return MemoryDataset(list(made), name=f"{game.config.scenario.name}, {split}")


@solver
def play(source: Source, from_run: str | list[str] = "") -> Solver:
    """Plays the protocol about a sample of `instances`. source: as there. from_run: agents (a list, or a text with commas between them; or
    `all`) that speak by the models of the run, as they were when it was last tested. Others speak by Inspect's models.

    Raises UserError for an agent that there is not, and where `source` is no run.
    """
    game = _game(source)
    own = _agents(from_run, game)
    clients: WeakKeyDictionary[Any, dict[str, AgentClient]] = WeakKeyDictionary()

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        try:
            found = state.metadata[GAME]
            item, number = game.kind.read_item(found["item"]), int(found["number"])
        except (KeyError, TypeError, ValueError):
            raise UserError("play: this sample is none of nip_ray.inspect_ai.instances, use that data set, or a part of it") from None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UserError("play: runs under asyncio alone, leave INSPECT_ASYNC_BACKEND out") from None
        if loop not in clients:
            clients[loop] = game.clients(own)
        agents = language_agents(game.config)
        asked = {agent: clients[loop].get(agent) or AgentClient(InspectChat(), "", agents[agent], shape="alternating") for agent in agents}
        runner = DialogueRunner(game.scenario, asked, game.context, len(asked))
        (dialogue,) = await runner.dialogues([game.task(item, number, state.epoch)])
        models = {agent: _name(agent, speaker, game) for agent, speaker in asked.items()}
        state.messages = messages_of(dialogue, game.scenario.protocol, models)
        state.output = output_of(dialogue, game.scenario.protocol, models)
        state.store.set(GAME, {"dialogue": dialogue_record(game.scenario, dialogue), **outcome_of(dialogue, game.scenario.protocol)})
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def verdict() -> Scorer:
    """Accuracy, completeness, soundness and the share of undecided dialogues, as docs/evaluation.md defines them."""

    async def score(state: TaskState, target: Target) -> Score:
        if "verdict" not in (outcome := _outcome(state)):
            raise UserError("verdict: this protocol has no verifier, use pay")
        return verdict_score(outcome)

    return score


@scorer(metrics={"*": [mean(), stderr()]})
def pay() -> Scorer:
    """What each agent was paid in a dialogue."""

    async def score(state: TaskState, target: Target) -> Score:
        return pay_score(_outcome(state))

    return score


class InspectChat:
    """A chat client that asks Inspect's model of the agent's role. What it may be asked for is Inspect's to say: its own options hold."""

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        config = GenerateConfig()
        if request.schema is not None:
            config.response_schema = ResponseSchema(name="reply", json_schema=JSONSchema.model_validate(request.schema))
        output = await get_model(role=request.agent).generate(chat_messages(request.messages), config=config)
        if output.empty:
            return ChatReply(None, "unknown", 0, 0)
        message, used = output.message, output.usage
        thought = "\n".join(part.reasoning for part in message.content_list if isinstance(part, ContentReasoning))
        tokens = (0, 0) if used is None else (used.input_tokens, used.output_tokens)
        return ChatReply(message.text, _REASONS.get(output.stop_reason, "stop"), *tokens, reasoning=thought)

    async def close(self) -> None:
        """Inspect closes its models."""


@dataclass(frozen=True)
class Game:
    """What is played. run_dir: of the run that it is of, None for a config."""

    config: TextExperimentConfig
    kind: LanguageScenarioKind
    scenario: LanguageScenario
    run_dir: Path | None

    @cached_property
    def items(self) -> dict[str, list[Any]]:
        """By split: those that the run keeps, else those that the config makes."""
        kept = None if self.run_dir is None else stored_items(self.run_dir, self.kind)
        return self.kind.items(self.config.scenario, self.config.seed) if kept is None else kept

    @cached_property
    def tested(self) -> int:
        """The iteration (from 1) that the run tested last; 1 of a config."""
        return 1 if self.run_dir is None else tested_iteration(self.run_dir, self.config, None)

    @property
    def context(self) -> StageContext:
        """Of which the seeds of calls are made: that of the test."""
        return StageContext("inspect", self.config.seed, "test", self.tested - 1)

    def task(self, item: Any, number: int, epoch: int) -> Task:
        """The dialogue about an item in an epoch (from 1); number: its place in its split."""
        count = len(self.items["test"][: self.config.algorithm.num_test_items])
        place = (epoch - 1) * count + number
        return Task(place, item, stable_seed(self.config.seed, "episode", "test", epoch - 1, number) % NUM_SEEDS)

    def clients(self, agents: tuple[str, ...]) -> dict[str, AgentClient]:
        """Of the agents that speak by the run's own models."""
        if self.run_dir is None or not agents:
            return {}
        return own_clients(self.config, self.run_dir, models_at(RunFolder.open(self.run_dir), self.tested), agents)

    def about(self) -> dict[str, Any]:
        """For a log's metadata."""
        told = {"protocol": self.scenario.protocol.name, "scenario": self.config.scenario.name, "seed": self.config.seed}
        return {"run": self.config.name, **told}


def _game(source: Source) -> Game:
    """Raises UserError for what cannot be played."""
    config: Any = source
    if isinstance(source, str | Path):
        config = load_config(source, checked=False)
    elif isinstance(source, Mapping):
        config = config_from_dict(source)
    if not isinstance(config, TextExperimentConfig):
        raise UserError(
            f"source: {source!s:.60} has agents with networks, and Inspect plays language models; name a run or config of those"
        )
    import_plugins(config.plugins)
    kind = language_kind(config.scenario)
    run_dir = Path(source) if isinstance(source, str | Path) and (Path(source) / CONFIG).is_file() else None
    return Game(config, kind, kind.build(from_settings(config.protocol), config.scenario), run_dir)


def _agents(named: str | list[str], game: Game) -> tuple[str, ...]:
    """The agents that speak by the run's own models."""
    there = tuple(language_agents(game.config))
    wanted = [name.strip() for name in named.split(",") if name.strip()] if isinstance(named, str) else list(named)
    if wanted == ["all"]:
        wanted = list(there)
    for name in wanted:
        if name not in there:
            raise UserError(f"from_run: there is no agent {name!r}, expected all, or some of {', '.join(there)}")
    if wanted and game.run_dir is None:
        raise UserError(f"from_run: got {', '.join(wanted)}, but a config has no models yet; name the folder of a run as source")
    return tuple(wanted)


def _outcome(state: TaskState) -> dict[str, Any]:
    found = state.store.get(GAME)
    if not isinstance(found, dict):
        raise UserError("nothing was played: put nip_ray.inspect_ai.play before its scorers")
    return found


def _name(agent: str, speaker: AgentClient, game: Game) -> str:
    """What speaks for an agent, for readers."""
    if isinstance(speaker.client, InspectChat):
        return str(get_model(role=agent))
    return f"{language_agents(game.config)[agent].provider}/{shown(speaker.model)}"
