"""The `openai` provider over a served vLLM: the config of docs/serving.md plays, and what vLLM refuses is said in its words."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError
from nip_ray.runs.experiment import run_experiment
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.costs.budget import Budget, Limiter
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from nip_ray.text.providers.openai import OpenAIChat
from tests.docs.blocks import ROOT, blocks_of
from tests.text.served_vllm import KEY, MODEL, served_vllm


@pytest.fixture
def requests() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def url(requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with served_vllm(requests) as url:
        yield url


def complete(url: str, request: ChatRequest) -> ChatReply:
    async def main() -> ChatReply:
        client = OpenAIChat(OpenAIProvider(base_url=url, max_retries=1), Limiter(), Budget())
        try:
            return await client.complete(request)
        finally:
            await client.close()

    return asyncio.run(main())


def test_the_config_of_the_page_plays(url: str, requests: list[dict[str, Any]], tmp_path: Path) -> None:
    (block,) = [one for one in blocks_of(ROOT / "docs" / "serving.md") if one.language == "yaml" and "provider: vllm" in one.text]
    data = parse_yaml(block.text, str(block))
    data["scenario"]["data"] = {"source": "built_in", "num_train": 2, "num_test": 2}
    config = config_from_dict(
        {**data, "iterations": 1, "algorithm": {"name": "expert_iteration", "rollouts_per_iteration": 4, "num_test_items": 2}}
    )
    assert isinstance(config, TextExperimentConfig)
    provider = replace(config.providers["vllm"], base_url=url)  # type: ignore[call-arg]
    metrics = run_experiment(config.model_copy(update={"providers": {"vllm": provider}}), tmp_path / "run", quiet=True).metrics
    assert metrics
    assert requests
    assert {body["model"] for body in requests} == {MODEL}


REQUEST = ChatRequest("k", MODEL, [{"role": "user", "content": "Is it true?"}], max_tokens=50, temperature=0.5, seed=3)


def test_replies_are_read(url: str) -> None:
    reply = complete(url, REQUEST)
    assert (reply.content, reply.finish_reason) == ("I have looked at it. Decision: accept", "stop")
    assert (reply.prompt_tokens, reply.completion_tokens) == (2, 7)
    cut = complete(url, replace(REQUEST, max_tokens=3))
    assert (cut.content, cut.finish_reason) == ("I have looked", "length")


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"model": "other"}, KEY, r"has no model 'other' \(.*The model `other` does not exist"),
        ({}, "wrong", "does not know the key in .OPENAI_API_KEY"),
        ({"max_tokens": 9000}, KEY, "maximum context length is 8192 tokens"),
    ],
)
def test_what_it_refuses_is_said_in_its_words(
    url: str, changes: dict[str, Any], key: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match=said):
        complete(url, replace(REQUEST, **changes))
