"""`FineTuneBackend`: what a provider of fine-tuning must be able to do, and the forms of its files (JSON lines, as OpenAI defines them).

`nip_ray.text.jobs.exactly_once` builds on it the one function that makes a job exactly once.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Protocol

from nip_ray.play.dialogue import Chat
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method


class InDoubt(Exception):
    """Creating a job got no clear answer: it may exist or come to exist."""


class FineTuneBackend(Protocol):
    """A provider of fine-tuning. Every method but `submit` may be called again without harm, and retries what may be retried.

    Errors: UserError for what the user must mend (key, model, method), TrainingError when the provider stays away.
    """

    methods: frozenset[str]
    poll_interval_s: float
    doubt_s: float

    async def check(self, model: str, method: Method) -> None:
        """Raise UserError, before any money is spent, when `model` cannot be fine-tuned by `method` here."""
        ...

    async def upload(self, name: str, data: bytes) -> str:
        """The id of a file with this content; the same content is uploaded once. data: JSON lines in the OpenAI form."""
        ...

    async def find(self, key: str) -> list[FineTuneJob]:
        """All jobs with this key, the oldest first."""
        ...

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """Create a job, by one request that is never repeated. Raises InDoubt when its fate is unknown."""
        ...

    async def poll(self, job_id: str) -> FineTuneJob:
        """How a job stands."""
        ...

    async def cancel(self, job_id: str) -> FineTuneJob:
        """Cancel a job; one that is over stays as it is."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...


def supervised_line(chat: Chat, completion: str) -> dict[str, Any]:
    """One example of supervised learning: what was said, and what to say next."""
    return {"messages": [*chat, {"role": "assistant", "content": completion}]}


def dpo_line(chat: Chat, preferred: str, rejected: str) -> dict[str, Any]:
    """One example of direct preference optimisation: what was said, the better and the worse continuation."""
    return {
        "input": {"messages": list(chat)},
        "preferred_output": [{"role": "assistant", "content": preferred}],
        "non_preferred_output": [{"role": "assistant", "content": rejected}],
    }


def encode(lines: Iterable[dict[str, Any]]) -> bytes:
    """JSON lines in UTF-8; equal lines give equal bytes, whatever the order of their keys."""
    return b"".join(json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n" for line in lines)


def file_name(data: bytes) -> str:
    """The name under which a file with this content is uploaded."""
    return f"nip-{hashlib.sha256(data).hexdigest()[:32]}.jsonl"
