"""The generator: published composition, true labels, seeds, no pair twice, no pair in two splits, clear refusals."""

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism import generate
from nip_ray.scenarios.graph_isomorphism.create import write_dataset
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs, load_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs, generate_splits, pair_keys
from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import colour_hashes as true_colour_hashes
from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import wl_scores

SMALL = GeneratorSettings(graph_sizes=(7, 8), edge_probabilities=(0.4, 0.6))


@pytest.fixture(scope="module")
def thousand() -> GraphPairs:
    return generate_pairs(1000, seed=0)


def graphs(pairs: GraphPairs, index: int) -> tuple[nx.Graph, nx.Graph]:
    n = int(pairs.size_P[index])
    one, other = pairs.adjacency_P2nn[index, :, :n, :n].numpy()
    return nx.from_numpy_array(one), nx.from_numpy_array(other)


def same(one: GraphPairs, other: GraphPairs) -> bool:
    return (
        one.adjacency_P2nn.equal(other.adjacency_P2nn)
        and one.size_P.equal(other.size_P)
        and one.wl_score_P.equal(other.wl_score_P)
    )


def test_published_composition(thousand: GraphPairs) -> None:
    """1,000 pairs over 20 cells: 25 negatives a cell, 2 of them with score 1 and 5 with score 2; the rest needs more
    rounds."""
    score = thousand.wl_score_P
    assert [int((score == s).sum()) for s in (-1, 1, 2)] == [500, 40, 100]
    assert int((score >= 3).sum()) == 360
    assert int(score.max()) <= 5
    negative = thousand.select(score != -1)
    assert torch.unique(negative.size_P, return_counts=True)[1].tolist() == [100] * 5
    assert thousand.num_nodes == 11
    assert thousand.adjacency_P2nn.shape == (1000, 2, 11, 11)


def test_scores_are_exact_and_labels_are_true(thousand: GraphPairs) -> None:
    assert wl_scores(thousand.adjacency_P2nn, thousand.size_P).equal(thousand.wl_score_P)
    for i in range(len(thousand)):
        assert nx.is_isomorphic(*graphs(thousand, i)) == bool(thousand.y_P[i])


def test_edge_probabilities_are_kept() -> None:
    """New graphs of the isomorphic part have the density of their cell (about 5 standard errors of room)."""
    for p in (0.2, 0.6):
        only_new = replace(
            GeneratorSettings(),
            prop_non_isomorphic=0,
            iso_prop_from_non_iso=0,
            edge_probabilities=(p,),
            graph_sizes=(11,),
        )
        pairs = generate_pairs(2000, 0, only_new)
        assert (
            abs(float(pairs.adjacency_P2nn.float().sum()) / (2000 * 2 * 110) - p)
            < 5 * (p * (1 - p) / (2000 * 55)) ** 0.5
        )


def test_copies_of_isomorphic_pairs_are_shuffled(thousand: GraphPairs) -> None:
    """Both of them: neither the pair's two matrices nor a copy and its origin may be equal, but for rare symmetric
    graphs."""
    positive = thousand.select(thousand.y_P == 1).adjacency_P2nn
    assert float((positive[:, 0] == positive[:, 1]).all(dim=(1, 2)).float().mean()) < 0.03
    negative = thousand.select(thousand.y_P == 0).adjacency_P2nn.flatten(0, 1).flatten(1)
    origin = {bytes(row.numpy().tobytes()) for row in negative}
    copied = [bytes(row.numpy().tobytes()) in origin for row in positive.flatten(0, 1).flatten(1)]
    assert sum(copied) / len(copied) < 0.05


def test_half_of_the_isomorphic_pairs_come_from_negatives() -> None:
    for share in (0.0, 0.5, 1.0):
        pairs = generate_pairs(400, 1, GeneratorSettings(graph_sizes=(11,), iso_prop_from_non_iso=share))
        hashes = generate.graph_hashes(
            pairs.adjacency_P2nn.flatten(0, 1).numpy(), pairs.size_P.repeat_interleave(2).numpy()
        ).reshape(-1, 2)
        positive = pairs.y_P.numpy() == 1
        derived = np.isin(hashes[positive, 0], hashes[~positive])
        assert abs(derived.mean() - share) < 0.05  # new sparse graphs can equal one by accident
        assert np.unique(hashes[positive, 0], return_counts=True)[1].max() <= 4  # no graph is behind very many pairs


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 7, 37, 101, 333])
def test_any_number_of_pairs(num_pairs: int) -> None:
    pairs = generate_pairs(num_pairs, 0, SMALL)
    assert len(pairs) == num_pairs
    assert int(pairs.y_P.sum()) == num_pairs - num_pairs // 2


def test_order_is_not_by_class(thousand: GraphPairs) -> None:
    for head in (100, 200, 500):
        assert abs(float(thousand.y_P[:head].float().mean()) - 0.5) < 4 * 0.5 / head**0.5
    assert len(torch.unique(thousand.size_P[:50])) == 5


@pytest.mark.parametrize("sizes", [(5,), (7,)])
def test_no_labelled_pair_twice(sizes: tuple[int, ...]) -> None:
    """Sparse small graphs, which come again and again, within a cell and in the next one."""
    negative = 0.5 if sizes == (7,) else 0.0
    sparse = GeneratorSettings(graph_sizes=sizes, edge_probabilities=(0.2, 0.21, 0.22), prop_non_isomorphic=negative)
    pairs = generate_pairs(900, 0, sparse)
    labelled = {tuple(sorted(graph.tobytes() for graph in pair)) for pair in pairs.adjacency_P2nn.numpy()}
    assert len(labelled) == 900


