"""Agents that learn in processes of their own (`learners.partition`): with which numbers, after what, and what is said when one is lost."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.rllib.compat import local_learner
from nip_ray.rllib.learner import ProtocolLearner
from nip_ray.rllib.partition import partition_of
from nip_ray.rllib.ppo import PPOLearner
from tests.rllib.experiments import PAST, distance, experiment, message_game, train
from tests.rllib.test_restore import same_state

APART: dict[str, Any] = {"learners": {"partition": "agents"}}
ADAPTS: dict[str, Any] = dict(loss="kl_penalty", adaptive_lr=True, kl_target=1e-4, clip_gradients="joint")
THREE = experiment(dict(name="debate", max_rounds=3), dict(shared_body=False))
SELDOM = experiment(dict(name="merlin_arthur"), dict(shared_body=False), play=dict(num_copies=1), algorithm=dict(minibatch_size=2))


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many torch says that it has. There is one: on busy cores several wait for each other, and these games have no use for them."""
    said = {"count": 2}
    monkeypatch.setattr(torch, "get_num_threads", lambda: said["count"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: said.update(count=count))
    return said


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch, threads: dict[str, int]) -> Iterator[None]:
    """In truth."""
    monkeypatch.undo()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(1)


def apart(config: ExperimentConfig) -> ExperimentConfig:
    return ExperimentConfig.model_validate({**config.model_dump(), **APART})


def learner_of(algorithm: Any) -> Any:
    return local_learner(algorithm.learner_group)


def figures(algorithm: Any) -> dict[str, Any]:
    return {name: value for name, value in algorithm.row.items() if not name.startswith("time/")}


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        pytest.param(message_game(), dict(clip_gradients="joint", max_grad_norm=0.05), id="clipped jointly"),
        pytest.param(message_game(), dict(clip_gradients="agent", max_grad_norm=0.05), id="each clipped alone"),
        pytest.param(message_game(), ADAPTS, id="coefficients that adapt"),
        pytest.param(message_game(algorithm=dict(name="reinforce")), dict(max_grad_norm=0.05), id="reinforce"),
        pytest.param(message_game(opponents=PAST), {}, id="opponents from the past"),
        pytest.param(message_game(search=dict(share=0.5)), dict(verdict_gradient="expected"), id="provers search"),
        pytest.param(message_game(schedules={"verifier": dict(kind="contiguous", period=3, start=1, stop=2)}), {}, id="one rests"),
        pytest.param(THREE, dict(clip_gradients="joint", max_grad_norm=0.05), id="three agents, two processes"),
        pytest.param(SELDOM, ADAPTS, id="some have no turn"),
    ],
)
def test_numbers_are_those_of_one_process(made: Any, config: ExperimentConfig, settings: dict[str, Any]) -> None:
    """To the last bit: weights, optimizers, coefficients and figures, in every iteration."""
    alone, together = made(config, **settings), made(apart(config), **settings)
    for _ in range(4):
        alone.train()
        together.train()
        assert repr(figures(alone)) == repr(figures(together)), "of those without a turn some are no numbers"
    assert same_state(alone.training_state(), together.training_state())
    assert len(learner_of(together).partition._processes) == 1


def test_batch_norms_are_handed_over(made: Any) -> None:
    """Their running statistics are no parameters."""
    config = experiment(dict(name="nip"), {"shared_body": False, "kernels": "torch", "agents": {"_default": {"use_batch_norm": True}}})
    alone, together = made(config), made(apart(config))
    assert distance(train(alone, 3), train(together, 3)) == 0


def test_whatever_was_loaded_is_learned_from(made: Any) -> None:
    """A process that has other weights than those of now is made again; so is one that was ended meanwhile."""
    first, second = made(apart(message_game())), made(apart(message_game()))
    train(first, 2)
    train(second, 1)
    before = learner_of(second).partition._processes[0]
    second.load_training_state(first.training_state())
    assert distance(train(first, 2), train(second, 2)) == 0
    after = learner_of(second).partition._processes[0]
    assert after is not before
    assert not before.is_alive()
    os.kill(after.pid, signal.SIGKILL)
    after.join()
    assert distance(train(first, 1), train(second, 1)) == 0


