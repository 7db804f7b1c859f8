"""A simulated Proxmox VE whose time moves only when a test lets it, and real clients of it."""

from __future__ import annotations

import pytest

from essaim_lab.simulators.proxmox import Simulator, VirtualClock
from lab.proxmox.client import Client


@pytest.fixture
def sim():
    with Simulator(nodes=3, templates=2, clock=VirtualClock()) as it:
        yield it
        assert not it.cluster.kernel.defects


@pytest.fixture
def root(sim):
    return Client(sim)


@pytest.fixture
def person(sim):
    """Makes somebody with a token and these roles: `person("bob", ("/vms/101", "PVEVMUser"))`."""

    def make(name: str, *rights: tuple[str, str], privsep: int = 0) -> Client:
        root = Client(sim)
        root.api.access.users.post(userid=f"{name}@pve")
        for path, role in rights:
            root.api.access.acl.put(path=path, roles=role, users=f"{name}@pve")
        token = root.api.access.users(f"{name}@pve").token("own").post(privsep=privsep)
        return Client(sim, token["full-tokenid"], token["value"])

    return make
