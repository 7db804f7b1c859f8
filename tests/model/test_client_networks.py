"""Whose word counts about where a client is."""

from __future__ import annotations

import pytest

from essaim.model.client_networks import client_network, parse_networks, real_client

TRUSTED = parse_networks("10.0.0.0/8, fd00::/8 192.0.2.1")


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        # Nobody in between, or nobody who is trusted.
        ("198.51.100.7", [], "198.51.100.7"),
        ("198.51.100.7", ["203.0.113.1"], "198.51.100.7"),
        # What a trusted one says, and what stands left of it is only claimed.
        ("10.1.1.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.1.1", ["203.0.113.1", " 198.51.100.7 "], "198.51.100.7"),
        ("10.1.1.1", ["203.0.113.1", "198.51.100.7", "192.0.2.1", "fd00::5"], "198.51.100.7"),
        ("::ffff:10.1.1.1", ["198.51.100.7"], "198.51.100.7"),
        # Inside it may be somebody as well.
        ("10.1.1.1", ["10.2.2.2"], "10.2.2.2"),
        ("10.1.1.1", [], "10.1.1.1"),
        # What is no address is not believed.
        ("10.1.1.1", ["198.51.100.7", "unknown"], "10.1.1.1"),
        ("10.1.1.1", ["198.51.100.7", ""], "10.1.1.1"),
        ("", ["198.51.100.7"], ""),
    ],
)
def test_addresses_are_read_from_the_right_as_far_as_they_are_trusted(peer, said, client):
    assert real_client(peer, said, TRUSTED) == client


@pytest.mark.parametrize("text", ["10.0.0.1/8", "lab", "10.0.0.0/33", "*"])
def test_what_is_no_network_is_refused(text):
    with pytest.raises(ValueError, match=r"network|address|host bits"):
        parse_networks(text)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_an_address_or_a_network(address, network):
    assert client_network(address) == network
