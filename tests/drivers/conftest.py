"""One small image for all, and one plain user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivers.lab import lab
from drivers.plain_user import plain_user, unpack_for
from essaim.images.cache import Images
from essaim.model.stacks import Image
from essaim_lab import computer

BASE = Image(
    name="test-base",
    builder="debian",
    digest="test-base-1",
    settings={
        "suite": "bookworm",
        "packages": ["openssh-server", "iproute2", "procps", "iputils-ping", "python3-minimal"],
    },
)


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    computer.need({"mmdebstrap": "mmdebstrap", "ssh": "openssh-client"})


@pytest.fixture(scope="session")
def rootfs(_tools) -> Path:
    """Built once and kept between runs of the suite."""
    kept = os.environ.get("ESSAIM_TEST_CACHE")
    cache = Path(kept) if kept else Path.home() / ".cache" / "essaim-tests"
    return Images(cache / "images").build(BASE, lambda _line: None)


@pytest.fixture
def it(rootfs, tmp_path):
    with lab(rootfs, tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def somebody():
    """A plain user."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a user; without root the other tests are this one")
    with plain_user() as user:
        yield user


@pytest.fixture(scope="session")
def their_rootfs(somebody, rootfs) -> Path:
    return unpack_for(somebody, rootfs)


@pytest.fixture(scope="module")
def server():
    """An account on a computer where libvirt runs."""
    from hypervisor import hypervisor

    with hypervisor() as made:
        yield made


@pytest.fixture(scope="module")
def disk(server, tmp_path_factory) -> Path:
    """A disk with nothing on it."""
    from drivers.libvirt_lab import blank_disk

    return blank_disk(tmp_path_factory.mktemp("disk") / "blank.qcow2")
