"""Pairs in memory and on disk: the three kinds of files, every way in which one can be malformed, truncation, atomic
writing."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.graph_isomorphism import dataset
from nip_ray.scenarios.graph_isomorphism.dataset import RAW_KEYS, GraphPairs, Raw, load_pairs, save_pairs, to_raw


def make(num_pairs: int = 12, seed: int = 0, largest: int = 6) -> GraphPairs:
    """Random pairs: the first half isomorphic (-1), class-ordered as the published files are, the others told apart by
    their degrees."""
    rng = np.random.default_rng(seed)
    size = rng.integers(3, largest + 1, num_pairs)
    size[0] = largest
    adjacency = np.triu(rng.random((num_pairs, 2, largest, largest)) < 0.5, 1)
    real = np.arange(largest) < size[:, None]
    adjacency &= real[:, None, :, None] & real[:, None, None, :]
    adjacency[:, :, 0, 1] = True  # every graph has an edge to spoil
    adjacency |= adjacency.swapaxes(2, 3)
    score = np.where(np.arange(num_pairs) < num_pairs // 2, -1, 1)
    for pair, n in enumerate(size):
        order = [0, 1, *range(n - 1, 1, -1), *range(n, largest)]
        adjacency[pair, 1] = adjacency[pair, 0][order][:, order]
        if score[pair] == 1:
            adjacency[pair, 1, 0, n - 1] ^= True
            adjacency[pair, 1, n - 1, 0] ^= True
    return GraphPairs(
        torch.from_numpy(adjacency.astype(np.uint8)), torch.from_numpy(size), torch.from_numpy(score.astype(np.int32))
    )


def same(one: GraphPairs, other: GraphPairs) -> bool:
    return (
        one.adjacency_P2nn.equal(other.adjacency_P2nn)
        and one.size_P.equal(other.size_P)
        and one.wl_score_P.equal(other.wl_score_P)
    )


def write_npz(raw: dict[str, Any], folder: Path) -> Path:
    np.savez(folder / "plain.npz", **raw)
    return folder / "plain.npz"


def write_pt(raw: dict[str, Any], folder: Path) -> Path:
    torch.save({key: torch.from_numpy(value) for key, value in raw.items()}, folder / "data.pt")
    return folder / "data.pt"


def message_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_pairs(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize(("wanted", "positives"), [(1, 0), (2, 1), (7, 3), (10, 5), (40, 20), (41, 20)])
def test_truncation_is_balanced(wanted: int, positives: int) -> None:
    """The data are ordered by class, so that taking the head would leave one class only."""
    kept = make(60).truncate(wanted, seed=1)
    assert len(kept) == wanted
    assert int(kept.y_P.sum()) == positives


def test_truncation_fills_up_when_a_class_runs_out() -> None:
    pairs = make(60)
    few_positives = pairs.select(list(range(25, 60)))  # 5 positive, 30 negative
    assert int(few_positives.truncate(20, 0).y_P.sum()) == 5
    assert len(few_positives.truncate(20, 0)) == 20
    few_negatives = pairs.select(list(range(33)))  # 30 positive, 3 negative
    assert int(few_negatives.truncate(20, 0).y_P.sum()) == 17
    for wanted in (35, 1000):
        assert len(few_positives.truncate(wanted, 0)) == 35
        assert int(few_positives.truncate(wanted, 0).y_P.sum()) == 5
    with pytest.raises(UserError, match="at least 1"):
        pairs.truncate(0, 0)


def test_truncation_is_seeded_mixed_and_nested() -> None:
    pairs = make(200)
    assert same(pairs.truncate(50, 3), pairs.truncate(50, 3))
    assert not same(pairs.truncate(50, 3), pairs.truncate(50, 4))
    label = pairs.truncate(100, 0).y_P
    assert 15 < int(label[:50].sum()) < 35
    numbered = GraphPairs(pairs.adjacency_P2nn, torch.arange(200), pairs.wl_score_P)  # sizes as names
    small, large = (set(numbered.truncate(wanted, 3).size_P.tolist()) for wanted in (50, 80))
    assert len(small) == 50
    assert small < large


def test_raw_layout() -> None:
    """One path 0 - 1 - 2 and one single edge, written out by hand."""
    adjacency = torch.zeros(2, 2, 3, 3, dtype=torch.uint8)
    for i, j in ((0, 1), (1, 2)):
        adjacency[0, 0, i, j] = adjacency[0, 0, j, i] = 1
    adjacency[1, 0, 0, 2] = adjacency[1, 0, 2, 0] = 1
    raw = to_raw(GraphPairs(adjacency, torch.tensor([3, 3]), torch.tensor([1, 1], dtype=torch.int32)))
    assert raw["edge_index_a"].tolist() == [[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 2, 0]]
    assert raw["slices_a"].tolist() == [0, 4, 6]
    assert raw["edge_index_b"].shape == (2, 0)
    assert raw["slices_b"].tolist() == [0, 0, 0]
    assert {key: raw[key].dtype for key in RAW_KEYS} == {
        key: "int32" if key.startswith(("wl", "sizes")) else "int64" for key in RAW_KEYS
    }


def test_three_kinds_of_files(tmp_path: Path) -> None:
    pairs = make()
    raw = to_raw(pairs)
    save_pairs(pairs, tmp_path / "own.pairs.npz")
    for path in (tmp_path / "own.pairs.npz", write_npz(raw, tmp_path), write_pt(raw, tmp_path), tmp_path):
        assert same(load_pairs(path), pairs)
        assert same(load_pairs(str(path)), pairs)


def test_old_torch_files_and_raw_folders(tmp_path: Path) -> None:
    pairs = make()
    (tmp_path / "raw").mkdir()
    raw = {key: torch.from_numpy(value) for key, value in to_raw(pairs).items()}
    torch.save(raw, tmp_path / "raw" / "data.pt", _use_new_zipfile_serialization=False)
    assert same(load_pairs(tmp_path), pairs)


def test_edge_order_and_types_do_not_matter(tmp_path: Path) -> None:
    pairs = make()
    raw = to_raw(pairs)
    for name in "ab":
        for start, stop in zip(raw[f"slices_{name}"], raw[f"slices_{name}"][1:], strict=False):
            raw[f"edge_index_{name}"][:, start:stop] = raw[f"edge_index_{name}"][:, start:stop][:, ::-1].copy()
    narrow = {key: value.astype(np.int8 if key == "wl_scores" else np.uint16) for key, value in raw.items()}
    assert same(load_pairs(write_npz(narrow, tmp_path)), pairs)


def change(key: str, function: Callable[[np.ndarray], Any]) -> Callable[[Raw], None]:
    def spoil(raw: Raw) -> None:
        raw[key] = np.asarray(function(raw[key].copy()))

    return spoil


def put(key: str, place: Any, value: Any) -> Callable[[Raw], None]:
    def at(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change(key, at)


def drop_reverse(raw: Raw) -> None:
    """Takes one direction of the first edge of the first pair's second graph away."""
    raw["edge_index_b"] = raw["edge_index_b"][:, 1:]
    raw["slices_b"] = np.maximum(raw["slices_b"] - 1, 0)


