"""Occurrence up to isomorphism, against networkx."""

import networkx as nx
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.scenarios.graph_isomorphism.overlap import isomorphic


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**28 - 1), st.integers(0, 10_000))
def test_it_is_isomorphism(n: int, edges: int, seed: int) -> None:
    """Of a graph with its nodes in another order, and of one with an edge moved, which is isomorphic only now and
    then."""
    random = np.random.default_rng(seed)
    places = list(zip(*np.triu_indices(n, 1), strict=True))
    chosen = [place for bit, place in enumerate(places) if edges >> bit & 1]
    first = nx.empty_graph(n)
    first.add_edges_from(chosen)
    order = random.permutation(n)
    second = nx.relabel_nodes(first, dict(enumerate(order.tolist())))
    moved = second.copy()
    free = list(nx.non_edges(moved))
    if chosen and free:
        moved.remove_edge(*next(iter(moved.edges)))
        moved.add_edge(*free[random.integers(len(free))])
    a, b, c = (torch.from_numpy(nx.to_numpy_array(graph, nodelist=range(n))).byte() for graph in (first, second, moved))
    assert isomorphic(a, b)
    assert isomorphic(a, c) == nx.is_isomorphic(first, moved)


def test_regular_graphs_that_refinement_does_not_tell_apart() -> None:
    prism, bipartite = nx.circular_ladder_graph(3), nx.complete_bipartite_graph(3, 3)
    a, b = (torch.from_numpy(nx.to_numpy_array(graph)).byte() for graph in (prism, bipartite))
    assert not isomorphic(a, b)
