"""Holding many dialogues at once: who is asked under which key, and how many calls wait at a time.

Decisions that matter here:
- a call's key and seed come from (run, split, iteration, task, path, round, agent, attempt) and nothing else: so whoever holds
  the dialogue again after a crash makes the same calls, and finds those that were answered in the records;
- when one dialogue fails (the budget is spent, the provider stays away, too many replies cannot be used), no new call is made, but
  those on their way are waited for: they are paid for, and their replies are recorded;
- dialogues are begun in order, a few more than there may be calls, so that the records of a stopped run are of few dialogues.
"""

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from nip_ray.errors import TrainingError
from nip_ray.play.chats import Shape, shape_chat
from nip_ray.play.dialogue import Chat, Dialogue, Turn
from nip_ray.play.dialogues import Answer, Ask, play_round, start_dialogue
from nip_ray.play.language_scenario import LanguageScenario
from nip_ray.protocols import ACCEPT
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.text_training import TalkSettings
from nip_ray.text.dialogues.tasks import Task
from nip_ray.text.dialogues.together import PaidCalls, gather_or_cancel
from nip_ray.text.providers.chat import ChatClient, ChatRequest
from nip_ray.text.training.malt import Node, grow
from nip_ray.tracking import traces


class Brake:
    """Counts, for each agent that a hosted provider speaks for, its last `talk.invalid_window` replies, over all stages."""

    def __init__(self, settings: TalkSettings) -> None:
        self._settings = settings
        self._last: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=settings.invalid_window))

    def invalid(self, agent: str, model: str) -> None:
        """A reply could not be used. Raises TrainingError when too many of the last ones could not."""
        last, share = self._last[agent], self._settings.max_invalid_share
        last.append(True)
        if len(last) == last.maxlen and sum(last) > share * len(last):
            raise _error(f"{sum(last)} of the last {len(last)} replies of {agent} ({model})", share)

    def over(self, turns: Iterable[Turn], models: Mapping[str, str]) -> None:
        """A round is over; unusable replies that were asked for again are counted already. models: of the agents that are counted."""
        for turn in turns:
            if turn.agent not in models:
                continue
            if turn.invalid:
                self.invalid(turn.agent, models[turn.agent])
            else:
                self._last[turn.agent].append(False)


def check_stage(settings: TalkSettings, dialogues: Iterable[Dialogue], models: Mapping[str, str]) -> None:
    """Raises TrainingError when an agent had turns in these dialogues, which are all of a stage, and none of its replies could be used.

    models: of the agents that hosted providers speak for.
    """
    turns = [turn for dialogue in dialogues for played in dialogue.rounds for turn in played if turn.agent in models]
    usable = {turn.agent for turn in turns if not turn.invalid}
    for agent in dict.fromkeys(turn.agent for turn in turns):
        if agent not in usable and settings.max_invalid_share < 1:
            raise _error(f"all replies of {agent} ({models[agent]}) in one stage", settings.max_invalid_share)


def _error(what: str, share: float) -> TrainingError:
    return TrainingError(
        f"{what} could not be used (talk.max_invalid_share: {share:g}). They stand in calls/. Start a run with another model, prompt or "
        "limit of tokens, or resume this one with a higher share"
    )


Made = TypeVar("Made")
Progress = Callable[[int, int], None]
"""Called with (dialogues that are over, dialogues in all)."""
_SEED_BITS = 31  # what providers take


@dataclass(frozen=True)
class AgentClient:
    """Who speaks for an agent: `model` of the provider behind `client`, asked as `settings` say.

    client: None for the dummy provider, whose replies are random, from `seed`. hosted: replies are paid for; see `Brake`. shape: of the
    chats that it is sent.
    """

    client: ChatClient | None
    model: str
    settings: LanguageAgentSettings
    seed: int = 0
    hosted: bool = False
    shape: Shape = "openai"


@dataclass(frozen=True)
class StageContext:
    """What the dialogues of one stage have in common. run: its id. seed: the config's. split: train or test. iteration: from 0. trace: the
    `nip_ray.tracking.traces.place` of the stage.
    """

    run: str
    seed: int
    split: str
    iteration: int
    trace: str = ""

    def call(self, *place: str | int) -> tuple[str, int]:
        """(key, seed) of a call. The key is a run's own; the seed is the same in all runs of a config."""
        parts = (self.split, self.iteration, *place)
        text = "\x1f".join([self.run, *map(str, parts)])
        key = hashlib.sha256(text.encode()).hexdigest()[:40]
        return key, stable_seed(self.seed, "call", *parts) % 2**_SEED_BITS


