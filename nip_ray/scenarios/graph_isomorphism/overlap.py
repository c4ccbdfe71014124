"""Which pairs of graphs occur among others, with whatever node labels and in whatever order of the two graphs."""

import numpy as np
import torch

from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.generate import pair_keys
from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import refine


def occurring(pairs: GraphPairs, others: GraphPairs) -> torch.Tensor:
    """(P,) bool: of each of `pairs`, whether one of `others` is the same. Exact: `pair_keys` finds the candidates only."""
    by_key: dict[int, list[int]] = {}
    for index, key in enumerate(pair_keys(others).tolist()):
        by_key.setdefault(key, []).append(index)
    found = [
        any(_same(pairs, index, others, candidate) for candidate in by_key.get(key, ()))
        for index, key in enumerate(pair_keys(pairs).tolist())
    ]
    return torch.tensor(found, dtype=torch.bool)


def isomorphic(first_nn: torch.Tensor, second_nn: torch.Tensor) -> bool:
    """Whether two graphs (n, n), without padding, are isomorphic: by search among the maps that keep the colours of refinement."""
    n = len(first_nn)
    if second_nn.shape != first_nn.shape:
        return False
    *_, colour_12n = refine(torch.stack([first_nn, second_nn])[None], torch.tensor([n]), n)
    colour_a, colour_b = colour_12n[0].tolist()
    if sorted(colour_a) != sorted(colour_b):
        return False
    a, b = (np.asarray(graph.cpu()) != 0 for graph in (first_nn, second_nn))
    order = sorted(range(n), key=lambda node: colour_a.count(colour_a[node]))
    image: list[int] = []

    def extended() -> bool:
        if len(image) == n:
            return True
        node, placed = order[len(image)], order[: len(image)]
        for other in range(n):
            if other not in image and colour_b[other] == colour_a[node] and (a[node, placed] == b[other, image]).all():
                image.append(other)
                if extended():
                    return True
                image.pop()
        return False

    return extended()


def _same(pairs: GraphPairs, index: int, others: GraphPairs, candidate: int) -> bool:
    (a, b), (c, d) = (
        found.adjacency_P2nn[i, :, : int(found.size_P[i]), : int(found.size_P[i])] for found, i in ((pairs, index), (others, candidate))
    )
    return (isomorphic(a, c) and isomorphic(b, d)) or (isomorphic(a, d) and isomorphic(b, c))
