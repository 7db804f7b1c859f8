"""What the gateway asks of the control plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a lease leads now, and who may go there."""

    account: str  #: the user on the machine, and the name at the gateway
    keys: tuple[str, ...]  #: public keys of the client, as in `authorized_keys`
    node: str  #: empty while no machine holds the lease
    address: str = ""
    port: int = 22
    host_key: str  #: the only one that is believed there
    tunnel: bool = False  #: reached through the connection its agent keeps
    forwarding: bool = False  #: may the client reach ports of the machine's own loopback
    expires_at: float  #: seconds since 1970
    message: str = ""  #: shown when a shell begins


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """Somebody came to the gateway with the right key."""

    account: str
    node: str
    client: str  #: the address they came from
    key: str  #: fingerprint of the key they showed
    started_at: float  #: seconds since 1970
    refused: str = ""  #: why they were not let through; empty when they were


class Routes(Protocol):
    """The control plane as the gateway sees it.  Called in threads; may block."""

    def lease(self, account: str) -> Route | None:
        """Say where a lease leads; None when there is no such lease, or it is over."""

    def node_key(self, node: str) -> str | None:
        """Give the public key a node's tunnel must show; None when it may have none."""

    def opened(self, session: SessionStart) -> str:
        """Record that a session began, or was refused, and give an id for its end."""

    def closed(self, session_id: str, bytes_in: int, bytes_out: int) -> None:
        """Record that a session ended.  Called once for each id that `opened` gave."""
