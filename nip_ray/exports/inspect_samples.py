"""Items and dialogues in Inspect's form: samples, conversations, scores. Needs the package inspect_ai.

Decisions that matter here:
- a conversation is the verifier's view: its own turns (all of a panel's) are the assistant's, all others' the user's.
  Each begins with the agent's name, and has its round and channel in `metadata`, private channels included;
- scores follow our definitions, one value each of accuracy, completeness, soundness and undecided. Completeness is of
  true claims alone, and soundness of false ones: the others have NaN, which Inspect leaves out of means. So its own
  `mean` gives our metrics;
- a sample of a log is a dialogue; an item that was tested several times has as many epochs. The metrics of the log are
  those of `evaluation.json`, computed by the same function from the same dialogues, with their intervals as metadata of
  the metrics;
- a run does not store agents' chats; they are rebuilt from the dialogue. Tokens and times of calls are not in the log.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import chat_shapes, groups, language_agents
from nip_ray.errors import require
from nip_ray.exports.game import Game, game_of, models_at, shown
from nip_ray.play.dialogue import Chat, Dialogue, LanguageScenario, Turn, beginning, shape_chat
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, VERDICTS, Protocol
from nip_ray.protocols.spec import TWO_VERDICTS
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.runner import read_dialogues, rollout_file
from nip_ray.text.items import stored_items
from nip_ray.text.parts import load_state
from nip_ray.text.training.metrics import dialogue_record
from nip_ray.version import __version__

require("inspect_ai", "inspect")

from inspect_ai import log as logs  # noqa: E402
from inspect_ai.event import ModelEvent, SpanBeginEvent, SpanEndEvent  # noqa: E402
from inspect_ai.model import (  # noqa: E402
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelConfig,
    ModelOutput,
)
from inspect_ai.scorer import Score  # noqa: E402

VERDICT, PAY = "verdict", "pay"
"""The names of the scores."""
FIGURES = ("accuracy", "completeness", "soundness", "undecided")
"""The values of a verdict's score; `verifier/...` in `evaluation.json`."""
GAME = "nip_ray"
"""The key of our data in a sample's metadata and store."""


def sample_parts(kind: LanguageScenarioKind, protocol: Protocol, item: Any, number: int) -> dict[str, Any]:
    """The id, input, target and metadata of a sample about `item`. number: its place among the items of its split."""
    record = kind.write_item(item)
    told = {key: value for key, value in record.items() if key not in ("id", "y")}
    return {
        "id": item.id,
        "input": yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=10_000).strip(),
        "target": "" if protocol.verifier is None else protocol.verdicts[item.y],
        "metadata": {GAME: {"item": record, "number": number}},
    }


def messages_of(dialogue: Dialogue, protocol: Protocol, models: Mapping[str, str]) -> list[ChatMessage]:
    """All turns, in order. models: agent -> its model, in Inspect's words."""
    return [
        _message(turn, number, protocol.verifiers, models.get(turn.agent))
        for number, turns in enumerate(dialogue.rounds, 1)
        for turn in turns
    ]


def chat_messages(chat: Chat) -> list[ChatMessage]:
    """A chat in the form sent to a provider, with names in the texts."""
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    return [kinds[message["role"]](content=message["content"]) for message in chat]


def output_of(dialogue: Dialogue, protocol: Protocol, models: Mapping[str, str]) -> ModelOutput:
    """The outcome: the verdict, or in a game without a verifier each reward."""
    if protocol.verifier is None:
        paid = ", ".join(f"{agent} {dialogue.total(agent):g}" for agent in protocol.agents)
        return ModelOutput.from_content(models.get(protocol.agents[0], ""), paid)
    return ModelOutput.from_content(models.get(protocol.viewpoint, ""), protocol.verdict_words[dialogue.verdict])


def outcome_of(dialogue: Dialogue, protocol: Protocol) -> dict[str, Any]:
    """The data of scores, as plain JSON values: label, verdict, confidence (none in a game without a verifier) and pay;
    with more than two verdicts also their "verdicts", by name."""
    judged: dict[str, Any] = {"label": dialogue.item.y, "verdict": dialogue.verdict, "confidence": dialogue.confidence}
    if not protocol.two_verdicts:
        judged["verdicts"] = list(protocol.verdicts)
    return {
        **({} if protocol.verifier is None else judged),
        "pay": {agent: dialogue.total(agent) for agent in protocol.agents},
    }


def verdict_score(outcome: Mapping[str, Any]) -> Score:
    """For a game with a verifier. With more than two verdicts completeness has one for each: of items of its class."""
    label, verdict, confidence = outcome["label"], outcome["verdict"], outcome["confidence"]
    verdicts = outcome.get("verdicts", TWO_VERDICTS)
    words, right = (*verdicts, VERDICTS[CONTINUE]), float(verdict == label)
    sides = {"completeness": ACCEPT, "soundness": REJECT}
    if len(verdicts) > 2:
        sides = {f"completeness/{name}": code for code, name in enumerate(verdicts)}
    values = {"accuracy": right, **{name: right if label == code else math.nan for name, code in sides.items()}}
    values["undecided"] = float(verdict == len(verdicts))
    sure = "" if confidence is None or len(verdicts) > 2 else f", probability of acceptance {confidence:g}"
    return Score(
        value=values, answer=words[verdict], explanation=f"verdict {words[verdict]}{sure}; right is {words[label]}"
    )


def pay_score(outcome: Mapping[str, Any]) -> Score:
    """Each agent's reward."""
    return Score(value=dict(outcome["pay"]))


def _message(turn: Turn, number: int, verifiers: tuple[str, ...], model: str | None) -> ChatMessage:
    said = "\n".join(turn.messages.values()) or turn.raw or "(no reply that can be used)"
    where: dict[str, Any] = {"agent": turn.agent, "round": number, "channels": ", ".join(turn.messages), "model": model}
    if turn.invalid:
        where["invalid"] = True
    content: Any = f"{turn.agent}: {said}"
    if turn.reasoning:
        content = [ContentReasoning(reasoning=turn.reasoning), ContentText(text=content)]
    if turn.agent in verifiers or not verifiers:
        return ChatMessageAssistant(content=content, metadata=where, model=model)
    return ChatMessageUser(content=content, metadata=where)


def log_of(folder: RunFolder, config: TextExperimentConfig, iteration: int) -> logs.EvalLog:
    """The test of a run after `iteration`."""
    game = game_of(config)
    protocol = game.scenario.protocol
    items = (stored_items(folder.path, game.kind) or {}).get("test", [])
    dialogues = read_dialogues(rollout_file(folder.path, "test", iteration - 1), {item.id: item for item in items})
    named, settings = models_at(folder, iteration), language_agents(config)
    models = {
        agent: f"{settings[agent].provider}/{shown(named[group])}"
        for group, agents in groups(config).items()
        for agent in agents
    }
    samples = list(_samples(game, items, dialogues, models, {a: (chat_shapes(config)[a], settings[a]) for a in models}))
    record = dialogue_record(dialogues, protocol, groups=game.kind.groups)
    environment = folder.read_json("environment.json") if (folder.path / "environment.json").is_file() else {}
    created = environment.get("started", "1970-01-01T00:00:00+00:00")
    state = load_state(folder)
    about = {
        "run": config.name,
        "iteration": iteration,
        "seed": config.seed,
        "protocol": protocol.name,
        "scenario": config.scenario.name,
    }
    spec = logs.EvalSpec(
        eval_id=f"{state.run_id}-{iteration:06d}",
        run_id=state.run_id,
        task_id=state.run_id,
        created=created,
        task=config.name,
        dataset=logs.EvalDataset(
            name=f"{config.scenario.name}, test",
            samples=len({s.id for s in samples}),
            sample_ids=list(dict.fromkeys(s.id for s in samples)),
        ),
        model=models[protocol.viewpoint],
        model_roles={agent: ModelConfig(model=model) for agent, model in models.items()},
        config=logs.EvalConfig(epochs=max((sample.epoch for sample in samples), default=1)),
        packages={"nip_ray": environment.get("nip_ray", __version__)},
        metadata=about,
    )
    results = logs.EvalResults(
        total_samples=len(samples),
        completed_samples=len(samples),
        scores=_figures(record, protocol.agents, protocol.verifier is not None, len(samples)),
        metadata={"evaluation": record},
    )
    plan = logs.EvalPlan(
        name="nip_ray", steps=[logs.EvalPlanStep(solver="nip_ray/play", params={"protocol": protocol.name})]
    )
    return logs.EvalLog(
        status="success",
        eval=spec,
        plan=plan,
        results=results,
        stats=logs.EvalStats(started_at=created, completed_at=created),
        samples=samples,
    )


