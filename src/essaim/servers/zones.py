"""Which records a host needs, and which zone each of them goes to."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from essaim.model.school import Host

_VERSION_4 = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One record, the only one of its name.  Names are in lower case, without a dot at the end."""

    zone: str
    name: str
    kind: str  #: A, AAAA, CNAME or PTR
    value: str

    @property
    def relative(self) -> str:
        """Its name within the zone; @ for the zone itself."""
        return self.name.removesuffix(self.zone).removesuffix(".") or "@"


def records(host: Host, zones: Sequence[str]) -> list[Record]:
    """The record of its own name first, then aliases, then the way back where a zone is for it.

    RejectedError when a name is in none of the zones.
    """
    address = ipaddress.ip_address(host.address)
    name = plain(host.name)
    wanted = [
        (name, "A" if address.version == _VERSION_4 else "AAAA", str(address)),
        *((plain(alias), "CNAME", name) for alias in host.aliases),
        (address.reverse_pointer, "PTR", name),
    ]
    # The longest first: a record belongs to the innermost zone.
    ordered = sorted(map(plain, zones), key=len, reverse=True)
    found = []
    for own, kind, value in wanted:
        zone = next((zone for zone in ordered if _inside(own, zone)), "")
        if zone:
            found.append(Record(zone, own, kind, value))
        elif kind != "PTR" or any(_inside(zone, _family(own)) for zone in ordered):
            raise RejectedError(
                f"{own} is in none of the zones {', '.join(zones)}",
                hint="add its zone to dns.zones of the site, or change the name",
            )
    return found


def plain(name: str) -> str:
    """A name as it compares."""
    return name.rstrip(".").lower()


def is_reverse(zone: str) -> bool:
    """Whether a zone leads from addresses to names."""
    return plain(zone).endswith(".arpa")


def _family(pointer: str) -> str:
    """Where all ways back of the same family are: in-addr.arpa or ip6.arpa."""
    return ".".join(pointer.split(".")[-2:])


def _inside(name: str, zone: str) -> bool:
    return name == zone or name.endswith(f".{zone}")
