"""Several processes of one control plane."""

from __future__ import annotations

import pytest

from controllers.plane import Services


@pytest.fixture
def plane(database, tmp_path):
    return Services(database, tmp_path)


@pytest.fixture
def planes(database, tmp_path):
    """Three processes that know nothing of each other."""
    return [Services(database, tmp_path) for _ in range(3)]
