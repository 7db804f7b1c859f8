"""Leases: granted, queued, extended, moved to other nodes, ended.

Every method is one transaction that may be repeated.  Changes of state say from which states they
may happen, so that any number of controllers and runs may try.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import ConflictError, RejectedError
from essaim.model.fleet import Lease, LeaseState, NodeState
from essaim.plan.health import Policy
from essaim.plan.queue import allot, line_up, overtakes
from essaim.plan.quota import longer, refusal
from essaim.store import renting
from essaim.store.database import Database, db_now
from essaim.store.events import tell, tell_lease
from essaim.store.fleet import NODES, NOW
from essaim.store.lookups import SERVED, LeaseLookups, free_nodes, held_by_person
from essaim.store.quotas import owner, owner_of, within
from essaim.store.rows import to_lease, to_node
from essaim.store.schema import lease, node, slot

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy.engine import Connection

    from essaim.model.fleet import Node, Wish

#: The row that is locked by whoever gives nodes to the queue.
QUEUE = "lease-queue"

#: Leases granted in one transaction, which keeps it short.
BATCH = 16

#: A newcomer is compared with so many of those who wait; behind more there is only the queue.
RIVALS = 200

# A lost node that no lease needs any more may be cleaned when it returns.
LET_GO = (
    sa.update(node)
    .where(node.c.lease == bindparam("b_lease"), node.c.state == NodeState.LOST.value)
    .values(lease=None)
)

#: How each state is told.
KINDS = {state: f"lease.{state.value}" for state in LeaseState} | {
    LeaseState.MIGRATING: "lease.moving"
}
TEXTS = {
    LeaseState.ACTIVE: "its machines can be used",
    LeaseState.ENDED: "it has ended",
}

ASKED = sa.select(lease).where(
    lease.c.person == bindparam("b_person"), lease.c.request == bindparam("b_request")
)
LOCK_QUEUE = sa.select(slot.c.name).where(slot.c.name == QUEUE).with_for_update()
SOME_QUEUED = sa.select(lease.c.id).where(lease.c.state == LeaseState.QUEUED.value).limit(1)


class Leases(LeaseLookups):
    """Keeps leases.  A node is given to one of them at a time, whoever asks at the same moment."""

    def __init__(self, database: Database, policy: Policy | None = None) -> None:
        super().__init__(database, policy)
        self._queue_made = False

    def rent(
        self,
        user_id: str,
        wish: Wish,
        public_key: str,
        *,
        request: str = "",
        check: Callable[[Wish, Sequence[Node]], None] | None = None,
    ) -> Lease:
        """Grant a wish now with its run started, or queue it: all in one transaction.

        The same `request` of the same person is the same lease; ConflictError when it was for
        something else.  QuotaError when it is more than they may have; UnauthorisedError when
        they are disabled.  Before a wish is queued, `check` sees all nodes there are, whatever
        their state, and may raise.
        """
        self._short_enough(wish)

        def body(connection: Connection) -> Lease:
            user, now = owner(connection, user_id)
            if request:
                asked = {"b_person": user.id, "b_request": request}
                found = connection.execute(ASKED, asked).one_or_none()
                if found is not None:
                    return _the_same(to_lease(found), wish, public_key)
            within(connection, user, now, lambda quota, used: refusal(wish, quota, used))
            nodes = renting.choose(connection, wish, now, self._fresh)
            if nodes is not None and _overtakes(connection, wish, nodes):
                nodes = None
            if nodes is None and check is not None:
                check(wish, [to_node(row) for row in connection.execute(NODES)])
            return renting.insert(
                connection,
                user=user,
                wish=wish,
                public_key=public_key,
                request=request or None,
                nodes=None if nodes is None else [each.id for each in nodes],
                now=now,
            )

        return self._database.write(body)

    def grant_some(self) -> list[Lease]:
        """Grant waiting leases in the order of the line, a few at a time; those it granted.

        Safe to call from anywhere at once: one after the other looks at the queue.
        """
        if not self._database.read(self._worth_a_look):
            return []
        if not self._queue_made:
            row = self._database.insert_missing(slot).values(name=QUEUE)
            self._database.write(lambda c: c.execute(row))
            self._queue_made = True

        def body(connection: Connection) -> tuple[builtins.list[Lease], bool]:
            connection.execute(LOCK_QUEUE).one()
            now = connection.execute(NOW).scalar_one()
            queued = [to_lease(row) for row in connection.execute(renting.QUEUED)]
            line = line_up(queued, held_by_person(connection))
            free = [to_node(row) for row in connection.execute(free_nodes(now, self._fresh))]
            able = renting.Able(connection)
            granted: builtins.list[Lease] = []
            for waiting, nodes in allot(line, free, now, self._fresh, able)[:BATCH]:
                made = renting.grant(connection, waiting, nodes, now)
                if made is None:
                    return granted, True  # somebody was quicker: the rest may be wrong too
                granted.append(made)
            return granted, False

        granted, raced = self._database.write(body)
        while raced and not granted:
            granted, raced = self._database.write(body)
        return granted

    def _worth_a_look(self, connection: Connection) -> bool:
        if connection.execute(SOME_QUEUED).first() is None:
            return False
        now = connection.execute(NOW).scalar_one()
        return connection.execute(free_nodes(now, self._fresh).limit(1)).first() is not None

    def extend(self, lease_id: str, seconds: int) -> Lease:
        """Let a lease last longer.

        QuotaError when that is more than its owner may have; RejectedError when it has not begun,
        is ending, or would last longer than any may.
        """

        def body(connection: Connection) -> Lease:
            whose = owner_of(connection, lease_id)
            user, now = owner(connection, whose)
            found = renting.locked_lease(connection, lease_id)
            if not found.state.served or found.expires_at is None:
                raise RejectedError(
                    f"lease {lease_id} is {found.state}: only a running lease can be extended",
                    hint="rent again" if found.ended_at else "wait until it is granted",
                )
            hours = found.wish.count * seconds / 3600
            within(connection, user, now, lambda quota, used: longer(hours, quota, used))
            until = found.expires_at + seconds * 1000
            self._within_limit(found, until)
            _renew(connection, lease_id, user.name)
            return _change(connection, lease_id, {"expires_at": until, "warned_at": None})

        return self._database.write(body)

    def hold(self, lease_id: str) -> Lease:
        """Keep the machines of an active lease as long as its wish says, for its owner to look at.

        One that is held already, is not active, or did not wish for it stays as it is.  QuotaError
        when that is more than its owner may have.
        """

        def body(connection: Connection) -> Lease:
            user, now = owner(connection, owner_of(connection, lease_id))
            found = renting.locked_lease(connection, lease_id)
            held = found.held_at is not None or not found.wish.hold
            if held or found.state is not LeaseState.ACTIVE or found.expires_at is None:
                return found
            until = min(now + found.wish.hold * 1000, self._last_end(found))
            hours = found.wish.count * (until - found.expires_at) / 3_600_000
            if hours > 0:
                within(connection, user, now, lambda quota, used: longer(hours, quota, used))
            tell_lease(connection, "lease.held", lease_id, f"it failed; kept until {_date(until)}")
            values = {"expires_at": until, "held_at": now, "warned_at": None}
            _renew(connection, lease_id, user.name)
            return _change(connection, lease_id, values)

        return self._database.write(body)

    def release(self, lease_id: str, *, reason: str = "", who: str = "") -> Lease:
        """Begin to end a lease, with its run started; one that waits is ended at once.

        One that is ending or has ended stays as it is.
        """

        def body(connection: Connection) -> Lease:
            found = renting.locked_lease(connection, lease_id)
            if found.state is LeaseState.QUEUED:
                tell_lease(connection, "lease.ended", lease_id, reason)
                return _change(connection, lease_id, _over(LeaseState.ENDED, reason))
            if not found.state.served:
                return found
            run = f"release-{lease_id}-{secrets.token_hex(3)}"
            renting.start_run(connection, "release", lease_id, run, who)
            values = {"state": LeaseState.ENDING.value, "run": run, "reason": reason}
            tell_lease(connection, "lease.ending", lease_id, reason)
            return _change(connection, lease_id, values)

        return self._database.write(body)

    def move(
        self, lease_id: str, to: LeaseState, *, of: Collection[LeaseState], reason: str = ""
    ) -> bool:
        """Bring a lease that is in one of these states to another; False when it is not.

        With ENDED or FAILED it no longer counts, and lets go of its lost nodes.  The others are
        not touched.
        """
        values = {"state": to.value, "reason": reason} if to.open else _over(to, reason)
        its = (lease.c.id == lease_id, lease.c.state.in_([state.value for state in of]))
        change = sa.update(lease).where(*its).values(**values)

        def body(connection: Connection) -> bool:
            if connection.execute(change).rowcount == 0:
                return False
            if not to.open:
                connection.execute(LET_GO, {"b_lease": lease_id})
            tell_lease(connection, KINDS[to], lease_id, reason or TEXTS.get(to, ""))
            return True

        return self._database.write(body)

    def migrate(self, lease_id: str, node_id: str, *, reason: str = "", who: str = "") -> str:
        """Begin to move a lease off one of its nodes; return the run, or nothing.

        Nothing when the lease does not have that node, is being moved already, or is not served.
        """

        def body(connection: Connection) -> str:
            found = renting.locked_lease(connection, lease_id)
            if found.state not in (LeaseState.GRANTED, LeaseState.ACTIVE):
                return ""
            if node_id not in found.nodes:
                return ""
            run = f"migrate-{lease_id}-{secrets.token_hex(3)}"
            renting.start_run(connection, "migrate", lease_id, run, who, node=node_id)
            values = {"state": LeaseState.MIGRATING.value, "run": run, "reason": reason}
            tell_lease(connection, "lease.moving", lease_id, reason)
            _change(connection, lease_id, values)
            return run

        return self._database.write(body)

    def spare(self, lease_id: str) -> Node | None:
        """Hold one more node for a lease that is being moved, or None when none is free.

        Asked again, it is the same node.
        """

        def body(connection: Connection) -> Node | None:
            found = renting.locked_lease(connection, lease_id)
            mine = NODES.where(
                node.c.lease == lease_id,
                node.c.state == NodeState.HELD.value,
                node.c.id.not_in(found.nodes),
            )
            row = connection.execute(mine.limit(1)).one_or_none()
            if row is not None:
                return to_node(row)
            now = connection.execute(NOW).scalar_one()
            chosen = renting.choose(connection, renting.one(found.wish), now, self._fresh)
            if chosen is None:
                return None
            renting.hold(connection, lease_id, [chosen[0].id])
            return to_node(connection.execute(NODES.where(node.c.id == chosen[0].id)).one())

        return self._database.write(body)

    def switch(self, lease_id: str, old: str, new: str) -> Lease:
        """Let a lease have one node in the place of another, and let go of that if it is lost.

        Done twice, it is done once.
        """

        def body(connection: Connection) -> Lease:
            found = renting.locked_lease(connection, lease_id)
            nodes = [new if each == old else each for each in found.nodes]
            if old in found.nodes:
                tell(
                    connection,
                    "lease.moved",
                    "it is on another machine, at the same address",
                    lease=lease_id,
                    node=new,
                    user=found.user,
                )
            connection.execute(LET_GO.where(node.c.id == old), {"b_lease": lease_id})
            return _change(connection, lease_id, {"nodes": json.dumps(nodes)})

        return self._database.write(body)

    def give_up_waiting(self, user_id: str) -> int:
        """End all that a person waits for; return how many."""
        its = (lease.c.person == user_id, lease.c.state == LeaseState.QUEUED.value)
        waiting = sa.select(lease.c.id).where(*its).order_by(lease.c.id).with_for_update()
        reason = "its owner was disabled"

        def body(connection: Connection) -> int:
            keys = connection.execute(waiting).scalars().all()
            for key in keys:
                _change(connection, key, _over(LeaseState.ENDED, reason))
                tell_lease(connection, "lease.ended", key, reason)
            return len(keys)

        return self._database.write(body)

    def warned(self, lease_id: str) -> bool:
        """Keep that its owner was told of its end; True for the one of many who is to tell."""
        its = (lease.c.id == lease_id, lease.c.warned_at.is_(None), SERVED)
        change = sa.update(lease).where(*its).values(warned_at=db_now())
        return self._database.write(lambda c: c.execute(change).rowcount) > 0

    def _short_enough(self, wish: Wish) -> None:
        if wish.seconds > self._policy.longest:
            raise RejectedError(
                f"a lease lasts at most {self._policy.longest / 3600:g} hours here",
                hint="ask for less",
            )

    def _within_limit(self, found: Lease, until: int) -> None:
        last = self._last_end(found)
        if until > last:
            raise RejectedError(
                f"lease {found.id} ends on {_date(last)} at the latest",
                hint="extend it by less, or rent again then",
            )

    def _last_end(self, found: Lease) -> int:
        return (found.granted_at or found.asked_at) + round(self._policy.longest * 1000)


def _the_same(found: Lease, wish: Wish, public_key: str) -> Lease:
    if (found.wish, found.public_key) != (wish, public_key):
        raise ConflictError(
            f"this idempotency key was used for lease {found.id}, which asked for something else",
            hint="use another key for another wish",
        )
    return found


def _date(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(milliseconds / 1000))


def _overtakes(connection: Connection, wish: Wish, nodes: Sequence[Node]) -> bool:
    rows = connection.execute(renting.QUEUED.limit(RIVALS)).all()
    return len(rows) == RIVALS or overtakes(wish, nodes, map(to_lease, rows))


def _renew(connection: Connection, lease_id: str, who: str) -> None:
    """Have its machines told, which end its accounts by themselves."""
    run = f"renew-{lease_id}-{secrets.token_hex(3)}"
    renting.start_run(connection, "renew", lease_id, run, who)


def _over(state: LeaseState, reason: str) -> dict[str, Any]:
    return {"state": state.value, "reason": reason, "run": "", "ended_at": db_now()}


def _change(connection: Connection, lease_id: str, values: dict[str, Any]) -> Lease:
    connection.execute(sa.update(lease).where(lease.c.id == lease_id).values(**values))
    return to_lease(connection.execute(renting.LEASE, {"b_lease": lease_id}).one())
