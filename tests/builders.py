"""Small scenarios, networks and rollouts that several tests need."""

from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import Protocol, build
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.settings.graph_isomorphism import GraphAgentSettings

TINY: dict[str, Any] = dict(
    num_gnn_layers=2,
    d_gnn=4,
    d_gin_mlp=6,
    num_heads=2,
    num_transformer_layers=2,
    d_transformer=8,
    d_transformer_mlp=6,
    d_representation=6,
    d_node_selector=5,
    d_decider=5,
    d_linear_message_selector=5,
    d_value=5,
)
"""Settings of a graph agent whose widths all differ where they can."""

_TURNS = [(True, False, True), (False, True, True), (True, True, False)]
ORDERS: list[tuple[str, dict[str, Any]]] = [
    (name, dict(verifier_first=v, sequential=s, prover0_first=p, max_rounds=5))
    for name in ("debate", "mnip")
    for v, s, p in _TURNS
]
PROTOCOLS: list[tuple[str, dict[str, Any]]] = [
    ("nip", {}),
    ("nip", dict(verifier_first=False, max_rounds=5, min_rounds=3)),
    ("adp", {}),
    *ORDERS,
    ("merlin_arthur", {}),
    ("consultancy", dict(max_rounds=4)),
    ("consultancy", dict(max_rounds=4, one_prover=True)),
    ("helpful_sneaky", {}),
    ("open_consultancy", dict(max_rounds=4)),
    ("open_debate", dict(max_rounds=6)),
    ("critique", {}),
    ("judge_panel", {}),
    ("judge_panel", dict(judges=2, max_rounds=5, panel_rule="veto")),
    ("solo_verifier", {}),
    ("multi_channel_test", {}),
]
"""Every protocol that a graph isomorphism scenario plays, in several orders, as (name, parameters)."""


def protocol_id(value: tuple[str, dict[str, Any]]) -> str:
    """A short name of an entry of `PROTOCOLS`."""
    return "-".join(
        [value[0], *(f"{key}={given if isinstance(given, str) else int(given)}" for key, given in value[1].items())]
    )


def random_pairs(seed: int, sizes: tuple[int, ...] = (4, 5, 6, 6, 5, 4), num_nodes: int = 6) -> GraphPairs:
    """Pairs of random graphs of the given sizes, every other one isomorphic; the scores are made up (-1 or 1)."""
    random = torch.Generator().manual_seed(seed)
    adjacency_P2nn = torch.zeros(len(sizes), 2, num_nodes, num_nodes, dtype=torch.uint8)
    score_P = torch.tensor([-1, 1], dtype=torch.int32).repeat(len(sizes))[: len(sizes)]
    for pair, size in enumerate(sizes):
        for side in range(2):
            upper = torch.triu(torch.rand(size, size, generator=random) < 0.5, 1).byte()
            adjacency_P2nn[pair, side, :size, :size] = upper + upper.T
        if score_P[pair] == -1:
            order = torch.randperm(size, generator=random)
            adjacency_P2nn[pair, 1, :size, :size] = adjacency_P2nn[pair, 0, :size, :size][order][:, order]
    return GraphPairs(adjacency_P2nn, torch.tensor(sizes), score_P)


def graph_scenario(
    protocol: Protocol | str,
    pairs: GraphPairs | None = None,
    *,
    shared_body: bool = False,
    message_size: int = 1,
    linear_symbols: int = 0,
    **agent_settings: Any,
) -> GraphIsomorphism:
    """A graph isomorphism scenario whose agents all have the `TINY` settings, changed by `agent_settings`."""
    protocol = build(protocol) if isinstance(protocol, str) else protocol
    pairs = random_pairs(0) if pairs is None else pairs
    made = GraphAgentSettings(**{**TINY, **agent_settings})
    agents = dict.fromkeys(protocol.agents, made)
    return GraphIsomorphism(
        protocol,
        pairs,
        pairs,
        agents,
        shared_body=shared_body,
        message_size=message_size,
        linear_symbols=linear_symbols,
    )


def graph_agents(scenario: GraphIsomorphism, seed: int = 0, *, statistics: bool = True) -> dict[str, nn.Module]:
    """Fresh networks in evaluation mode, with made-up observation statistics if asked for."""
    agents = {agent: scenario.build_agent(agent, seed + i).eval() for i, agent in enumerate(scenario.protocol.agents)}
    if statistics:
        for network in agents.values():
            network.set_normalisation({"history": (0.1, 0.7), "latest": (0.05, 0.5), "linear": (0.2, 0.6)})  # type: ignore[operator]
    return agents


def spread_heads(network: nn.Module, factor: float = 4.0) -> nn.Module:
    """Widen the logits of a graph agent, so that its choices differ from uniform ones."""
    with torch.no_grad():
        for head in ("node_selector", "decider", "linear_selector"):
            made = getattr(network, head, None)
            if made is not None:
                made[-1].weight.mul_(factor)
    return network


def copies(scenario: GraphIsomorphism, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(id_B, seed_B) of so many copies."""
    random = torch.Generator().manual_seed(seed)
    ids = scenario.ids("train")
    return ids[torch.arange(count) % len(ids)], torch.randint(2**16, (count,), generator=random)


def rollout_of(scenario: GraphIsomorphism, agents: dict[str, nn.Module], count: int = 12, seed: int = 0) -> Rollout:
    """A rollout of sampled play."""
    noise = torch.Generator().manual_seed(seed)
    return play_rollout(BatchedPlay(scenario), agents, *copies(scenario, count, seed), noise)
