"""A policy at a training service: it samples and learns as a model in this process does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.token_rows import Turn
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.serving.word_model import save_word_model
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider, TrainingServiceProvider, WordModelSettings
from nip_ray.text.providers.training_policy import ServicePolicy
from tests.text.training_service import KEY, MODEL, Service

CHATS = [[{"role": "user", "content": said}] for said in ("a b", "b", "c a b")]
PROVIDER = TrainingServiceProvider()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    return save_word_model(
        tmp_path / "words", ["a", "b", "c"], WordModelSettings(hidden_size=16, num_layers=1, num_heads=2), 1
    )


def service_policy(service: Service, **given: Any) -> ServicePolicy:
    return ServicePolicy(MODEL, PROVIDER, library=service, **{"trained": True, **given})


def local(folder: Path) -> PolicyModel:
    return PolicyModel(folder, LocalProvider(method="full"), trained=True)


def requests(policy: Any, seed: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(policy.chat.prompt_before(chat, 6), 6, seed=seed + number)
        for number, chat in enumerate(CHATS * 2)
    ]


def turns(policy: Any, seed: int = 0) -> list[Turn]:
    asked = requests(policy, seed)
    advantages = (1.0, -0.5, 0.25, -1.5, 2.0, 0.5)
    return [
        Turn(request.prompt, reply.tokens, reply.logprobs, advantage)
        for request, reply, advantage in zip(asked, policy.sample(asked), advantages, strict=True)
    ]


@pytest.mark.parametrize(
    "rule",
    [
        {"clip_low": None, "clip_high": None, "weight_decay": 0.1, "aggregation": "turn", "momentum": 0.0},
        {"clip_low": 0.02, "clip_high": 0.05, "max_grad_norm": None},
        {"clip_low": None, "clip_high": 0.03, "aggregation": "turn_mean"},
        {"ratio": "sequence", "clip_low": 0.01},
        {"kl_coefficient": 0.5, "kl_estimator": "k2"},
    ],
    ids=["importance_sampling", "ppo", "one_bound", "sequence", "kl"],
)
def test_its_steps_are_those_of_a_model_here(folder: Path, rule: dict[str, Any]) -> None:
    """After a supervised step, from which the start model is, three on turns that older and older weights have
    drawn."""
    service, settings = Service(folder), PolicyGradientSettings(learning_rate=0.02, warmup_learning_rate=0.05, **rule)
    there, here = service_policy(service), local(folder)
    learned = [Turn(here.chat.prompt_before(chat), here.chat.reply(chat, "a c")) for chat in CHATS]
    assert there.supervised_step(learned, settings) == pytest.approx(here.supervised_step(learned, settings), rel=1e-4)
    there.save(folder.parent / "start")
    there.keep_start(folder.parent / "start")
    here.save(folder.parent / "here")
    here.keep_start(folder.parent / "here")
    there.take(there.weights())
    drawn, expected = turns(there), turns(here)
    assert [turn.reply for turn in drawn] == [turn.reply for turn in expected]
    for _ in range(3):
        figures = here.step(drawn, settings, 6)
        del figures["entropy"]
        assert there.step(drawn, settings, 6) == pytest.approx(figures, rel=1e-3, abs=2e-6)
    there.take(there.weights())
    mine, other = ([each for row in policy.logprobs(drawn) for each in row] for policy in (here, there))
    assert torch.allclose(torch.tensor(other), torch.tensor(mine), atol=1e-4)
    assert there.steps == 4


def test_what_was_done_since_the_last_save_is_as_if_it_had_never_been(folder: Path) -> None:
    """Steps, also one whose answer was lost, of which nobody knows whether it was taken."""
    service, settings = Service(folder), PolicyGradientSettings(learning_rate=0.02)
    policy = service_policy(service)
    first, second = turns(policy), turns(policy, 9)
    assert policy.weights() == {"model": MODEL}
    policy.step(first, settings, 6)
    state = policy.state()
    policy.step(second, settings, 6)
    kept = policy.weights()
    expected = service.kept[kept["model"]]["weights"]
    assert policy.weights() == kept, "the same weights are saved once"
    policy.step(first, settings, 6)
    service.fail.update(optim_step=1)
    with pytest.raises(TrainingError, match="APIConnectionError") as caught:
        policy.step(first, settings, 6)
    assert KEY not in str(caught.value)
    again = service_policy(service)
    again.set_state(state)
    assert again.steps == 1
    again.step(second, settings, 6)
    assert all(
        torch.equal(value, expected[name]) for name, value in service.kept[again.weights()["model"]]["weights"].items()
    )


def test_a_model_that_was_kept_is_learned_on_from(folder: Path) -> None:
    """By the address of its weights to sample from, with a new optimizer."""
    service, settings = Service(folder), PolicyGradientSettings(learning_rate=0.02)
    policy = service_policy(service)
    policy.step(turns(policy), settings, 6)
    address = policy.save(folder.parent / "verifier-000001")
    policy.save(folder.parent / "verifier-000001")
    further = ServicePolicy(address, PROVIDER, library=service, trained=True)
    drawn = turns(further)
    further.step(drawn, settings, 6)
    assert further.step(drawn, settings, 6)["ratio_max"] > 1
    frozen = ServicePolicy(address, PROVIDER, library=service, trained=False)
    assert frozen.weights() == {"model": address}
    with pytest.raises(TrainingError, match="frozen"):
        frozen.state()


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="it has words-1"):
        ServicePolicy("other", PROVIDER, library=Service(folder), trained=True)
    with pytest.raises(UserError, match=r"providers\.<name>\.max_length"):
        service_policy(Service(folder, context=None))
    policy = service_policy(Service(folder))
    with pytest.raises(UserError, match="at temperature 1"):
        policy.logprobs([Turn([1], [2], temperature=0.5)])
    monkeypatch.setenv("TINKER_API_KEY", "wrong-and-secret")
    with pytest.raises(UserError, match=r"\$TINKER_API_KEY") as caught:
        service_policy(Service(folder))
    assert "secret" not in str(caught.value)
    monkeypatch.setitem(__import__("sys").modules, "tinker", None)
    with pytest.raises(UserError, match=r"nip_ray\[training-service\]"):
        ServicePolicy(MODEL, PROVIDER, trained=True)
