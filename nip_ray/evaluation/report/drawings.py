"""Coordinates of the pictures beside a transcript: graphs, images, points and trees, for the template.

Decisions that matter here:
- layouts are computed when the page is written, from the instance alone: the same run gives the same page;
- a picture is read from an untrusted file. Malformed data make no picture and raise nothing; only numbers and our own
  texts get into a drawing.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.report.source import Record, finite

Floats = npt.NDArray[np.float64]

SIDE = 240.0  # of a square drawing, in its own units
_MARGIN = 26.0
MAX_NODES, MAX_EDGES = 60, 400  # of one graph that is drawn
MAX_PIXELS = 512  # along a side
MAX_POINTS = 200
MAX_POSITIONS = 300  # of a tree
MAX_FRAMES = 20  # of a game that is drawn round by round


def graphs(picture: Record) -> list[dict[str, Any]] | None:
    """For a picture of kind "graphs": for each graph its nodes (number, symbol, x, y) and edges (x1, y1, x2, y2)."""
    size, parts = picture.get("size"), picture.get("graphs")
    if not isinstance(size, int) or not 0 < size <= 10_000 or not isinstance(parts, list) or not 0 < len(parts) <= 4:
        return None
    drawn = [_graph(part, index, size) for index, part in enumerate(parts)]
    return None if any(one is None for one in drawn) else [one for one in drawn if one is not None]


def _graph(part: Any, index: int, size: int) -> dict[str, Any] | None:
    nodes = _whole_numbers(part.get("nodes") if isinstance(part, dict) else None)
    if not nodes or len(nodes) > MAX_NODES or len(set(nodes)) < len(nodes):
        return None
    place = {number: i for i, number in enumerate(nodes)}
    edges = []
    for edge in part["edges"] if isinstance(part.get("edges"), list) else []:
        ends = _whole_numbers(edge)
        if ends and len(ends) == 2 and ends[0] in place and ends[1] in place and len(edges) < MAX_EDGES:
            edges.append((place[ends[0]], place[ends[1]]))
    xy_V2 = laid_out(len(nodes), edges)
    at = [(round(float(x), 1), round(float(y), 1)) for x, y in xy_V2]
    return {
        "name": chr(ord("A") + index),
        "nodes": [{"number": n, "symbol": index * size + n, "x": at[i][0], "y": at[i][1]} for i, n in enumerate(nodes)],
        "edges": [(*at[i], *at[j]) for i, j in edges],
    }


def laid_out(count: int, edges: Sequence[tuple[int, int]]) -> Floats:
    """(V, 2) places in the drawing, with distances close to those in the graph.

    Stress majorisation (Gansner, Koren, North 2004, weights 1 / d^2), started on a circle, so it is deterministic.
    """
    angle_V = 2 * np.pi * np.arange(count) / max(1, count)
    xy_V2 = np.stack([np.sin(angle_V), -np.cos(angle_V)], 1) * max(1.0, count / 5)
    if count > 2:
        wanted_VV = _distances(count, edges)
        weight_VV = np.where(wanted_VV > 0, 1 / np.maximum(wanted_VV, 1e-9) ** 2, 0.0)
        for _ in range(60):
            difference_VV2 = xy_V2[:, None] - xy_V2[None]
            length_VV = np.maximum(np.linalg.norm(difference_VV2, axis=-1), 1e-6)
            pulled_VV2 = xy_V2[None] + (wanted_VV / length_VV)[..., None] * difference_VV2
            xy_V2 = (weight_VV[..., None] * pulled_VV2).sum(1) / weight_VV.sum(1)[:, None]
    return _fitted(xy_V2)


def _distances(count: int, edges: Sequence[tuple[int, int]]) -> Floats:
    """(V, V) lengths of shortest paths; slightly more than the longest between unconnected parts."""
    far_VV = np.full((count, count), np.inf)
    np.fill_diagonal(far_VV, 0)
    for i, j in edges:
        far_VV[i, j] = far_VV[j, i] = min(1.0, far_VV[i, j])
    for k in range(count):  # Floyd, Warshall
        far_VV = np.minimum(far_VV, far_VV[:, k : k + 1] + far_VV[k : k + 1])
    longest = far_VV[np.isfinite(far_VV)].max()
    return np.where(np.isfinite(far_VV), far_VV, longest + 1.0)


def _fitted(xy_V2: Floats) -> Floats:
    """The same shape, scaled to the square within its margins."""
    low_2, high_2 = xy_V2.min(0), xy_V2.max(0)
    scale = (SIDE - 2 * _MARGIN) / max(float((high_2 - low_2).max()), 1e-9)
    return SIDE / 2 + (xy_V2 - (low_2 + high_2) / 2) * min(scale, SIDE)


def image(picture: Record) -> dict[str, Any] | None:
    """For a picture of kind "image": its PNG as a data URI, its size, its class, the places of its grid by symbol."""
    pixels = _pixels(picture.get("pixels"))
    grid = _whole_numbers(picture.get("grid"))
    if pixels is None or not grid or len(grid) != 2 or not all(1 <= n <= 128 for n in grid):
        return None
    height, width = pixels.shape[:2]
    high = round(SIDE * height / width, 1)
    cell_w, cell_h = SIDE / grid[1], high / grid[0]
    cells = [
        {"symbol": r * grid[1] + c, "x": round(c * cell_w, 2), "y": round(r * cell_h, 2)}
        for r in range(grid[0])
        for c in range(grid[1])
    ]
    return {
        "uri": _png(pixels),
        "caption": f"class {picture['class']}" if _whole_numbers([picture.get("class")]) else "",
        "width": SIDE,
        "height": high,
        "rows": grid[0],
        "columns": grid[1],
        "cells": cells,
        "w": round(cell_w, 2),
        "h": round(cell_h, 2),
    }


def _pixels(value: Any) -> npt.NDArray[np.uint8] | None:
    """(H, W, 3 or 1) bytes, or None if invalid."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not all(1 <= n <= MAX_PIXELS for n in array.shape[:2]):
        return None
    return (np.clip(np.nan_to_num(array), 0, 1) * 255).round().astype(np.uint8)