class DialogueRunner:
    """Plays dialogues with at most `max_in_flight` calls at once, until one fails."""

    def __init__(
        self,
        scenario: LanguageScenario,
        clients: Mapping[str, AgentClient],
        context: StageContext,
        max_in_flight: int,
        brake: Brake | None = None,
    ) -> None:
        """brake: none for one of its own, with the usual limits."""
        self._brake = brake or Brake(TalkSettings())
        self._hosted = {agent: client.model for agent, client in clients.items() if client.hosted}
        self.scenario, self.clients, self.context, self.max_in_flight = scenario, clients, context, max_in_flight
        self._gate, self._calls = asyncio.Semaphore(max_in_flight), PaidCalls()

    async def dialogues(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[Dialogue]:
        """One dialogue for each task, in order. Raises what a client raises, once all calls on their way have come back."""

        async def hold(task: Task) -> Dialogue:
            dialogue, ask = start_dialogue(task.item, task.seed), self._ask(task)
            while not dialogue.ended:
                dialogue = await self._round(dialogue, ask)
            return dialogue

        return await self._all(tasks, hold, progress)

    async def trees(self, tasks: Sequence[Task], num_responses: int, progress: Progress | None = None) -> list[Node]:
        """One tree of replies for each task (`nip_ray.text.training.malt`), in order. Raises as `dialogues` does."""

        async def hold(task: Task) -> Node:
            ask = self._ask(task)

            async def one_more(dialogue: Dialogue, path: tuple[int, ...]) -> Dialogue:
                return await self._round(dialogue, ask, path)

            return await grow(self.scenario, task.item, task.seed, num_responses, one_more)

        return await self._all(tasks, hold, progress)

    async def _round(self, dialogue: Dialogue, ask: Ask, path: tuple[int, ...] = ()) -> Dialogue:
        played = await play_round(self.scenario, dialogue, ask, path)
        self._brake.over(played.rounds[-1], self._hosted)
        return played

    async def _all(self, tasks: Sequence[Task], hold: Callable[[Task], Awaitable[Made]], progress: Progress | None) -> list[Made]:
        begun = asyncio.Semaphore(2 * self.max_in_flight)
        over = 0

        async def one(task: Task) -> Made:
            nonlocal over
            async with begun:
                with self._span(task) as told:
                    made = await hold(task)
                    if isinstance(made, Dialogue):
                        told(nip_ray__rounds=len(made.rounds), nip_ray__verdict=made.verdict)
            over += 1
            if progress is not None:
                progress(over, len(tasks))
            return made

        try:
            return await gather_or_cancel(one(task) for task in tasks)
        finally:
            await self._calls.rest()

    def _span(self, task: Task) -> AbstractContextManager[traces.Told]:
        context, protocol = self.context, self.scenario.protocol.name
        return traces.span(
            f"invoke_workflow {protocol}",
            parent=context.trace,
            gen_ai__operation__name="invoke_workflow",
            gen_ai__workflow__name=protocol,
            gen_ai__conversation__id=f"{context.run}/{context.split}/{context.iteration + 1}/{task.number}",
            nip_ray__split=context.split,
            nip_ray__iteration=context.iteration + 1,
            nip_ray__task=task.number,
            nip_ray__item=task.item.id,
        )

    def _ask(self, task: Task) -> Ask:
        async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...] = ()) -> Answer:
            known = task.said.get((len(dialogue.rounds), agent))
            if known is not None and not attempt:
                return Answer(known)
            speaker = self.clients[agent]
            if attempt and speaker.hosted:
                self._brake.invalid(agent, speaker.model)
            key, seed = self.context.call(task.number, ".".join(map(str, path)), len(dialogue.rounds), agent, attempt)
            if speaker.client is None:
                return Answer(self.scenario.invent(dialogue, agent, seed))
            schema = self.scenario.reply_schema(agent)
            form = 0 if schema is None else len(self.scenario.verdict_text(ACCEPT)) // 2  # tokens of names and quotation marks, about
            request = ChatRequest(
                key=key,
                model=speaker.model,
                messages=shape_chat(chat, speaker.shape),
                max_tokens=speaker.settings.reply_tokens + form,
                temperature=speaker.settings.temperature,
                top_p=speaker.settings.top_p,
                seed=seed,
                agent=agent,
                extra=speaker.settings.extra_members,
                schema=schema,
            )
            async with self._gate:
                reply = await self._calls.wait(speaker.client.complete(request))
            return Answer(reply.content, reply.finish_reason, reply.reasoning)

        return ask
