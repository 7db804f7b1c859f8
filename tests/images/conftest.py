"""Packages downloaded once for all, so that no test waits for a mirror twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from drivers.plain_user import plain_user
from essaim.images.cache import Images
from essaim.model.stacks import Image

BASE = Image(
    name="test-base",
    builder="debian",
    digest="test-base-1",
    settings={
        "suite": "bookworm",
        "packages": ["openssh-server", "iproute2", "procps", "iputils-ping", "python3-minimal"],
    },
)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The cache all tests that need machines use."""
    kept = os.environ.get("ESSAIM_TEST_CACHE")
    return (Path(kept) if kept else Path.home() / ".cache" / "essaim-tests") / "images"


@pytest.fixture(scope="session")
def base(shared) -> Path:
    return Images(shared).build(BASE, lambda _line: None)


@pytest.fixture
def cache(tmp_path, base, shared) -> Path:
    """An empty cache that need not download anything."""
    place = tmp_path / "cache"
    shutil.copytree(shared / "archives", place / "archives", copy_function=os.link)
    return place


@pytest.fixture(scope="session")
def somebody():
    if os.geteuid() != 0:
        pytest.skip("only root can make a user; without root the other tests are this one")
    with plain_user("-img") as user:
        yield user