def repeat_edges(raw: Raw) -> None:
    raw["edge_index_a"] = np.concatenate([raw["edge_index_a"][:, :1], raw["edge_index_a"]], axis=1)
    raw["slices_a"] = raw["slices_a"] + (np.arange(len(raw["slices_a"])) > 0)


def no_pairs(raw: Raw) -> None:
    for name in "ab":
        raw[f"edge_index_{name}"] = raw[f"edge_index_{name}"][:, :0]
        raw[f"slices_{name}"] = np.zeros(1, dtype=np.int64)
        raw[f"sizes_{name}"] = raw[f"sizes_{name}"][:0]
    raw["wl_scores"] = raw["wl_scores"][:0]


MALFORMED: dict[str, tuple[Callable[[Raw], Any], str, str]] = {
    **{f"{key} missing": (lambda raw, key=key: raw.pop(key), key, "is missing") for key in RAW_KEYS},
    **{f"{key} floats": (change(key, lambda a: a.astype(np.float32)), key, "float32") for key in RAW_KEYS},
    "edges of wrong shape": (change("edge_index_a", lambda a: a.T), "edge_index_a", "shape"),
    "slices short": (change("slices_a", lambda a: a[:-1]), "slices_a", "(12,)"),
    "slices fall": (put("slices_a", 3, 0), "slices_a", "falls after entry 2"),
    "slices start late": (put("slices_b", 0, 1), "slices_b", "runs from 1"),
    "slices run past the end": (put("slices_b", -1, 10_000), "slices_b", "10000"),
    "scores short": (change("wl_scores", lambda a: a[:-1]), "wl_scores", "(11,)"),
    "score 0": (put("wl_scores", 4, 0), "wl_scores", "is 0 at pair 4"),
    "sizes differ": (put("sizes_b", 2, 9), "sizes_b", "at pair 2"),
    "node past the size": (put("edge_index_a", (0, 0), 6), "edge_index_a", "6 -> 1 of pair 0"),
    "self-loop": (put("edge_index_a", (1, 0), 0), "edge_index_a", "0 -> 0 of pair 0 is a self-loop"),
    "one direction": (drop_reverse, "edge_index_b", "1 -> 0 of pair 0 lacks its reverse"),
    "edge twice": (repeat_edges, "edge_index_a", "more than once"),
    "no pairs": (no_pairs, "wl_scores", "holds no pairs"),
    "no nodes": (lambda raw: [put(f"sizes_{s}", 1, 0)(raw) for s in "ab"], "sizes_a", "0 nodes"),
    "giant graph": (lambda raw: [put(f"sizes_{s}", 1, 2**30)(raw) for s in "ab"], "sizes_a", str(2**30)),
}


