"""A policy that vLLM samples, over a stand-in: it says what the model that learns says, and goes over to new adapters when told to."""

from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.learning.token_rows import Turn
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.serving.vllm_policy import VllmPolicy
from nip_ray.serving.word_model import save_word_model
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider, WordModelSettings
from tests.serving import vllm_stand_in

PROVIDER = LocalProvider(method="lora", lora_rank=3, engine="vllm")
CHATS = [[{"role": "user", "content": said}] for said in ("a b", "b", "c a b")] * 3


def requests(policy: VllmPolicy, seed: int = 0) -> list[GenerationRequest]:
    return [GenerationRequest(policy.prompt_tokens(chat), 6, 0.7, seed=seed + number) for number, chat in enumerate(CHATS)]


def turns(policy: VllmPolicy, seed: int = 0) -> list[Turn]:
    asked = requests(policy, seed)
    return [
        Turn(one.prompt, reply.tokens, reply.logprobs, (-1.0) ** n, one.temperature)
        for n, (one, reply) in enumerate(zip(asked, policy.sample(asked), strict=True))
    ]


def difference(policy: VllmPolicy, drawn: list[Turn]) -> float:
    """The largest between what the sampler and the learner say of a token."""
    pairs = zip(
        (value for turn in drawn for value in turn.logprobs), (value for row in policy.logprobs(drawn) for value in row), strict=True
    )
    return max(abs(ours - theirs) for ours, theirs in pairs)


def test_it_samples_by_the_adapters_that_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = vllm_stand_in.install(monkeypatch).made
    folder = save_word_model(tmp_path / "words", ["a", "b", "c"], WordModelSettings(hidden_size=16, num_layers=2, num_heads=2), 1)
    first, second = (VllmPolicy(PolicyModel(folder, PROVIDER, trained=True, seed=seed), folder, PROVIDER) for seed in (1, 2))
    frozen = VllmPolicy(PolicyModel(folder, PROVIDER, trained=False), folder, PROVIDER)
    settings = PolicyGradientSettings(learning_rate=0.1)
    before = turns(first)
    assert difference(first, before) < 1e-5
    first.step(before, settings, 6)
    assert difference(first, turns(first)) > 1e-3, "it samples by the weights from before"
    for policy in (first, second):
        policy.take(policy.weights())
    assert difference(first, turns(first, 9)) < 1e-5
    assert difference(second, turns(second)) < 1e-5
    assert frozen.sample(requests(frozen)) == frozen.sample(requests(frozen))
    assert [turn.reply for turn in turns(frozen)] == [turn.reply for turn in before]
    assert [(engine.folder, engine.max_lora_rank) for engine in engines] == [(folder, 8)], "one for all"
    state = first.state()
    expected = [turn.reply for turn in turns(first, 30)]
    first.step(before, settings, 6)
    first.set_state(state)
    assert (first.steps, [turn.reply for turn in turns(first, 30)]) == (1, expected)
    # a model that was kept as adapters is merged for vLLM, and learned on from
    first.save(tmp_path / "kept")
    further = VllmPolicy(PolicyModel(tmp_path / "kept", PROVIDER, trained=True), tmp_path / "kept", PROVIDER)
    assert difference(further, turns(further)) < 1e-5
    assert [turn.reply for turn in turns(further, 30)] == expected
    for policy in (first, second, frozen, further):
        policy.close()


def test_without_vllm_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    folder = save_word_model(tmp_path / "words", ["a"], WordModelSettings(hidden_size=16, num_layers=1, num_heads=2))
    with pytest.raises(UserError, match=r"nip_ray\[vllm\]"):
        VllmPolicy(PolicyModel(folder, PROVIDER, trained=False), folder, PROVIDER)
