"""Ends leases whose time is over, warns before, grants the queue, copies homes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from essaim.controllers.crew import Crew
from essaim.model.fleet import Lease, LeaseState, Node
from essaim.model.words import both
from essaim.usecases import leases as leasing
from essaim.workflows.lending import MOST_MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.usecases.services import Services

#: Seconds before its end that the owner of a lease is told.
WARNING = 600.0
#: Seconds between two looks at the clock and the queue.
PACE = 1.0
#: Machines talked to at the same time.
WIDTH = 8
#: Leases read at a time.
PAGE = 500


class Expiry:
    """Ends what is over, or a disabled person's; tells those whose time is nearly over."""

    name = "expiry"

    def __init__(self, services: Services) -> None:
        self._services = services
        self._crew = Crew(self.name, WIDTH)

    def reconcile(self) -> float:
        """End, then warn."""
        services = self._services
        leasing.expire(services)
        # Whoever disabled somebody has done this, unless it died or is of an earlier version.
        leasing.end_disabled(services, "the clock")
        for lease in services.leases.warnable(WARNING):
            self._warn(lease)
        return PACE

    def close(self) -> None:
        """Leave no more messages."""
        self._crew.close()

    def _warn(self, lease: Lease) -> None:
        services, until = self._services, lease.expires_at or 0
        at = time.strftime("%H:%M", time.localtime(until / 1000))
        minutes = max(1, round((until - services.fleet.now()) / 60_000))
        text = both("machine.ends", minutes=minutes, at=at, lease=lease.id)
        # Told before it is kept that they were: told twice is told once.
        services.events.tell(
            "lease.warning", text, lease=lease.id, user=lease.user, once=f"{lease.id} {until}"
        )
        if services.leases.warned(lease.id):
            for node in services.fleet.list(ids=lease.nodes):
                leave = partial(self._leave, lease, node, text)
                self._crew.see_to((lease.id, node.id, until), leave)

    def _leave(self, lease: Lease, node: Node, text: str) -> None:
        lending = self._services.lending
        lending.helper.message(lending.target(node), lease.account, text)


class Queue:
    """Grants waiting leases as machines come back."""

    name = "queue"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Grant what can be granted."""
        leasing.grant_queue(self._services)
        return PACE


class Homes:
    """Copies the homes of active leases, so that a lost machine does not take them along."""

    name = "homes"

    def __init__(
        self, services: Services, *, every: float = 60.0, most_mib: int = MOST_MIB
    ) -> None:
        self._services = services
        self._every = every
        self._most = most_mib
        self._crew = Crew(self.name, WIDTH)

    def reconcile(self) -> float:
        """Have each home copied whose last copy is old; one that takes long delays no other."""
        after: tuple[int, str] | None = None
        while page := self._services.leases.list(
            states=[LeaseState.ACTIVE], after=after, limit=PAGE
        ):
            self._see_to([lease for lease in page if lease.wish.home])
            after = (page[-1].asked_at, page[-1].id)
        return min(self._every, max(1.0, self._every / 10))

    def _see_to(self, leases: Sequence[Lease]) -> None:
        services = self._services
        wanted = {key for lease in leases for key in lease.nodes}
        found = services.fleet.list(ids=wanted) if wanted else []
        nodes = {node.id: node for node in found if services.lending.reaches(node)}
        for lease in leases:
            for place, key in enumerate(lease.nodes):
                if key in nodes and self._due(lease.id, place):
                    copy = partial(self._copy, lease, place, nodes[key])
                    self._crew.see_to((lease.id, place), copy)

    def close(self) -> None:
        """Begin no more copies."""
        self._crew.close()

    def _due(self, lease_id: str, place: int) -> bool:
        last = self._services.lending.homes.copied_at(lease_id, place)
        return last is None or not -self._every < time.time() - last < self._every

    def _copy(self, lease: Lease, place: int, node: Node) -> None:
        lending = self._services.lending
        with lending.homes.alone(lease.id, place) as mine:
            due = mine and self._due(lease.id, place)
            now = self._services.leases.get(lease.id) if due else None
            # It may have been copied, ended or moved while this waited for its turn.
            if now and now.state is LeaseState.ACTIVE and now.nodes == lease.nodes:
                lending.copy_home(now, node, most_mib=self._most)