@pytest.mark.parametrize("write", [write_npz, write_pt])
@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_content(tmp_path: Path, name: str, write: Callable[[Raw, Path], Path]) -> None:
    spoil, key, fault = MALFORMED[name]
    raw = to_raw(make())
    spoil(raw)
    message = message_of(write({k: np.ascontiguousarray(v) for k, v in raw.items()}, tmp_path))
    assert f": {key}: " in message
    assert fault in message
    assert "expected: " in message


def test_node_of_a_padded_place_is_refused(tmp_path: Path) -> None:
    """A node id that other, larger graphs of the file have, but not this one."""
    raw = to_raw(make())
    pair = int(np.flatnonzero(raw["sizes_a"] < 6)[0])
    raw["edge_index_a"][0, raw["slices_a"][pair]] = 5
    assert f"of pair {pair} names a node" in message_of(write_npz(raw, tmp_path))


def test_missing_places(tmp_path: Path) -> None:
    assert "no such file" in message_of(tmp_path / "absent.npz")
    assert "raw/data.pt" in message_of(tmp_path)


@pytest.mark.parametrize("kind", ["own", "npz", "pt"])
def test_truncated_files(tmp_path: Path, kind: str) -> None:
    pairs = make()
    if kind == "own":
        path = tmp_path / "own.pairs.npz"
        save_pairs(pairs, path)
    else:
        path = {"npz": write_npz, "pt": write_pt}[kind](to_raw(pairs), tmp_path)
    whole = path.read_bytes()
    for length in [0, 1, 10, *range(100, len(whole), len(whole) // 15), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "cannot be read" in message_of(path)


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.write_text, (self.target, "it ran")


def test_no_file_can_run_code(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    raw = to_raw(make())
    torch.save({**raw, "wl_scores": Bomb(target)}, tmp_path / "data.pt")
    np.savez(tmp_path / "plain.npz", **{**raw, "wl_scores": np.array([Bomb(target)], dtype=object)})
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Bomb(target)))
    for name in ("data.pt", "plain.npz", "pickle.npz"):
        message_of(tmp_path / name)
    assert not target.exists()


def rewrite(path: Path, **changes: Any) -> None:
    """The file's arrays again, with some replaced (None takes one away)."""
    with np.load(path) as archive:
        content = {key: archive[key] for key in archive.files} | changes
    np.savez_compressed(path, **{key: value for key, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "key", "fault"),
    [
        ({"version": np.array(dataset.VERSION + 1)}, "version", "newer"),
        ({"version": np.array(0)}, "version", "expected: a number"),
        ({"version": np.array("one")}, "version", "expected: a number"),
        ({"version": None}, "version", "missing"),
        ({"format": np.array("something else")}, "format", "something else"),
        ({"checksum": None}, "checksum", "missing"),
        ({"wl_scores": np.full(12, 2, dtype=np.int32)}, "checksum", "does not fit"),
        ({"checksum": np.array("0" * 64)}, "checksum", "does not fit"),
        ({"slices_b": None}, "slices_b", "missing"),
    ],
)
def test_own_format_is_checked(tmp_path: Path, changes: dict[str, Any], key: str, fault: str) -> None:
    path = tmp_path / "own.pairs.npz"
    save_pairs(make(), path)
    rewrite(path)
    load_pairs(path)
    rewrite(path, **changes)
    message = message_of(path)
    assert f": {key}: " in message
    assert fault in message


def test_scores_of_other_graphs_are_refused(tmp_path: Path) -> None:
    """The label is in the scores: sixty pairs of different graphs are not sixty true claims."""
    raw = to_raw(make())
    for key, value, fault in (
        (7, -1, "1 rounds of refinement tell"),
        (7, 3, "is 3 at pair 7"),
        (2, 2, "2 rounds do not tell"),
    ):
        wrong = raw["wl_scores"].copy()
        wrong[key] = value
        for write in (write_npz, write_pt):
            message = message_of(write({**raw, "wl_scores": wrong}, tmp_path))
            assert f"wl_scores: is {value} at pair {key}" in message
            assert fault in message


def test_graphs_that_refinement_takes_for_equal_are_no_true_claim(tmp_path: Path) -> None:
    """A hexagon and two triangles."""
    rings = ([(i, (i + 1) % 6) for i in range(6)], [(i + k, (i + 1) % 3 + k) for k in (0, 3) for i in range(3)])
    adjacency = np.zeros((1, 2, 6, 6), dtype=np.uint8)
    for side, ring in enumerate(rings):
        for one, other in ring:
            adjacency[0, side, one, other] = adjacency[0, side, other, one] = 1
    pairs = GraphPairs(torch.from_numpy(adjacency), torch.tensor([6]), torch.tensor([-1], dtype=torch.int32))
    save_pairs(pairs, tmp_path / "own.npz")
    assert "its graphs are not isomorphic" in message_of(tmp_path / "own.npz")
