"""Every provider that ships keeps the promises of `check_provider`, and one that breaks any is found out."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.config.members import known
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.plugins import register_provider
from nip_ray.secrets import secret
from nip_ray.serving.fine_tuning_job import FineTuneJob
from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.providers import (
    DummyProvider,
    LocalProvider,
    OpenAIProvider,
    ProviderSettings,
    TrainingServiceProvider,
)
from nip_ray.text.providers.conformance import check_provider
from nip_ray.text.providers.dummy import DummyJobs
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from tests.text.provider import API_KEY, provider_thread
from tests.text.training_service import BIGRAMS, KEY, Service

pytestmark = pytest.mark.usefixtures("no_plugins")


def test_openai(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", API_KEY)
    roles = [{"name": "any", "marker": "", "replies": ['{"prime": "yes"}']}]
    with provider_thread(tmp_path, roles=roles, base_models=["base"]) as provider:
        settings = OpenAIProvider(
            base_url=provider.base_url, api_key_variable="TEST_KEY", poll_interval_s=0.02, doubt_s=0.2, max_retries=2
        )
        check_provider(settings, "base")
        assert len(provider.jobs()) == 1


def test_training_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setitem(sys.modules, "tinker", Service())  # type: ignore[arg-type]
    check_provider(TrainingServiceProvider(), BIGRAMS)


@pytest.mark.slow
def test_local(ray_session: None) -> None:
    check_provider(LocalProvider(num_cpus=0.5, num_threads=1))


def test_dummy() -> None:
    check_provider(DummyProvider())


@dataclass(frozen=True)
class Mine(ProviderSettings):
    """A provider with all that it takes."""

    fine_tunes = True
    holds_schemas = True

    name: Literal["mine"] = option("mine", "A provider of one's own.")
    api_key_variable: str = option("MINE_KEY", "The variable with the key.")
    tokens_per_minute: float | None = option(None, "At most.", gt=0)


class Chat:
    """A client that keeps every promise."""

    def __init__(self) -> None:
        secret("MINE_KEY", "mine")

    async def complete(self, request: ChatRequest) -> Any:
        if request.model not in ("base", "base-ft"):
            raise UserError("no such model")
        return ChatReply('{"prime": "yes"}' if request.schema else "yes", "stop", 9, 1)

    async def close(self) -> None:
        """Nothing is open."""


def chat(change: Callable[[ChatReply], Any]) -> type[Chat]:
    class Changed(Chat):
        async def complete(self, request: ChatRequest) -> Any:
            return change(await super().complete(request))

    return Changed


class Jobs(DummyJobs):
    """Jobs that keep every promise."""

    def __init__(self, path: Path) -> None:
        secret("MINE_KEY", "mine")
        super().__init__(path)


class Keyless(Chat):
    def __init__(self) -> None:
        """No key is asked for."""


class Crashing(Chat):
    async def complete(self, request: ChatRequest) -> Any:
        return await super().complete(request) if request.model == "base" else {}["choices"]


class Forgetful(Jobs):
    async def find(self, key: str) -> list[FineTuneJob]:
        return []


class Uploading(Jobs):
    async def upload(self, name: str, data: bytes) -> str:
        return name


class Undecided(Jobs):
    async def check(self, model: str, method: Any) -> None:
        """Nothing is refused."""


class Failing(Jobs):
    async def poll(self, job_id: str) -> FineTuneJob:
        return replace(await super().poll(job_id), status="cancelled")

    async def submit(self, spec: Any, file_id: str) -> FineTuneJob:
        return replace(await super().submit(spec, file_id), status="running")


def of(client: type[Chat] = Chat, jobs: type[Jobs] = Jobs) -> Mine:
    register_provider(Mine, lambda given: client(), lambda given: jobs(given.run_dir / "jobs.json"))
    return Mine()


@pytest.mark.parametrize(
    ("client", "jobs", "said"),
    [
        (Chat, Jobs, None),
        (chat(lambda reply: reply.content), Jobs, "returned str, not a ChatReply"),
        (chat(lambda reply: replace(reply, finish_reason="eos")), Jobs, "finish_reason 'eos' is none of"),
        (chat(lambda reply: replace(reply, prompt_tokens=0)), Jobs, "must count the tokens"),
        (chat(lambda reply: replace(reply, completion_tokens=2)), Jobs, "2 tokens, but max_tokens was 1"),
        (chat(lambda reply: replace(reply, content="yes")), Jobs, "does not keep to the schema: 'yes'"),
        (Crashing, Jobs, "an unknown model raised KeyError"),
        (Keyless, Jobs, r"without \$MINE_KEY a client is made"),
        (Chat, Forgetful, "does not find the one job with a key"),
        (Chat, Uploading, "the same content uploaded twice has two ids"),
        (Chat, Undecided, "must raise UserError for a method"),
        (Chat, Failing, "the job ended as 'cancelled'"),
    ],
)
def test_broken_promises_are_found(client: Any, jobs: Any, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE_KEY", "k")
    if said is None:
        check_provider(of(client, jobs), "base")
        return
    with pytest.raises(UserError, match=f"provider 'mine': .*{said}"):
        check_provider(of(client, jobs), "base")


def test_configs_know_a_registered_provider() -> None:
    of()
    data = {"scenario": {"name": "code_validation", "agents": {"_default": {"provider": "p", "model": "base"}}}}
    made = config_from_dict({**data, "providers": {"p": {"name": "mine", "tokens_per_minute": 100}}})
    assert isinstance(made, TextExperimentConfig)
    check(made)
    assert TextExperimentConfig.model_validate(json.loads(made.model_dump_json())) == made
    assert made.providers["p"].limits == (None, 100)
    for given, said in (
        ({"name": "mine", "tokens_per_minute": 0}, "providers.p.tokens_per_minute: got 0, expected number > 0"),
        (
            {"name": "mine", "tokens_per_minut": 1},
            "providers.p.tokens_per_minut: unknown key, did you mean tokens_per_minute",
        ),
        ({"name": "mime"}, r"providers.p.name: got 'mime', did you mean mine\? \(one of your own needs `plugins`\)"),
    ):
        with pytest.raises(UserError, match=said):
            config_from_dict({**data, "providers": {"p": given}})


def test_what_a_registration_lacks_is_said_at_once() -> None:
    @dataclass(frozen=True)
    class Loose:
        __pydantic_config__ = FORBID_UNKNOWN
        name: Literal["loose"] = option("loose", "A provider.")

    jobs: Any = Jobs
    for given, said in (
        ((Mine, None), "is not a function of a Connection"),
        ((Mine, lambda given: Chat()), "`fine_tunes = True`"),
        ((Loose, lambda given: Chat()), "must derive from"),
        ((OpenAIProvider, lambda given: Chat(), jobs), "'openai' is registered already"),
    ):
        with pytest.raises(UserError, match=said):
            register_provider(*given)  # type: ignore[arg-type]
    assert "loose" not in known("provider")
