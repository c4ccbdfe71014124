"""One head for the room: it takes some ten seconds to start."""

from collections.abc import Iterator

import pytest

from tests.jobs.head import Head, ray_head


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    with ray_head(num_cpus=2) as running:
        yield running
