"""Protocols of language models in Inspect: a task, or its parts (`instances`, `play`, `verdict`, `pay`) for your own.

    inspect eval nip_ray/protocol -T source=runs/talk --model openai/gpt-5 --model-role prover=anthropic/claude-opus-4-5

Decisions that matter here:
- every agent uses Inspect's model of the role with the agent's name, or without such a role the evaluated model. So
  keys, limits, caches and the log of calls are Inspect's. `from_run` names agents that use a run's own models instead;
- turns, payment, unusable replies and verdicts are those of the protocol: dialogues are played by the same
  `DialogueRunner` as in a run;
- items and episode seeds are those of the run's test, epoch by epoch. With all agents `from_run` the seeds of calls are
  too, and with them the dialogues, unless the models learned from their own tokens: those were sampled in step, and not
  by the engine used here.
"""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from nip_ray.config.text_rules import language_agents
from nip_ray.errors import UserError, require
from nip_ray.exports.game import Game, Source, game_of, models_at, shown, tested_iteration
from nip_ray.exports.inspect_samples import (
    GAME,
    chat_messages,
    messages_of,
    outcome_of,
    output_of,
    pay_score,
    sample_parts,
    verdict_score,
)
from nip_ray.play.dialogue import dialogue_record
from nip_ray.scenarios.language import SPLITS
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.runner import AgentClient, DialogueRunner, StageContext
from nip_ray.text.own_models import own_clients
from nip_ray.text.providers.interface import ChatReply, ChatRequest, FinishReason

require("inspect_ai", "inspect")

import inspect_ai  # noqa: E402
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.model import ContentReasoning, GenerateConfig, ResponseSchema, get_model  # noqa: E402
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr  # noqa: E402
from inspect_ai.solver import Generate, Solver, TaskState, solver  # noqa: E402
from inspect_ai.util import JSONSchema  # noqa: E402

_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "unknown": "unknown",
}
_REFUSALS = ("model_length", "content_filter")
"""Without a count of tokens Inspect's word for a refused request, else for the end of a reply."""


@inspect_ai.task
def protocol(source: Source, split: str = "test", from_run: str | list[str] = "") -> inspect_ai.Task:
    """The protocol and the items of a run or a config. See `instances` and `play`."""
    game = game_of(source)
    about = {
        "run": game.config.name,
        "protocol": game.scenario.protocol.name,
        "scenario": game.config.scenario.name,
        "seed": game.config.seed,
    }
    scorers = [verdict(), pay()] if game.scenario.protocol.verifier is not None else [pay()]
    return inspect_ai.Task(
        dataset=instances(source, split),
        solver=play(source, from_run),
        scorer=scorers,
        name=game.config.name,
        metadata=about,
    )


def instances(source: Source, split: str = "test") -> MemoryDataset:
    """The items of a run, or of a config, as samples. source: a run folder, a YAML file, a config, or its keys.

    split: test (as many as the run tests) or train. Raises UserError for another split, and for a run of networks.
    """
    if split not in SPLITS:
        raise UserError(f"split: got {split!r}, expected {' or '.join(SPLITS)}")
    game = game_of(source)
    chosen = game.chosen(split)
    made = (
        Sample(**sample_parts(game.kind, game.scenario.protocol, item, number)) for number, item in enumerate(chosen)
    )
    return MemoryDataset(list(made), name=f"{game.config.scenario.name}, {split}")


