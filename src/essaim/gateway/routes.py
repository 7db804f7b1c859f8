"""What the gateway asks of the control plane."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

_NUMBERED = re.compile(r"(?P<lease>[^.]+)\.(?P<number>[1-9][0-9]{0,3})")


def split(name: str) -> tuple[str, int]:
    """Take a name at the gateway apart: `LEASE.2` is the second machine of LEASE.

    Without a number it is the first one.
    """
    found = _NUMBERED.fullmatch(name)
    return (found["lease"], int(found["number"])) if found else (name, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a name leads now, and who may go there."""

    account: str  #: the user on the machine: the lease, without a number
    keys: tuple[str, ...]  #: public keys of the client, as in `authorized_keys`
    node: str  #: empty while no machine holds the lease
    waits: str = "unheld"  #: why none does: unheld, preparing, moving
    address: str = ""
    port: int = 22
    host_key: str  #: the only one that is believed there
    tunnel: bool = False  #: reached through the connection its agent keeps
    forwarding: bool = False  #: may the client reach ports of the machine's own loopback
    expires_at: float  #: seconds since 1970
    message: str = ""  #: shown when a shell begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a name leads nowhere, for who shows one of these keys."""

    keys: tuple[str, ...]  #: as in `authorized_keys`
    sentence: str  #: its key in `gateway.…`
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """Somebody came to the gateway for a lease."""

    account: str  #: the lease, without a number
    node: str
    client: str  #: the address they came from
    key: str  #: fingerprint of the key they showed
    started_at: float  #: seconds since 1970
    refused: str = ""  #: why they were not let through; empty when they were


class Routes(Protocol):
    """The control plane as the gateway sees it.  Called in threads; may block."""

    def lease(self, name: str) -> Route | None:
        """Say where a name leads; None when there is no such lease or machine, or it is over."""

    def refusal(self, name: str) -> Refusal | None:
        """Say why a name leads nowhere; None when nobody is told."""

    def node_key(self, node: str) -> str | None:
        """Give the public key a node's tunnel must show; None when it may have none."""

    def opened(self, session: SessionStart) -> str:
        """Record that somebody with the right key came, and give an id for their leaving."""

    def closed(self, session_id: str, bytes_in: int, bytes_out: int) -> None:
        """Record that they left.  Called once for each id that `opened` gave."""

    def turned_away(self, session: SessionStart) -> None:
        """Record that somebody without the right key came, if there is such a lease at all."""
