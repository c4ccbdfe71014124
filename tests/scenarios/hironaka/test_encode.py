"""Classes and subsets, as the published tables number them."""

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import encode

THREE = [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
FOUR = [(0, 1), (0, 2), (1, 2), (0, 1, 2), (0, 3), (1, 3), (0, 1, 3), (2, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2, 3)]


@pytest.mark.parametrize(("dimension", "table"), [(3, THREE), (4, FOUR)])
def test_classes_are_numbered_as_published(dimension: int, table: list[tuple[int, ...]]) -> None:
    assert [tuple(row.nonzero().flatten().tolist()) for row in encode.choices(dimension)] == table


@pytest.mark.parametrize("dimension", range(2, 11))
def test_every_class_has_its_subset_and_every_subset_its_class(dimension: int) -> None:
    table = encode.choices(dimension)
    assert table.shape == (2**dimension - dimension - 1, dimension)
    assert torch.equal(encode.class_of(table), torch.arange(len(table)))
    assert table[-1].all()


@pytest.mark.parametrize("dimension", [1, 11])
def test_other_dimensions_are_refused(dimension: int) -> None:
    with pytest.raises(UserError, match="expected 2 to 10"):
        encode.num_choices(dimension)
