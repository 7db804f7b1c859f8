"""Numbers derived from names: where looking for a free one begins, so that a name keeps its own.

Two control planes that share a range of a cluster rarely want the same, for they begin elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator

from essaim.model.names import MachineName

#: The first half of every card Proxmox VE makes addresses for: registered to it.
_PREFIX = "bc:24:11"
_CARDS = 1 << 24
_FEW = 256
#: A start of a machine as one number: who, and when in milliseconds.
_MOMENTS = 42
_PLACES = 1 << 20


def _number(*words: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:8], "big")


def id_candidates(
    name: MachineName, plane: str, within: tuple[int, int], taken: Collection[int] = ()
) -> Iterator[int]:
    """Every id of a range that is not taken, beginning with the one the name points at."""
    first, last = within
    count = last - first + 1
    start = _number("vmid", plane, str(name)) % count
    for step in range(count):
        number = first + (start + step) % count
        if number not in taken:
            yield number


def card_candidates(name: MachineName, plane: str) -> Iterator[int]:
    """Some numbers of network cards."""
    start = _number("mac", plane, str(name))
    return ((start + step) % _CARDS for step in range(_FEW))


def card_address(number: int) -> str:
    """The address of a card, lower case with colons."""
    octets = number.to_bytes(3, "big")
    return ":".join((_PREFIX, *(f"{octet:02x}" for octet in octets)))


def boot_number(place: int, moment: float) -> int:
    """A number for the start of the machine at that place of its range, at that time.

    Of machines far outside, which were adopted, some share a place: seldom at the same time.
    """
    return ((place % _PLACES) << _MOMENTS) | (int(moment * 1000) & ((1 << _MOMENTS) - 1))


def boot_moment(number: int) -> float:
    """When that start was, in seconds since 1970."""
    return (number & ((1 << _MOMENTS) - 1)) / 1000
