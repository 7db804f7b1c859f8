"""Machines for the workflows of leases, raised once for all tests of this folder."""

from __future__ import annotations

import json
import os

import pytest

from workflows.workers import raised


@pytest.fixture(scope="session")
def workers(tmp_path_factory):
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with raised(tmp_path_factory.mktemp("workers")) as up:
        yield up


@pytest.fixture
def rig(workers, kind, new_database, tmp_path):
    """A folder for trials on these machines and an empty database of each kind; with its URL."""
    url = new_database(kind)
    (tmp_path / "rig.json").write_text(json.dumps({"url": url, "folder": str(workers.folder)}))
    return url
