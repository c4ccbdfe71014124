"""Accuracy of a verifier of pairs of graphs without a prover: an upper bound, and a measured baseline.

A verifier with L message-passing layers sees the colours of L rounds of refinement. It can reject pairs that these
distinguish. Both graphs of any other pair have the same colours, but these still carry information about the label:
some classes of graphs have far more non-isomorphic pairs than others. So:

- `wl_bound` gives every class of pairs its best answer, chosen with the labels that it is scored on. Nothing that sees
  only colours does better. It is loose: most classes have one or two pairs in a split of 1,000, so the class identifies
  the pair;
- `solo_baseline` is a reached accuracy: gradient boosting (scikit-learn) on numbers that the common colours determine,
  fitted to training pairs that do not occur in the split, or the majority label of these, whichever is right more often
  on the split. A better classifier may exist, so it is not a bound.
"""

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.generate import pair_keys
from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import U64, mix64

Array = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_MIN_FITTED = 500  # training pairs; with fewer a classifier learns no more than the majority


def wl_bound(pairs: GraphPairs, layers: int) -> float:
    """No verifier that sees `layers` rounds of colours is right on a larger share of these pairs; see above.

    Classes are compared by 64-bit hashes. Raises ValueError without pairs.
    """
    if len(pairs) == 0:
        raise ValueError("wl_bound needs at least one pair")
    hidden_P, y_P = _hidden(pairs, layers), pairs.y_P.cpu().numpy()
    adjacency, real = _first_graphs(pairs, hidden_P)
    last = _colours(adjacency, real, layers)[-1]
    class_H = mix64(np.where(real, mix64(last), np.uint64(0)).sum(1, dtype=np.uint64))
    where_H = np.unique(class_H, return_inverse=True)[1]
    pairs_C, positive_C = np.bincount(where_H), np.bincount(where_H, weights=y_P[hidden_P])
    right = np.count_nonzero(~hidden_P) + np.maximum(positive_C, pairs_C - positive_C).sum()
    return float(right / len(pairs))


def solo_baseline(train: GraphPairs, test: GraphPairs, layers: int) -> tuple[int, int]:
    """(test pairs judged rightly, test pairs) by the better of the two classifiers above. Cached by content."""
    return _baseline(_Content(train), _Content(test), layers)


class _Content:
    """Pairs that are equal to others with the same content."""

    def __init__(self, pairs: GraphPairs) -> None:
        self.pairs = pairs
        digest = hashlib.blake2b(repr(tuple(pairs.adjacency_P2nn.shape)).encode())
        for part in (pairs.adjacency_P2nn, pairs.size_P, pairs.wl_score_P):
            digest.update(part.cpu().contiguous().numpy().tobytes())
        self.mark = digest.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and other.mark == self.mark

    def __hash__(self) -> int:
        return hash(self.mark)


@lru_cache(maxsize=16)
def _baseline(train: _Content, test: _Content, layers: int) -> tuple[int, int]:
    apart = train.pairs.select(~np.isin(pair_keys(train.pairs), pair_keys(test.pairs)))
    hidden_P, y_P = _hidden(test.pairs, layers), test.pairs.y_P.cpu().numpy()
    fitted_P, label_P = _hidden(apart, layers), apart.y_P.cpu().numpy()
    label_F, y_H = label_P[fitted_P], y_P[hidden_P]
    usual = int(2 * label_F.sum() >= len(label_F))  # without training pairs it accepts graphs that look alike
    right = int(np.count_nonzero(y_H == usual))
    if len(label_F) >= _MIN_FITTED and 0 < label_F.sum() < len(label_F) and len(y_H):
        size = max(train.pairs.num_nodes, test.pairs.num_nodes)
        boosting = _fit(_features(apart.padded_to(size), fitted_P, layers), label_F)
        guessed_H = boosting.predict(_features(test.pairs.padded_to(size), hidden_P, layers))
        right = max(right, int(np.count_nonzero(guessed_H == y_H)))
    return right + int(np.count_nonzero(~hidden_P)), len(y_P)


def _fit(x_FX: Array, label_F: npt.NDArray[np.int64]) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier  # takes a second to load
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # its threads wait for each other where cores are shared
        boosting = HistGradientBoostingClassifier(
            max_iter=150,
            learning_rate=0.05,
            max_depth=4,
            early_stopping=False,  # type: ignore[arg-type]
            random_state=0,
        )
        return boosting.fit(x_FX, label_F)


def _hidden(pairs: GraphPairs, layers: int) -> Bool:
    """(P,) True if both graphs of a pair have the same colours after `layers` rounds."""
    score_P = pairs.wl_score_P.cpu().numpy()
    return (score_P < 0) | (score_P > layers)


def _first_graphs(pairs: GraphPairs, chosen_P: Bool) -> tuple[Bool, Bool]:
    """(H, n, n) edges and (H, n) nodes of the first graphs of the chosen pairs."""
    real = np.arange(pairs.num_nodes) < pairs.size_P.cpu().numpy()[chosen_P, None]
    edges = pairs.adjacency_P2nn[:, 0].cpu().numpy()[chosen_P] != 0
    return edges & real[:, :, None] & real[:, None, :], real


def _colours(adjacency: Bool, real: Bool, layers: int) -> list[U64]:
    """Hashes (H, n) of the colours after 0 to `layers` rounds."""
    colours = [mix64(np.zeros(real.shape, dtype=np.uint64))]
    for _ in range(layers):
        colours.append(mix64(3 * colours[-1] + (adjacency * colours[-1][:, None, :]).sum(2, dtype=np.uint64)))
    return colours


def _features(pairs: GraphPairs, chosen_P: Bool, layers: int) -> Array:
    """(H, X) numbers determined by the colours of the first graph: sizes of colour classes, degrees, and sums over
    nodes of powers and products of the numbers of walks that start there."""
    adjacency, real = _first_graphs(pairs, chosen_P)
    columns: list[Any] = [real.sum(1)]
    for colour in _colours(adjacency, real, layers)[1:]:
        size = ((colour[:, :, None] == colour[:, None, :]) & real[:, None, :]).sum(2) * real  # of each node's class
        shares = (real / np.maximum(size, 1)).sum(1)  # the number of classes
        columns += [shares, size.sum(1), size.max(1), (size == 1).sum(1), (size == 2).sum(1)]
    walks = [real.astype(np.float64)]
    for _ in range(layers):
        walks.append((adjacency @ walks[-1][:, :, None])[:, :, 0])
    for length, walk in enumerate(walks[1:], 1):
        columns += [walk.max(1), np.where(real, walk, np.inf).min(1)]
        columns += [(walk**power).sum(1) for power in (1, 2, 3, 4)]
        columns += [(walk * other).sum(1) for other in walks[1:length]]
    if layers:
        columns += [((walks[1] == degree) & real).sum(1) for degree in range(pairs.num_nodes)]
    if layers > 1:  # the spread of the degrees of a node's neighbours
        square = (adjacency @ (walks[1] ** 2)[:, :, None])[:, :, 0]
        spread = square - walks[2] ** 2 / np.maximum(walks[1], 1)
        columns += [
            square.sum(1),
            (square**2).sum(1),
            (square * walks[2]).sum(1),
            spread.sum(1),
            (spread**2).sum(1),
            spread.max(1),
        ]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], 1)