def _png(pixels: npt.NDArray[np.uint8]) -> str:
    """The PNG, enlarged to at least 100 or so pixels in squares: browsers blur what they enlarge."""
    from PIL import Image  # a dependency of matplotlib

    times = max(1, math.ceil(160 / max(pixels.shape[:2])))
    big = pixels.repeat(times, 0).repeat(times, 1)
    file = io.BytesIO()
    Image.fromarray(big[..., 0] if big.shape[2] == 1 else big).save(file, "PNG", optimize=False)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def positions(record: Record) -> list[dict[str, Any]] | None:
    """A drawing for each position of an episode of Hironaka's game: points, axes, the host's choice and the agent's."""
    found = record.get("positions")
    if not isinstance(found, list) or not found:
        return None
    drawn = [_position(one) for one in found[:MAX_FRAMES]]
    return None if any(one is None for one in drawn) else [one for one in drawn if one is not None]


def _position(one: Any) -> dict[str, Any] | None:
    """round: of the protocol, in which the host chooses; the agent answers in the next."""
    if not isinstance(one, dict):
        return None
    try:
        points = np.asarray(one.get("points"), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if (
        points.ndim != 2
        or not 1 <= len(points) <= MAX_POINTS
        or not 2 <= points.shape[1] <= 12
        or not np.isfinite(points).all()
    ):
        return None
    xy_N2, axes = _flat(points)
    texts = [f"({', '.join(f'{x:g}' for x in point)})" for point in points.tolist()]
    return {
        "round": 2 * int(finite(one.get("round")) or 0),
        "count": len(points),
        "points": [
            {"x": round(float(x), 1), "y": round(float(y), 1), "text": text} for (x, y), text in zip(xy_N2, texts)
        ],
        "listed": ", ".join(texts),
        "axes": axes,
        "choice": _coordinates(one.get("choice")),
        "axis": _coordinates([one.get("axis")]) if one.get("axis") is not None else "",
    }


def _flat(points_ND: Floats) -> tuple[Floats, list[tuple[float, float, float, float, str]]]:
    """Places (N, 2) in the drawing, and the axes: (x1, y1, x2, y2, name). Two coordinates are upright, three seen from
    a corner; more are drawn like three, with all directions spread over the upper half."""
    dimension = points_ND.shape[1]
    if dimension == 2:
        ways_D2 = np.array([[1.0, 0.0], [0.0, -1.0]])
    else:
        angle_D = np.linspace(math.radians(210), math.radians(-30), dimension)
        ways_D2 = np.stack([np.cos(angle_D), -np.sin(angle_D)], 1)
    share_ND = points_ND / max(float(np.abs(points_ND).max()), 1e-9)
    xy_N2, ends_D2 = share_ND @ ways_D2, ways_D2
    everything = _fitted(np.concatenate([xy_N2, ends_D2, np.zeros((1, 2))]))
    origin = everything[-1]
    axes = [
        (round(float(origin[0]), 1), round(float(origin[1]), 1), round(float(x), 1), round(float(y), 1), f"x{i}")
        for i, (x, y) in enumerate(everything[len(points_ND) : -1])
    ]
    return everything[: len(points_ND)], axes


def _coordinates(value: Any) -> str:
    numbers = _whole_numbers(value)
    return ", ".join(f"x{n}" for n in numbers) if numbers else ""


def tree(record: Record) -> dict[str, Any] | None:
    """For the resolution tree of an episode: places of its positions, its branches, and the size of the drawing."""
    root = record.get("tree")
    if not isinstance(root, dict):
        return None
    places: list[dict[str, Any]] = []
    branches: list[tuple[float, float, float, float, str]] = []
    leaves, deepest = 0, 0

    def place(node: Mapping[str, Any], depth: int) -> float:
        nonlocal leaves, deepest
        deepest = max(deepest, depth)
        children = (
            [child for child in node["children"] if isinstance(child, dict)]
            if isinstance(node.get("children"), list)
            else []
        )
        if depth >= 8 or len(places) + len(children) > MAX_POSITIONS:
            children = []
        below = [(place(child, depth + 1), _coordinates([child.get("axis")])) for child in children]
        if below:
            x = sum(at for at, _ in below) / len(below)
        else:
            x, leaves = 20.0 + 30.0 * leaves, leaves + 1
        y = 24.0 + 62.0 * depth
        count = int(finite(node.get("count")) or 0)
        places.append(
            {
                "x": round(x, 1),
                "y": y,
                "count": count,
                "over": node.get("over") is True,
                "choice": _coordinates(node.get("choice")),
            }
        )
        branches.extend((round(x, 1), y, round(at, 1), y + 62.0, name) for at, name in below)
        return x

    place(root, 0)
    return {
        "places": places,
        "branches": branches,
        "width": 20.0 + 30.0 * max(leaves, 3),
        "height": 62.0 * deepest + 48.0,
    }


def _whole_numbers(value: Any) -> list[int] | None:
    """A list of non-negative integers, or None."""
    if not isinstance(value, list | tuple) or not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 10**9 for n in value
    ):
        return None
    return list(value)
