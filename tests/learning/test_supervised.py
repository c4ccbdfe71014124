"""Supervised learning of a decision: its loss by hand, and that under the derived protocol all that decides learns."""

import math

import pytest
import torch
from torch import Tensor

from nip_ray.learning.policy import Policy, accuracy, decision_loss
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, build, check
from nip_ray.protocols.solo import solo_protocol
from nip_ray.scenarios.seat import seat
from tests.builders import PROTOCOLS, protocol_id


def policy(decision: Tensor | None) -> Policy:
    count = 4 if decision is None else len(decision)
    return Policy(torch.zeros(count, 1, 5), None, decision, torch.ones(count, 1, dtype=torch.bool), None)


LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [0.0, 0.0, 3.0], [0.0, 1.0, 0.9]])
Y = torch.tensor([0, 0, 1, 1])


def test_the_loss_is_the_mean_of_minus_log_softmax() -> None:
    rows = [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [0.0, 0.0, 3.0], [0.0, 1.0, 0.9]]
    by_hand = [math.log(sum(math.exp(x) for x in row)) - row[y] for row, y in zip(rows, [REJECT, REJECT, ACCEPT, ACCEPT], strict=True)]
    assert float(decision_loss(policy(LOGITS), Y)) == pytest.approx(sum(by_hand) / 4)


def test_going_on_is_a_wrong_class() -> None:
    assert float(accuracy(policy(LOGITS), Y)) == 0.5, "right, wrong, continues, right"
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(decision_loss(policy(logits), Y), logits)
    assert bool((gradient[:, CONTINUE] > 0).all()), "a step down makes going on less likely"
    probability = torch.softmax(LOGITS, -1)[:, CONTINUE] / 4
    assert torch.allclose(gradient[:, CONTINUE], probability)


def games() -> list[tuple[str, dict[str, object]]]:
    return [*PROTOCOLS, ("message_game", {}), ("nip", {"zero_knowledge": True}), ("debate", {"zero_knowledge": True})]


@pytest.mark.parametrize("game", games(), ids=protocol_id)
def test_alone_an_agent_has_the_inputs_it_has_in_company(game: tuple[str, dict[str, object]]) -> None:
    protocol = build(game[0], **game[1])
    for agent in protocol.agents:
        alone = solo_protocol(protocol, agent)
        check(alone)
        assert (alone.agents, alone.verifier, alone.deciders, alone.min_rounds) == ((agent,), agent, (agent,), 1)
        assert alone.zero_knowledge is None
        ours, theirs = (seat(made, agent, 2, 3) for made in (alone, protocol))
        for name in ("rounds", "reads", "history_features", "latest_features"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert set(ours.writes) == set(theirs.writes or theirs.reads)
        assert bool(alone.turn_table_SKAC.any(-1).all()), "a turn in every round"
        assert ours.decides
        assert not ours.answers
