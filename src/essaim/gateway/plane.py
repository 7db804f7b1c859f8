"""The control plane's answers to the gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from essaim.gateway.routes import Refusal, Route, SessionStart, split
from essaim.model.errors import SetupError
from essaim.model.fleet import Lease, LeaseState, Node
from essaim.model.spelling import meant
from essaim.usecases.leases import RELEASED_BY, TIME_IS_OVER

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: What clients may forward: ports of the machine they rent, or none.
FORWARDING = ("machine", "none")
#: Why a lease that will lead somewhere in a moment does not now.
_WAITS = {LeaseState.GRANTED: "preparing", LeaseState.MIGRATING: "moving"}
#: Seconds for which the owner of a lease that is over is told why.
TOLD_FOR = 30 * 86400


class PlaneRoutes:
    """Reads leases and nodes from the store, each time anew: that is what makes moves visible."""

    def __init__(
        self, services: Services, *, forwarding: str = "machine", gateway: str = ""
    ) -> None:
        if forwarding not in FORWARDING:
            raise SetupError(
                f"ESSAIM_FORWARDING is {forwarding!r}",
                hint=meant(forwarding, FORWARDING, kind="it may be"),
            )
        self._services = services
        self._forwarding = forwarding == "machine"
        self._gateway = gateway

    def lease(self, name: str) -> Route | None:
        """Say where a name leads.

        None when there is no such lease or machine, it has not begun or is over, or its owner may
        no longer use it.
        """
        account, number = split(name)
        lease = self._services.leases.get(account)
        if lease is None or not lease.state.served or number > len(lease.nodes):
            return None
        owner = self._services.people.get(lease.user)
        if owner is None or owner.disabled:
            return None
        return self._route(lease, lease.nodes[number - 1])

    def refusal(self, name: str) -> Refusal | None:
        """Say why a name leads nowhere: the lease is over or waits, or has fewer machines.

        None when there is no such lease, it ended long ago, or its owner may not use it.
        """
        account, number = split(name)
        lease = self._services.leases.get(account)
        if lease is None or (lease.ended_at or _LATER) / 1000 < time.time() - TOLD_FOR:
            return None
        owner = self._services.people.get(lease.user)
        if owner is None or owner.disabled:
            return None
        if lease.state is LeaseState.QUEUED:
            why, fields = "queued", {}
        elif not _over(lease):
            if number <= len(lease.nodes):
                return None
            why = "one_machine" if len(lease.nodes) == 1 else "machines"
            fields = {"count": len(lease.nodes), "number": number}
        else:
            why, fields = _ending(lease, owner.name)
        return Refusal(
            keys=(lease.public_key,), sentence=why, fields={"lease": lease.account, **fields}
        )

    def _route(self, lease: Lease, node_id: str) -> Route | None:
        node = self._services.fleet.get(node_id)
        if node is None:
            return None
        return Route(
            account=lease.account,
            keys=(lease.public_key,),
            node="" if self._closed(lease, node) else node.id,
            waits=_WAITS.get(lease.state, "unheld"),
            address=node.address,
            port=node.port,
            host_key=node.host_key,
            tunnel=node.tunnel,
            forwarding=self._forwarding,
            expires_at=(lease.expires_at or 0) / 1000,
        )

    def _closed(self, lease: Lease, node: Node) -> bool:
        """Say whether this machine of a lease cannot be used just now."""
        if node.lease != lease.id:
            return True
        if lease.state is LeaseState.MIGRATING:
            # The others of the lease go on while one is replaced.
            run = self._services.journal.get(lease.run)
            return run is None or run.input.get("node") == node.id
        return lease.state is not LeaseState.ACTIVE

    def node_key(self, node: str) -> str | None:
        """Give the public key a node's tunnel must show."""
        return self._services.fleet.tunnel_key(node)

    def opened(self, session: SessionStart) -> str:
        """Record that somebody with the right key came."""
        return self._services.visits.opened(
            lease=session.account,
            node=session.node,
            client=session.client,
            key=session.key,
            refused=session.refused,
            through=self._gateway,
        )

    def closed(self, session_id: str, bytes_in: int, bytes_out: int) -> None:
        """Record that they left."""
        self._services.visits.closed(session_id, bytes_in, bytes_out)

    def turned_away(self, session: SessionStart) -> None:
        """Record that somebody without the right key came, if there is such a lease at all."""
        if self._services.leases.get(session.account) is not None:
            self.opened(session)


#: The end of a lease that has none yet, in milliseconds since 1970.
_LATER = 2**62


def _over(lease: Lease) -> bool:
    return not lease.state.served or (lease.expires_at or _LATER) / 1000 <= time.time()


def _ending(lease: Lease, owner: str) -> tuple[str, dict[str, Any]]:
    """Give the sentence that says when and why a lease ended."""
    at = lease.ended_at or min(lease.expires_at or _LATER, round(time.time() * 1000))
    fields = {"when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at / 1000))}
    who = lease.reason.removeprefix(RELEASED_BY)
    if lease.state.served or lease.reason == TIME_IS_OVER:
        return "ran_out", fields
    if who == lease.reason:
        return ("over_because", {**fields, "why": who}) if who else ("ended", {})
    return ("released", fields) if who == owner else ("released_by", {**fields, "who": who})
