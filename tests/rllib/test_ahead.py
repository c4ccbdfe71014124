"""Play while learners learn (`play.max_staleness`): by whose weights, with which numbers, after a restore, and what it
brings."""

import time
from typing import Any

import pytest

from nip_ray.rllib.compat import local_learner
from nip_ray.rllib.ppo import PPOLearner, ProtocolPPOConfig
from tests.rllib.experiments import PAST, distance, message_game, train, weights
from tests.rllib.test_restore import TRAVELS, Travel, same_state

AHEAD: dict[str, Any] = dict(num_env_runners=1, max_staleness=1)
SLEEP_S = 1.0


def test_numbers_are_those_of_play_by_weights_one_iteration_old(ray_session: None, made: Any) -> None:
    ahead, player, learner = made(message_game(play=AHEAD)), made(message_game()), made(message_game())
    vars(local_learner(learner.learner_group).config)["max_staleness"] = 1  # it corrects for the weights that played
    states, stale = [], []
    for iteration in range(4):
        ahead.train()
        stale.append(ahead.row["learn/staleness"])
        states.append(learner.training_state()["modules"])
        for agent, network in local_learner(player.learner_group).networks.items():
            network.load_state_dict(states[max(0, iteration - 1)][agent])
        learner.learn_from(player.env_runner_group.local_env_runner.sample(iteration=iteration, worker=1))
    assert stale == [0, 1, 1, 1]
    assert distance(weights(ahead), weights(learner)) <= 1e-6
    assert distance(weights(learner), train(made(message_game()), 4)) > 1e-4, "of play in time"


def test_snapshots_are_named_by_what_they_had_learned(ray_session: None, made: Any) -> None:
    ahead, states = made(message_game(play=AHEAD, opponents=dict(every=1))), []
    for _ in range(4):
        ahead.train()
        states.append(ahead.training_state()["modules"])
    assert list(ahead.past.weights) == [1, 2, 3]
    for number, kept in ahead.past.weights.items():
        for agent, state in kept.items():
            assert same_state(state, states[number - 1][agent])


class SlowLearner(PPOLearner):
    """Takes a while to learn."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(SLEEP_S)
        return super().update(*args, **kwargs)


def slow_sample(**kwargs: Any) -> None:
    """To an env runner: take as long to play."""
    time.sleep(SLEEP_S)


@pytest.mark.slow
def test_play_beside_learning_takes_its_time_away(ray_session: None) -> None:
    """Where both take equally long, and neither a core: at least 1.6 times the iterations a second."""

    def fastest_s(staleness: int) -> float:
        config = ProtocolPPOConfig().experiment(message_game(play=AHEAD | dict(max_staleness=staleness)))
        algorithm: Any = config.training(learner_class=SlowLearner).callbacks(on_sample_end=slow_sample).build_algo()
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            algorithm.train()
            seconds.append(time.perf_counter() - began)
        algorithm.stop()
        return min(seconds[2:])

    assert fastest_s(0) / fastest_s(1) >= 1.6


@pytest.mark.slow
@pytest.mark.parametrize("travel", TRAVELS)
def test_a_restore_plays_by_the_weights_that_were_to_play(
    ray_session: None, made: Any, tmp_path: Any, travel: Travel
) -> None:
    """Four iterations are two and two, to the last bit: in another algorithm, and in one that is ahead and plays."""
    config = message_game(play=AHEAD, opponents=PAST | dict(size=2))
    whole, second = made(config), made(config)
    halfway = train(whole, 2)
    travel(whole, second, tmp_path)
    expected, state = train(whole, 2), whole.training_state()
    assert distance(weights(second), halfway) == 0
    older = second.training_state()
    assert distance(train(second, 2), expected) == 0
    assert same_state(second.training_state(), state)
    whole.load_training_state(older)
    assert distance(train(whole, 2), expected) == 0
    assert whole.row["learn/staleness"] == 1
