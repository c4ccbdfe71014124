"""Protocols that a test registers are forgotten when it ends."""

from collections.abc import Iterator

import pytest

from nip_ray.protocols import PROTOCOLS


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    kept = dict(PROTOCOLS)
    yield
    PROTOCOLS.clear()
    PROTOCOLS.update(kept)
