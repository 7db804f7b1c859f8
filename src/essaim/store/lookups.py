"""Looking at leases: one, many, the queue, and those that something has to be done about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from essaim.model.fleet import Lease, LeaseState, NodeState
from essaim.plan.health import Policy
from essaim.plan.queue import line_up
from essaim.store import renting
from essaim.store.database import Database, db_now
from essaim.store.fleet import NOW
from essaim.store.rows import milliseconds, to_lease
from essaim.store.schema import lease, node, person

if TYPE_CHECKING:
    import builtins
    from collections.abc import Collection, Sequence

    from sqlalchemy.engine import Connection

_OPEN = lease.c.ended_at.is_(None)
SERVED = lease.c.state.in_([state.value for state in LeaseState if state.served])
COUNTS = sa.select(lease.c.state, sa.func.count()).where(_OPEN).group_by(lease.c.state)
HELD = (
    sa.select(lease.c.person, sa.func.sum(lease.c.machines))
    .where(_OPEN, lease.c.state != LeaseState.QUEUED.value)
    .group_by(lease.c.person)
)
BUSY = sa.select(lease).where(_OPEN, lease.c.state != LeaseState.QUEUED.value)


@dataclass(frozen=True, slots=True)
class Line:
    """Everybody who waits, in the order in which they will be served, and what there is."""

    leases: Sequence[Lease]
    busy: Sequence[Lease]
    free: int
    now: int


class LeaseLookups:
    """Reads leases; changes nothing but by forgetting old ones."""

    def __init__(self, database: Database, policy: Policy | None = None) -> None:
        self._database = database
        self._policy = policy or Policy()
        self._fresh = self._policy.fresh

    def get(self, lease_id: str) -> Lease | None:
        """Return the lease, or None."""
        wanted = {"b_lease": lease_id}
        row = self._database.read(lambda c: c.execute(renting.LEASE, wanted).one_or_none())
        return None if row is None else to_lease(row)

    def list(
        self,
        *,
        user: str | None = None,
        states: Collection[LeaseState] = (),
        after: tuple[int, str] | None = None,
        limit: int = 1000,
    ) -> builtins.list[Lease]:
        """List leases, the newest first: all, a person's, or those in some states.

        With `after`, the `asked_at` and id of one lease, those that come after it in the list.
        """
        wanted = sa.select(lease).order_by(lease.c.asked_at.desc(), lease.c.id).limit(limit)
        if user is not None:
            wanted = wanted.where(lease.c.person == user)
        if states:
            wanted = wanted.where(lease.c.state.in_([state.value for state in states]))
        if after is not None:
            asked, key = after
            same = sa.and_(lease.c.asked_at == asked, lease.c.id > key)
            wanted = wanted.where(sa.or_(lease.c.asked_at < asked, same))
        return self._rows(wanted)

    def counts(self) -> Counter[LeaseState]:
        """Count the open leases in each state."""
        rows = self._database.read(lambda c: c.execute(COUNTS).all())
        return Counter({LeaseState(state): count for state, count in rows})

    def line(self) -> Line:
        """Return who waits, in order, and what their waiting depends on."""

        def body(connection: Connection) -> Line:
            now = connection.execute(NOW).scalar_one()
            queued = [to_lease(row) for row in connection.execute(renting.QUEUED)]
            busy = [to_lease(row) for row in connection.execute(BUSY)] if queued else []
            held = held_by_person(connection) if queued else {}
            free = len(connection.execute(free_nodes(now, self._fresh)).all()) if queued else 0
            return Line(line_up(queued, held), busy, free, now)

        return self._database.read(body)

    def expired(self, limit: int = 100) -> builtins.list[Lease]:
        """List leases whose time is over and that nobody is ending yet, the oldest first."""
        wanted = sa.select(lease).where(SERVED, lease.c.expires_at <= db_now())
        return self._rows(wanted.order_by(lease.c.expires_at).limit(limit))

    def of_disabled(self, limit: int = 100) -> builtins.list[Lease]:
        """List leases that are served although their owner was disabled."""
        owner = sa.select(person.c.id).where(person.c.disabled.is_(sa.true()))
        wanted = sa.select(lease).where(SERVED, lease.c.person.in_(owner))
        return self._rows(wanted.order_by(lease.c.id).limit(limit))

    def warnable(self, before: float, limit: int = 100) -> builtins.list[Lease]:
        """List leases that end within so many seconds and whose owners were not yet told."""
        soon = lease.c.expires_at <= db_now() + milliseconds(before)
        wanted = sa.select(lease).where(SERVED, soon, lease.c.warned_at.is_(None))
        return self._rows(wanted.order_by(lease.c.expires_at).limit(limit))

    def stranded(self, limit: int = 100) -> builtins.list[tuple[Lease, str]]:
        """List leases that are served by a lost node and are not yet being moved, with the node."""
        states = [LeaseState.GRANTED.value, LeaseState.ACTIVE.value]
        wanted = (
            sa.select(lease, node.c.id.label("lost"))
            .join(node, node.c.lease == lease.c.id)
            .where(node.c.state == NodeState.LOST.value, lease.c.state.in_(states))
            .order_by(lease.c.id, node.c.id)
            .limit(limit)
        )
        rows = self._database.read(lambda c: c.execute(wanted).all())
        found = [(to_lease(row), row.lost) for row in rows]
        return [(each, lost) for each, lost in found if lost in each.nodes]

    def prune(self, older_than: float) -> int:
        """Forget leases that ended more than so many seconds ago; return how many."""
        old = lease.c.ended_at < db_now() - milliseconds(older_than)
        return self._database.delete(lease, old)

    def _rows(self, wanted: sa.Select[Any]) -> builtins.list[Lease]:
        return [to_lease(row) for row in self._database.read(lambda c: c.execute(wanted).all())]


def held_by_person(connection: Connection) -> dict[str, int]:
    """Count the machines that each person has."""
    return {user: int(machines) for user, machines in connection.execute(HELD).all()}


def free_nodes(now: int, fresh: float) -> sa.Select[Any]:
    """Select the nodes that may be given out, seen well within so many seconds."""
    return renting.free(now - round(fresh * 1000))
