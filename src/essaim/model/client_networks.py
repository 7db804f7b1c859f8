"""Where clients come from: the network that counts as one client, and proxies that are believed."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Collection, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: The IPv6 prefix that one client has.
OWN_PREFIX = 64


def client_network(address: str) -> str:
    """A client has one IPv4 address, but a whole /64 of IPv6."""
    parsed = _parse(address)
    if parsed is None:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(ipaddress.ip_network((parsed, OWN_PREFIX), strict=False))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read networks and addresses separated by spaces or commas; ValueError when one is neither."""
    words = text.replace(",", " ").split()
    return tuple(ipaddress.ip_network(word) for word in words)


def real_client(peer: str, forwarded: Sequence[str], trusted: Collection[Network]) -> str:
    """The client's address, by the word of trusted proxies alone.

    `forwarded` are the addresses of X-Forwarded-For from left to right.  Each proxy adds on the
    right whom it saw, so they are read from there as long as the one who says it is trusted; what
    stands further left is the client's own claim.
    """
    believed = peer
    for said in reversed(forwarded):
        if not is_in(believed, trusted) or _parse(said) is None:
            break
        believed = said.strip()
    return believed


def is_in(address: str, networks: Collection[Network]) -> bool:
    """Say whether an address is of one of these networks."""
    parsed = _parse(address)
    return parsed is not None and any(
        parsed.version == each.version and parsed in each for each in networks
    )


@functools.lru_cache(maxsize=4096)
def _parse(address: str) -> Address | None:
    try:
        parsed = ipaddress.ip_address(address.strip().partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed
