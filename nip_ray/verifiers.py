"""Protocols between language models as environments of `verifiers`, for its evaluations, its trainers and the
Environments Hub.

    nip-ray export verifiers tune_configs/ei_cv.yaml --out nip_cv     # a package whose module says
    ProofTaskset, ProofEnv, OneCall = environment(Path(__file__).parent)

Decisions that matter here:
- an agent is a role: `--env.prover.model` and so on set its model, which by default is the model under evaluation.
  Agents that the config freezes are not trained;
- turns, payment, unusable replies and verdicts are the protocol's: a dialogue is played by `play_dialogue`, as in runs;
- an agent's side of a dialogue is one trace, as long as its chat only grows. If it does not (a reply was unusable, or
  had reasoning that is not shown again), it continues in another trace, which begins with the whole chat;
- each trace gets its agent's reward of the dialogue. The record of the dialogue is in each trace's info;
- a turn is one request, which this process sends through verifiers' own interception: no sandbox, and no program in
  one.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Literal

from nip_ray.config.text_rules import language_agents
from nip_ray.errors import TrainingError, require
from nip_ray.exports.game import Game, Source, game_of
from nip_ray.play.dialogue import Chat, Dialogue, dialogue_from_record, dialogue_record, shape_chat
from nip_ray.play.dialogues import Answer, play_dialogue
from nip_ray.play.dialogues import Path as Branch
from nip_ray.protocols import Protocol
from nip_ray.text.providers.openai import FINISH_REASONS

require("verifiers", "verifiers")

import httpx  # noqa: E402
import pydantic  # noqa: E402
import verifiers.v1 as vf  # noqa: E402  # pyright: ignore[reportMissingImports]  # it cannot be installed beside the extra text

INFO = "nip_ray"
"""The key of a dialogue's record in a trace's info."""


class ProofData(vf.TaskData):
    """A row. item: the scenario's, as plain values. seed: of the episode."""

    item: dict[str, Any]
    seed: int


class ProofTask(vf.Task[ProofData]):
    """A dialogue about an item."""


class ProofTasksetConfig(vf.TasksetConfig):
    """The choice of items."""

    split: Literal["train", "test"] = "test"
    """Items to learn from, or held-out ones."""


class TurnData(vf.TaskData):
    """An agent's chat. reply_schema: the JSON schema of its replies."""

    reply_schema: dict[str, Any] | None = None


class TurnTask(vf.Task[TurnData]):
    """An agent's side of a dialogue, paid when the dialogue is over."""


class OneCallConfig(vf.HarnessConfig):
    """No options."""


class OneCall(vf.Harness[OneCallConfig]):
    """Answers by one request with the whole chat, from this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """See `vf.Harness.launch`."""
        assert isinstance(data.prompt, list)
        body: dict[str, Any] = {
            "model": ctx.model,
            "messages": [{"role": message.role, "content": message.content or ""} for message in data.prompt],
        }
        if (schema := getattr(data, "reply_schema", None)) is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "strict": True, "schema": schema},
            }
        async with httpx.AsyncClient(timeout=None) as client:  # verifiers' own deadlines apply
            response = await client.post(
                f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            )
        failed = response.is_error
        return vf.ProgramResult(int(failed), "", response.text[-2000:] if failed else "")


class _Seat:
    """An agent's side of one dialogue."""

    def __init__(self, agent: vf.Agent, idx: int | None, schema: dict[str, Any] | None) -> None:
        self._agent, self._idx, self._schema = agent, idx, schema
        self.traces: list[vf.Trace] = []
        self._stack = AsyncExitStack()
        self._open: Any = None
        self._shown: Chat = []
        self._over = False  # a limit of its role was reached: no further replies

    async def answer(self, chat: Chat) -> Answer:
        """The model's reply to this chat. Raises TrainingError if the request fails."""
        if self._over:
            return Answer(None, "unknown")
        if self._open is not None and chat[:-1] == self._shown:
            segment = await self._open.turn(chat[-1]["content"])
        else:
            await self.close()
            data = TurnData.model_validate({"idx": self._idx, "prompt": chat, "reply_schema": self._schema})
            self._open = await self._stack.enter_async_context(self._agent.interaction(TurnTask(data)))
            self.traces.append(self._open.trace)
            segment = await self._open.turn()
        trace = self._open.trace
        if segment.terminated:
            if trace.errors:
                raise TrainingError(f"{trace.agent.name} could not be queried: {trace.errors[-1].message}")
            self._over = True
            return Answer(None, "unknown")
        message, reason = segment.messages[-1], trace.calls[-1].finish_reason
        self._shown = [*chat, {"role": "assistant", "content": message.content or ""}]
        return Answer(
            message.content, FINISH_REASONS.get(str(reason).lower(), "unknown"), message.reasoning_content or ""
        )

    async def close(self) -> None:
        """The trace is complete."""
        await self._stack.aclose()
        self._open = None


def environment(source: Source) -> tuple[type[vf.Taskset], type[vf.Env], type[vf.Harness]]:
    """The exports of a package's module: items, the protocol, and the harness of its agents.

    source: a folder that `nip-ray export verifiers` made, a run folder, a YAML file, a config, or its keys.

    Raises UserError for an unplayable source.
    """
    game = game_of(source)
    agents = language_agents(game.config)
    roles: dict[str, Any] = {}
    # the limit of tokens is the protocol's; the user sets other options of a model
    for name, settings in agents.items():
        sampling = vf.SamplingConfig(max_tokens=settings.reply_tokens)
        roles[name] = vf.AgentConfig, vf.AgentConfig(runtime=vf.SubprocessConfig(), sampling=sampling)
    config_of_env = pydantic.create_model("ProofEnvConfig", __base__=vf.EnvConfig, __module__=__name__, **roles)

    class ProofTaskset(vf.Taskset[ProofTask, ProofTasksetConfig]):
        def load(self) -> list[ProofTask]:
            return [
                ProofTask(_row(game, item, number), self.config.task)
                for number, item in enumerate(game.chosen(self.config.split))
            ]

    class ProofEnv(vf.Env[config_of_env]):
        async def setup(self, agents_of_episode: vf.Agents) -> None:
            for name, settings in agents.items():
                getattr(agents_of_episode, name).trainable = not settings.frozen

        async def run(self, task: vf.Task, agents_of_episode: vf.Agents) -> None:
            dialogue, traces = await _played(game, task.data, agents_of_episode)
            for trace in traces:
                trace.info[INFO] = dialogue_record(game.scenario, dialogue)

        async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
            item = game.kind.read_item(task.data.item)
            for trace in episode.traces:
                _pay(trace, dialogue_from_record(trace.info[INFO], item), game.scenario.protocol)

    return ProofTaskset, ProofEnv, OneCall


def _row(game: Game, item: Any, number: int) -> ProofData:
    """A row, with the first observation of the verifier, or the first player, for readers."""
    scenario, seed = game.scenario, game.task(item, number, epoch=1).seed
    shown = shape_chat(scenario.fenced_chat(Dialogue(item, seed), scenario.protocol.viewpoint), "alternating")
    return ProofData(id=str(item.id), prompt=shown, item=game.kind.write_item(item), seed=seed)


async def _played(game: Game, data: ProofData, agents: vf.Agents) -> tuple[Dialogue, list[vf.Trace]]:
    """The dialogue, and the traces of all its speakers."""
    seats = {
        name: _Seat(getattr(agents, name), data.idx, game.scenario.reply_schema(name))
        for name in game.scenario.protocol.agents
    }

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, branch: Branch) -> Answer:
        return await seats[agent].answer(shape_chat(chat, "alternating"))

    try:
        dialogue = await play_dialogue(game.scenario, game.kind.read_item(data.item), data.seed, ask)
    finally:
        await asyncio.gather(*(seat.close() for seat in seats.values()))
    return dialogue, [trace for seat in seats.values() for trace in seat.traces]


def _pay(trace: vf.Trace, dialogue: Dialogue, protocol: Protocol) -> None:
    agent = trace.agent.name
    trace.record_reward("payment", dialogue.total(agent))
    turns = [turn for played in dialogue.rounds for turn in played if turn.agent == agent]
    trace.record_metrics({"rounds": len(dialogue.rounds), "unusable_replies": sum(turn.retries for turn in turns)})
    if protocol.verifier is not None:
        right = float(dialogue.verdict == dialogue.item.y)
        trace.record_metrics({"accuracy": right, "undecided": float(dialogue.verdict == protocol.undecided)})
        if protocol.two_verdicts:
            trace.record_metric("completeness" if dialogue.item.y else "soundness", right)
