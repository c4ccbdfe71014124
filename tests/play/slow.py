"""What an agent of graph isomorphism observes, built entry by entry: what the batched observations are held to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism

Said = dict[tuple[int, str, str], list[int]]
"""(round, agent, channel) -> symbols."""


def slow_observation(
    scenario: GraphIsomorphism,
    agent: str,
    id: int,
    main: Said,
    linear: Said,
    round: int,
    now: Sequence[str],
    may_decide: bool,
) -> dict[str, Tensor]:
    """One row. now: the channels that the agent writes to in this round."""
    protocol, size, width = scenario.protocol, scenario.num_nodes, scenario.message_size
    reads, writes = list(protocol.sees[agent]), [protocol.channels[c] for c in protocol.writes[agent]]
    history = torch.zeros(1, 2, size, protocol.max_rounds, len(reads), width)
    latest = torch.zeros(1, 2, size, len(reads), width)
    line = torch.zeros(1, protocol.max_rounds, len(reads), width, max(scenario.linear_symbols, 1))
    side = torch.zeros(1, len(writes), width, dtype=torch.int64)
    for (r, _, channel), symbols in main.items():
        for m, symbol in enumerate(symbols):
            if channel in reads:
                history[0, symbol // size, symbol % size, r, reads.index(channel), m] += 1
                latest[0, symbol // size, symbol % size, reads.index(channel), m] += r == round - 1
            if channel in writes and r == round - 1 and symbol < size:
                side[0, writes.index(channel), m] = 1
    for (r, _, channel), symbols in linear.items():
        for m, symbol in enumerate(symbols):
            if channel in reads:
                line[0, r, reads.index(channel), m, symbol] += 1
    obs = {
        "round": torch.tensor([round]),
        "speaks": torch.tensor([[channel in now for channel in writes for _ in range(width)]]),
        "may_decide": torch.tensor([may_decide]),
        "adjacency": scenario.adjacency_IGVV[id][None],
        "node_mask": scenario.node_mask_IGV[id][None],
        "history": history.flatten(3),
        "latest": latest.flatten(3),
        "answer_side": side.flatten(1),
    }
    return obs | ({"linear_history": line.flatten(1)} if scenario.linear_symbols else {})
