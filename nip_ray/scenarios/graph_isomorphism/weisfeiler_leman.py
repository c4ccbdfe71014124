"""Colour refinement (1-dimensional Weisfeiler-Leman) on many pairs of graphs at once: exact scores, and fast hashes.

Decisions that matter here:

- `wl_scores` is exact. A colouring is kept as the relation "node i looks like node j" over both graphs of a pair, not
  as names or hashes of colours, so nothing can collide. One round of refinement is two batched matrix products of small
  integers, which floating point represents exactly (see `_exact_dtype`). The arrays are numpy's: matrices this small
  gain nothing from torch's threads, and lose much when cores are shared.
- `colour_hashes` and `graph_hashes` are lossy 64-bit invariants for finding candidates among very many graphs.
  Isomorphic graphs always have equal hashes; different graphs nearly always differ. Labels never depend on a hash.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

U64 = npt.NDArray[np.uint64]
Float = npt.NDArray[np.floating[Any]]

# entries of one (pairs, 2n, 2n) work array: half a MiB of float32, so that all fit a cache
_CHUNK_ENTRIES = 1 << 17


# --------------------------------------------------------------------------------------------------------- exact scores


def wl_scores(adjacency_P2nn: torch.Tensor, size_P: torch.Tensor, max_rounds: int = 5) -> torch.Tensor:
    """Rounds of colour refinement until the colour multisets of the two graphs of each pair differ.

    Both graphs start in one uniform colour, so 1 means "different degree multisets", 2 "same degrees, but different
    multisets of (own degree, neighbours' degrees)", and so on; -1 means not separated within `max_rounds`.

    adjacency_P2nn: 0/1 or bool, symmetric, no self-loops, any dtype; nodes >= size are ignored. size_P: true number of
    nodes of both graphs of a pair. Returns int32 (P,) on the device of `adjacency_P2nn`. Raises ValueError for wrong
    shapes.
    """
    _check_shapes(adjacency_P2nn, size_P)
    adjacency, size = adjacency_P2nn.cpu().numpy(), size_P.cpu().numpy()
    num_pairs, _, n, _ = adjacency.shape
    score_P = np.full(num_pairs, -1, dtype=np.int32)
    sides = np.repeat(np.array([1, -1], dtype=_exact_dtype(n)), n)  # counts in the first graph less those in the second
    chunk = max(1, _CHUNK_ENTRIES // max(1, 4 * n * n))
    for start in range(0, num_pairs, chunk):
        open_C = np.arange(start, min(start + chunk, num_pairs))  # pairs of the chunk not separated yet
        edges_C, alike_C = _start(adjacency[open_C], size[open_C])
        for round_ in range(1, max_rounds + 1):
            alike_C = _refine_once(edges_C, alike_C)
            # Row i counts the nodes that look like i, in the first and in the second graph: the multisets are equal
            # exactly when these two counts agree for every node.
            differ_C = (alike_C @ sides != 0).any(1)
            score_P[open_C[differ_C]] = round_
            open_C, edges_C, alike_C = open_C[~differ_C], edges_C[~differ_C], alike_C[~differ_C]
            if len(open_C) == 0:
                break
    return torch.from_numpy(score_P).to(adjacency_P2nn.device)


def refine(adjacency_P2nn: torch.Tensor, size_P: torch.Tensor, rounds: int) -> Iterator[torch.Tensor]:
    """Yields the colours after 0, 1, ..., `rounds` rounds, each int64 (P, 2, n), comparable within a pair only.

    A colour is named by the first node that has it, where the second graph's nodes count from n on; padding is -1.
    """
    _check_shapes(adjacency_P2nn, size_P)
    edges, alike = _start(adjacency_P2nn.cpu().numpy(), size_P.cpu().numpy())
    real = alike.diagonal(axis1=1, axis2=2) > 0
    for round_ in range(rounds + 1):
        if round_:
            alike = _refine_once(edges, alike)
        colour = np.where(real, alike.argmax(2), -1).reshape(adjacency_P2nn.shape[:3])
        yield torch.from_numpy(colour).to(adjacency_P2nn.device)


def _check_shapes(adjacency_P2nn: torch.Tensor, size_P: torch.Tensor) -> None:
    shape = tuple(adjacency_P2nn.shape)
    if len(shape) != 4 or shape[1] != 2 or shape[2] != shape[3]:
        raise ValueError(f"adjacency has shape {shape}, expected (P, 2, n, n)")
    if tuple(size_P.shape) != (shape[0],):
        raise ValueError(f"size has shape {tuple(size_P.shape)}, expected ({shape[0]},)")


def _exact_dtype(n: int) -> npt.DTypeLike:
    """The products below hold integers of at most 4 n^3, which float32 represents exactly up to 2^24 (n = 161)."""
    return np.float32 if 4 * n**3 < 1 << 24 else np.float64


def _start(adjacency_P2nn: npt.NDArray[Any], size_P: npt.NDArray[Any]) -> tuple[Float, Float]:
    """Both graphs of a pair as one graph of 2n nodes (P, 2n, 2n), and the uniform colouring of its real nodes.

    Padded nodes are unlike all nodes, even themselves, so they never count as a neighbour, whatever their edges.
    """
    num_pairs, _, n, _ = adjacency_P2nn.shape
    real = np.tile(np.arange(n) < size_P[:, None], 2).astype(_exact_dtype(n))  # (P, 2n)
    alike = real[:, :, None] * real[:, None, :]
    edges = np.zeros((num_pairs, 2 * n, 2 * n), dtype=alike.dtype)
    edges[:, :n, :n] = adjacency_P2nn[:, 0] != 0
    edges[:, n:, n:] = adjacency_P2nn[:, 1] != 0
    return edges, alike


def _refine_once(edges: Float, alike: Float) -> Float:
    """Nodes stay alike if they were alike and have equally many neighbours like j, for every j: their neighbours'
    colour multisets are then equal. Equality of two rows of counts is a squared distance of zero."""
    counts = edges @ alike  # [i, j] = number of i's neighbours that look like j
    gram = counts @ counts.swapaxes(1, 2)
    norm = gram.diagonal(axis1=1, axis2=2)
    return alike * (norm[:, :, None] + norm[:, None, :] == 2 * gram)


# ---------------------------------------------------------------------------------------------------------- fast hashes


def mix64(x: U64) -> U64:
    """A bijective scrambling of 64-bit words (the finaliser of splitmix64), elementwise; wraps around by design."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def colour_hashes(edge_EN: npt.NDArray[np.bool_], n: int, rounds: int) -> U64:
    """Hashes of the colour multisets after 1 .. `rounds` rounds, of N graphs with n nodes each: uint64 (rounds, N).

    edge_EN: the upper triangle by rows (`numpy.triu_indices(n, 1)`), one column per graph, so that every operation
    below runs along contiguous memory over all graphs; the only Python loop is over the n(n-1)/2 places of an edge.
    """
    num_graphs = edge_EN.shape[1]
    out = np.zeros((rounds, num_graphs), dtype=np.uint64)
    first, second = np.triu_indices(n, 1)
    edge = edge_EN.astype(np.uint64)
    colour_nN = np.zeros((n, num_graphs), dtype=np.uint64)
    for e, (i, j) in enumerate(zip(first, second, strict=True)):
        colour_nN[i] += edge[e]
        colour_nN[j] += edge[e]
    work = np.empty(num_graphs, dtype=np.uint64)
    table = mix64(np.arange(n, dtype=np.uint64))  # the first colours are degrees: look them up
    mixed_nN = table[colour_nN.astype(np.intp)]
    for round_ in range(rounds):
        if round_:
            colour_nN = mixed_nN * np.uint64(3)  # own colour, separate from the neighbours' sum
            for e, (i, j) in enumerate(zip(first, second, strict=True)):
                colour_nN[i] += np.multiply(edge[e], mixed_nN[j], out=work)
                colour_nN[j] += np.multiply(edge[e], mixed_nN[i], out=work)
            mixed_nN = mix64(colour_nN)
        out[round_] = mixed_nN.sum(0, dtype=np.uint64)
    return out


def graph_hashes(adjacency_Nnn: npt.NDArray[np.uint8], size_N: npt.NDArray[np.int64]) -> U64:
    """An isomorphism invariant of N padded graphs, uint64 (N,), much finer than colour refinement.

    Three rounds of refinement in which a node sees every other node together with the numbers of walks of length 1, 2
    and 3 to it (so triangles and components count). Isomorphic graphs always agree, for any padding; different graphs
    agree only by chance or if this refinement cannot distinguish them.
    """
    num_graphs, n, _ = adjacency_Nnn.shape
    out = np.empty(num_graphs, dtype=np.uint64)
    chunk = max(1, _CHUNK_ENTRIES // max(1, 4 * n * n))
    for start in range(0, num_graphs, chunk):
        real = np.arange(n) < size_N[start : start + chunk, None]
        both = real[:, :, None] & real[:, None, :]
        walk_1 = ((adjacency_Nnn[start : start + chunk] != 0) & both).astype(np.float64)
        walk_2 = walk_1 @ walk_1
        walk_3 = walk_2 @ walk_1  # at most n^2: exact
        relation = np.zeros(both.shape, dtype=np.uint64)
        for walk in (walk_1, walk_2, walk_3):
            relation = mix64(relation + walk.astype(np.uint64))
        colour = np.zeros(real.shape, dtype=np.uint64)
        for _ in range(3):
            colour = (mix64(relation + mix64(colour)[:, None, :]) * both).sum(2, dtype=np.uint64)
        out[start : start + chunk] = mix64((mix64(colour) * real).sum(1, dtype=np.uint64))
    return out
