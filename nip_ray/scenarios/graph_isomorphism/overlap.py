"""Find pairs of graphs that occur among others, up to node labels and the order of the two graphs."""

import torch

from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.generate import pair_keys
from nip_ray.scenarios.graph_isomorphism.isomorphism import isomorphic


def occurring(pairs: GraphPairs, others: GraphPairs) -> torch.Tensor:
    """(P,) bool: True for each of `pairs` that equals one of `others`. Exact: `pair_keys` only finds candidates."""
    by_key: dict[int, list[int]] = {}
    for index, key in enumerate(pair_keys(others).tolist()):
        by_key.setdefault(key, []).append(index)
    found = [
        any(_same(pairs, index, others, candidate) for candidate in by_key.get(key, ()))
        for index, key in enumerate(pair_keys(pairs).tolist())
    ]
    return torch.tensor(found, dtype=torch.bool)


def _same(pairs: GraphPairs, index: int, others: GraphPairs, candidate: int) -> bool:
    (a, b), (c, d) = (
        found.adjacency_P2nn[i, :, : int(found.size_P[i]), : int(found.size_P[i])]
        for found, i in ((pairs, index), (others, candidate))
    )
    return (isomorphic(a, c) and isomorphic(b, d)) or (isomorphic(a, d) and isomorphic(b, c))
