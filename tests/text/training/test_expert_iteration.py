"""Expert iteration: who is selected, and what the examples say."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.play.dialogues import advance, start_dialogue
from nip_ray.protocols import ACCEPT, REJECT, build
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.training.expert_iteration import examples, last_usable_round, select, weights
from tests.text.small_dialogues import Item, TinyScenario, random_dialogues, tiny


def settings(**given: Any) -> ExpertIterationSettings:
    return ExpertIterationSettings(**given)


def weighted(**given: Any) -> ExpertIterationSettings:
    return ExpertIterationSettings(selection="weighted_sampling", **given)


def test_threshold_is_reached_in_spite_of_rounding() -> None:
    paid = 0.95 * 1 + (1 - 0.95) * -1
    assert paid < 0.9
    assert select([paid, float(np.float32(0.9)), 0.8999], settings(), 0) == [0, 1]


def test_weights_by_hand() -> None:
    """Rewards above the smallest: 0, 1, 3, over 4; plus 0.04 / 3 each, over 1.04."""
    found = weights([-1.0, 0.0, 2.0], weighted(weighting_epsilon=0.04))
    assert found == pytest.approx([(0.04 / 3) / 1.04, (0.25 + 0.04 / 3) / 1.04, (0.75 + 0.04 / 3) / 1.04])


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


# ------------------------------------------------------------------------------------------------------------ examples


def conversation(scenario: TinyScenario, item: Item, *turns: Turn) -> Dialogue:
    """One turn a round."""
    dialogue = start_dialogue(item, 0)
    for turn in turns:
        dialogue = advance(scenario, dialogue, [turn])
    return dialogue


ASK = Turn("verifier", "Why?", {"main": "Why?"})
ANSWER = Turn("prover", "Because.", {"main": "Because."})
TAKE = Turn("verifier", "Decision: accept", {}, ACCEPT, 1.0)
REFUSE = Turn("verifier", "Decision: reject", {}, REJECT, 0.0)
BROKEN = Turn("prover", "???", {"main": ""}, invalid=True)
NONSENSE = Turn("verifier", "???", {"main": ""}, invalid=True)


def test_an_example_is_the_whole_dialogue_up_to_the_last_own_turn() -> None:
    scenario = tiny("nip")
    made = examples([conversation(scenario, Item(0, 1), ASK, ANSWER, TAKE)], ["prover", "verifier"], scenario, settings(), 0, 0)
    assert [(example.agent, example.completion, example.replaced) for example in made] == [
        ("prover", "Because.", False),
        ("verifier", "Decision: accept", False),
    ]
    assert [message["content"] for message in made[0].chat][1:] == ["Why?"]
    assert [(message["role"], message["content"]) for message in made[1].chat][1:] == [("assistant", "Why?"), ("user", "Because.")]


def test_replaced_guesses_are_the_truth() -> None:
    scenario = tiny("nip")
    dialogues = [conversation(scenario, Item(i, i % 2), ASK, ANSWER, TAKE) for i in range(10)]
    made = examples(dialogues, ["verifier"], scenario, settings(guess_replacement=0.4), 0, 5)
    replaced = [example for example in made if example.replaced]
    assert len(replaced) == 4
    assert made[:4] == replaced
    for example in replaced:
        assert example.completion == f"Decision: {'accept' if example.dialogue % 2 else 'reject'}"
        assert [message["content"] for message in example.chat][1:] == ["Why?", "Because."]
    own = {example.dialogue for example in made[4:]}
    assert not own & {example.dialogue for example in replaced}
    assert own == set(range(1, 10, 2)) - {example.dialogue for example in replaced}


def test_provers_learn_nothing_of_the_truth() -> None:
    scenario = tiny("nip")
    dialogues = [conversation(scenario, Item(i, i % 2), ASK, ANSWER, TAKE) for i in range(10)]
    made = examples(dialogues, ["prover"], scenario, settings(guess_replacement=1.0), 0, 5)
    assert len(made) == 10
    assert not any(example.replaced for example in made)


def test_invalid_turns_are_no_examples() -> None:
    scenario = tiny("nip")
    silent = conversation(scenario, Item(0, 1), ASK, BROKEN, TAKE)
    assert [e.agent for e in examples([silent], ["prover", "verifier"], scenario, settings(), 0, 0)] == ["verifier"]
    late = conversation(scenario, Item(0, 1), ASK, ANSWER, ASK, BROKEN, TAKE)
    (made,) = examples([late], ["prover"], scenario, settings(), 0, 0)
    assert made.completion == "Because."
    assert [message["content"] for message in made.chat][1:] == ["Why?"]
    assert last_usable_round(late, "prover") == 1
    assert last_usable_round(silent, "prover") is None


def test_a_replaced_verdict_stands_at_the_last_usable_turn() -> None:
    scenario = tiny("nip")
    lost = conversation(scenario, Item(0, 1), ASK, ANSWER, NONSENSE)
    (made,) = examples([lost], ["verifier"], scenario, settings(guess_replacement=1.0), 0, 0)
    assert made.replaced
    assert made.completion == "Decision: accept"
    assert [message["content"] for message in made.chat][1:] == []


def test_an_agent_without_a_turn_has_no_example() -> None:
    """In merlin_arthur one of the two provers never speaks."""
    scenario = tiny("merlin_arthur")
    speech = Turn("prover0", "It is wrong.", {"main": "It is wrong."})
    dialogue = start_dialogue(Item(0, 0), 0)
    for turn in (speech, REFUSE):
        dialogue = advance(scenario, dialogue, [turn])
    generous = settings(reward_threshold=-10.0)
    assert [e.agent for e in examples([dialogue], ["prover0", "prover1"], scenario, generous, 0, 0)] == ["prover0"]


def test_same_arguments_same_examples() -> None:
    scenario = tiny("debate", max_rounds=6)
    dialogues = random_dialogues(scenario, 30, seed=1)
    rule = replace(weighted(), guess_replacement=0.3)
    agents = scenario.protocol.agents
    base = examples(dialogues, agents, scenario, rule, 2, 9)
    assert base
    assert examples(dialogues, agents, scenario, rule, 2, 9) == base
    assert examples(dialogues, agents, scenario, rule, 3, 9) != base
    assert examples(dialogues, agents, scenario, rule, 2, 8) != base


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
