"""What a school asks of its servers: names, addresses, desktops, people.

All verbs are safe to repeat, raise only our errors, and change nothing that is not theirs: a record
or a reservation of somebody else is refused with TakenError, never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody of a roster: a student, or a teacher."""

    login: str
    name: str = ""
    mail: str = ""
    group: str = ""  #: their class
    uid: int = 0  #: of the directory; 0 when it says none
    home: str = ""  #: where the NFS server keeps their files
    key: str = ""  #: SSH public key, without its comment


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine as the servers of a network know it."""

    name: str  #: full, such as vm-alice.school.example.org
    address: str  #: IPv4 or IPv6, without its mask
    mac: str = ""  #: lower case with colons
    aliases: tuple[str, ...] = ()  #: full names that lead to `name`


class Names(Protocol):
    """A DNS server: address, reverse and alias records of hosts."""

    def name(self, host: Host) -> None:
        """Make its records."""

    def unname(self, host: Host) -> None:
        """Remove its records.  Nothing if they are gone, or belong to another address now."""

    def named(self) -> Mapping[str, str]:
        """The address of every name of the zones."""


class Addresses(Protocol):
    """A DHCP server: which card is given which address."""

    def admit(self, host: Host) -> None:
        """Let the card have the address and the name from its next question on."""

    def dismiss(self, host: Host) -> None:
        """Give neither any more.  Nothing if it is gone, or belongs to another card now."""

    def admitted(self) -> Sequence[Host]:
        """Every host that was admitted, with its card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desktop:
    """A way into a machine from a browser."""

    name: str  #: what the person reads; unique within a group
    protocol: str  #: rdp, vnc or ssh
    address: str
    port: int
    group: str = ""
    people: tuple[str, ...] = ()  #: logins that may use it
    #: What the protocol is told besides; may hold a password.
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


class Desktops(Protocol):
    """A remote desktop gateway."""

    def publish(self, desktop: Desktop) -> None:
        """Let exactly its people use it; accounts are made where they are missing."""

    def withdraw(self, name: str, group: str = "") -> None:
        """Let nobody use it any more.  Nothing if it is gone.  Accounts stay."""

    def published(self) -> Sequence[Desktop]:
        """Every desktop there."""


class Directory(Protocol):
    """Where a school keeps its people."""

    def members(self, group: str) -> Sequence[Person]:
        """The people of a group, and of the groups in it, by login.  UnknownError for no group."""
