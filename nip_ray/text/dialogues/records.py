"""The records of calls: request, reply and cost, written before use (replay cache and ledger in one); and the clients
that keep them.

    calls/NNNNNN-W.jsonl    iteration (from 0), writer: the provider's name, followed by the rollout worker's if it has
                            one (or `judge`)

Decisions that matter here:
- three kinds of lines. `begin` before a call is sent, with its maximum cost; `reply` when it is answered, before the
  reply is used; `failed` when it is known to have failed, with the possible cost of its attempts. Each is one write(),
  so that a killed process loses nothing that it had written, and can tear only its last line. A torn last line is
  ignored; any other damage is an error that names file and line;
- a call whose key has a reply is answered from the file. The reply belongs to one request: another request under its
  key (another prompt, after a change of code or config) is an error, not a wrong answer;
- a `begin` without its `reply` or `failed` was in flight when the process died. The same call is sent again under the
  same key, which a provider that honours idempotency keys bills once; for all others its worst case is reported as
  uncertain;
- lines reach the disk by an fsync at most `SYNC_S` seconds later, in a thread, and on `sync`: a crash of the machine,
  not of the process, can lose that much, and those calls are then made again.
"""

import asyncio
import hashlib
import json
import re
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import chat_shapes, groups, language_agents
from nip_ray.errors import UserError
from nip_ray.storage.files import LineFile, check_version, lines_of
from nip_ray.text.costs.budget import BudgetLike, Limiter, Throttle
from nip_ray.text.costs.prices import (
    NOTHING,
    Amount,
    Price,
    PriceList,
    Spending,
    price_list,
    uncertain_of,
    usd,
    worst_case,
)
from nip_ray.text.dialogues.runner import AgentClient
from nip_ray.text.providers.interface import ChatClient, ChatReply, ChatRequest, Connection, FinishReason, chat_client
from nip_ray.tracking import traces

CALLS = "calls"
VERSION = 1
SYNC_S = 0.5

_TOLD = ("cached_tokens", "reasoning_tokens", "model", "fingerprint", "refusal")
_NAME = re.compile(r"(\d{6,})-(\w+)\.jsonl")
_dumps = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True)
class CallRecord:
    """One line. event: "begin", "reply" or "failed". key, model, agent: of the request. request: its fingerprint.
    worst: its maximum cost (begin). reply: (reply). uncertain: possible further cost of its attempts (reply, failed).
    where: file and line."""

    event: str
    key: str
    model: str
    agent: str
    request: str
    where: str
    worst: Amount = NOTHING
    reply: ChatReply | None = None
    uncertain: Amount = NOTHING


class RecordedChat:
    """A chat client whose calls are recorded and replayed. One event loop; one writer for each file."""

    def __init__(
        self,
        client: ChatClient,
        run: Path | str,
        iteration: int,
        worker: int | str = 0,
        prices: PriceList | None = None,
        provider: str = "",
    ) -> None:
        """Read the records of `iteration` (of all workers: dialogues may move) and open this worker's for appending.

        run: the run folder. prices: for the worst case of a call (None: calls are free). provider: its kind, for
        traces. Raises UserError when a record is damaged, cannot be written, or has another writer.
        """
        self._client, self._prices, self._provider = client, prices, provider
        folder = Path(run) / CALLS
        self.path = folder / f"{iteration:06d}-{worker}.jsonl"
        if not _NAME.fullmatch(self.path.name):
            raise ValueError(f"a worker's name is made of letters, digits and _ (got {worker!r})")
        self._known = {
            record.key: record
            for path in _files(folder, iteration)
            for record in _read(path)
            if record.reply is not None
        }
        self._running: set[str] = set()
        self._file = LineFile(self.path)
        self._file.cut()
        self._sync_due: asyncio.TimerHandle | None = None

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The recorded reply under this key, or the client's. Raises UserError if it answers another request."""
        known = self._known.get(request.key)
        if known is not None and known.reply is not None:
            if known.request != fingerprint(request):
                raise UserError(
                    f"{known.where}: the key {known.key!r} has the reply to another request; model, prompt or"
                    " settings have changed since. Go back to what they were, or start a new run"
                )
            return known.reply
        if request.key in self._running:
            raise ValueError(f"two calls at once have the key {request.key!r}")
        self._running.add(request.key)
        try:
            return await self._call(request)
        finally:
            self._running.discard(request.key)

    async def close(self) -> None:
        """Write everything to disk, and close the file and the client."""
        try:
            await self.sync()
        finally:
            self._file.close()
            await self._client.close()

    async def sync(self) -> None:
        """Return when all records are on disk."""
        if self._sync_due is not None:
            self._sync_due.cancel()
            self._sync_due = None
        await asyncio.get_running_loop().run_in_executor(None, self._file.sync)

    async def _call(self, request: ChatRequest) -> ChatReply:
        worst = worst_case(
            Price() if self._prices is None else self._prices.of(request.model), request.messages, request.max_tokens
        )
        asked = fingerprint(request)
        head = {"key": request.key, "model": request.model, "agent": request.agent, "request": asked}
        self._append({"event": "begin", **head, "worst_pusd": worst.pusd, "worst_tokens": worst.tokens})
        try:
            with _span(request, self._provider) as told:
                reply = await self._client.complete(request)
                told(**_told(reply))
        except Exception as error:
            if (lost := uncertain_of(error)) is not None:
                self._append({"event": "failed", **head, "uncertain_pusd": lost.pusd, "uncertain_tokens": lost.tokens})
            raise
        self._append({"event": "reply", **head, **_reply_fields(reply)})
        self._known[request.key] = CallRecord(
            "reply", request.key, request.model, request.agent, asked, str(self.path), reply=reply
        )
        return reply

    def _append(self, row: dict[str, Any]) -> None:
        self._file.append((_dumps({**row, "version": VERSION}) + "\n").encode())
        if self._sync_due is None:
            self._sync_due = asyncio.get_running_loop().call_later(SYNC_S, self._sync_soon)

    def _sync_soon(self) -> None:
        self._sync_due = None
        asyncio.get_running_loop().run_in_executor(None, self._sync_open)

    def _sync_open(self) -> None:
        with suppress(RuntimeError):  # closed meanwhile, after a last sync
            self._file.sync()


