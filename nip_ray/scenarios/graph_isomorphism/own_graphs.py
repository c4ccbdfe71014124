"""Pairs of graphs from matrices or networkx, with their labels computed, for `scenario.data.train` and `.test`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs, save_pairs
from nip_ray.scenarios.graph_isomorphism.isomorphism import wrong_score
from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import wl_scores

Graph = Any
"""A square matrix of 0 and 1 (nested lists, an array or a tensor), or a networkx graph."""


def write_pairs(graphs: Iterable[tuple[Graph, Graph]], path: Path | str) -> GraphPairs:
    """Write pairs of graphs to `path`, a .npz file that a config can name, and return them.

    Raises UserError for graphs that cannot form a pair (see `pairs_of`), and where the file cannot be written.
    """
    if Path(path).suffix != ".npz":
        raise UserError(f"{path}: expected a name that ends in .npz")
    pairs = pairs_of(graphs)
    save_pairs(pairs, path)
    return pairs


def pairs_of(graphs: Iterable[tuple[Graph, Graph]]) -> GraphPairs:
    """Pairs of graphs with their Weisfeiler-Leman scores, which are their labels: -1 if the two are isomorphic.

    Raises UserError that names the pair: for a matrix that is not square, not symmetric, not of 0 and 1 or with a
    self-loop, for graphs of different size, and for two non-isomorphic graphs that refinement never distinguishes.
    """
    dense = [
        tuple(_matrix(graph, f"pair {number}, graph {side}") for side, graph in enumerate(pair))
        for number, pair in enumerate(graphs)
    ]
    if not dense:
        raise UserError("no pairs of graphs: expected one at least")
    for number, pair in enumerate(dense):
        if len(pair) != 2 or len(pair[0]) != len(pair[1]):
            sizes = ", ".join(str(len(graph)) for graph in pair)
            raise UserError(f"pair {number}: got graphs of {sizes} nodes, expected two of equal size")
    size_P = torch.tensor([len(first) for first, _ in dense])
    n = int(size_P.max())
    adjacency_P2nn = torch.zeros(len(dense), 2, n, n, dtype=torch.uint8)
    for number, pair in enumerate(dense):
        for side, graph in enumerate(pair):
            adjacency_P2nn[number, side, : len(graph), : len(graph)] = torch.from_numpy(graph)
    score_P = wl_scores(adjacency_P2nn, size_P, max_rounds=n)  # colours are final after n rounds
    if fault := wrong_score(adjacency_P2nn, size_P, score_P):
        raise UserError(
            f"pair {fault[0]}: the graphs are not isomorphic, though refinement never tells them apart; leave it out"
        )
    return GraphPairs(adjacency_P2nn, size_P, score_P)


def _matrix(graph: Graph, name: str) -> npt.NDArray[np.uint8]:
    if hasattr(graph, "edges") and hasattr(graph, "nodes"):
        place = {node: number for number, node in enumerate(graph.nodes)}
        found = np.zeros((len(place), len(place)))
        for first, second in graph.edges():
            found[place[first], place[second]] = found[place[second], place[first]] = 1
    else:
        try:
            found = np.asarray(graph, dtype=float)
        except (TypeError, ValueError):
            raise UserError(f"{name}: is not a matrix, expected one of 0 and 1, or a graph of networkx") from None
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size:
        raise UserError(f"{name}: has shape {found.shape}, expected a square matrix")
    if not np.isin(found, (0, 1)).all():
        raise UserError(f"{name}: has other entries than 0 and 1")
    if (found != found.T).any():
        raise UserError(f"{name}: is not symmetric; edges have no direction")
    if found.diagonal().any():
        raise UserError(f"{name}: has a self-loop at node {int(found.diagonal().argmax())}, expected none")
    return found.astype(np.uint8)