class Struck(PPOLearner):
    """Something happens in the other process in its third update."""

    first, deed = 0, staticmethod(lambda: None)

    def agent_loss(self, *given: Any) -> Any:
        if os.getpid() != Struck.first and self.update_iteration == 2:
            Struck.deed()
        return super().agent_loss(*given)


def _raise() -> None:
    raise ValueError("the dice are loaded")


@pytest.mark.parametrize("clipped", ["joint", "agent"])
@pytest.mark.parametrize(
    ("deed", "kind", "said"),
    [
        (_raise, TrainingError, "ValueError: the dice are loaded"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), LearnerLost, "learners.partition"),
        (lambda: time.sleep(600), LearnerLost, "learners.partition"),
    ],
    ids=["raises", "is killed", "hangs"],
)
def test_what_happens_in_the_other_process_ends_the_iteration(
    made: Any, monkeypatch: pytest.MonkeyPatch, clipped: str, deed: Callable[[], None], kind: type[Exception], said: str
) -> None:
    """Soon, with its own message or as a lost learner, and it leaves no process behind."""
    monkeypatch.setattr(Struck, "first", os.getpid())
    monkeypatch.setattr(Struck, "deed", staticmethod(deed))
    algorithm = made(apart(message_game()), clip_gradients=clipped, learner_class=Struck)
    train(algorithm, 2)
    algorithm.durations.clear()
    algorithm.config.__dict__["hang_timeout_s"] = 0.2  # ten times as long is waited where no iteration was timed
    (process,) = learner_of(algorithm).partition._processes
    with pytest.raises(kind, match=said) as raised:
        algorithm.train()
    assert type(raised.value) is kind
    assert not process.is_alive()
    assert torch.get_num_threads() == 2


def test_a_process_that_is_stopped_before_it_is_asked_is_lost(made: Any) -> None:
    """Though what it is asked does not fit into what a connection holds."""
    algorithm = made(apart(message_game(play=dict(num_copies=4096), algorithm=dict(minibatch_size=8192))))
    algorithm.train()
    algorithm.durations.clear()
    algorithm.config.__dict__["hang_timeout_s"] = 0.1
    (process,) = learner_of(algorithm).partition._processes
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(LearnerLost, match=r"learners\.partition"):
        algorithm.train()
    assert not process.is_alive()


def test_more_threads_than_agents(made: Any, four_threads: None) -> None:
    """Each process has one: the others of OpenMP do not survive a fork, and would be waited for for ever."""
    torch.randn(512, 512) @ torch.randn(512, 512)
    algorithm = made(apart(message_game(play=dict(num_copies=4096), algorithm=dict(minibatch_size=8192))))
    train(algorithm, 2)
    assert torch.get_num_threads() == 4
    assert len(learner_of(algorithm).partition._processes) == 1


def test_the_processes_end_with_the_algorithm(made: Any) -> None:
    algorithm = made(apart(message_game()))
    algorithm.train()
    (process,) = learner_of(algorithm).partition._processes
    assert process.is_alive()
    algorithm.stop()
    assert not process.is_alive()


def test_one_thread_or_one_that_learns_needs_no_process(made: Any, threads: dict[str, int]) -> None:
    threads["count"] = 1
    algorithm = made(apart(message_game()))
    algorithm.train()
    assert learner_of(algorithm).partition._processes == []
    alone = message_game(scenario={"agents": {"_default": dict(hidden=8), "prover": dict(kind="random")}})
    assert learner_of(made(apart(alone))).partition is None


def test_a_process_that_sees_a_gpu_is_not_forked(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner: ProtocolLearner = learner_of(made(apart(message_game())))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="a process that sees a GPU"):
        partition_of(learner)
