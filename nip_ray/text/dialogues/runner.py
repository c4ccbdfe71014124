"""Hold many dialogues at once: the order of items, keys of calls, trees of replies, and the files of dialogues.

Decisions that matter here:
- training items are taken in order from a permutation of all of them, a new one for every pass: iteration i of n items
  takes places i n to i n + n - 1 of this endless sequence, so no item is skipped or repeated within a pass, for any n.
  Held-out items are taken in their own order, each as often as requested;
- a call's key and seed come from (run, split, iteration, task, path, round, agent, attempt) alone, so a dialogue
  repeated after a crash makes the same calls, and finds earlier replies in the records;
- when one dialogue fails (the budget is spent, the provider is unreachable, too many replies are unusable), no new call
  is made, but calls in flight are awaited: they are paid for, and their replies are recorded;
- dialogues start in order, a few more than the allowed calls, so that the records of a stopped run are of few
  dialogues.
"""

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nip_ray.errors import TrainingError, UserError
from nip_ray.play.dialogue import (
    Chat,
    Dialogue,
    LanguageScenario,
    Shape,
    Turn,
    beginning,
    dialogue_from_record,
    dialogue_record,
    shape_chat,
)
from nip_ray.play.dialogues import Answer, Ask, play_round, start_dialogue
from nip_ray.protocols import ACCEPT, NUM_SEEDS
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.text_training import TalkSettings
from nip_ray.storage.folder import read_lines, write_lines
from nip_ray.text.providers.interface import ChatClient, ChatRequest
from nip_ray.tracking import traces


@dataclass(frozen=True)
class Task:
    """A dialogue (or tree) to hold. number: its place in the iteration. item: its subject. seed: of the episode. past:
    agent -> the snapshot whose weights it uses, for agents that do not use the current ones; at most one snapshot per
    dialogue. said: (round, agent) -> a known reply, for which no model is queried."""

    number: int
    item: Any
    seed: int
    past: Mapping[str, int] = field(default_factory=dict)
    said: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @property
    def snapshot(self) -> int | None:
        """The snapshot in `past`, None if all agents are current."""
        return next(iter(self.past.values()), None)


