"""Fixed addresses: scaling one group never moves a machine of another.

Machines without an index take offsets 10, 11, … in the order of the topology.  Behind them the
indexed groups are interleaved: with S single machines and G indexed groups, machine k of the g-th
group has offset 10 + S + (k - 1) * G + g, whatever the other groups' counts are.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST = 10  #: offsets below are the site's and the user's own
SITE = 1  #: the first host address: the site's end of the network


def offsets(counts: Mapping[str, int | None]) -> dict[str, range]:
    """Give every machine of every group its place in the network; None means a single machine."""
    indexed = [group for group, count in counts.items() if count is not None]
    singles = len(counts) - len(indexed)
    behind = FIRST + singles
    free = iter(range(FIRST, behind))
    result: dict[str, range] = {}
    for group, count in counts.items():
        if count is None:
            start = next(free)
            result[group] = range(start, start + 1)
        else:
            start = behind + indexed.index(group)
            result[group] = range(start, start + count * len(indexed), len(indexed))
    return result


def last_host(network: IPv4Network) -> int:
    """Return the offset of the last address a machine may have."""
    return network.num_addresses - 2


def prefix_for(offset: int) -> int:
    """Return the longest prefix of a network that has room for that offset."""
    return 32 - (offset + 1).bit_length()


def address(network: IPv4Network, offset: int) -> str:
    """Write the address at an offset."""
    return str(IPv4Address(int(network.network_address) + offset))