def _span(request: ChatRequest, provider: str) -> AbstractContextManager[traces.Told]:
    return traces.span(
        f"chat {request.model}",
        call=True,
        gen_ai__operation__name="chat",
        gen_ai__provider__name=provider,
        gen_ai__agent__name=request.agent,
        gen_ai__request__model=request.model,
        gen_ai__request__max_tokens=request.max_tokens,
        gen_ai__request__temperature=request.temperature,
        gen_ai__request__top_p=request.top_p,
        gen_ai__request__seed=request.seed,
        gen_ai__input__messages=traces.said(request.messages),
        nip_ray__call=request.key,
    )


def _told(reply: ChatReply) -> dict[str, Any]:
    return {
        "gen_ai__response__model": reply.model,
        "gen_ai__response__finish_reasons": [reply.finish_reason],
        "gen_ai__usage__input_tokens": reply.prompt_tokens,
        "gen_ai__usage__output_tokens": reply.completion_tokens,
        "gen_ai__output__messages": traces.said([{"role": "assistant", "content": reply.content}], reply.finish_reason),
        "nip_ray__cost_usd": usd(reply.cost_pusd),
    }


def read_calls(run: Path | str, iteration: int | None = None) -> Iterator[CallRecord]:
    """All lines of a run (or of one iteration), file by file, in the order of writing.

    Raises UserError naming file and line if one is damaged; a torn last line is left out.
    """
    for path in _files(Path(run) / CALLS, iteration):
        yield from _read(path)


def total(run: Path | str) -> Spending:
    """The cost of a run's calls, by its records: the cost of every reply, and as uncertain the worst case of every call
    with an unknown outcome. Without jobs."""
    spending = Spending()
    open_calls: dict[tuple[str, str], list[Amount]] = {}
    for record in read_calls(run):
        mine = open_calls.setdefault((record.where.rpartition(":")[0], record.key), [])
        if record.event == "begin":
            mine.append(record.worst)
            continue
        if mine:
            mine.pop()
        spending.uncertain += record.uncertain
        if record.reply is not None:
            spending.add(record.reply.spending(record.model))
    for worst in (amount for amounts in open_calls.values() for amount in amounts):
        spending.uncertain += worst
    return spending


def fingerprint(request: ChatRequest) -> str:
    """16 hexadecimal digits that identify a request by everything that affects its reply."""
    content = [request.model, request.messages, request.max_tokens, request.temperature, request.top_p, request.seed]
    content += [dict(request.extra)] if request.extra else []
    content += [{"schema": dict(request.schema)}] if request.schema else []
    return hashlib.blake2b(_dumps(content).encode(), digest_size=8).hexdigest()


def _reply_fields(reply: ChatReply) -> dict[str, Any]:
    told = {name: getattr(reply, name) for name in _TOLD}
    return {
        "content": reply.content,
        **({"reasoning": reply.reasoning} if reply.reasoning else {}),
        "finish": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cost_pusd": reply.cost_pusd,
        "uncertain_pusd": reply.uncertain.pusd,
        "uncertain_tokens": reply.uncertain.tokens,
        "told": {name: value for name, value in told.items() if value},
    }


def _files(folder: Path, iteration: int | None) -> list[Path]:
    names = sorted(path.name for path in folder.glob("*.jsonl")) if folder.is_dir() else []
    matches = [(name, _NAME.fullmatch(name)) for name in names]
    return [folder / name for name, match in matches if match and (iteration is None or int(match[1]) == iteration)]


