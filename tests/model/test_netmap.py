"""Networks seen under other addresses."""

from __future__ import annotations

import pytest

from essaim.model.netmap import translate

SEEN = {"192.168.0.0/16": "10.1.0.0/16", "192.168.79.0/24": "127.168.79.0/24"}


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("192.168.79.170", "127.168.79.170"),  # the narrowest network counts
        ("192.168.80.9", "10.1.80.9"),
        ("192.168.0.0", "10.1.0.0"),
        ("192.169.0.1", "192.169.0.1"),
    ],
)
def test_an_address_is_the_same_host_of_the_network_it_is_seen_in(address, seen):
    assert translate(address, SEEN) == seen