@solver
def play(source: Source, from_run: str | list[str] = "") -> Solver:
    """Play the protocol about a sample of `instances`. source: as there. from_run: agents (a list, or a text separated
    by commas; or `all`) that use the models of the run, as last tested. Others use Inspect's models.

    Raises UserError for an unknown agent, and if `source` is not a run.
    """
    game = game_of(source)
    own = _agents(from_run, game)
    # determines the seeds of calls: the test's
    context = StageContext("inspect", game.config.seed, "test", _tested(game) - 1)
    clients: WeakKeyDictionary[Any, dict[str, AgentClient]] = WeakKeyDictionary()

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        try:
            found = state.metadata[GAME]
            item, number = game.kind.read_item(found["item"]), int(found["number"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                "play: this sample is not from nip_ray.inspect_ai.instances, use that data set, or a part of it"
            ) from None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UserError("play: runs under asyncio alone, leave INSPECT_ASYNC_BACKEND out") from None
        if loop not in clients:
            clients[loop] = {}
            if game.run_dir is not None and own:
                models = models_at(RunFolder.open(game.run_dir), _tested(game))
                clients[loop] = own_clients(game.config, game.run_dir, models, own)
        agents = language_agents(game.config)
        asked = {
            agent: clients[loop].get(agent) or AgentClient(InspectChat(), "", agents[agent], shape="alternating")
            for agent in agents
        }
        runner = DialogueRunner(game.scenario, asked, context, len(asked))
        (dialogue,) = await runner.dialogues([game.task(item, number, state.epoch)])
        models = {agent: _name(agent, speaker, game) for agent, speaker in asked.items()}
        state.messages = messages_of(dialogue, game.scenario.protocol, models)
        state.output = output_of(dialogue, game.scenario.protocol, models)
        state.store.set(
            GAME, {"dialogue": dialogue_record(game.scenario, dialogue), **outcome_of(dialogue, game.scenario.protocol)}
        )
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
    """Each agent's reward in a dialogue."""

    async def score(state: TaskState, target: Target) -> Score:
        return pay_score(_outcome(state))

    return score


class InspectChat:
    """A chat client for Inspect's model of the agent's role, with Inspect's own options."""

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        config = GenerateConfig()
        if request.schema is not None:
            config.response_schema = ResponseSchema(name="reply", json_schema=JSONSchema.model_validate(request.schema))
        output = await get_model(role=request.agent).generate(chat_messages(request.messages), config=config)
        if output.empty:
            return ChatReply(None, "unknown", 0, 0)
        message, used = output.message, output.usage
        # its content is the service's message
        if output.error is not None or (used is None and output.stop_reason in _REFUSALS):
            return ChatReply(None, "refused", 0, 0, refusal=output.error or message.text)
        thought = "\n".join(part.reasoning for part in message.content_list if isinstance(part, ContentReasoning))
        tokens = (0, 0) if used is None else (used.input_tokens, used.output_tokens)
        return ChatReply(message.text, _REASONS.get(output.stop_reason, "stop"), *tokens, reasoning=thought)

    async def close(self) -> None:
        """Inspect closes its models."""


def _tested(game: Game) -> int:
    """The iteration (from 1) that the run tested last; 1 for a config."""
    return 1 if game.run_dir is None else tested_iteration(game.run_dir, game.config, None)


def _agents(named: str | list[str], game: Game) -> tuple[str, ...]:
    """The agents that use the run's own models."""
    there = tuple(language_agents(game.config))
    wanted = [name.strip() for name in named.split(",") if name.strip()] if isinstance(named, str) else list(named)
    if wanted == ["all"]:
        wanted = list(there)
    for name in wanted:
        if name not in there:
            raise UserError(f"from_run: there is no agent {name!r}, expected all, or some of {', '.join(there)}")
    if wanted and game.run_dir is None:
        raise UserError(
            f"from_run: got {', '.join(wanted)}, but a config has no models yet; name the folder of a run as source"
        )
    return tuple(wanted)


def _outcome(state: TaskState) -> dict[str, Any]:
    found = state.store.get(GAME)
    if not isinstance(found, dict):
        raise UserError("nothing was played: put nip_ray.inspect_ai.play before its scorers")
    return found


def _name(agent: str, speaker: AgentClient, game: Game) -> str:
    """The name of an agent's model, for readers."""
    if isinstance(speaker.client, InspectChat):
        return str(get_model(role=agent))
    return f"{language_agents(game.config)[agent].provider}/{shown(speaker.model)}"