def _read(path: Path) -> Iterator[CallRecord]:
    lines = lines_of(path)
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n") and number == len(lines):
            return
        if b"\0" in line:  # never in a written line: blocks that were not on disk at a power failure
            warnings.warn(
                f"{path}:{number} was not on disk whole when the machine lost power; its calls are made again",
                stacklevel=2,
            )
            continue
        yield _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> CallRecord:
    try:
        row = json.loads(line)
        check_version(row["version"], VERSION, where)
        return _record(row, where)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(
            f"{where} is damaged ({type(error).__name__}: {error}); fix it or go back to a copy of the file"
        ) from None


def _record(row: dict[str, Any], where: str) -> CallRecord:
    """Raises ValueError, KeyError or TypeError for an invalid row."""
    event = row["event"]
    if event not in ("begin", "reply", "failed"):
        raise ValueError(f"unknown event {event!r}")
    key, model, agent, asked = (_text(row, name) for name in ("key", "model", "agent", "request"))
    if event == "begin":
        return CallRecord(
            event, key, model, agent, asked, where, worst=Amount(_count(row, "worst_pusd"), _count(row, "worst_tokens"))
        )
    uncertain = Amount(_count(row, "uncertain_pusd"), _count(row, "uncertain_tokens"))
    reply = _reply(row, uncertain) if event == "reply" else None
    return CallRecord(event, key, model, agent, asked, where, uncertain=uncertain, reply=reply)


def _reply(row: dict[str, Any], uncertain: Amount) -> ChatReply:
    content, finish = row["content"], row["finish"]
    if (content is not None and not isinstance(content, str)) or finish not in get_args(FinishReason):
        raise ValueError(f"no reply: finish {finish!r}")
    prompt, completion, cost = (_count(row, name) for name in ("prompt_tokens", "completion_tokens", "cost_pusd"))
    told, reasoning = row.get("told", {}), row.get("reasoning", "")  # rows of earlier versions have neither
    if not isinstance(reasoning, str):
        raise ValueError("reasoning is not text")
    return ChatReply(content, finish, prompt, completion, cost, reasoning, uncertain=uncertain, **told)


def _text(row: dict[str, Any], name: str) -> str:
    if not isinstance(row[name], str):
        raise ValueError(f"{name} is not text")
    return row[name]


def _count(row: dict[str, Any], name: str) -> int:
    if type(row[name]) is not int or row[name] < 0:
        raise ValueError(f"{name} is not a count")
    return row[name]


# ----------------------------------------------------------------------------------------------------------------------
# `ClientPool`: recorded clients of all providers in a config, and the client of each agent.
# - it can be sent to another process: budgets and limits are then handles of actors.


@dataclass
class ClientPool:
    """A recorded client for each provider in use.

    config: of the run. run_dir: where calls are recorded. budget: pays for calls. hosts: of local providers, by name.
    throttles: of providers with limits, by name; missing ones are created here. worker: "" in the main process.
    """

    config: TextExperimentConfig
    run_dir: Path
    budget: BudgetLike
    hosts: Mapping[str, Any] = field(default_factory=dict)
    throttles: dict[str, Throttle] = field(default_factory=dict)
    worker: str = ""

    @asynccontextmanager
    async def agent_clients(self, models: Mapping[str, str], iteration: int) -> AsyncIterator[dict[str, AgentClient]]:
        """Agent -> its client, for an iteration (from 0). models: group -> its model."""
        settings = language_agents(self.config)
        group_of = {agent: group for group, agents in groups(self.config).items() for agent in agents}
        shapes = chat_shapes(self.config)
        used = {agent.provider for agent in settings.values() if self.config.providers[agent.provider].has_model}
        clients = {name: self._recorded(name, iteration) for name in sorted(used)}
        try:
            yield {
                agent: AgentClient(
                    clients.get(found.provider),
                    models[group_of[agent]],
                    found,
                    hosted=self.config.providers[found.provider].hosted,
                    shape=shapes[agent],
                )
                for agent, found in settings.items()
            }
        finally:
            for client in clients.values():
                await client.close()

    def client(self, name: str) -> ChatClient:
        """A client of the provider `name`. Raises UserError for a missing key or library."""
        provider, run_dir, seed, most = (
            self.config.providers[name],
            self.run_dir,
            self.config.seed,
            self.config.talk.max_in_flight,
        )
        throttle = self.throttles.setdefault(name, Limiter(*(provider.limits or (None, None))))
        return chat_client(Connection(provider, name, run_dir, self.hosts.get(name), seed, most, self.budget, throttle))

    def _recorded(self, name: str, iteration: int) -> RecordedChat:
        writer = re.sub(r"\W", "_", name) + (f"_{self.worker}" if self.worker else "")
        provider = self.config.providers[name]
        prices = price_list(provider, self.budget.in_usd)
        return RecordedChat(self.client(name), self.run_dir, iteration, writer, prices, provider.name)
