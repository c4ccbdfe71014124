"""Pairs of graphs in memory (`GraphPairs`) and on disk (`load_pairs`, `save_pairs`).

Three kinds of files can be read; all hold the same raw keys, flat edge lists with offsets:

- ours: a compressed .npz with `format`, `version` and `checksum` beside the raw keys (what `save_pairs` writes);
- the published layout: `data.pt`, a dict of tensors, read with `weights_only`, or a folder that has it;
- a plain .npz with the raw keys.

No kind can run code when it is read (no pickles). Any fault of a file is one `UserError` that names the file, the key,
the fault and what would be right; a `GraphPairs` is always valid. The scores, which are the labels, are checked against
the graphs (`wrong_score`).
"""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism.isomorphism import wrong_score
from nip_ray.seeding import stable_seed
from nip_ray.storage.files import make_parents, written_aside

RAW_KEYS = ("edge_index_a", "edge_index_b", "slices_a", "slices_b", "wl_scores", "sizes_a", "sizes_b")
FORMAT = "nip_ray.graph_pairs"
VERSION = 1

_MAX_DENSE_ENTRIES = 1 << 32  # 4 GiB of adjacency: more is a damaged size, or too large for dense algebra

Raw = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class GraphPairs:
    """P pairs of graphs, zero-padded to n nodes. Immutable: every method returns a new object."""

    adjacency_P2nn: torch.Tensor
    """uint8 (P, 2, n, n): symmetric 0/1, no self-loops, zero at padded nodes."""
    size_P: torch.Tensor
    """int64 (P,): true number of nodes, the same in both graphs of a pair."""
    wl_score_P: torch.Tensor
    """int32 (P,): rounds of colour refinement that distinguish the graphs; -1 for isomorphic pairs."""

    def __post_init__(self) -> None:
        shape = tuple(self.adjacency_P2nn.shape)
        if len(shape) != 4 or shape[1] != 2 or shape[2] != shape[3]:
            raise ValueError(f"adjacency_P2nn has shape {shape}, expected (P, 2, n, n)")
        for name, tensor, dtype in (
            ("adjacency_P2nn", self.adjacency_P2nn, torch.uint8),
            ("size_P", self.size_P, torch.int64),
            ("wl_score_P", self.wl_score_P, torch.int32),
        ):
            if tensor.dtype != dtype:
                raise ValueError(f"{name} is {tensor.dtype}, expected {dtype}")
            if len(tensor) != shape[0] or (name != "adjacency_P2nn" and tensor.dim() != 1):
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape[0]} pairs")

    def __len__(self) -> int:
        return self.adjacency_P2nn.shape[0]

    @property
    def num_nodes(self) -> int:
        """n, the padded number of nodes."""
        return self.adjacency_P2nn.shape[-1]

    @property
    def y_P(self) -> torch.Tensor:
        """int64 (P,): 1 for isomorphic pairs, 0 otherwise."""
        return (self.wl_score_P == -1).long()

    @property
    def node_mask_P2n(self) -> torch.Tensor:
        """bool (P, 2, n): true at real nodes."""
        real_Pn = torch.arange(self.num_nodes, device=self.size_P.device) < self.size_P[:, None]
        return real_Pn[:, None].expand(-1, 2, -1).contiguous()

    def select(self, index: Any) -> "GraphPairs":
        """The pairs at `index` (a slice, a list, or an integer or bool tensor or array), in that order."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.size_P.device)
        return GraphPairs(self.adjacency_P2nn[index], self.size_P[index], self.wl_score_P[index])

    def truncate(self, num_pairs: int, seed: int) -> "GraphPairs":
        """At most `num_pairs` random pairs, as close to half isomorphic, half not as the data allow, in random order.

        With the same seed a shorter truncation is contained in a longer one of the same data as long as neither class
        runs out. If the data have no more than `num_pairs` pairs, all are kept, in a random order.
        """
        if num_pairs < 1:
            raise UserError(f"a data set cannot be truncated to {num_pairs} pairs: ask for at least 1")
        rng = np.random.default_rng(stable_seed(seed, "graph_isomorphism", "truncate"))
        positive_P = self.y_P.cpu().numpy() == 1
        positives, negatives = rng.permutation(np.flatnonzero(positive_P)), rng.permutation(np.flatnonzero(~positive_P))
        num_positive = max(min(len(positives), num_pairs // 2), num_pairs - len(negatives))
        kept = np.concatenate([positives[:num_positive], negatives[: num_pairs - min(num_positive, len(positives))]])
        return self.select(rng.permutation(kept))

    def padded_to(self, num_nodes: int) -> "GraphPairs":
        """The same pairs padded to `num_nodes` nodes (fewer than now is fine while every graph fits).

        Raises UserError when a graph has more nodes than that.
        """
        largest = int(self.size_P.max()) if len(self) else 0
        if num_nodes < largest:
            raise UserError(f"graphs with {largest} nodes cannot be padded to {num_nodes}: ask for at least {largest}")
        copied = min(num_nodes, self.num_nodes)
        adjacency = self.adjacency_P2nn.new_zeros(len(self), 2, num_nodes, num_nodes)
        adjacency[:, :, :copied, :copied] = self.adjacency_P2nn[:, :, :copied, :copied]
        return GraphPairs(adjacency, self.size_P, self.wl_score_P)

    def to(self, device: torch.device | str) -> "GraphPairs":
        """The same pairs on another device."""
        return GraphPairs(self.adjacency_P2nn.to(device), self.size_P.to(device), self.wl_score_P.to(device))


# ------------------------------------------------------------------------------------------------- edge lists <-> dense


def to_raw(pairs: GraphPairs) -> Raw:
    """The raw keys: `edge_index_x` int64 (2, E), both directions, local node ids, all pairs after each other;
    `slices_x` int64 (P + 1,) offsets into them; `sizes_x` int32 (P,); `wl_scores` int32 (P,)."""
    raw: Raw = {}
    for side, name in enumerate("ab"):
        pair_E, source_E, target_E = np.nonzero(pairs.adjacency_P2nn[:, side].cpu().numpy())
        counts_P = np.bincount(pair_E, minlength=len(pairs))
        raw[f"edge_index_{name}"] = np.stack([source_E, target_E]).astype(np.int64)
        raw[f"slices_{name}"] = np.concatenate([[0], np.cumsum(counts_P)]).astype(np.int64)
        raw[f"sizes_{name}"] = pairs.size_P.cpu().numpy().astype(np.int32)
    raw["wl_scores"] = pairs.wl_score_P.cpu().numpy().astype(np.int32)
    return {key: raw[key] for key in RAW_KEYS}


def from_raw(raw: Raw, path: Path) -> GraphPairs:
    """The inverse of `to_raw`, padded to the largest graph. Raises UserError, naming `path`, for anything malformed."""
    _check_vectors(raw, path)
    size_P = raw["sizes_a"].astype(np.int64)
    num_pairs, n = len(size_P), int(size_P.max())
    adjacency_P2nn = np.zeros((num_pairs, 2, n, n), dtype=np.uint8)
    for side, name in enumerate("ab"):
        key = f"edge_index_{name}"
        pair_E = np.repeat(np.arange(num_pairs), np.diff(raw[f"slices_{name}"].astype(np.int64)))
        source_E, target_E = raw[key].astype(np.int64)
        outside_E = (np.minimum(source_E, target_E) < 0) | (np.maximum(source_E, target_E) >= size_P[pair_E])
        wrong = _first_edge(outside_E, pair_E, source_E, target_E)
        if wrong:
            _fail(
                path,
                key,
                f"{wrong} names a node that the graph does not have",
                "node ids from 0 to the graph's size - 1",
            )
        wrong = _first_edge(source_E == target_E, pair_E, source_E, target_E)
        if wrong:
            _fail(path, key, f"{wrong} is a self-loop", "graphs without self-loops")
        adjacency_P2nn[pair_E, side, source_E, target_E] = 1
        wrong = _first_edge(adjacency_P2nn[pair_E, side, target_E, source_E] == 0, pair_E, source_E, target_E)
        if wrong:
            _fail(path, key, f"{wrong} lacks its reverse", "both directions of every edge")
        if int(np.count_nonzero(adjacency_P2nn[:, side])) != len(pair_E):
            _fail(path, key, "an edge is listed more than once", "each direction of an edge once")
    score_P = raw["wl_scores"].astype(np.int32)
    return GraphPairs(torch.from_numpy(adjacency_P2nn), torch.from_numpy(size_P), torch.from_numpy(score_P))


def _first_edge(bad_E: npt.NDArray[np.bool_], *columns: npt.NDArray[np.int64]) -> str:
    """A description of the first bad edge ("" if there is none); `columns` are its pair, source and target."""
    if not bad_E.any():
        return ""
    pair, source, target = (int(column[bad_E.argmax()]) for column in columns)
    return f"the edge {source} -> {target} of pair {pair}"


def _check_vectors(raw: Raw, path: Path) -> None:
    """Check the raw keys apart from the edges: present, integer, of matching shapes, in range."""
    for key in RAW_KEYS:
        if key not in raw:
            _fail(
                path,
                key,
                f"is missing (the file has: {', '.join(sorted(raw)) or 'nothing'})",
                f"the keys are {', '.join(RAW_KEYS)}",
            )
        if raw[key].dtype.kind not in "iu":
            _fail(path, key, f"has the type {raw[key].dtype}", "it holds integers")
    per_pair = ("wl_scores", "sizes_a", "sizes_b")
    # The one that differs is wrong, so that the message names the key to fix.
    num_pairs = mode([raw[key].size for key in per_pair] + [raw[key].size - 1 for key in ("slices_a", "slices_b")])
    if num_pairs < 1:
        _fail(path, "wl_scores", "holds no pairs", "at least one pair")
    for key in per_pair:
        if raw[key].shape != (num_pairs,):
            _fail(path, key, f"has the shape {raw[key].shape}", f"({num_pairs},), one number per pair")
    for name in "ab":
        edges, slices = raw[f"edge_index_{name}"], raw[f"slices_{name}"]
        if edges.ndim != 2 or edges.shape[0] != 2:
            _fail(path, f"edge_index_{name}", f"has the shape {edges.shape}", "(2, number of directed edges)")
        if slices.shape != (num_pairs + 1,):
            _fail(
                path,
                f"slices_{name}",
                f"has the shape {slices.shape}",
                f"({num_pairs + 1},), one offset more than pairs",
            )
        slices = slices.astype(np.int64)
        if (np.diff(slices) < 0).any():
            where = int(np.flatnonzero(np.diff(slices) < 0)[0])
            _fail(path, f"slices_{name}", f"falls after entry {where}", "offsets never fall")
        if slices[0] != 0 or slices[-1] != edges.shape[1]:
            wrong = f"runs from {slices[0]} to {slices[-1]}"
            _fail(path, f"slices_{name}", wrong, f"from 0 to {edges.shape[1]}, the columns of edge_index_{name}")
    sizes_a, sizes_b, scores = (raw[key].astype(np.int64) for key in ("sizes_a", "sizes_b", "wl_scores"))
    if (sizes_a < 1).any():
        _fail(path, "sizes_a", f"has a graph with {sizes_a.min()} nodes", "a graph has at least 1 node")
    if (sizes_a != sizes_b).any():
        where = int(np.flatnonzero(sizes_a != sizes_b)[0])
        wrong = f"differs from sizes_a at pair {where} ({sizes_b[where]} against {sizes_a[where]})"
        _fail(path, "sizes_b", wrong, "both graphs of a pair have equally many nodes")
    if ((scores < 1) & (scores != -1)).any():
        where = int(np.flatnonzero((scores < 1) & (scores != -1))[0])
        _fail(path, "wl_scores", f"is {scores[where]} at pair {where}", "-1 for isomorphic pairs, else 1 or more")
    largest = int(sizes_a.max())
    if 2 * num_pairs * largest**2 > _MAX_DENSE_ENTRIES:
        _fail(path, "sizes_a", f"has a graph with {largest} nodes", "graphs small enough to be kept as dense matrices")


def _fail(path: Path, key: str, wrong: str, right: str) -> NoReturn:
    raise UserError(f"{path}: {key}: {wrong}; expected: {right}")


# -------------------------------------------------------------------------------------------------------------- reading


def load_pairs(path: Path | str) -> GraphPairs:
    """Read any of the three kinds of files, recognised by content, or a folder with `data.pt` or `raw/data.pt`.

    Raises UserError for a file that is missing, damaged or malformed.
    """
    path = Path(path)
    if path.is_dir():
        found = [inner for inner in (path / "data.pt", path / "raw" / "data.pt") if inner.is_file()]
        if not found:
            raise UserError(
                f"{path}: a folder without data.pt or raw/data.pt; name a file, or a folder that has one of them"
            )
        path = found[0]
    if not path.is_file():
        raise UserError(
            f"{path}: no such file or folder; name a data set, or make one with `nip-ray data graph-isomorphism`"
        )
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                is_npz = all(name.endswith(".npy") for name in archive.namelist())
        else:  # a torn archive has lost the directory at its end: go by the name, and let the reader raise
            is_npz = path.suffix == ".npz"
        raw = _read_npz(path) if is_npz else _read_torch(path)
    except UserError:
        raise
    # damaged bytes can make the readers raise nearly anything, and some advise to read them unsafely
    except Exception as error:
        what = (
            f"{error.strerror}"
            if isinstance(error, OSError) and error.strerror
            else "it is damaged, of another kind, or holds more than tensors"
        )
        raise UserError(
            f"{path}: cannot be read ({what}); expected: a .npz file with the keys {', '.join(RAW_KEYS)}, or a data.pt"
            " with them as a dict of tensors"
        ) from error
    pairs = from_raw(raw, path)
    if wrong := wrong_score(pairs.adjacency_P2nn, pairs.size_P, pairs.wl_score_P):
        right = (
            "what `nip_ray.scenarios.graph_isomorphism.weisfeiler_leman.wl_scores` finds, which is the label too: -1"
            " for isomorphic pairs"
        )
        _fail(path, "wl_scores", wrong[1], right)
    return pairs


def _read_torch(path: Path) -> Raw:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        _fail(path, "content", f"is a {type(loaded).__name__}", "a dict of tensors")
    for key in RAW_KEYS:
        if key in loaded and not isinstance(loaded[key], torch.Tensor):
            _fail(path, key, f"is a {type(loaded[key]).__name__}", "a tensor")
    return {str(key): value.numpy() for key, value in loaded.items() if isinstance(value, torch.Tensor)}


def _read_npz(path: Path) -> Raw:
    with np.load(path, allow_pickle=False) as archive:
        if "format" in archive.files:
            _check_header(
                path, {key: archive[key] for key in ("format", "version", "checksum") if key in archive.files}
            )
        raw = {key: archive[key] for key in RAW_KEYS if key in archive.files}
        if "format" in archive.files and len(raw) == len(RAW_KEYS) and str(archive["checksum"]) != _checksum(raw):
            _fail(
                path, "checksum", "does not fit the data", "the sum written with them: the file was changed or damaged"
            )
        return raw


def _check_header(path: Path, header: Raw) -> None:
    for key in ("format", "version", "checksum"):
        if key not in header:
            _fail(path, key, "is missing", "format, version and checksum come together")
    if str(header["format"]) != FORMAT:
        _fail(path, "format", f"is {str(header['format'])!r}", repr(FORMAT))
    version = header["version"]
    if version.shape != () or version.dtype.kind not in "iu" or version < 1:
        _fail(path, "version", f"is {version!r}", f"a number from 1 to {VERSION}")
    if version > VERSION:
        _fail(
            path,
            "version",
            f"is {version}, which is newer than this nip_ray",
            f"at most {VERSION}; update nip_ray or make the data again",
        )


# -------------------------------------------------------------------------------------------------------------- writing


def save_pairs(pairs: GraphPairs, path: Path | str) -> None:
    """Write our own format to `path`, atomically: a crash leaves the old file or the new one, never a torn one.

    The same pairs give the same bytes. Raises UserError when the place cannot be written.
    """
    path = Path(path)
    raw = to_raw(pairs)
    content: dict[str, Any] = {
        "format": np.array(FORMAT),
        "version": np.array(VERSION),
        "checksum": np.array(_checksum(raw)),
        **raw,
    }
    make_parents(path)
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **content)


def _checksum(raw: Raw) -> str:
    """SHA-256 over names, types, shapes and contents of the raw keys."""
    digest = hashlib.sha256()
    for key in RAW_KEYS:
        array = np.ascontiguousarray(raw[key])
        digest.update(f"{key}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
