"""Common parts of the OpenAI protocol for the server: errors, validation of bodies, pages of lists, multipart forms.

Decisions that matter here: unsupported options are refused, by a 400 that names them, unless they are at their default
or do not affect the reply. Bodies are validated here and not by FastAPI, whose own errors have another form and status.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Body = TypeVar("Body", bound=BaseModel)
MAX_BODY = 512 << 20
"""Maximum bytes of a request."""
_NAME = re.compile(rb'[; ]name="([^"]*)"')
_FILENAME = re.compile(rb'[; ]filename="([^"]*)"')
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_REPLAYS = 4096


class Strict(BaseModel):
    """A part of a body, without unknown members."""

    model_config = ConfigDict(extra="forbid")


class ApiError(Exception):
    """An error response. param: the part of the request it is about."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        """OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def read_body(kind: type[Body], data: bytes) -> Body:
    """`data` as `kind`. Raises ApiError that names the first invalid part."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        message = f"{where}: {first['msg']}" if where else f"the body is not valid: {first['msg']}"
        if first["type"] == "extra_forbidden":
            message = f"{where}: this parameter is unknown or not supported here"
        raise ApiError(400, message, where) from None


def page(items: Sequence[dict[str, Any]], after: str | None, limit: str | None, most: int = 100) -> dict[str, Any]:
    """The list object with at most `limit` (default 20) of `items`, after the one with the id `after`."""
    if limit is not None and not (limit.isdecimal() and 1 <= int(limit) <= most):
        raise ApiError(400, f"limit: a whole number from 1 to {most}", "limit")
    start = 0
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, f"after: there is no {after!r} in this list", "after")
        start = ids.index(after) + 1
    end = start + (20 if limit is None else int(limit))
    data = list(items[start:end])
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "has_more": end < len(items), "first_id": first, "last_id": last}


def multipart(data: bytes, content_type: str) -> dict[str, tuple[bytes, str | None]]:
    """A form's fields: name -> (content, file name if it is a file). Raises ApiError for an invalid form (RFC 7578)."""
    boundary = _BOUNDARY.search(content_type)
    if not content_type.startswith("multipart/form-data") or boundary is None:
        raise ApiError(400, "a file is uploaded as multipart/form-data")
    fields = {}
    for part in (b"\r\n" + data).split(b"\r\n--" + boundary[1].encode("latin-1"))[1:]:
        if part.startswith(b"--"):
            return fields
        head, found, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name, filename = _NAME.search(head), _FILENAME.search(head)
        if not found or name is None:
            break
        fields[name[1].decode("utf-8", "replace")] = (
            content,
            filename[1].decode("utf-8", "replace") if filename else None,
        )
    raise ApiError(400, "the form is not whole")


class Replays:
    """Responses by idempotency key: a repeated request gets the same response, or waits for it."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, tuple[str, asyncio.Task[Any]]] = OrderedDict()

    async def once(self, key: str | None, request: Any, work: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `work`; for a known key, the earlier result. Raises ApiError for a key that belongs to another
        request."""
        if key is None:
            return await work()
        digest = sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        known = self._tasks.get(key)
        if known is not None and known[0] != digest:
            raise ApiError(400, "this Idempotency-Key was used for another request", code="idempotency_error")
        if known is None:
            known = (digest, asyncio.ensure_future(work()))
            known[1].add_done_callback(lambda task: task.cancelled() or task.exception())  # the waiter may go away
            self._tasks[key] = known
            while len(self._tasks) > _REPLAYS:
                self._tasks.popitem(last=False)
        try:
            await asyncio.wait([known[1]])  # a client that went away may come back for it
            return known[1].result()
        except Exception:
            self._tasks.pop(key, None)  # errors are not kept: the next attempt is a new one
            raise