def _samples(
    game: Game, items: Sequence[Any], dialogues: Sequence[Dialogue], models: Mapping[str, str], asked: Mapping[str, Any]
) -> Iterator[logs.EvalSample]:
    protocol = game.scenario.protocol
    places, epochs = {item.id: number for number, item in enumerate(items)}, Counter[Any]()
    for dialogue in dialogues:
        item = dialogue.item
        epochs[item.id] += 1
        outcome = outcome_of(dialogue, protocol)
        judged = {} if protocol.verifier is None else {VERDICT: verdict_score(outcome)}
        yield logs.EvalSample(
            **sample_parts(game.kind, protocol, item, places[item.id]),
            epoch=epochs[item.id],
            messages=messages_of(dialogue, protocol, models),
            output=output_of(dialogue, protocol, models),
            scores={**judged, PAY: pay_score(outcome)},
            events=list(_events(game.scenario, dialogue, models, asked)),
            uuid=f"{item.id}-{epochs[item.id]}",
        )


def _events(
    scenario: LanguageScenario, dialogue: Dialogue, models: Mapping[str, str], asked: Mapping[str, Any]
) -> Iterator[Any]:
    """A span for each turn, and in it the call: the agent's chat and its reply."""
    for number, turns in enumerate(dialogue.rounds):
        before = beginning(dialogue, number)
        for turn in turns:
            shape, own = asked[turn.agent]
            place = f"{number + 1}-{turn.agent}"
            told = {"agent": turn.agent, "round": number + 1, "retries": turn.retries, "invalid": turn.invalid}
            yield SpanBeginEvent(id=place, span_id=place, name=f"{turn.agent}, round {number + 1}", metadata=told)
            yield ModelEvent(
                model=models[turn.agent],
                role=turn.agent,
                input=chat_messages(shape_chat(scenario.fenced_chat(before, turn.agent), shape)),
                tools=[],
                tool_choice="none",
                config=GenerateConfig(max_tokens=own.reply_tokens, temperature=own.temperature, top_p=own.top_p),
                output=ModelOutput.from_content(
                    models[turn.agent], turn.raw, "max_tokens" if turn.truncated else "stop"
                ),
                span_id=place,
            )
            yield SpanEndEvent(id=place, span_id=place)


def _figures(record: Mapping[str, Mapping[str, Any]], agents: Sequence[str], judged: bool, count: int) -> list[Any]:
    """The means of the samples' scores, as in `evaluation.json`."""
    named = [(name, f"verifier/{name}", VERDICT) for name in FIGURES if judged] + [
        (agent, f"{agent}/return", PAY) for agent in agents
    ]
    return [
        logs.EvalScore(
            name=name,
            scorer=scorer,
            reducer="mean",
            scored_samples=count,
            metrics={
                "mean": logs.EvalMetric(
                    name="mean",
                    value=record[key]["estimate"],
                    metadata={part: record[key][part] for part in ("lower", "upper", "n")},
                )
            },
        )
        for name, key, scorer in named
        if record[key]["estimate"] is not None
    ]
