"""Several learners of one model step as one does."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from nip_ray.errors import TrainingError
from nip_ray.learning.token_rows import Turn, shares
from nip_ray.serving.learner_group import LearnerGroup
from nip_ray.serving.model_folder import load_model
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider

SETTINGS = PolicyGradientSettings(entropy_coefficient=0.01, kl_coefficient=0.1, num_epochs=2, max_grad_norm=0.5)


def turns_of(seed: int, count: int) -> list[Turn]:
    """Turns of unlike lengths, some of which continue others."""
    draw, made = Random(seed), []
    for number in range(count):
        prompt = (
            [*made[-1].prompt, *made[-1].reply, 7]
            if number % 3 == 2
            else [draw.randrange(6, 2000) for _ in range(draw.randint(1, 40))]
        )
        reply = [draw.randrange(6, 2000) for _ in range(draw.randint(1, 5))]
        made.append(Turn(prompt, reply, [draw.uniform(-9, -6) for _ in reply], draw.uniform(-1, 1)))
    return made


def test_turns_are_shared_out_by_tokens_and_those_of_a_row_together() -> None:
    turns = turns_of(0, 60)
    for count in (1, 2, 3):
        parts = shares(turns, count)
        assert sorted(number for part in parts for number in part) == list(range(60))
        # each third turn continues the one before
        tokens = [sum(len(turns[n].prompt) for n in part if n % 3 != 1) for part in parts]
        assert max(tokens) - min(tokens) < 50
        owner = {number: learner for learner, part in enumerate(parts) for number in part}
        assert all(owner[number] == owner[number - 1] for number in range(2, 60, 3))
    assert shares(turns[:1], 2) == [[0], []]


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_two_learners_take_the_steps_of_one(ray_session: None, default_dir: Path, tmp_path: Path, method: Any) -> None:
    """Supervised, of many turns, and of one turn alone, from which one of them learns nothing; after a resume as
    well."""
    provider = LocalProvider(method=method, num_threads=1)
    settings = replace(SETTINGS, learning_rate=1e-5, micro_batch_tokens=100, num_learners=2)
    alone = PolicyModel(default_dir, provider, trained=True)
    first, group = alone.weights(), LearnerGroup(default_dir, provider, settings)
    try:
        alone.keep_start(default_dir)
        group.keep_start(default_dir)
        for step, count in enumerate((9, 20, 1)):
            turns = turns_of(step, count)
            if step == 0:
                expected, found = alone.supervised_step(turns, settings), group.supervised_step(turns, settings)
            else:
                expected, found = alone.step(turns, settings, 5), group.step(turns, settings, 5)
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-7)
            if step == 1:
                group.set_state(group.state())
        found, expected = group.weights(), alone.weights()
        assert max(float((found[name] - expected[name]).abs().max()) for name in found) < 1e-6
        assert max(float((found[name] - first[name]).abs().max()) for name in found) > 1e-5
        assert [one.save(tmp_path / name) for name, one in (("alone", alone), ("group", group))] == ["alone", "group"]
        saved, expected = (load_model(tmp_path / name).state_dict() for name in ("group", "alone"))
        assert all(torch.allclose(saved[name], expected[name], rtol=0, atol=1e-6) for name in expected)
        with pytest.raises(TrainingError, match="learning broke off"):
            group.step([replace(turns_of(5, 1)[0], advantage=torch.nan)], settings, 5)
    finally:
        group.close()
