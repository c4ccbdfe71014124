"""Message regression: perceptrons predict the label from an agent's first message, tested on messages kept back.

Decisions that matter here:
- the message is the one that the agent *sent*, in the first round in which it can have a turn, with sampled actions;
- the perceptron sees only symbols, one-hot, by channel and position: neither the instance nor earlier messages. A
  symbol that has meaning only with its instance (the number of a node of a graph) gives it no information. A score near
  the share of the larger class means that there is no code, not that the message is useless.
Source: the message regression of Hammond and Adam-Day's library, which uses the received message. Sizes are theirs.
"""

import math

import torch
from torch import Tensor, nn

from nip_ray.evaluation.intervals import Mean, proportion
from nip_ray.learning.groups import FlatOptimizer, ParameterGroup
from nip_ray.learning.supervised import fit
from nip_ray.networks.basic import mlp
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.seeding import generator, seeded, stable_seed
from nip_ray.settings.experiment import MessageRegressionSettings

_KEPT_BACK = 0.2  # share of the messages that the perceptron is tested on
_HIDDEN, _MINIBATCH, _LR = 64, 512, 0.001


def message_regression(
    scenario: Scenario, rollout: Rollout, settings: MessageRegressionSettings, seed: int
) -> dict[str, Mean]:
    """Agent -> accuracy on the messages kept back, with its interval.

    rollout: each instance once, so that what is kept back is new, with sampled actions. Agents that send nothing, or
    too few messages to split, are left out.
    """
    agents = scenario.protocol.agents if settings.agents is None else settings.agents
    found = {}
    for agent in agents:
        said_NX, y_N = first_messages(scenario, rollout, agent)
        score = _score(
            said_NX,
            y_N,
            settings.num_epochs,
            stable_seed(seed, "message regression", agent),
            len(scenario.protocol.verdicts),
        )
        if score is not None:
            found[agent] = score
    return found


def first_messages(scenario: Scenario, rollout: Rollout, agent: str) -> tuple[Tensor, Tensor]:
    """The messages of `agent` in its first possible round, and the labels, of the copies in which it had that turn.

    (N, X) float: one-hot symbols of each channel that it writes to and each position, then the same for linear ones,
    zeros where it was silent. (N,) int64 labels. Both on the CPU.
    """
    protocol = scenario.protocol
    index, writes = protocol.agents.index(agent), list(protocol.writes[agent])
    if not writes:
        return torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64)
    first = int(protocol.turn_table_SKAC[:, :, index].any(-1).any(0).long().argmax())
    turn_B = rollout.turn_BRA[:, first, index]
    parts = [_one_hot(rollout.main_BRACM[turn_B, first, index][:, writes], scenario.num_symbols)]
    if rollout.linear_BRACM is not None:
        parts.append(_one_hot(rollout.linear_BRACM[turn_B, first, index][:, writes], scenario.linear_symbols))
    return torch.cat(parts, 1), rollout.y_B[turn_B].cpu()


def _one_hot(token_NCM: Tensor, num_symbols: int) -> Tensor:
    """(N, C * M * symbols) float on the CPU; -1 (no symbol) is all zeros."""
    return nn.functional.one_hot(token_NCM.cpu() + 1, num_symbols + 1)[..., 1:].flatten(1).float()


def _score(said_NX: Tensor, y_N: Tensor, num_epochs: int, seed: int, labels: int) -> Mean | None:
    """The share of kept back messages whose label is predicted; None where either part would be empty."""
    count = math.ceil(len(y_N) * _KEPT_BACK)
    if count == 0 or count == len(y_N):
        return None
    order_N = torch.randperm(len(y_N), generator=generator(seed, "split"))
    kept, learned = order_N[:count], order_N[count:]
    reader = _fitted(said_NX[learned], y_N[learned], num_epochs, seed, labels)
    with torch.no_grad():
        right_N = reader(said_NX[kept]).argmax(-1) == y_N[kept]
    return proportion(int(right_N.sum()), count)


@torch.enable_grad()
def _fitted(said_NX: Tensor, y_N: Tensor, num_epochs: int, seed: int, labels: int) -> nn.Module:
    """A perceptron trained by cross-entropy and Adam to predict labels from messages."""
    with seeded(stable_seed(seed, "reader")):
        reader = mlp(said_NX.shape[1], _HIDDEN, labels, "relu")
    optimizer = FlatOptimizer([ParameterGroup("actor", "reader", list(reader.parameters()), 1.0)], _LR)
    for epoch in range(num_epochs):
        order_N = torch.randperm(len(y_N), generator=generator(seed, "minibatches", epoch))
        fit(
            lambda index: nn.functional.cross_entropy(reader(said_NX[index]), y_N[index]),
            optimizer,
            order_N.split(_MINIBATCH),
        )
    return reader
