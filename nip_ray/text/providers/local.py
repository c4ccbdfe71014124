"""The provider `local`: calls and fine-tuning of a language model on this cluster, by `nip_ray.serving.host`.

Decisions that matter here:
- a call without a seed gets one from its key, so that the same call has the same reply in every run. Cancelling a
  call's task stops its generation;
- the host stores one job per key on disk. So looking a job up is exact, and a lost answer to a submission is settled by
  the first look;
- Ray is imported only where a host runs: the same client also answers without Ray (`nip_ray.text.own_models`).
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.errors import UserError
from nip_ray.seeding import stable_seed
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method
from nip_ray.settings.providers import LocalProvider
from nip_ray.text.providers.interface import ChatReply, ChatRequest, InDoubt, Provider

if TYPE_CHECKING:
    from nip_ray.serving.host import LocalHost


class LocalChat:
    """Answers by the host's chat actor, all models of its folder."""

    def __init__(self, host: "LocalHost") -> None:
        """The caller that started the host stops it."""
        self._actor = host.chat

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. Raises UserError for an unknown model."""
        from nip_ray.serving.generation import GenerationRequest

        seed = stable_seed(0, "reply", request.key) if request.seed is None else request.seed
        temperature = 1.0 if request.temperature is None else request.temperature
        top_p = 1.0 if request.top_p is None else request.top_p
        wanted = GenerationRequest([], request.max_tokens, temperature, top_p, seed, schema=request.schema)
        made = await self._generate(request.model, request.messages, wanted)
        return ChatReply(made.text, made.finish_reason, made.prompt_tokens, made.completion_tokens)

    async def close(self) -> None:
        """Do nothing."""

    async def _generate(self, *arguments: Any) -> Any:
        import ray

        reference = self._actor.generate.remote(*arguments)
        try:
            return await _answer(reference)
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise


class LocalJobs:
    """Jobs of the host's training actor."""

    methods: frozenset[str] = frozenset({"supervised", "dpo"})
    poll_interval_s: float = 0.2
    doubt_s: float = 0.0

    def __init__(self, host: "LocalHost") -> None:
        """The caller that started the host stops it."""
        self._actor = host.training

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend.check`."""
        if method not in self.methods:
            raise UserError(f"the local provider fine-tunes by {', '.join(sorted(self.methods))}, not by {method!r}")
        await _answer(self._actor.check.remote(model))

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend.upload`; the id is the content's SHA-256 sum, for any name."""
        return await _answer(self._actor.upload.remote(data))

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend.find`: one job at most."""
        return [job.brief() for job in await _answer(self._actor.find.remote(key))]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend.submit`."""
        try:
            return (await _answer(self._actor.submit.remote(spec, file_id))).brief()
        except UserError:
            raise
        except Exception as error:
            raise InDoubt(str(error)) from None

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend.poll`."""
        return (await _answer(self._actor.poll.remote(job_id))).brief()

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend.cancel`; a running job stops after its step."""
        return (await _answer(self._actor.cancel.remote(job_id))).brief()

    async def close(self) -> None:
        """Do nothing."""


async def _answer(reference: Any) -> Any:
    from ray.exceptions import RayError

    from nip_ray.serving.host import as_ours

    try:
        return await reference
    except RayError as error:
        raise as_ours(error) from None


def _start(settings: LocalProvider, folder: Path) -> "LocalHost":
    from nip_ray.serving.host import start_host

    return start_host(settings, folder)


def _stop(host: "LocalHost") -> None:
    from nip_ray.serving.host import stop_host

    stop_host(host)


PROVIDER = Provider(
    chat=lambda given: LocalChat(given.host),
    fine_tuning=lambda given: LocalJobs(given.host),
    start=_start,
    stop=_stop,
    actors=lambda host: {"the local model's chat actor": host.chat, "its training actor": host.training},
)
