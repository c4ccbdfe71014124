"""Which pairs of graphs occur among others, with whatever node labels and in whatever order of the two graphs."""

import torch

from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.generate import pair_keys
from nip_ray.scenarios.graph_isomorphism.isomorphism import isomorphic


def occurring(pairs: GraphPairs, others: GraphPairs) -> torch.Tensor:
    """(P,) bool: of each of `pairs`, whether one of `others` is the same. Exact: `pair_keys` finds the candidates
    only."""
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
