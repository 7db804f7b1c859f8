"""A world on SQLite for tests of the API."""

from __future__ import annotations

import pytest

from api.rig import world


@pytest.fixture
def here(new_database):
    with world(new_database("sqlite")) as made:
        yield made
