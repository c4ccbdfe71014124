"""Exact tests of isomorphism, and of the scores in a file against its graphs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import refine, wl_scores

_ROUNDS = 4  # of refinement before the search: nodes alike after them are nearly always equivalent
MAX_STEPS = 200_000  # of one search; graphs of a data set take about as many as they have nodes


def isomorphic(first_nn: torch.Tensor, second_nn: torch.Tensor) -> bool:
    """True if two graphs (n, n), without padding, are isomorphic, by search of maps that keep the refined colours."""
    n = len(first_nn)
    if second_nn.shape != first_nn.shape:
        return False
    *_, colour_12n = refine(torch.stack([first_nn, second_nn])[None], torch.tensor([n]), n)
    a, b = (np.asarray(graph.cpu()) != 0 for graph in (first_nn, second_nn))
    return bool(_search(a, b, *colour_12n[0].tolist()))


def wrong_score(adjacency_P2nn: torch.Tensor, size_P: torch.Tensor, score_P: torch.Tensor) -> tuple[int, str] | None:
    """(pair, fault) of the first pair whose score, and so its label, does not match its graphs; None if all are right.

    A score is the number of rounds that distinguish the graphs, or -1 if they are isomorphic, which a map between them
    proves. If the search for one takes more than `MAX_STEPS` the score is accepted.
    """
    rounds = max(_ROUNDS, int(score_P.max()))
    found_P = wl_scores(adjacency_P2nn, size_P, rounds)
    differing = (found_P != score_P).nonzero().flatten().tolist()
    if differing:
        pair = differing[0]
        stated, found = int(score_P[pair]), int(found_P[pair])
        apart = (
            f"{found} rounds of refinement tell its graphs apart"
            if found > 0
            else f"{stated} rounds do not tell its graphs apart"
        )
        return pair, f"is {stated} at pair {pair}, but {apart}"
    alike = (score_P == -1).nonzero().flatten()
    if not len(alike):
        return None
    *_, colour_K2n = refine(adjacency_P2nn[alike], size_P[alike], _ROUNDS)
    graphs_K2nn = adjacency_P2nn[alike].cpu().numpy() != 0
    for pair, graphs_2nn, colours, n in zip(
        alike.tolist(), graphs_K2nn, colour_K2n.tolist(), size_P[alike].tolist(), strict=True
    ):
        a, b = graphs_2nn[:, :n, :n]
        if _search(a, b, colours[0][:n], colours[1][:n]) is False:
            return (
                pair,
                f"is -1 at pair {pair}, but its graphs are not isomorphic, though refinement does not tell them apart",
            )
    return None


def _search(
    a: npt.NDArray[np.bool_], b: npt.NDArray[np.bool_], colour_a: Sequence[int], colour_b: Sequence[int]
) -> bool | None:
    """True if some map of a's nodes to b's keeps edges and colours; None if `MAX_STEPS` are not enough."""
    if sorted(colour_a) != sorted(colour_b):
        return False
    n, steps = len(colour_a), 0
    order = sorted(range(n), key=lambda node: (colour_a.count(colour_a[node]), colour_a[node]))
    neighbours_a, neighbours_b = ([frozenset(np.flatnonzero(row).tolist()) for row in graph] for graph in (a, b))
    image: dict[int, int] = {}
    open_: list[Iterator[Any]] = []

    def fitting(node: int) -> Iterator[int]:
        wanted = {image[other] for other in neighbours_a[node] if other in image}
        taken = set(image.values())
        for other in range(n):
            if other not in taken and colour_b[other] == colour_a[node] and neighbours_b[other] & taken == wanted:
                yield other

    while len(image) < n:
        if len(open_) == len(image):
            open_.append(fitting(order[len(image)]))
        steps += 1
        if steps > MAX_STEPS:
            return None
        if (other := next(open_[-1], None)) is not None:
            image[order[len(image)]] = other
            continue
        open_.pop()
        if not open_:
            return False
        del image[order[len(open_) - 1]]
    return True
