"""Generate pairs of graphs with the published composition: half isomorphic, half distinguished by 1, 2 or 3+ rounds.

Decisions that matter here:

- Graphs are Erdos-Renyi, a cell for every (size, edge probability). Pairs that only a third round distinguishes are
  rare (1 in 10 million at 11 nodes, p = 0.4), so rejection sampling is too slow: a pool of graphs is grouped by a hash
  of its colours after two rounds, and a pair is drawn uniformly among *all* pairs of the pool that agree there and
  differ later. That is the distribution of rejection sampling; pairs of score 1 and 2 are drawn in the same way. The
  pool grows until there are several times more such pairs than needed. Every score is then computed exactly.
- A graph of a pool is used in one pair at most; a graph of a non-isomorphic pair is the origin of at most one
  isomorphic pair (as long as there are enough of them); no data set holds the same labelled pair twice. The same pair
  with other node labels can occur again, and has to: on 7 nodes there are only 84 pairs up to isomorphism that need
  three rounds or more.
- Splits share nothing, even up to isomorphism (`pair_keys`).
- The order is random, so the head of a data set is a fair sample of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.weisfeiler_leman import U64, colour_hashes, graph_hashes, mix64, wl_scores
from nip_ray.seeding import stable_seed
from nip_ray.settings.options import FORBID_UNKNOWN, option

Bool = npt.NDArray[np.bool_]
Int = npt.NDArray[np.int64]
Byte = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]
"""Called with (pairs made so far, pairs requested)."""

_MIN_SIZE_SCORE_3 = 7  # no two graphs with fewer nodes need three rounds (all were tried)
_FIRST_POOL = 16_384  # graphs
# graphs; where the published cells need 2 * 10^5, this gives up on a cell after about ten seconds
_MAX_POOL = 4_000_000
_PLENTY = 4  # ratio of fitting pairs in a pool to those needed, so that using a graph only once introduces no bias
_HASH_CHUNK = 8_192  # graphs hashed at a time: their work arrays fit the cache


@dataclass(frozen=True)
class GeneratorSettings:
    """The composition of the pairs: sizes, densities and the shares of the Weisfeiler-Leman scores."""

    __pydantic_config__ = FORBID_UNKNOWN

    graph_sizes: tuple[int, ...] = option(
        (7, 8, 9, 10, 11), "numbers of nodes; every pair has two graphs of one size", min_length=1
    )
    edge_probabilities: tuple[float, ...] = option(
        (0.2, 0.4, 0.6, 0.8), "densities of the Erdos-Renyi graphs", min_length=1
    )
    max_iterations: int = option(
        5, "rounds of colour refinement; pairs that they do not tell apart are never negatives", ge=1
    )
    prop_non_isomorphic: float = option(0.5, "share of non-isomorphic pairs", ge=0, le=1)
    non_iso_prop_score_1: float = option(
        0.1, "share of the non-isomorphic pairs that one round tells apart", ge=0, le=1
    )
    non_iso_prop_score_2: float = option(
        0.2, "share of the non-isomorphic pairs that need two rounds; the rest needs more", ge=0, le=1
    )
    iso_prop_from_non_iso: float = option(
        0.5, "share of the isomorphic pairs made from graphs of non-isomorphic pairs", ge=0, le=1
    )

    def check(self) -> None:
        """Raise UserError for an impossible combination."""
        for name in ("graph_sizes", "edge_probabilities"):
            values = getattr(self, name)
            if len(values) == 0 or len(set(values)) != len(values):
                raise UserError(f"{name}: {list(values)}: give at least one value, and none of them twice")
        if min(self.graph_sizes) < 2:
            raise UserError(f"graph_sizes: {min(self.graph_sizes)}: a graph has at least 2 nodes here")
        for p in self.edge_probabilities:
            if not 0 < p < 1:
                raise UserError(f"edge_probabilities: {p}: must lie between 0 and 1, both excluded")
        for name in ("prop_non_isomorphic", "non_iso_prop_score_1", "non_iso_prop_score_2", "iso_prop_from_non_iso"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}: {getattr(self, name)}: a share lies between 0 and 1")
        if self.non_iso_prop_score_1 + self.non_iso_prop_score_2 > 1 + 1e-9:
            raise UserError("non_iso_prop_score_1 and non_iso_prop_score_2 add up to more than 1: lower one of them")
        if self.max_iterations < 1:
            raise UserError(f"max_iterations: {self.max_iterations}: at least 1 round is needed")


# ----------------------------------------------------------------------------------------------------- public functions


def generate_pairs(
    num_pairs: int,
    seed: int,
    settings: GeneratorSettings = GeneratorSettings(),
    forbid: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> GraphPairs:
    """Exactly `num_pairs` pairs in random order; the same arguments give the same pairs.

    floor(num_pairs * prop_non_isomorphic) pairs are non-isomorphic. These, the isomorphic pairs derived from them and
    the isomorphic pairs of new graphs are each spread evenly over the cells (size, p); remainders go to random cells. A
    cell with k non-isomorphic pairs has floor(k * share) with score 1 and with score 2; the rest has 3 or more. forbid:
    `pair_keys` that must not occur. Raises UserError when the settings contradict each other or a cell has too few
    fitting pairs.
    """
    settings.check()
    if num_pairs < 1:
        raise UserError(f"cannot make {num_pairs} pairs: ask for at least 1")
    cells = [(n, p) for n in settings.graph_sizes for p in settings.edge_probabilities]
    num_negative = int(num_pairs * settings.prop_non_isomorphic + 1e-9)
    num_derived = int((num_pairs - num_negative) * settings.iso_prop_from_non_iso + 1e-9)
    counts = (num_negative, num_derived, num_pairs - num_negative - num_derived)
    shares = zip(
        *(_spread(count, len(cells), _rng(seed, "share", kind)) for kind, count in enumerate(counts)), strict=True
    )
    plan = [
        (n, p, _score_quotas(int(negative), settings, n), int(derived), int(new))
        for (n, p), (negative, derived, new) in zip(cells, shares, strict=True)
    ]

    ledger = _Ledger(forbid)
    made: list[GraphPairs] = []
    for n, p, quota, derived, new in plan:
        pool = _Pool(n, p, _rng(seed, "pool", n, repr(p)), settings.max_iterations)
        negative, score = _negative_pairs(pool, quota, ledger)
        positive = _derived_pairs(negative.reshape(-1, n, n), derived, _rng(seed, "derived", n, repr(p)), ledger)
        # If nearly everything is forbidden fewer can be derived than wanted; the cell is filled with new graphs, so
        # that sizes and densities stay the same in both classes.
        fresh = _new_pairs(n, p, derived + new - len(positive), _rng(seed, "new", n, repr(p)), ledger)
        score = np.concatenate([score, np.full(derived + new, -1, dtype=np.int32)])
        made.append(_as_pairs(np.concatenate([negative, positive, fresh]), score, max(settings.graph_sizes)))
        if progress is not None:
            progress(sum(map(len, made)), num_pairs)
    everything = GraphPairs(
        *(torch.cat(parts) for parts in zip(*((g.adjacency_P2nn, g.size_P, g.wl_score_P) for g in made), strict=True))
    )
    return everything.select(_rng(seed, "order").permutation(num_pairs))


def generate_splits(
    num_train: int,
    num_test: int,
    seed: int,
    settings: GeneratorSettings = GeneratorSettings(),
    forbid: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> tuple[GraphPairs, GraphPairs]:
    """(train, test), which share no pair, even up to isomorphism.

    The test pairs are made first; the training pairs then avoid them. So a large test split removes the common small
    pairs from training: on 7 nodes only 84 exist with a score of 3 or more. Raises UserError when too few are left.
    """
    forbidden = set() if forbid is None else set(map(int, forbid))

    def from_(before: int) -> Progress:
        return lambda done, _: progress(before + done, num_train + num_test) if progress is not None else None

    test_seed = stable_seed(seed, "graph_isomorphism", "test split")
    test = generate_pairs(num_test, test_seed, settings, forbidden, from_(0))
    train = generate_pairs(num_train, seed, settings, forbidden | set(pair_keys(test).tolist()), from_(num_test))
    return train, test


def pair_keys(pairs: GraphPairs) -> Int:
    """int64 (P,): equal for pairs that are the same up to isomorphism of both graphs and exchange of the two.

    Different pairs could share a key if `graph_hashes` cannot distinguish their graphs; so comparing keys may report a
    false match, but never misses one.
    """
    size_P = pairs.size_P.cpu().numpy()
    hash_a, hash_b = (graph_hashes(pairs.adjacency_P2nn[:, side].cpu().numpy(), size_P) for side in (0, 1))
    return (mix64(hash_a) + mix64(hash_b)).view(np.int64)


# ------------------------------------------------------------------------------------------------------------ the parts


def _rng(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.default_rng(stable_seed(seed, "graph_isomorphism", "generate", *purpose))


def _spread(total: int, places: int, rng: np.random.Generator) -> Int:
    """`total` over `places` as evenly as possible; remainders are placed at random."""
    share = np.full(places, total // places, dtype=np.int64)
    share[rng.permutation(places)[: total % places]] += 1
    return share


def _score_quotas(count: int, settings: GeneratorSettings, n: int) -> dict[int, int]:
    """Pairs with score 1, 2 and 3+ in a cell of `count` non-isomorphic pairs. Raises UserError if none can exist."""
    share_1, share_2 = settings.non_iso_prop_score_1, settings.non_iso_prop_score_2
    one, two = int(count * share_1 + 1e-9), int(count * share_2 + 1e-9)
    if share_1 + share_2 > 1 - 1e-9:  # rounding remainders must not become a score that was not requested
        one, two = (one, count - one) if share_2 else (count, 0)
    quota = {1: one, 2: two, 3: count - one - two}
    hint = "raise non_iso_prop_score_1 or non_iso_prop_score_2 (1 together: no such pair is asked for)"
    if quota[3] and n < _MIN_SIZE_SCORE_3:
        raise UserError(
            f"graph_sizes: {n}: no pair with score 3 or more has fewer than {_MIN_SIZE_SCORE_3} nodes; use larger"
            f" graphs or {hint}"
        )
    if any(quota[score] and score > settings.max_iterations for score in quota):
        raise UserError(
            f"max_iterations: {settings.max_iterations}: too few rounds for the scores asked for; use 3 or more, or"
            f" {hint}"
        )
    return quota


def _as_pairs(adjacency: Byte, score: npt.NDArray[np.int32], num_nodes: int) -> GraphPairs:
    size = torch.full((len(score),), adjacency.shape[-1], dtype=torch.int64)
    return GraphPairs(torch.from_numpy(adjacency), size, torch.from_numpy(score)).padded_to(num_nodes)


def _dense(edge_MN: Byte | Bool, n: int) -> Byte:
    """Upper triangles (M, n(n-1)/2) to symmetric adjacencies (M, n, n)."""
    first, second = np.triu_indices(n, 1)
    adjacency = np.zeros((len(edge_MN), n, n), dtype=np.uint8)
    adjacency[:, first, second] = edge_MN
    adjacency[:, second, first] = edge_MN
    return adjacency


@dataclass
class _Ledger:
    """Records labelled pairs that were made and pairs (up to isomorphism) that must not be made."""

    forbid: Iterable[int] | None
    made: dict[int, U64] = field(default_factory=dict)  # by size: fingerprints of the labelled pairs

    def __post_init__(self) -> None:
        self.keys: Int = np.unique(np.fromiter(() if self.forbid is None else self.forbid, dtype=np.int64))

    def allowed(self, adjacency_M2nn: Byte) -> Bool:
        """(M,) True for pairs that are not forbidden, not made before, and not among earlier ones of these."""
        prints = _fingerprints(adjacency_M2nn)
        allowed = np.zeros(len(prints), dtype=np.bool_)
        allowed[np.unique(prints, return_index=True)[1]] = True
        allowed &= ~np.isin(prints, self.made.get(adjacency_M2nn.shape[-1], ()))
        if len(self.keys):
            still = np.flatnonzero(allowed)
            keys = pair_keys(
                _as_pairs(adjacency_M2nn[still], np.full(len(still), -1, dtype=np.int32), adjacency_M2nn.shape[-1])
            )
            allowed[still] = ~np.isin(keys, self.keys)
        return allowed

    def record(self, adjacency_M2nn: Byte) -> None:
        """Record that these pairs were made."""
        n = adjacency_M2nn.shape[-1]
        self.made[n] = np.concatenate([self.made.get(n, np.empty(0, dtype=np.uint64)), _fingerprints(adjacency_M2nn)])


def _fingerprints(adjacency_M2nn: Byte) -> U64:
    """(M,) a hash of the labelled pair, independent of the order of its two graphs."""
    triangle = adjacency_M2nn[(slice(None), slice(None), *np.triu_indices(adjacency_M2nn.shape[-1], 1))].astype(
        np.uint64
    )
    weight = mix64(np.arange(triangle.shape[-1], dtype=np.uint64))
    return mix64((triangle * weight).sum(2, dtype=np.uint64)).sum(1, dtype=np.uint64)


class _Pool:
    """Independent Erdos-Renyi graphs of one cell, with the hashes of their colours after 1, 2 and all rounds."""

    def __init__(self, n: int, p: float, rng: np.random.Generator, rounds: int) -> None:
        self.n, self.p, self.rng, self.rounds = n, p, rng, rounds
        self.packed = np.empty((0, (n * (n - 1) // 2 + 7) // 8), dtype=np.uint8)
        self.hashes = np.empty((4, 0), dtype=np.uint64)  # after 0 rounds all graphs look alike
        self.used = np.empty(0, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.used)

    def grow(self, size: int) -> None:
        """Add graphs until there are `size`."""
        packed, hashes = [self.packed], [self.hashes]
        for start in range(len(self), size, _HASH_CHUNK):
            edge_EN = (
                self.rng.random((self.n * (self.n - 1) // 2, min(_HASH_CHUNK, size - start)), dtype=np.float32) < self.p
            )
            by_round = colour_hashes(edge_EN, self.n, self.rounds)
            last = len(by_round) - 1
            hashes.append(np.stack([np.zeros_like(by_round[0]), by_round[0], by_round[min(1, last)], by_round[last]]))
            packed.append(np.packbits(edge_EN.T, axis=1))
        self.packed, self.hashes = np.concatenate(packed), np.concatenate(hashes, axis=1)
        self.used = np.concatenate([self.used, np.zeros(size - len(self), dtype=np.bool_)])

    def adjacency(self, index: Int) -> Byte:
        """(M, ...) indices of graphs to adjacencies (M, ..., n, n)."""
        edge = np.unpackbits(self.packed[index.ravel()], axis=1, count=self.n * (self.n - 1) // 2)
        return _dense(edge, self.n).reshape(*index.shape, self.n, self.n)

    def partners(self, score: int) -> "_Partners":
        """All pairs of unused graphs that agree after `score` - 1 rounds and differ after `score` rounds (3: later)."""
        return _Partners(self.hashes[score - 1], self.hashes[score], ~self.used)


class _Partners:
    """The pairs of graphs with equal `group` and different `part`, without listing them: there can be millions."""

    def __init__(self, group: U64, part: U64, usable: Bool) -> None:
        graphs = np.flatnonzero(usable)
        # graphs of a group, and in it of a part, are adjacent
        self.graph = graphs[np.lexsort((part[graphs], group[graphs]))]
        sorted_group, sorted_part = group[self.graph], part[self.graph]
        new_group = np.concatenate([[True], sorted_group[1:] != sorted_group[:-1]])
        new_part = new_group | np.concatenate([[True], sorted_part[1:] != sorted_part[:-1]])
        self.group_start, group_size = _runs(new_group)
        self.part_start, self.part_size = _runs(new_part)
        self.choices = np.cumsum(group_size - self.part_size)  # every graph's number of partners, cumulated
        self.count = int(self.choices[-1]) // 2

    def draw(self, amount: int, rng: np.random.Generator) -> Int:
        """(amount, 2) graphs: pairs drawn uniformly and independently, in random order of the two. Needs count > 0."""
        ticket = rng.integers(0, self.choices[-1], size=amount)
        one = np.searchsorted(self.choices, ticket, side="right")
        # which of the graphs of the group outside the own part
        offset = ticket - np.concatenate([[0], self.choices])[one]
        other = self.group_start[one] + offset
        other += np.where(other >= self.part_start[one], self.part_size[one], 0)
        return np.stack([self.graph[one], self.graph[other]], axis=1)


def _runs(is_start: Bool) -> tuple[Int, Int]:
    """For every place, the start and length of its run."""
    starts = np.flatnonzero(is_start)
    run = np.cumsum(is_start) - 1
    return starts[run], np.diff(np.concatenate([starts, [len(is_start)]]))[run]


def _once_each(pair_M2: Int, used: Bool) -> Bool:
    """(M,) True for pairs to keep, from the first on, so that no graph occurs twice and none is used (a dropped pair
    also blocks its other graph)."""
    first_time = np.zeros(pair_M2.size, dtype=np.bool_)
    first_time[np.unique(pair_M2, return_index=True)[1]] = True
    blocked = used[pair_M2] | ~first_time.reshape(pair_M2.shape)
    return ~(blocked[:, 0] | blocked[:, 1])


def _negative_pairs(pool: _Pool, quota: dict[int, int], ledger: _Ledger) -> tuple[Byte, npt.NDArray[np.int32]]:
    """Non-isomorphic pairs of a cell: adjacency (M, 2, n, n) and exact scores (M,). `quota[3]` counts scores of 3+."""
    parts = [(np.empty((0, 2, pool.n, pool.n), dtype=np.uint8), np.empty(0, dtype=np.int32))]
    missing = {score: number for score, number in quota.items() if number}
    size, limit = max(_FIRST_POOL, 16 * sum(quota.values())), max(_MAX_POOL, 64 * sum(quota.values()))
    while missing:
        if len(pool) >= limit:
            score, number = max(missing.items())
            raise UserError(
                f"graphs with {pool.n} nodes and edge probability {pool.p}: {number} of {quota[score]} pairs with score"
                f" {score}{' or more' if score == 3 else ''} are missing after {len(pool):,} graphs; ask for fewer"
                " pairs, exclude fewer (or make a smaller test split), use other sizes and probabilities, or change"
                " non_iso_prop_score_1 and non_iso_prop_score_2"
            )
        pool.grow(min(size, limit))
        size = 4 * len(pool)
        for score in sorted(missing, reverse=True):  # rare ones first, while all graphs are free
            partners, plenty = pool.partners(score), _PLENTY * missing[score]
            if partners.count < plenty:  # fitting pairs grow with the square of the pool
                size = min(
                    size, max(int(1.1 * len(pool) * (plenty / max(partners.count, 0.1)) ** 0.5), len(pool) * 3 // 2)
                )
                if len(pool) < limit or partners.count == 0:
                    continue
            for attempt in range(8):  # more and more candidates, for cells in which nearly everything is forbidden
                drawn = partners.draw(min((2 * missing[score] + 16) << attempt, 1 << 15), pool.rng)
                adjacency = pool.adjacency(drawn)
                ready = np.flatnonzero(ledger.allowed(adjacency))
                ready = ready[_once_each(drawn[ready], pool.used)][: missing[score]]
                adjacency_M2nn = adjacency[ready]
                size_M = torch.full((len(adjacency_M2nn),), adjacency_M2nn.shape[-1])
                exact = wl_scores(torch.from_numpy(adjacency_M2nn), size_M, pool.rounds).numpy()
                right = exact >= 3 if score == 3 else exact == score
                kept = ready[right]
                ledger.record(adjacency[kept])
                pool.used[drawn[kept]] = True
                parts.append((adjacency[kept], exact[right]))
                missing[score] -= len(kept)
                if not missing[score]:
                    break
        missing = {score: number for score, number in missing.items() if number}
    return np.concatenate([adjacency for adjacency, _ in parts]), np.concatenate([exact for _, exact in parts])


def _shuffled_twice(graph_Mnn: Byte, rng: np.random.Generator) -> Byte:
    """(M, 2, n, n): two copies of every graph, the nodes of both shuffled independently."""
    num, n, _ = graph_Mnn.shape
    order_M2n = rng.random((num, 2, n)).argsort(2)
    rows = np.arange(num)[:, None, None, None]
    return graph_Mnn[rows, order_M2n[:, :, :, None], order_M2n[:, :, None, :]]


def _derived_pairs(graph_Mnn: Byte, wanted: int, rng: np.random.Generator, ledger: _Ledger) -> Byte:
    """Up to `wanted` isomorphic pairs (K, 2, n, n) made from these graphs, each used once before any is reused."""
    num, n, _ = graph_Mnn.shape
    parts = [np.empty((0, 2, n, n), dtype=np.uint8)]
    missing = wanted
    for _ in range(2 + 2 * wanted // num if num else 0):
        order = rng.permutation(num)
        while missing and len(order):
            chosen, order = order[:missing], order[missing:]
            copies = _shuffled_twice(graph_Mnn[chosen], rng)
            parts.append(copies[ledger.allowed(copies)])
            ledger.record(parts[-1])
            missing -= len(parts[-1])
    return np.concatenate(parts)


def _new_pairs(n: int, p: float, wanted: int, rng: np.random.Generator, ledger: _Ledger) -> Byte:
    """`wanted` isomorphic pairs (K, 2, n, n) made from new Erdos-Renyi graphs."""
    parts = [np.empty((0, 2, n, n), dtype=np.uint8)]
    missing, tried, amount = wanted, 0, wanted + 64
    while missing:
        graph = _dense(rng.random((amount, n * (n - 1) // 2), dtype=np.float32) < p, n)
        copies = _shuffled_twice(graph, rng)
        parts.append(copies[ledger.allowed(copies)][:missing])
        ledger.record(parts[-1])
        missing -= len(parts[-1])
        tried += amount
        amount = min(2 * amount, 1 << 16)
        if missing and tried >= max(_MAX_POOL // 4, 100 * wanted):
            raise UserError(
                f"graphs with {n} nodes and edge probability {p}: {missing} of {wanted} isomorphic pairs are missing"
                f" after {tried:,} graphs, all others are used or excluded; ask for fewer pairs, exclude fewer (or make"
                " a smaller test split), or use larger graphs"
            )
    return np.concatenate(parts)
