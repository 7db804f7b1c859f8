"""Numbers derived from names: where looking for a free one begins, so that a name keeps its own."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterator

from essaim.model.names import MachineName

#: Where the user-mode network of a machine's access card may be, in order of preference.
_INNER = ("10.0.2.0/24", "172.31.254.0/24", "192.168.254.0/24")
#: Multicast groups for cluster networks: 230.0.0.1 … 230.255.255.254.
_GROUPS = 1 << 24
_GROUP_PORTS = (20000, 30000)
_MACS = 1 << 40
_FEW = 64


def _number(*words: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:8], "big")


def port_candidates(
    name: MachineName, plane: str, within: tuple[int, int], taken: Collection[int] = ()
) -> Iterator[int]:
    """Every port of a range that is not taken, beginning with the one the name points at."""
    first, last = within
    count = last - first + 1
    start = _number("port", plane, str(name)) % count
    for step in range(count):
        port = first + (start + step) % count
        if port not in taken:
            yield port


def group_candidates(stack: str, plane: str, taken: Collection[int] = ()) -> Iterator[int]:
    """Some numbers of multicast groups that are not taken."""
    start = _number("group", plane, stack)
    numbers = ((start + step) % (_GROUPS - 2) + 1 for step in range(_FEW + len(taken)))
    return (number for number in numbers if number not in taken)


def group_address(number: int) -> tuple[str, int]:
    """The address and port of a multicast group."""
    address = ipaddress.IPv4Address((230 << 24) + number)
    first, last = _GROUP_PORTS
    return str(address), first + number % (last - first)


def mac_candidates(name: MachineName, plane: str) -> Iterator[int]:
    """Some numbers of network cards."""
    start = _number("mac", plane, str(name))
    return ((start + step) % _MACS for step in range(_FEW))


def mac_address(number: int, *, access: bool = False) -> str:
    """The address of one of a machine's two cards: locally administered, never a group's."""
    octets = bytes([0x06 if access else 0x02]) + number.to_bytes(5, "big")
    return ":".join(f"{octet:02x}" for octet in octets)


def inner_network(cidr: str) -> str:
    """A user-mode network for the access card that does not overlap the stack's."""
    block = ipaddress.IPv4Network(cidr)
    free = (inner for inner in _INNER if not ipaddress.IPv4Network(inner).overlaps(block))
    return next(free, _INNER[0])
