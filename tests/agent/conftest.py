"""One machine with the agent on it, for every test of this folder that asks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.worker import worker


def pytest_collection_modifyitems(items):
    """Whatever talks to a machine makes one, which takes root."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "box" in item.fixturenames:
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def box(tmp_path_factory):
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path_factory.mktemp("worker")) as one:
        one.install()
        yield one


@pytest.fixture
def lease(box):
    """Make an account that is gone after the test, whatever the test did."""

    def make(account="l-test1", seconds=3600, **more):
        import time

        request = {
            "account": account,
            "keys": [box.keyring.user_public_key()],
            "expires_at": int(time.time()) + seconds,
            **more,
        }
        answer = box.helper("create", request)
        assert answer["ok"], answer
        return account

    yield make
    box.helper("clean", {})
