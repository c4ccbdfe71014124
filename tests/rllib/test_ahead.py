"""Play while learners learn (`play.max_staleness`): by whose weights, with which numbers, after a restore, and what it brings."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from nip_ray.rllib.compat import local_learner
from nip_ray.rllib.ppo import PPOLearner, ProtocolPPOConfig
from tests.rllib.experiments import PAST, Weights, distance, message_game, train, weights
from tests.rllib.test_restore import TRAVELS, Travel, same_state

AHEAD: dict[str, Any] = dict(num_env_runners=1, max_staleness=1)
SLEEP_S = 0.4


class SlowLearner(PPOLearner):
    """Takes a while to learn."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(SLEEP_S)
        return super().update(*args, **kwargs)


def slow_sample(**kwargs: Any) -> None:
    """To an env runner: take as long to play."""
    time.sleep(SLEEP_S)


@pytest.fixture
def slowly(ray_session: None) -> Iterator[Any]:
    """Trains five iterations, in which play and learning take equally long: the weights, staleness, and seconds of the fastest but the
    first two."""
    made: list[Any] = []

    def trained(staleness: int) -> tuple[Weights, list[int | None], float]:
        config = ProtocolPPOConfig().experiment(message_game(play=AHEAD | dict(max_staleness=staleness)))
        algorithm: Any = config.training(learner_class=SlowLearner).callbacks(on_sample_end=slow_sample).build_algo()
        made.append(algorithm)
        stale, seconds = [], []
        for _ in range(5):
            began = time.perf_counter()
            algorithm.train()
            seconds.append(time.perf_counter() - began)
            stale.append(algorithm.row.get("learn/staleness"))
        return weights(algorithm), stale, min(seconds[2:])

    yield trained
    for algorithm in made:
        algorithm.stop()


def test_play_beside_learning_takes_its_time_away(slowly: Any, made: Any) -> None:
    """At least 1.6 times the iterations a second, and the numbers of play by the weights of one iteration before."""
    in_time, never, alone_s = slowly(0)
    ahead, stale, beside_s = slowly(1)
    assert never == [None] * 5
    assert stale == [0, 1, 1, 1, 1]
    assert alone_s / beside_s >= 1.6
    player, learner = made(message_game()), made(message_game())
    states = []
    for iteration in range(5):
        states.append(learner.training_state()["modules"])
        by = states[max(0, iteration - 1)]
        for agent, network in local_learner(player.learner_group).networks.items():
            network.load_state_dict(by[agent])
        learner.learn_from(player.env_runner_group.local_env_runner.sample(iteration=iteration, worker=1))
    assert distance(ahead, weights(learner)) <= 1e-6
    assert distance(ahead, in_time) > 1e-4


@pytest.mark.parametrize("travel", [TRAVELS[1], *(pytest.param(*other.values, marks=pytest.mark.slow) for other in TRAVELS[::2])])
def test_a_restore_plays_by_the_weights_that_were_to_play(ray_session: None, made: Any, tmp_path: Any, travel: Travel) -> None:
    """Four iterations are two and two, to the last bit: in another algorithm, and in one that is ahead and plays."""
    config = message_game(play=AHEAD, opponents=PAST | dict(size=2), learners=dict(num_learners=0))
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
