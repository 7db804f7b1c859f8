"""One served fleet of a single machine that its tenants may reach, for the attacks that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from endtoend.fleet_rig import Fleet, fleet


@pytest.fixture(scope="session")
def machines() -> Iterator[Fleet]:
    with fleet(1) as made:
        yield made


@pytest.fixture
def its(machines) -> Iterator[Fleet]:
    yield machines
    machines.tidy()
