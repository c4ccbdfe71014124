"""The provider of a simulated world: the tests' scripted one without sockets, behind a network that loses, delays and
doubles.

Decisions that matter here:
- what it does with a request, and what it bills, is `tests.text.provider_service` as it stands; here are the way there
  and back, and faults that need a clock;
- a request that was sent arrives, whatever becomes of who sent it, unless the network loses it. So requests, late
  registrations and doubled deliveries stand in an agenda of the world's, which goes on between two processes;
- the client is the SDK's own, with a transport that ends here;
- no request meets more than `MOST` faults, so that patience is rewarded; what is told late is told in the end.
"""

import asyncio
import heapq
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from nip_ray.text.providers.openai_service import http_library
from tests.simulation.clock import Clock, Gone
from tests.text.provider_service import API_KEY, Options, Refused, Service
from tests.text.provider_state import Job

httpx = http_library()
MOST = 3
LAG_S = 20.0
"""What is listed, and what a job's status is, can be so old."""
LATE_S = 20.0
"""A creation that was cut off can be done so much later, a doubled delivery come so much later."""
DOUBT_S = 60.0
"""What a client is told to wait in doubt: more than any of these."""
LONG_S = 700.0
"""A job's model can stay unnamed, or its status unknown, for so long: longer than a client waits."""

OF_REQUESTS = (
    "no connection", "lost", "answer lost", "slow answer", "429", "500", "500 but done", "twice", "done later",
    "not JSON", "key expired",
)  # fmt: skip
OF_ANSWERS = (
    "listing lags",
    "status goes back",
    "no model yet",
    "unknown status",
    "no usage",
    "no trained tokens",
    "odd finish reason",
)
OF_JOBS = ("job fails", "job is cancelled", "job takes long")
FAULTS = (*OF_REQUESTS, *OF_ANSWERS, *OF_JOBS)
# all mean the same; after an unknown one the dialogue would be another
_ODD = (None, "eos_token", "tool_calls", "", "END_TURN")

_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", r"/v1/chat/completions", "chat"),
    ("GET", r"/v1/models", "models"),
    ("GET", r"/v1/models/(?P<id>.+)", "model"),
    ("POST", r"/v1/files", "upload"),
    ("GET", r"/v1/files", "files"),
    ("POST", r"/v1/fine_tuning/jobs", "create_job"),
    ("GET", r"/v1/fine_tuning/jobs", "jobs"),
    ("GET", r"/v1/fine_tuning/jobs/(?P<id>[^/]+)", "job"),
    ("POST", r"/v1/fine_tuning/jobs/(?P<id>[^/]+)/cancel", "cancel"),
)


class Agenda:
    """What will happen in the world by itself: (time, what), whether or not a process lives then."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._due, self._number = clock, [], count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._clock.now + seconds, next(self._number), act))

    def next(self) -> float | None:
        """When the next thing happens."""
        return self._due[0][0] if self._due else None

    def run(self) -> None:
        """Do what is due now."""
        while self._due and self._due[0][0] <= self._clock.now:
            heapq.heappop(self._due)[2]()


class _Request(dict[Any, Any]):
    """As much of a request of aiohttp's as the routes ask for; a mapping for their marks."""

    transport = None

    def __init__(self, request: httpx.Request, match: dict[str, str]) -> None:
        super().__init__()
        parts = urlsplit(str(request.url))
        self.method, self.path, self.body = request.method, parts.path, request.content
        self.path_qs = parts.path + (f"?{parts.query}" if parts.query else "")
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.headers, self.match_info = httpx.Headers(request.headers), match

    async def read(self) -> bytes:
        return self.body


