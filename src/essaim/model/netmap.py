"""Networks of a site that this computer sees under other addresses, host by host (1:1 NAT)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping


def translate(address: str, netmap: Mapping[str, str]) -> str:
    """Where this computer finds an address of the site: the same host of the network it sees.

    Of several networks that hold it the narrowest counts; what none holds is where it says.
    """
    host = ipaddress.ip_address(address)
    found = [(network, seen) for inner, seen in netmap.items() if host in (network := _read(inner))]
    if not found:
        return address
    network, seen = max(found, key=lambda each: each[0].prefixlen)
    return str(_read(seen)[int(host) - int(network.network_address)])


def _read(text: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(text)
