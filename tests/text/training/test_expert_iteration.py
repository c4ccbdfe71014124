"""Expert iteration: who is selected, and what the examples say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Turn
from nip_ray.play.dialogues import advance, start_dialogue
from nip_ray.protocols import REJECT, build
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.parts import prepare
from nip_ray.text.training.expert_iteration import LearningAgent, examples, select
from nip_ray.text.training.rules import format_warmup_set, replaced_guesses
from tests.text.small_dialogues import Item, tiny


def settings(**given: Any) -> ExpertIterationSettings:
    return ExpertIterationSettings(**given)


def test_threshold_is_reached_in_spite_of_rounding() -> None:
    paid = 0.95 * 1 + (1 - 0.95) * -1
    assert paid < 0.9
    assert select([paid, float(np.float32(0.9)), 0.8999], settings(), np.random.default_rng(0)) == [0, 1]


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
    (made,), left = replaced_guesses(
        [dialogue], LearningAgent("verifier", scenario, settings(guess_replacement=1.0), 0, 0)
    )
    assert not left
    assert made.completion == "Decision: 7"
    assert [message["role"] for message in made.chat] == ["system", "assistant", "user"]
    assert made.chat[1]["content"] == "Question for Expert: Why?"
    assert made.chat[2]["content"].split("\n")[1:] == ["It prints 1."]


def test_dialogues_are_drawn_by_what_their_own_role_pays() -> None:
    """A sneaky prover that fails is paid more than a helpful one that succeeds; neither failure is learned from."""
    scenario, turns = tiny("helpful_sneaky"), ((Turn("prover", "a", {}),), (Turn("verifier", "b", {}),))
    paid = {0: 0.0, 1: 10.0, 2: 1.0, 3: 5.0}  # seeds draw helpful and sneaky in turn
    dialogues = [
        replace(start_dialogue(Item(seed, 1), seed), rounds=turns, rewards=({}, {"prover": one, "verifier": 0.0}))
        for seed, one in paid.items()
    ]
    rule = settings(
        selection="weighted_sampling", sample_size_factor=0.5, weighting_with_replacement=False, weighting_epsilon=0.0
    )
    found = examples(dialogues, LearningAgent("prover", scenario, rule, 0, 0))
    assert [example.chat[0]["content"] for example in found] == ["You are prover. Item 2.", "You are prover. Item 1."]
    assert len(examples(dialogues, LearningAgent("verifier", scenario, rule, 0, 0))) == 2, (
        "who is told no role has one pool"
    )


def test_the_warm_up_shows_the_scenarios_own_examples_to_whom_it_should() -> None:
    """One about each item. A scenario without any is refused before a run begins, and so are models too small for the
    chats."""
    config: Any = config_from_dict(
        {
            "protocol": {"name": "bisection", "max_rounds": 3},
            "scenario": {
                "name": "state_tracking",
                "length": 2,
                "num_train": 8,
                "num_test": 2,
                "agents": {"_default": {"model": "words"}},
            },
            "algorithm": {"name": "expert_iteration", "format_warmup": 8, "warmup_agents": ["prover1"]},
            "providers": {"local": {"name": "local"}},
        }
    )
    prepared = prepare(config)
    dialogues = [start_dialogue(item, 5) for item in prepared.items["train"]]
    lines = format_warmup_set(config, prepared.scenario, dialogues, ["prover0", "prover1"]).lines
    shown = [prepared.scenario.warm_example(item, "prover1", 5) for item in prepared.items["train"]]
    assert [[message["content"] for message in line["messages"]] for line in lines] == [
        [chat[0]["content"], said] for chat, said in shown
    ]
    small = {"name": "local", "word_model": {"context": 32}}
    poker = {"protocol": {"name": "kuhn_poker"}, "scenario": {"name": "matrix_game", "game": "kuhn_poker"}}
    for changes, said in (
        (
            {**poker, "algorithm": {"name": "malt", "format_warmup": 1, "warmup_agents": ["player1"]}},
            "warmup_agents: matrix_game has no",
        ),
        (
            {**poker, "algorithm": {"name": "policy_gradient", "warmup_steps": 1}},
            "warmup_steps: matrix_game has no examples of its own",
        ),
        ({"providers": {"local": small}}, "word_model.context: got 32, but chats of prover0 take"),
    ):
        with pytest.raises(UserError, match=said):
            prepare(config_from_dict({**config.model_dump(mode="json"), **changes}))