@dataclass
class Provider(Service):
    """See the top of this file. chances: of faults. seen: which happened. sent, arrived: told of
    (route, request) when one is sent, and when it arrives to be done; `sent` may say that the process dies "before" or
    "after" that. delivered: told when a whole answer is with the client. forgets_keys: every arrival of a chat is
    billed, whatever its key. billed: all that was charged, in picodollars. doubled: key -> creations that the network
    has doubled.
    """

    folder: Path
    options: Options
    clock: Clock
    agenda: Agenda
    dice: random.Random
    chances: dict[str, float] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    arrived: Callable[[str, _Request], None] = lambda route, request: None
    sent: Callable[[str, _Request], str | None] = lambda route, request: None
    delivered: Callable[[str, _Request], None] = lambda route, request: None
    forgets_keys: bool = False
    dead: Callable[[], bool] = lambda: False
    die: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        super().__init__(self.folder, self.options)
        self._met: Counter[str] = Counter()
        self._before: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self.doubled: Counter[str] = Counter()
        self.billed = 0
        charge = self.state.bill

        def bill(kind: str, what: str, amount: int, **rest: Any) -> bool:
            charged = charge(kind, what, amount, **rest)
            self.billed += amount * charged
            return charged

        self.state.bill = bill  # type: ignore[method-assign]

    def _hit(self, name: str, what: str = "") -> bool:
        chance = self.chances.get(name, 0.0)
        if not chance or self.dice.random() >= chance or (what and self._met[what] >= MOST):
            return False
        self._met[what] += 1
        self.seen[name] += 1
        return True

    # --------------------------------------------------------------------------------------------------------- the way

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """What the transport gives back, or raises."""
        if self.dead():
            raise Gone
        route, match = next((name, m) for method, pattern, name in _ROUTES
                            if method == request.method
                            and (m := re.fullmatch(pattern, urlsplit(str(request.url)).path)))  # fmt: skip
        made, what = _Request(request, match.groupdict()), _what(request)
        dies = self.sent(route, made)
        if dies == "before":
            self.die()
        creates = request.method == "POST"
        faults = [name for name in OF_REQUESTS if creates or name not in ("500 but done", "twice", "done later")]
        fault = next(
            (name for name in faults if (route == "create_job" or name != "done later") and self._hit(name, what)), None
        )
        future: asyncio.Future[httpx.Response | Exception] = asyncio.get_running_loop().create_future()

        def tell(told: httpx.Response | Exception, delay_s: float) -> None:
            self.agenda.after(delay_s, lambda: None if future.done() else future.set_result(told))

        def arrive() -> None:
            if fault == "lost":
                return tell(httpx.ReadError("the connection was lost"), self._way_s())
            if fault == "done later":
                self.agenda.after(self.dice.uniform(0.5, LATE_S), lambda: self._do(route, made) and None)
                return tell(httpx.ReadError("the connection was lost"), self._way_s())
            if fault in ("429", "500", "key expired"):
                status = {"429": 429, "500": self.dice.choice((500, 502, 503)), "key expired": 401}[fault]
                return tell(
                    _error(status, self.dice.choice(({}, {"retry-after": "2"})) if fault == "429" else {}),
                    self._way_s(),
                )
            done = self._do(route, made)
            if fault == "twice":
                self.doubled[_key(made)] += 1
                self.agenda.after(self.dice.uniform(0.0, LATE_S), lambda: self._do(route, made) and None)
            if fault == "500 but done":
                done = _error(500, {})
            if fault == "answer lost":
                return tell(httpx.ReadError("the connection was lost"), self._way_s())
            if fault == "not JSON":
                done = httpx.Response(
                    200, content=b"<html>gateway</html>", headers={"content-type": "application/json"}
                )
            return tell(done, 200.0 if fault == "slow answer" else self._way_s())

        if fault == "no connection":
            raise httpx.ConnectError("refused") from aiohttp.ClientConnectorError(
                _PLACE, OSError(111, "Connection refused")
            )
        self.agenda.after(self._way_s() if dies is None else self.dice.uniform(0.0, LATE_S), arrive)
        if dies == "after":
            self.die()
        limit = (request.extensions.get("timeout") or {}).get("read")
        try:
            async with asyncio.timeout(limit):
                told = await future
        except TimeoutError:
            raise httpx.ReadTimeout("no answer") from None
        if isinstance(told, Exception):
            raise told
        if told.status_code == 200 and fault != "not JSON":
            self.delivered(route, made)
        return told

    def _way_s(self) -> float:
        return self.dice.expovariate(5.0) if self.dice.random() < 0.9 else self.dice.uniform(1.0, 8.0)

    def _do(self, route: str, request: _Request) -> httpx.Response:
        """Do it now, by the clock that is right."""
        skew, self.clock.skew = self.clock.skew, 0.0
        try:
            self.arrived(route, request)
            if request.headers.get("Authorization") != f"Bearer {API_KEY}":
                return _error(401, {})
            if route == "chat" and self.forgets_keys:
                request.headers.pop("Idempotency-Key", None)
            try:
                done = _now(getattr(self, route)(request))
            except Refused as refused:
                done = refused.response()
            told = json.loads(bytes(done.body))  # type: ignore[arg-type]
            if done.status == 200:
                told = self._told(route, told)
        finally:
            self.clock.skew = skew
        return httpx.Response(done.status, json=told, headers={"date": "Thu, 01 Jan 1970 00:00:00 GMT"})

    # --------------------------------------------------------------------------------------------------------- answers

    def _told(self, route: str, told: dict[str, Any]) -> dict[str, Any]:
        """An answer, with what is wrong with it."""
        if route == "chat":
            if self._hit("no usage"):
                told.pop("usage")
            if self._hit("odd finish reason"):
                told["choices"][0]["finish_reason"] = self.dice.choice(_ODD)
        elif route == "jobs":
            told["data"] = [self._aged(row) for row in told["data"]]
            if self._hit("listing lags"):
                told["data"] = [
                    row for row in told["data"] if self._begun(row) <= self.clock.true() - self.dice.uniform(0.0, LAG_S)
                ]
        elif route in ("job", "cancel"):
            told = self._aged(told)
        return told

    def _begun(self, row: dict[str, Any]) -> float:
        return self.state.jobs[row["id"]].begun

    def _aged(self, row: dict[str, Any]) -> dict[str, Any]:
        """A job as it is told of: perhaps as it was a while ago, and with what its provider is slow or silent about."""
        past = self._before.setdefault(row["id"], [])
        past.append((self.clock.now, row))
        if self._hit("status goes back"):
            row = self.dice.choice([old for at, old in past if at >= self.clock.now - LAG_S])
        row, mark = dict(row), random.Random(f"{row['id']} {self.options.fault_seed}")
        age = self.clock.true() - self.state.jobs[row["id"]].begun
        odd = {
            name: mark.random() < self.chances.get(name, 0.0)
            for name in ("no model yet", "unknown status", "no trained tokens")
        }
        lasts = mark.choice((5.0, 60.0, LONG_S))
        if odd["unknown status"] and age < lasts and row["status"] not in ("succeeded", "failed", "cancelled"):
            self.seen["unknown status"] += 1
            row["status"] = "under_review"
        if row["status"] == "succeeded" and odd["no model yet"] and age < self.state.job_s + lasts:
            self.seen["no model yet"] += 1
            row["fine_tuned_model"] = None
        if odd["no trained tokens"]:
            self.seen["no trained tokens"] += 1
            row["trained_tokens"] = None
        return row

    def jobs_of(self, key: str) -> list[Job]:
        """All that were made under a key."""
        return [job for job in self.state.jobs.values() if (job.body.get("metadata") or {}).get("nip_key") == key]


class Transport(httpx.AsyncBaseTransport):
    """The network, as the SDK's client sees it."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await self._provider.answer(request)


def http_client(provider: Provider, **options: Any) -> httpx.AsyncClient:
    """In the place of the SDK's `DefaultAioHttpClient`."""
    return httpx.AsyncClient(transport=Transport(provider), trust_env=False, event_hooks=options["event_hooks"])


class _Place:
    host, port, ssl, is_ssl = "provider.test", 80, False, False


_PLACE: Any = _Place()


def _now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a route, none of which waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a route waits")


def _error(status: int, headers: dict[str, str]) -> httpx.Response:
    return httpx.Response(
        status, json={"error": {"message": "simulated", "type": "error", "code": None}}, headers=headers
    )


def _what(request: httpx.Request) -> str:
    """What tells a request from others and is the same for its repeats."""
    body = b"" if "multipart" in request.headers.get("content-type", "") else request.content
    return f"{request.method} {request.url} {request.headers.get('Idempotency-Key') or body!r}"


def _key(request: _Request) -> str:
    """The key of a creation, or what stands for it."""
    try:
        return str(json.loads(request.body)["metadata"]["nip_key"])
    except (ValueError, KeyError, TypeError):
        return ""
