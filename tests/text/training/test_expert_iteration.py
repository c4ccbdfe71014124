"""Expert iteration: who is selected, and what the examples say."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from nip_ray.play.dialogue import Turn
from nip_ray.play.dialogues import advance, start_dialogue
from nip_ray.protocols import REJECT, build
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.training.expert_iteration import examples, select, weights


def settings(**given: Any) -> ExpertIterationSettings:
    return ExpertIterationSettings(**given)


def weighted(**given: Any) -> ExpertIterationSettings:
    return ExpertIterationSettings(selection="weighted_sampling", **given)


def test_threshold_is_reached_in_spite_of_rounding() -> None:
    paid = 0.95 * 1 + (1 - 0.95) * -1
    assert paid < 0.9
    assert select([paid, float(np.float32(0.9)), 0.8999], settings(), 0) == [0, 1]


def test_draws_follow_the_weights() -> None:
    rewards, rule = [0.0, 1.0, 2.0, 5.0], weighted(sample_size_factor=5000.0, weighting_epsilon=0.2)
    counts = Counter(select(rewards, rule, 7, "test"))
    total, expected = sum(counts.values()), weights(rewards, rule)
    assert total == 20000
    for index, probability in enumerate(expected):
        assert abs(counts[index] - total * probability) < 5 * (total * probability * (1 - probability)) ** 0.5


@pytest.mark.parametrize("num", [1, 2, 5, 9])
@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("again", [True, False])
def test_how_many_are_drawn(num: int, factor: float, again: bool) -> None:
    rule = weighted(sample_size_factor=factor, weighting_with_replacement=again)
    found = select([float(i) for i in range(num)], rule, 0)
    assert len(found) == (round(num * factor) if again else min(round(num * factor), num))
    assert again or len(set(found)) == len(found)


def test_without_replacement_nothing_of_weight_zero_is_drawn() -> None:
    rule = weighted(sample_size_factor=1.0, weighting_with_replacement=False, weighting_epsilon=0.0)
    assert sorted(select([0.0, 1.0, 2.0, 0.0], rule, 0)) == [1, 2]


def test_draws_depend_on_seed_and_purpose() -> None:
    rewards = [float(i) for i in range(40)]
    base = select(rewards, weighted(), 0, 1, "prover")
    assert select(rewards, weighted(), 0, 1, "prover") == base
    assert select(rewards, weighted(), 1, 1, "prover") != base
    assert select(rewards, weighted(), 0, 2, "prover") != base
    assert select(rewards, weighted(), 0, 1, "verifier") != base


def test_with_the_real_scenario() -> None:
    """The chats of code validation, on the scale of seven: the verifier learns full confidence in the truth."""
    scenario = build_text_scenario(build("nip"), CodeValidationSettings(verdict_scale="one_to_seven"))
    item = CodeItem(0, "Print 1.", "print(1)", 1, 1)
    dialogue = start_dialogue(item, 0)
    texts = [("verifier", "Question for Expert: Why?"), ("prover", "It prints 1."), ("verifier", "Decision: 2")]
    for agent, text in texts:
        parsed = scenario.parse(dialogue, agent, text)
        dialogue = advance(scenario, dialogue, [Turn(agent, text, parsed.messages, parsed.decision, parsed.confidence)])
    assert dialogue.verdict == REJECT
    (made,) = examples([dialogue], ["verifier"], scenario, settings(guess_replacement=1.0), 0, 0)
    assert made.completion == "Decision: 7"
    assert [message["role"] for message in made.chat] == ["system", "assistant", "user"]
    assert made.chat[1]["content"] == "Question for Expert: Why?"
    assert made.chat[2]["content"] == "It prints 1."
