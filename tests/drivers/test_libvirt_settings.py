"""A site of the libvirt driver says all that is wrong with it, and nothing but that."""

from __future__ import annotations

import pytest

from essaim.drivers.libvirt.settings import PORTS, read
from essaim.model.errors import InvalidError
from essaim.model.stacks import Site

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHUZgQ1rQ1tJqYfY7uJ4m7N4r2h2fP3fV0m2pQe7mCkB"
THERE = {"uri": "qemu+ssh://alice@rhodey.example.org/session", "host_key": KEY}


def site(**settings):
    return Site(name="rhodey", driver="libvirt", settings=settings)


def problems(**settings) -> str:
    with pytest.raises(InvalidError) as caught:
        read(site(**settings))
    return str(caught.value)


def test_a_server_needs_an_address_and_its_key_only():
    found = read(site(**THERE))
    assert (found.host, found.user, found.port) == ("rhodey.example.org", "alice", 0)
    assert (found.mode, found.remote, found.uri) == ("session", True, THERE["uri"])
    assert (found.pool, found.pool_path, found.accelerator) == ("essaim", "", "auto")
    assert (found.ports, found.network, found.key) == (PORTS, "", "")


@pytest.mark.parametrize("uri", ["qemu:///session", "qemu:///system", "qemu+unix:///session"])
def test_this_computer_needs_no_key(uri):
    found = read(site(uri=uri))
    assert not found.remote
    assert found.uri == uri


def test_every_setting_is_taken():
    found = read(
        site(
            uri="qemu+ssh://alice@[fd00::1]:2222/system?proxy=netcat",
            host_key=f"{KEY} a comment",
            key="~/.ssh/id",
            pool={"name": "big", "path": "/srv/vm"},
            network="default",
            accelerator="tcg",
            ports="30000 - 30100",
        )
    )
    assert (found.host, found.port, found.mode) == ("fd00::1", 2222, "system")
    assert found.uri.endswith("?proxy=netcat")
    assert (found.pool, found.pool_path, found.network) == ("big", "/srv/vm", "default")
    assert (found.accelerator, found.ports, found.key) == ("tcg", (30000, 30100), "~/.ssh/id")
    assert read(site(**THERE, pool="big")).pool == "big"


def test_without_the_servers_key_it_is_refused_with_the_command_that_shows_it():
    said = problems(uri="qemu+ssh://alice@rhodey:2222/session")
    assert "host_key" in said
    assert "ssh-keyscan -t ed25519 -p 2222 rhodey" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"uri": ""}, "uri"),
        ({"uri": "http://rhodey/session"}, "uri"),
        ({"uri": "qemu+ssh://rhodey"}, "uri"),
        ({"uri": "qemu+ssh:///session"}, "only qemu+ssh takes the name of a server"),
        ({"uri": "qemu://rhodey/session"}, "only qemu+ssh takes the name of a server"),
        ({"uri": "qemu+tcp://rhodey/system"}, "uri"),
        ({"uri": "qemu+ssh://rhodey:none/session"}, "uri"),
        ({"uri": "qemu+ssh://alice:pass@rhodey/session"}, "holds a password"),
        ({"uri": "qemu+ssh://-oProxyCommand=x/session"}, "cannot name a server"),
        ({"uri": "qemu+ssh://-l@rhodey/session"}, "cannot name a server or an account"),
        ({"uri": "qemu+ssh://rhodey/session?command=/bin/sh"}, "?command= is not for you to say"),
        ({"uri": "qemu+ssh://rhodey/session?no_verify=1"}, "?no_verify= is not for you to say"),
        ({"uri": 7}, "7 is not a text"),
        ({"host_key": "AAAA"}, "host_key: is not a public key"),
        ({"host_key": f"{KEY}\n* {KEY}"}, "host_key: is not a public key"),
        ({"pool": {"title": "x"}}, "pool"),
        ({"pool": {"path": "relative"}}, "pool.path"),
        ({"pool": "../x"}, "pool"),
        ({"network": "a b"}, "network"),
        ({"accelerator": "xen"}, "accelerator: xen is none"),
        ({"ports": "1-100"}, "ports"),
        ({"ports": "29999-22000"}, "ports"),
        ({"ports": 22000}, "ports"),
        ({"hostkey": KEY}, "did you mean host_key?"),
    ],
)
def test_what_is_wrong_is_named(wrong, said):
    assert said in problems(**{**THERE, **wrong})


def test_all_that_is_wrong_is_said_at_once():
    said = problems(uri="qemu+ssh://rhodey/session", accelerator="xen", ports="x")
    assert said.count("site rhodey:") == 3
