"""What is particular to single learning rules, through RLlib: schedules, rewards to go, foresight, supervised training,
zero knowledge."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nip_ray.play.rollout import own_rows
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from tests.rllib.experiments import distance, experiment, message_game, train, trained, weights

NIP = dict(name="nip", max_rounds=4)


def learner_of(algorithm: ProtocolAlgorithm) -> Any:
    return algorithm.learner_group._learner


@pytest.mark.parametrize("name", ["ppo", "reinforce", "stackelberg"])
def test_a_resting_agent_stands_still_and_leaves_nothing_behind(made: Any, name: str) -> None:
    """Neither its weights nor its optimizer move; and what it does when it wakes is what it would have done without
    having rested."""
    rule = dict(name=name)
    schedules = dict(prover=dict(kind="contiguous", period=3, start=2, stop=3))
    algorithm = made(experiment(NIP, algorithm=rule, schedules=schedules))
    start = weights(algorithm)
    train(algorithm, 2)
    after = weights(algorithm)
    assert distance({"prover": start["prover"]}, {"prover": after["prover"]}) == 0
    assert distance({"verifier": start["verifier"]}, {"verifier": after["verifier"]}) > 0
    assert not learner_of(algorithm).optimizers["prover"].inner.state, "its optimizer has not taken a step"
    state = algorithm.training_state()
    woken = train(algorithm, 1)
    assert distance({"prover": start["prover"]}, {"prover": woken["prover"]}) > 0

    fresh = made(experiment(NIP, algorithm=rule))  # the same third iteration by learners that never knew a schedule
    fresh.load_training_state(state)
    assert distance(train(fresh, 1), woken) == 0


def test_an_iteration_in_which_nobody_learns_only_plays(made: Any) -> None:
    rest = dict(kind="contiguous", period=2, start=1, stop=2)
    algorithm = made(experiment(NIP, schedules=dict(prover=rest, verifier=rest)))
    start = weights(algorithm)
    assert distance(start, train(algorithm, 1)) == 0
    assert algorithm.row["env_steps"] > 0
    assert distance(start, train(algorithm, 1)) > 0


@pytest.mark.parametrize("name", ["ppo", "reinforce", "stackelberg"])
def test_an_agents_own_entropy_bonus(made: Any, name: str) -> None:
    """It counts for that agent and in the place of the rule's: everybody's own is the rule's, and one's own leaves the
    other alone."""
    own = dict(entropy_coefficient=0.5)
    rules = (
        own,
        dict(entropy_coefficient=0.0, agents=dict(_default=own)),
        dict(entropy_coefficient=0.0, agents=dict(verifier=own)),
    )
    with_all, by_default, for_one = (
        train(made(experiment(NIP, algorithm=dict(name=name, **rule))), 1) for rule in rules
    )
    assert distance(with_all, by_default) == 0
    assert distance({"prover": with_all["prover"]}, {"prover": for_one["prover"]}) > 0
    if name != "stackelberg":  # whose leaders foresee the bonus of their followers
        assert distance({"verifier": with_all["verifier"]}, {"verifier": for_one["verifier"]}) == 0


def test_rewards_to_go_end_with_their_episode(made: Any) -> None:
    """Every row's weight is what its own copy still paid, discounted by rounds: nothing leaks from copy to copy."""
    algorithm = made(experiment(NIP, algorithm=dict(name="reinforce", gamma=0.5)))
    (samples,), _ = algorithm._play()
    learner = learner_of(algorithm)
    learner.updated = frozenset(learner.optimizers)
    prepared = learner.prepare(samples.rollout).agents
    for index, agent in enumerate(algorithm.scenario.protocol.agents):
        rows = own_rows(algorithm.scenario, samples.rollout, agent)
        reward_BR = samples.rollout.reward_BRA[:, :, index].tolist()
        expected = [
            sum(reward * 0.5 ** (r - int(at)) for r, reward in enumerate(reward_BR[int(copy)]) if r >= int(at))
            for copy, at in zip(rows.copy_N, rows.round_N, strict=True)
        ]
        torch.testing.assert_close(prepared[agent].advantage_N, torch.tensor(expected))
    assert any(float(data.advantage_N.abs().max()) > 0 for data in prepared.values())


def verifier_after(**rule: Any) -> dict[str, dict[str, Tensor]]:
    return trained(message_game(algorithm=dict(name="stackelberg", num_epochs=1, minibatch_size=64, **rule)), 1)


def test_only_leaders_foresee() -> None:
    """A leader moves otherwise than one whose followers rest; a follower moves as if it were alone."""
    plain = verifier_after(variant="lola", shaping_lr=1e-12)
    shaped = verifier_after(variant="lola", shaping_lr=10.0)
    assert distance({"verifier": plain["verifier"]}, {"verifier": shaped["verifier"]}) > 1e-5
    assert distance({"prover": plain["prover"]}, {"prover": shaped["prover"]}) == 0
    turned = verifier_after(variant="lola", shaping_lr=10.0, stackelberg_sequence=[["prover"], ["verifier"]])
    assert distance({"prover": plain["prover"]}, {"prover": turned["prover"]}) > 1e-5
    assert distance({"verifier": plain["verifier"]}, {"verifier": turned["verifier"]}) == 0


def test_nobody_counts_on_a_follower_that_rests() -> None:
    rest = dict(prover=dict(kind="contiguous", period=2, start=1, stop=2))
    found = []
    for shaping_lr in (1e-12, 10.0):
        rule = dict(name="stackelberg", variant="lola", num_epochs=1, minibatch_size=64, shaping_lr=shaping_lr)
        found.append(trained(message_game(algorithm=rule, schedules=rest), 1))
    assert distance(*found) == 0


@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_alone_the_whole_network_learns_the_labels(made: Any, agent: str) -> None:
    rule = dict(name="solo", agent=agent, lr=0.01, num_epochs=4, minibatch_size=16)
    algorithm = made(experiment(dict(name="nip"), algorithm=rule, play=dict(num_copies=40)))
    start = weights(algorithm)
    losses = []
    for _ in range(12):
        algorithm.train()
        losses.append(algorithm.row[f"learn/{agent}/loss"])
    assert losses[-1] < 0.9 * losses[0]
    moved = {name: float((value - start[agent][name]).abs().max()) for name, value in weights(algorithm)[agent].items()}
    assert all(
        moved[name] > 0 for name in moved if name.startswith(("policy_body.gnn", "policy_body.token", "decider"))
    )
    assert not any(moved[name] for name in moved if name.startswith(("value_", "node_selector")))


# ------------------------------------------------------------------------------------------------------ zero knowledge
