"""Two machines with an account for the lease, and a gateway before them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivers.lab import lab
from essaim.model.stacks import Image
from essaim_lab import computer
from gateway.rig import ACCOUNT, Fleet, new_key, public, running
from testcache import images

IMAGE = Image(
    name="test-gateway",
    builder="debian",
    digest="test-gateway-1",
    settings={
        "suite": "bookworm",
        "packages": ["openssh-server", "iproute2", "procps", "python3-minimal", "rsync"],
    },
)


def pytest_collection_modifyitems(items):
    """What makes a user on a machine is root there, and here."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "machines" in item.fixturenames:
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def _tools():
    wanted = {"mmdebstrap": "mmdebstrap", "ssh": "openssh-client", "rsync": "rsync"}
    computer.need(wanted)


@pytest.fixture(scope="session")
def machines(_tools, tmp_path_factory):
    """A lab and its machines; on each, the account the gateway's key can log in to."""
    if os.geteuid():
        pytest.skip("entering namespaces needs root")
    rootfs = images().build(IMAGE, lambda _line: None)
    with lab(rootfs, tmp_path_factory.mktemp("gateway")) as made:
        new_key(made.key.parent / "client")
        names = made.up(made.stack(), 1, 2)
        for name in names:
            made.run(name, account(ACCOUNT, public(made.key)))
        yield made, names


def account(name: str, key: str) -> str:
    return (
        f"useradd -m -p '*' -s /bin/bash {name} && cd /home/{name} && mkdir .ssh && "
        f"echo '{key}' >.ssh/authorized_keys && chmod 700 .ssh && chown -R {name}: . && chmod 700 ."
    )


@pytest.fixture
def empty_fleet(machines, tmp_path):
    made, names = machines
    fleet = Fleet(made, tmp_path, names)
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(empty_fleet):
    """The first machine holds the lease, and a gateway runs."""
    empty_fleet.lease()
    with running(empty_fleet.make_gateway()):
        yield empty_fleet