def training_tasks(items: Sequence[Any], seed: int, iteration: int, count: int) -> list[Task]:
    """The tasks of an iteration (from 0). Raises ValueError without items."""
    if not items:
        raise ValueError("there are no items to talk about")
    chosen = []
    for number in range(count):
        place = iteration * count + number
        order = _permutation(len(items), seed, place // len(items))
        item = items[int(order[place % len(items)])]
        chosen.append(Task(number, item, stable_seed(seed, "episode", "train", iteration, number) % NUM_SEEDS))
    return chosen


def grouped(tasks: Sequence[Task], size: int) -> list[Task]:
    """Each task `size` times, next to each other, with seeds of their own."""
    return [
        replace(task, number=size * task.number + copy, seed=stable_seed(task.seed, "copy", copy))
        for task in tasks
        for copy in range(size)
    ]


def test_tasks(items: Sequence[Any], seed: int, limit: int | None, repeats: int) -> list[Task]:
    """Held-out items (at most `limit`) `repeats` times; the same tasks in every iteration, for comparable metrics."""
    chosen = items[:limit]
    return [
        Task(repeat * len(chosen) + i, item, stable_seed(seed, "episode", "test", repeat, i) % NUM_SEEDS)
        for repeat in range(repeats)
        for i, item in enumerate(chosen)
    ]


@lru_cache(maxsize=4)
def _permutation(num: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(stable_seed(seed, "items", epoch)).permutation(num)


# ----------------------------------------------------------------------------------------------------------------------
# Wait for many awaitables at once, leaving none behind when one fails; paid calls are always awaited.

Result = TypeVar("Result")


async def gather_or_cancel(awaitables: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results in order. When one fails (or this task is cancelled) the others are cancelled and awaited, and its
    error is raised.

    `asyncio.gather` alone would let the others continue, and a call to a model costs money; `asyncio.TaskGroup` would
    wrap the error.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class PaidCalls:
    """Calls that continue when their waiter is cancelled: they cost money, so their replies are recorded."""

    def __init__(self) -> None:
        self._open: set[asyncio.Future[Any]] = set()

    async def wait(self, call: Awaitable[Result]) -> Result:
        """The result of `call`; raises its error."""
        task = asyncio.ensure_future(call)
        self._open.add(task)
        task.add_done_callback(self._over)
        # `shield` makes another future, whose error is never retrieved when this is cancelled with it
        await asyncio.wait([task])
        return task.result()

    async def rest(self) -> None:
        """Wait for all calls in flight; their errors were raised in their waiters, or come too late."""
        await asyncio.gather(*self._open, return_exceptions=True)

    def _over(self, task: "asyncio.Future[Any]") -> None:
        self._open.discard(task)
        if not task.cancelled():
            task.exception()  # the waiter may be gone, and asyncio prints errors that are not retrieved


# ----------------------------------------------------------------------------------------------------------------------
# Trees of replies: a node is a dialogue so far; its children are independent samples of the next round.

TreePath = tuple[int, ...]
PlayRound = Callable[[Dialogue, TreePath], Awaitable[Dialogue]]
"""Plays one more round: (the dialogue so far, the path of the new node) -> the dialogue after it."""


@dataclass(frozen=True)
class Node:
    """A dialogue so far. path: the child to take in each round from the root, whose path is empty. A node without
    children is a leaf."""

    dialogue: Dialogue
    path: TreePath = ()
    children: tuple["Node", ...] = ()

    def paid(self, agent: str) -> float:
        """The pay of `agent` in the node's own round, the last one played; the root has none."""
        return self.dialogue.rewards[-1].get(agent, 0.0) if self.path else 0.0

    def turn(self, agent: str) -> Turn | None:
        """The agent's turn in the node's own round."""
        turns = self.dialogue.rounds[-1] if self.path else ()
        return next((turn for turn in turns if turn.agent == agent), None)


async def grow(scenario: LanguageScenario, item: Any, seed: int, k: int, play_round: PlayRound) -> Node:
    """The tree of `item`: every unfinished dialogue gets `k` children, all played at the same time.

    seed: the episode's, the same in all nodes. Raises TrainingError when a dialogue continues after the protocol's last
    round, and any error of `play_round`, after cancelling the other plays.
    """

    async def below(dialogue: Dialogue, path: TreePath) -> Node:
        if dialogue.ended:
            return Node(dialogue, path)
        if len(path) >= scenario.protocol.max_rounds:
            raise TrainingError(
                f"item {item.id}: a dialogue continues after {len(path)} rounds, the last of protocol"
                f" {scenario.protocol.name!r}"
            )
        return Node(
            dialogue, path, tuple(await gather_or_cancel(child(dialogue, (*path, number)) for number in range(k)))
        )

    async def child(dialogue: Dialogue, path: TreePath) -> Node:
        return await below(await play_round(dialogue, path), path)

    return await below(start_dialogue(item, seed), ())


# ----------------------------------------------------------------------------------------------------------------------
# Dialogues, stored in full: `rollouts/NNNNNN.jsonl`, those of held-out items in `rollouts/test-NNNNNN.jsonl`.
#
# A line is one dialogue; of a tree, one for each leaf, with the tree's number and the leaf's path. Dialogues are
# rebuilt from it exactly, with the items of the data set by their ids. Iterations count from 1 in these names, in those
# of `calls/` from 0.


def rollout_file(run_dir: Path, split: str, iteration: int) -> Path:
    """Where the rollouts of an iteration (from 0) are."""
    return run_dir / "rollouts" / f"{'test-' if split == 'test' else ''}{iteration + 1:06d}.jsonl"


def write_dialogues(
    path: Path,
    scenario: LanguageScenario,
    tasks: Sequence[Task],
    dialogues: Sequence[Dialogue],
    policy_version: int | None = None,
) -> None:
    """One line a dialogue, all in one step. policy_version: see `spoken_by`."""
    made = zip(tasks, dialogues, strict=True)
    write_lines(
        path,
        (
            {"task": task.number, **spoken_by(task, policy_version), "dialogue": dialogue_record(scenario, one)}
            for task, one in made
        ),
    )


def spoken_by(task: Task, policy_version: int | None) -> dict[str, Any]:
    """Fields of a dialogue's record about the weights behind its tokens: `policy_version`, the number of iterations
    they had learned from (None: not recorded), and `past`, the agents with earlier ones (left out if there are
    none)."""
    version = {} if policy_version is None else {"policy_version": policy_version}
    return version | ({"past": dict(task.past)} if task.past else {})


def write_trees(path: Path, scenario: LanguageScenario, tasks: Sequence[Task], roots: Sequence[Node]) -> None:
    """One line a leaf, all in one step."""
    write_lines(
        path,
        (
            {"task": task.number, "path": list(leaf.path), "dialogue": dialogue_record(scenario, leaf.dialogue)}
            for task, root in zip(tasks, roots, strict=True)
            for leaf in leaves(root)
        ),
    )


def read_dialogues(path: Path, items: Mapping[int, Any]) -> list[Dialogue]:
    """Read a file of `write_dialogues` (of trees: all leaves). items: by id. Raises UserError for a damaged file or a
    missing item."""
    return [dialogue for _, _, dialogue in _read(path, items)]


def read_trees(path: Path, items: Mapping[int, Any]) -> list[Node]:
    """Read a file of `write_trees`. Raises UserError as `read_dialogues` does."""
    trees: dict[int, list[tuple[tuple[int, ...], Dialogue]]] = {}
    for task, place, dialogue in _read(path, items):
        trees.setdefault(task, []).append((place, dialogue))
    return [tree_of(found) for found in trees.values()]


def leaves(root: Node) -> Iterator[Node]:
    """The leaves of a tree, in the order of their paths."""
    if not root.children:
        yield root
    for child in root.children:
        yield from leaves(child)


def tree_of(found: Sequence[tuple[tuple[int, ...], Dialogue]], depth: int = 0) -> Node:
    """The tree with these leaves, each with its path; common prefixes become one node."""
    path, dialogue = found[0]
    if len(path) == depth:
        return Node(dialogue, path)
    below: dict[int, list[tuple[tuple[int, ...], Dialogue]]] = {}
    for leaf in found:
        below.setdefault(leaf[0][depth], []).append(leaf)
    children = tuple(tree_of(below[number], depth + 1) for number in sorted(below))
    return Node(beginning(dialogue, depth), path[:depth], children)


def _read(path: Path, items: Mapping[int, Any]) -> Iterator[tuple[int, tuple[int, ...], Dialogue]]:
    if not path.is_file():
        raise UserError(f"{path} is missing; go back to a copy of the run folder, or start a new run")
    for number, record in enumerate(read_lines(path), 1):
        try:
            item = items[record["dialogue"]["item"]]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path}: line {number} is about item {error}, which the data of this run does not have"
            ) from None
        yield record["task"], tuple(record.get("path", ())), dialogue_from_record(record["dialogue"], item)


# ----------------------------------------------------------------------------------------------------------------------
# Hold many dialogues at once, with keys for calls and a limit on calls in flight.


INVALID_WINDOW = 50


class Brake:
    """Counts, for each agent that a hosted provider speaks for, its last `INVALID_WINDOW` replies, over all stages."""

    def __init__(self, settings: TalkSettings) -> None:
        self._settings = settings
        self._last: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=INVALID_WINDOW))

    def invalid(self, agent: str, model: str) -> None:
        """Count an unusable reply. Raises TrainingError when too many of the last ones were unusable."""
        last, share = self._last[agent], self._settings.max_invalid_share
        last.append(True)
        if len(last) == last.maxlen and sum(last) > share * len(last):
            raise _error(f"{sum(last)} of the last {len(last)} replies of {agent} ({model})", share)

    def over(self, turns: Iterable[Turn], models: Mapping[str, str]) -> None:
        """Count a finished round; replies with another attempt are counted already. models: of the counted agents."""
        for turn in turns:
            if turn.agent not in models:
                continue
            if turn.invalid:
                self.invalid(turn.agent, models[turn.agent])
            else:
                self._last[turn.agent].append(False)


