"""Pictures beside transcripts: places that follow from the instance alone, and nothing drawn of what is no picture."""

import base64
import io
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nip_ray.evaluation.report import drawings
from nip_ray.evaluation.report.drawings import SIDE, graphs, image, laid_out


@given(st.integers(1, 12), st.data())
def test_every_graph_gets_places_of_its_own_within_the_drawing(count: int, data: st.DataObject) -> None:
    pairs = list(combinations(range(count), 2))
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    xy_V2 = laid_out(count, edges)
    assert np.isfinite(xy_V2).all()
    assert ((xy_V2 > 0) & (xy_V2 < SIDE)).all()
    assert min([float(np.linalg.norm(xy_V2[i] - xy_V2[j])) for i, j in pairs], default=99.0) > 3
    assert np.array_equal(xy_V2, laid_out(count, edges))


def test_a_symbol_names_a_node_of_one_of_the_graphs() -> None:
    one = {"nodes": [0, 1, 2], "edges": [[0, 1], [1, 2], [5, 6]]}
    drawn = graphs({"kind": "graphs", "size": 4, "graphs": [one, one]})
    assert [[node["symbol"] for node in part["nodes"]] for part in drawn] == [[0, 1, 2], [4, 5, 6]]
    assert [part["name"] for part in drawn] == ["A", "B"]
    assert len(drawn[0]["edges"]) == 2  # the third edge has no nodes


def test_an_image_keeps_its_pixels_and_its_proportions() -> None:
    from PIL import Image

    pixels = [[[0.0], [1.0], [0.5], [0.0]], [[1.0], [0.0], [0.0], [1.0]]]
    drawn = image({"kind": "image", "pixels": pixels, "grid": [1, 2]})
    assert (drawn["width"], drawn["height"]) == (SIDE, SIDE / 2)
    assert [(cell["symbol"], cell["x"], cell["y"]) for cell in drawn["cells"]] == [(0, 0.0, 0.0), (1, SIDE / 2, 0.0)]
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(drawn["uri"].partition(",")[2]))))
    small = picture[:: picture.shape[0] // 2, :: picture.shape[1] // 4]
    assert small.tolist() == [[0, 255, 128, 0], [255, 0, 0, 255]]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["nodes", "edges", "points", "round", "children"]), inner)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["graphs", "image", "positions", "tree"]), st.lists(ANYTHING, min_size=4, max_size=4))
def test_what_is_no_picture_is_not_drawn_and_does_no_harm(kind: str, values: list[Any]) -> None:
    keys = {"graphs": ["size", "graphs"], "image": ["pixels", "grid"], "positions": ["positions"], "tree": ["tree"]}[
        kind
    ]
    getattr(drawings, kind)(dict(zip(keys, values, strict=False)))
