"""Our PPO, REINFORCE and Stackelberg rules on Hironaka's game, whose episodes may be cut off."""

from typing import Any

import pytest
import torch

from tests.rllib.experiments import hironaka, train, trained, weights


@pytest.mark.parametrize("rule", ["ppo", "reinforce", "stackelberg"])
def test_our_rules_train_both_players_on_games_that_are_cut_off(made: Any, rule: str) -> None:
    algorithm = made(hironaka(rule))
    before, after = weights(algorithm), train(algorithm, 2)
    for agent, state in before.items():
        assert any(not torch.equal(value, after[agent][name]) for name, value in state.items()), agent
        assert all(bool(torch.isfinite(value).all()) for value in after[agent].values())


def test_a_scripted_opponent_has_no_weights_and_stands_still() -> None:
    found = trained(hironaka(agent=dict(kind="scripted", player="choose_first")), 1)
    assert not found["agent"]
    assert found["host"]
