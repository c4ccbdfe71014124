"""What can be found out without a prover: the bound by hand, and a classifier that finds what there is to find."""

import pytest
import torch

from nip_ray.scenarios.graph_isomorphism.alone import solo_baseline, wl_bound
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs, generate_splits, pair_keys

HEXAGON, TRIANGLES = [(i, (i + 1) % 6) for i in range(6)], [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
PATH, STAR = [(i, i + 1) for i in range(5)], [(0, i) for i in range(1, 6)]


def pairs(*rows: tuple[list[tuple[int, int]], list[tuple[int, int]], int]) -> GraphPairs:
    """(edges of one graph, of the other, score)"""
    adjacency = torch.zeros(len(rows), 2, 6, 6, dtype=torch.uint8)
    for row, (first, second, _) in enumerate(rows):
        for side, edges in enumerate((first, second)):
            for i, j in edges:
                adjacency[row, side, i, j] = adjacency[row, side, j, i] = 1
    return GraphPairs(
        adjacency, torch.full((len(rows),), 6), torch.tensor([score for *_, score in rows], dtype=torch.int32)
    )


def test_the_bound_gives_every_class_its_best_answer() -> None:
    relabelled = [(5 - i, 5 - j) for i, j in TRIANGLES]
    # one class: all nodes alike
    cycles = [(HEXAGON, TRIANGLES, 10), (TRIANGLES, HEXAGON, 10), (TRIANGLES, relabelled, -1)]
    made = pairs(*cycles, (PATH, PATH, -1), (PATH, STAR, 1), (STAR, PATH, 1))
    assert wl_bound(made, 2) == 5 / 6, "all but the isomorphic cycles, which the best answer to their class gives up"
    assert wl_bound(made, 1) == 5 / 6, "degrees tell the cycles from the path"
    assert wl_bound(made, 0) == 4 / 6, "all graphs have six nodes"
    with pytest.raises(ValueError, match="at least one"):
        wl_bound(made.select(slice(0)), 2)


def test_colours_alone_tell_more_of_the_label_than_what_refinement_tells_apart() -> None:
    """On made data: the share that refinement separates, and the majority beside it, is no limit to a verifier
    alone."""
    train, test = generate_splits(3000, 400, 0, GeneratorSettings(graph_sizes=(7, 8, 9)))
    separated, positive = int(((test.wl_score_P > 0) & (test.wl_score_P <= 2)).sum()), int(test.y_P.sum())
    right, count = solo_baseline(train, test, 2)
    assert separated + positive + 10 < right <= 400 * wl_bound(test, 2)
    assert count == 400
    assert solo_baseline(train, test.padded_to(12), 2) == solo_baseline(train.padded_to(12), test, 2) == (right, 400), (
        "room for larger graphs"
    )
    assert (
        solo_baseline(train.select(~torch.isin(train.size_P, torch.tensor([7, 8, 9]))), test, 2)[0]
        == separated + positive
    )


def test_training_pairs_of_the_split_do_not_count() -> None:
    test = generate_pairs(600, 1)
    assert solo_baseline(test, test, 5) == solo_baseline(test.select(slice(0)), test, 5) == (600, 600)
    assert solo_baseline(test, test, 2) == solo_baseline(test.select(slice(0)), test, 2)
    assert len(set(pair_keys(test).tolist())) > 400
