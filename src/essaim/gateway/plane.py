"""The control plane's answers to the gateway."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from essaim.gateway.routes import Route, SessionStart
from essaim.model.fleet import Lease, LeaseState

if TYPE_CHECKING:
    from essaim.usecases.services import Services

log = logging.getLogger("essaim.audit")

#: Leases that lead somewhere, or will again in a moment.
OPEN = frozenset({LeaseState.ACTIVE, LeaseState.MIGRATING})


class PlaneRoutes:
    """Reads leases and nodes from the store, each time anew: that is what makes moves visible."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def lease(self, account: str) -> Route | None:
        """Say where a lease leads; None when there is no such lease, or it is over."""
        lease = self._services.leases.get(account)
        if lease is None or lease.state not in OPEN or not lease.nodes:
            return None
        return self._route(lease)

    def _route(self, lease: Lease) -> Route | None:
        node = self._services.fleet.get(lease.nodes[0])
        if node is None:
            return None
        moving = lease.state is LeaseState.MIGRATING
        return Route(
            account=lease.account,
            keys=(lease.public_key,),
            node="" if moving else node.id,
            address=node.address,
            port=node.port,
            host_key=node.host_key,
            tunnel=node.tunnel,
            forwarding=True,
            expires_at=(lease.expires_at or 0) / 1000,
        )

    def node_key(self, node: str) -> str | None:
        """Give the public key a node's tunnel must show."""
        return self._services.fleet.tunnel_key(node)

    def opened(self, session: SessionStart) -> str:
        """Record that a session began, or was refused."""
        key = secrets.token_hex(4)
        log.info(
            "session %s: %s from %s with %s on %s%s",
            *(key, session.account, session.client, session.key, session.node),
            f": refused: {session.refused}" if session.refused else "",
        )
        return key

    def closed(self, session_id: str, bytes_in: int, bytes_out: int) -> None:
        """Record that a session ended."""
        log.info("session %s ended: %d bytes in, %d out", session_id, bytes_in, bytes_out)
