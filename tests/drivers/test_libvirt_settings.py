"""What the configuration has checked is what the libvirt driver uses."""

from __future__ import annotations

import pytest

from essaim.config.drivers import read_site
from essaim.config.problems import Problems
from essaim.drivers.libvirt.settings import read

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHUZgQ1rQ1tJqYfY7uJ4m7N4r2h2fP3fV0m2pQe7mCkB"
THERE = {"uri": "qemu+ssh://alice@rhodey.example.org/session", "host_key": KEY}


def settings(**given):
    wrong = []
    problems = Problems(lambda *said: wrong.append(said))
    site = read_site({"name": "rhodey", "driver": "libvirt", **given}, problems)
    assert not wrong
    return read(site)


def test_a_server_needs_an_address_and_its_key_only():
    found = settings(**THERE)
    assert (found.host, found.user, found.port) == ("rhodey.example.org", "alice", 0)
    assert (found.mode, found.remote, found.uri) == ("session", True, THERE["uri"])
    assert (found.pool, found.pool_path, found.accelerator) == ("essaim", "", "auto")
    assert (found.ports, found.network, found.key) == ((22000, 29999), "", "")


@pytest.mark.parametrize("uri", ["qemu:///session", "qemu:///system", "qemu+unix:///session"])
def test_this_computer_needs_no_key(uri):
    found = settings(uri=uri)
    assert not found.remote
    assert found.uri == uri


def test_every_setting_is_taken():
    found = settings(
        uri="qemu+ssh://alice@[fd00::1]:2222/system?proxy=netcat",
        host_key=f"{KEY} a comment",
        key="~/.ssh/id",
        pool={"name": "big", "path": "/srv/vm"},
        network="default",
        accelerator="tcg",
        ports="30000 - 30100",
    )
    assert (found.host, found.port, found.mode) == ("fd00::1", 2222, "system")
    assert found.uri.endswith("?proxy=netcat")
    assert (found.pool, found.pool_path, found.network) == ("big", "/srv/vm", "default")
    assert (found.accelerator, found.ports, found.key) == ("tcg", (30000, 30100), "~/.ssh/id")
    assert settings(**THERE, pool="big").pool == "big"