def test_hashes_decide_nothing(thousand: GraphPairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash so poor that most of the candidates are wrong, scores and composition are still exact."""
    monkeypatch.setattr(generate, "colour_hashes", lambda *args: true_colour_hashes(*args) & np.uint64(1023))
    pairs = generate_pairs(100, 0, GeneratorSettings(graph_sizes=(7, 8), edge_probabilities=(0.4,)))
    assert wl_scores(pairs.adjacency_P2nn, pairs.size_P).equal(pairs.wl_score_P)
    assert [int((pairs.wl_score_P == score).sum()) for score in (-1, 1, 2)] == [50, 4, 10]


def test_keys_do_not_depend_on_labels_or_order(thousand: GraphPairs) -> None:
    keys = pair_keys(thousand)
    assert keys.dtype == np.int64
    assert keys.shape == (1000,)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    seven = thousand.select(thousand.size_P == 11)
    relabelled = GraphPairs(seven.adjacency_P2nn.flip(1)[:, :, order][:, :, :, order], seven.size_P, seven.wl_score_P)
    assert (pair_keys(relabelled) == pair_keys(seven)).all()
    assert (pair_keys(thousand.padded_to(14)) == keys).all()


def test_keys_differ_for_different_pairs(thousand: GraphPairs) -> None:
    """Pairs of 7-node graphs with equal keys are isomorphic, by networkx."""
    pairs = thousand.select(thousand.size_P == 7)
    keys = pair_keys(pairs)
    repeated = 0
    for key in np.unique(keys):
        first, *others = np.flatnonzero(keys == key)
        a, b = graphs(pairs, int(first))
        for other in others:
            c, d = graphs(pairs, int(other))
            assert (nx.is_isomorphic(a, c) and nx.is_isomorphic(b, d)) or (
                nx.is_isomorphic(a, d) and nx.is_isomorphic(b, c)
            )
            repeated += 1
    assert repeated > 20


def test_splits_share_nothing() -> None:
    train, test = generate_splits(1500, 300, 0)
    assert (len(train), len(test)) == (1500, 300)
    assert not set(pair_keys(train).tolist()) & set(pair_keys(test).tolist())
    for split in (train, test):
        assert float(split.y_P.float().mean()) == 0.5
        # leaving out pairs must not make a class rarer at some size: that would give the answer away
        share = [float(split.y_P[split.size_P == n].float().mean()) for n in range(7, 12)]
        assert max(share) - min(share) < 0.05
    assert set(pair_keys(generate_pairs(1500, 0)).tolist()) & set(pair_keys(test).tolist()), (
        "they would share some if nobody looked"
    )


def test_write_dataset(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    summary = write_dataset(
        tmp_path / "folder", 120, 3, SMALL, test_pairs=40, progress=lambda done, total: calls.append((done, total))
    )
    train, test = (load_pairs(file) for file in summary["files"])
    assert [Path(file).name for file in summary["files"]] == ["train.pairs.npz", "test.pairs.npz"]
    assert (len(train), len(test)) == (120, 40)
    assert summary["train"]["pairs"] == 120
    assert sum(summary["train"]["scores"].values()) == 120
    assert summary["test"]["sizes"] == {7: int((test.size_P == 7).sum()), 8: int((test.size_P == 8).sum())}
    assert summary["pairs_per_s"] > 0
    assert calls[-1] == (160, 160)
    assert calls == sorted(calls)

    alone = write_dataset(tmp_path / "one.npz", 120, 3, SMALL)
    assert same(load_pairs(tmp_path / "one.npz"), generate_pairs(120, 3, SMALL))
    assert alone["files"] == [str(tmp_path / "one.npz")]
    both = write_dataset(tmp_path / "x.pairs.npz", 20, 3, SMALL, test_pairs=8)
    assert [Path(file).name for file in both["files"]] == ["x.pairs.npz", "x.test.pairs.npz"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph_sizes": (7, 7)}, "graph_sizes"),
        ({"graph_sizes": (1,)}, "at least 2 nodes"),
        ({"graph_sizes": (6,)}, "fewer than 7 nodes"),
        ({"edge_probabilities": (0.0,)}, "edge_probabilities: 0.0"),
        ({"prop_non_isomorphic": 1.5}, "prop_non_isomorphic"),
        ({"non_iso_prop_score_1": 0.9}, "add up to more than 1"),
        ({"max_iterations": 2}, "max_iterations: 2"),
    ],
)
def test_settings_that_contradict_each_other(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate_pairs(100, 0, replace(GeneratorSettings(), **change))


def test_small_graphs_without_third_round() -> None:
    """Sizes below 7 work when no score of 3 is asked for, also where rounding leaves a pair over."""
    tiny = GeneratorSettings(
        graph_sizes=(5, 6), edge_probabilities=(0.4, 0.5), non_iso_prop_score_1=0.5, non_iso_prop_score_2=0.5
    )
    pairs = generate_pairs(123, 0, tiny)
    assert len(pairs) == 123
    assert set(pairs.wl_score_P.tolist()) == {-1, 1, 2}


def test_impossible_cells_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_MAX_POOL", 30_000)
    with pytest.raises(
        UserError, match=r"30 nodes and edge probability 0.5.*score 3 or more are missing after 30,000 graphs"
    ):
        generate_pairs(20, 0, GeneratorSettings(graph_sizes=(30,), edge_probabilities=(0.5,)))
    one_kind = GeneratorSettings(graph_sizes=(3,), edge_probabilities=(0.5,), prop_non_isomorphic=0)
    with pytest.raises(UserError, match="isomorphic pairs are missing"):
        generate_pairs(1000, 0, one_kind)
