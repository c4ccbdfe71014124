"""Pairs from matrices and networkx: their labels, and a file that a run reads."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism.dataset import load_pairs
from nip_ray.scenarios.graph_isomorphism.own_graphs import pairs_of, write_pairs

PATH = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
TRIANGLE = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_labels_are_those_of_the_graphs(tmp_path: Path) -> None:
    moved = nx.relabel_nodes(nx.petersen_graph(), {node: str((3 * node + 1) % 10) for node in range(10)})
    graphs: list[tuple[Any, Any]] = [
        (PATH, TRIANGLE),
        (nx.path_graph(3), np.array(PATH)),
        (nx.petersen_graph(), moved),
        (nx.path_graph(6), nx.star_graph(5)),
    ]
    made = write_pairs(graphs, tmp_path / "own" / "pairs.npz")
    assert made.y_P.tolist() == [0, 1, 1, 0]
    assert made.size_P.tolist() == [3, 3, 10, 6]
    read = load_pairs(tmp_path / "own" / "pairs.npz")
    assert (read.adjacency_P2nn == made.adjacency_P2nn).all()
    assert read.wl_score_P.tolist() == made.wl_score_P.tolist()
    assert [int(read.adjacency_P2nn[pair, 0].sum()) // 2 for pair in range(4)] == [2, 2, 15, 5]


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ((PATH, [[0]]), "graphs of 3, 1 nodes, expected two of equal size"),
        ((PATH, [[0, 1], [1, 0], [0, 0]]), r"pair 0, graph 1: has shape \(3, 2\)"),
        ((PATH, [[0, 1, 0], [0, 0, 1], [0, 1, 0]]), "is not symmetric"),
        ((PATH, [[1, 1, 0], [1, 0, 1], [0, 1, 0]]), "self-loop at node 0"),
        ((PATH, [[0, 2, 0], [2, 0, 1], [0, 1, 0]]), "other entries than 0 and 1"),
        ((PATH, "path"), "is not a matrix"),
        ((nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))), "never tells them apart"),
    ],
)
def test_graphs_that_cannot_form_a_pair_are_named(pair: tuple[Any, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        pairs_of([pair])


def test_nothing_is_written_under_another_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.npz"):
        write_pairs([(PATH, PATH)], tmp_path / "pairs.csv")
    with pytest.raises(UserError, match="no pairs"):
        write_pairs([], tmp_path / "pairs.npz")