def check_stage(settings: TalkSettings, dialogues: Iterable[Dialogue], models: Mapping[str, str]) -> None:
    """Raise TrainingError if an agent had turns in these dialogues, which are all of a stage, and no usable reply.

    models: of the agents with hosted providers.
    """
    turns = [turn for dialogue in dialogues for played in dialogue.rounds for turn in played if turn.agent in models]
    usable = {turn.agent for turn in turns if not turn.invalid}
    for agent in dict.fromkeys(turn.agent for turn in turns):
        if agent not in usable and settings.max_invalid_share < 1:
            raise _error(f"all replies of {agent} ({models[agent]}) in one stage", settings.max_invalid_share)


def _error(what: str, share: float) -> TrainingError:
    return TrainingError(
        f"{what} could not be used (talk.max_invalid_share: {share:g}). They are in calls/. Start a run with another"
        " model, prompt or limit of tokens, or resume this one with a higher share"
    )


Made = TypeVar("Made")
Progress = Callable[[int, int], None]
"""Called with (dialogues that are over, dialogues in all)."""
_SEED_BITS = 31  # what providers take


@dataclass(frozen=True)
class AgentClient:
    """An agent's model and client: `model` of the provider behind `client`, with `settings`.

    client: None for the dummy provider, whose replies are random. hosted: replies are paid for; see `Brake`. shape: of
    its chats.
    """

    client: ChatClient | None
    model: str
    settings: LanguageAgentSettings
    _: KW_ONLY
    hosted: bool = False
    shape: Shape = "openai"


@dataclass(frozen=True)
class StageContext:
    """The common part of all dialogues of a stage. run: its id. seed: the config's. split: train or test. iteration:
    from 0. trace: the `nip_ray.tracking.traces.place` of the stage."""

    run: str
    seed: int
    split: str
    iteration: int
    trace: str = ""

    def call(self, *place: str | int) -> tuple[str, int]:
        """(key, seed) of a call. The key is specific to the run; the seed is the same in all runs of a config."""
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
        """brake: None for a new one with the default limits."""
        self._brake = brake or Brake(TalkSettings())
        self._hosted = {agent: client.model for agent, client in clients.items() if client.hosted}
        self.scenario, self.clients, self.context, self.max_in_flight = scenario, clients, context, max_in_flight
        self._gate, self._calls = asyncio.Semaphore(max_in_flight), PaidCalls()

    async def dialogues(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[Dialogue]:
        """One dialogue for each task, in order. Raises a client's errors, once all calls in flight have returned."""

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

    async def _all(
        self, tasks: Sequence[Task], hold: Callable[[Task], Awaitable[Made]], progress: Progress | None
    ) -> list[Made]:
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
            # approximate tokens of names and quotation marks
            form = 0 if schema is None else len(self.scenario.verdict_text(ACCEPT)) // 2
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
