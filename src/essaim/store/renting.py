"""Taking nodes for leases within one transaction, so that nobody else gets the same.

Who wants a node locks its row, passing over rows that others have locked at that moment.  Whoever
fails to get what they want queues, and looks at the queue again once that is written: so a node
that was passed over, and then not taken by the one who had locked it, is still given out.
"""

from __future__ import annotations

import json
import random
import secrets
import string
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import UnknownError
from essaim.model.fleet import Lease, LeaseState, NodeState
from essaim.model.runs import NewRun
from essaim.plan.placement import place, suits
from essaim.store.adding import add_new, site_of
from essaim.store.events import tell
from essaim.store.fleet import NODES
from essaim.store.rows import from_lease, to_lease, to_node
from essaim.store.schema import lease, node, pulse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.engine import Connection

    from essaim.model.fleet import Node, User, Wish

#: Candidates read at first, which nearly always do, and then at once.
FIRST_PAGE = 48
PAGE = 256

#: These lock the rows they read on the way to those they return, and of all joined tables.
READS_TOO_MUCH = frozenset({"mariadb", "mysql"})

#: Of an account's name, which is also the lease's.
LETTERS = string.ascii_lowercase + string.digits

_FREE = (node.c.state == NodeState.READY.value, node.c.drained.is_(sa.false()))

CANDIDATES = (
    NODES.where(
        *_FREE,
        node.c.cores >= bindparam("b_cores"),
        node.c.memory >= bindparam("b_memory"),
        pulse.c.failures == 0,
        pulse.c.beat_at >= bindparam("b_since"),
    )
    .order_by(node.c.cores, node.c.memory, node.c.id)
    .limit(bindparam("b_most"))
)
AFTER = CANDIDATES.where(
    sa.or_(
        node.c.cores > bindparam("b_last_cores"),
        sa.and_(
            node.c.cores == bindparam("b_last_cores"),
            sa.or_(
                node.c.memory > bindparam("b_last_memory"),
                sa.and_(
                    node.c.memory == bindparam("b_last_memory"),
                    node.c.id > bindparam("b_last_id"),
                ),
            ),
        ),
    )
)
# What nobody else is looking at, found and locked at once.
TAKE = CANDIDATES.with_for_update(of=node, skip_locked=True)
_LOCK = (
    sa.select(node.c.id)
    .where(node.c.id.in_(bindparam("b_nodes", expanding=True)), *_FREE)
    .order_by(node.c.id)
)
LOCK = _LOCK.with_for_update(skip_locked=True)
AWAIT = _LOCK.with_for_update()
_HELD = sa.update(node).values(state=NodeState.HELD.value, lease=bindparam("b_lease"), reason="")
HOLD = _HELD.where(node.c.id.in_(bindparam("b_nodes", expanding=True)))
HOLD_ONE = _HELD.where(node.c.id == bindparam("b_node"))
GONE = (NodeState.LOST.value, NodeState.QUARANTINED.value)
SERVING = NODES.where(node.c.state.not_in(GONE), node.c.drained.is_(sa.false()))
INSERT = sa.insert(lease)
LEASE = sa.select(lease).where(lease.c.id == bindparam("b_lease"))
LOCK_LEASE = LEASE.with_for_update()
QUEUED = (
    sa.select(lease)
    .where(lease.c.state == LeaseState.QUEUED.value)
    .order_by(lease.c.asked_at, lease.c.id)
)
GRANT = (
    sa.update(lease)
    .where(lease.c.id == bindparam("b_lease"), lease.c.state == LeaseState.QUEUED.value)
    .values(
        state=LeaseState.GRANTED.value,
        nodes=bindparam("b_nodes"),
        run=bindparam("b_run"),
        granted_at=bindparam("b_now"),
        expires_at=bindparam("b_until"),
    )
)


class Able:
    """Says whether the fleet could fulfil a wish if all of it were free; looks once, if at all."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._nodes: list[Node] | None = None

    def __call__(self, wish: Wish) -> bool:
        """Whether there are enough nodes of the kind."""
        if self._nodes is None:
            self._nodes = [to_node(row) for row in self._connection.execute(SERVING)]
        return sum(suits(each, wish) for each in self._nodes) >= wish.count


def free(since: int) -> sa.Select[Any]:
    """Select the nodes that may be given out, seen well since then."""
    return NODES.where(*_FREE, pulse.c.failures == 0, pulse.c.beat_at >= since)


def one(wish: Wish) -> Wish:
    """Return the wish for a single machine of the same kind."""
    return replace(wish, count=1)


def candidates(connection: Connection, wish: Wish, now: int, fresh: float) -> Iterator[list[Node]]:
    """Page through the nodes that may serve a wish but for its labels; none is locked.

    The smallest come first, equals in any order, a new one each time, so that many who ask at
    once seldom collide.
    """
    statement, after = CANDIDATES, AFTER
    if wish.site:
        here = node.c.site == wish.site
        statement, after = statement.where(here), after.where(here)
    since = now - round(fresh * 1000)
    wanted = {"b_cores": wish.cores, "b_memory": wish.memory, "b_since": since}
    most = max(FIRST_PAGE, wish.count)
    while True:
        rows = connection.execute(statement, {**wanted, "b_most": most}).all()
        page = [to_node(row) for row in rows]
        random.shuffle(page)
        yield page
        if len(rows) < most:
            return
        last = rows[-1]
        statement, most = after, PAGE
        wanted |= {
            "b_last_cores": last.cores,
            "b_last_memory": last.memory,
            "b_last_id": last.id,
        }


def choose(connection: Connection, wish: Wish, now: int, fresh: float) -> tuple[Node, ...] | None:
    """Lock nodes for all of a wish and return them, or None."""
    if not wish.labels and connection.dialect.name not in READS_TOO_MUCH:
        return _take(connection, wish, now, fresh)
    pages = candidates(connection, wish, now, fresh)
    pool: list[Node] = []
    got: list[Node] = []
    while len(got) < wish.count:
        left = replace(wish, count=wish.count - len(got))
        chosen = place(left, pool, now, fresh)
        if chosen is None:
            page = next(pages, None)
            if page is None:
                return None
            pool += page
            continue
        tried = {each.id for each in chosen}
        pool = [each for each in pool if each.id not in tried]
        locked = set(connection.execute(LOCK, {"b_nodes": sorted(tried)}).scalars())
        got += [each for each in chosen if each.id in locked]
    return tuple(got)


def _take(connection: Connection, wish: Wish, now: int, fresh: float) -> tuple[Node, ...] | None:
    """Do it in one statement, as far as SQL can tell what suits."""
    statement = TAKE.where(node.c.site == wish.site) if wish.site else TAKE
    wanted = {"b_cores": wish.cores, "b_memory": wish.memory, "b_most": wish.count}
    rows = connection.execute(statement, {**wanted, "b_since": now - round(fresh * 1000)}).all()
    return tuple(to_node(row) for row in rows) if len(rows) == wish.count else None


def hold(connection: Connection, lease_id: str, nodes: Sequence[str]) -> None:
    """Give locked nodes to a lease."""
    if len(nodes) == 1:
        connection.execute(HOLD_ONE, {"b_node": nodes[0], "b_lease": lease_id})
    else:
        connection.execute(HOLD, {"b_nodes": list(nodes), "b_lease": lease_id})


def held_by(lease_id: str) -> sa.ColumnElement[bool]:
    """Name the nodes that a lease has."""
    return node.c.lease == lease_id


def start_run(
    connection: Connection, workflow: str, lease_id: str, run_id: str, who: str, *, node: str = ""
) -> None:
    """Add a run that works on a lease, within the transaction that makes it necessary."""
    run = NewRun(
        id=run_id,
        workflow=workflow,
        subject=lease_id,
        input={"lease": lease_id, "node": node} if node else {"lease": lease_id},
        who=who,
        site=site_of(connection, held_by(lease_id)),
    )
    add_new(connection, run)


def insert(
    connection: Connection,
    *,
    user: User,
    wish: Wish,
    public_key: str,
    request: str | None,
    nodes: Sequence[str] | None,
    now: int,
) -> Lease:
    """Write a new lease: granted with its nodes, which are locked, or queued."""
    key = "l-" + "".join(secrets.choice(LETTERS) for _ in range(8))
    granted = nodes is not None
    made = Lease(
        id=key,
        user=user.id,
        project=user.project,
        wish=wish,
        public_key=public_key,
        state=LeaseState.GRANTED if granted else LeaseState.QUEUED,
        account=key,
        nodes=tuple(nodes or ()),
        run=f"rent-{key}" if granted else "",
        asked_at=now,
        granted_at=now if granted else None,
        expires_at=now + wish.seconds * 1000 if granted else None,
    )
    connection.execute(INSERT, {**from_lease(made), "request": request})
    if granted:
        hold(connection, key, made.nodes)
        start_run(connection, "rent", key, made.run, user.name)
    _tell(connection, made)
    return made


def _tell(connection: Connection, made: Lease) -> None:
    granted = made.state is LeaseState.GRANTED
    kind, verb = ("lease.granted", "gets") if granted else ("lease.queued", "waits for")
    machines = "1 machine" if made.wish.count == 1 else f"{made.wish.count} machines"
    tell(connection, kind, f"{verb} {machines}", lease=made.id, user=made.user)


def grant(connection: Connection, waiting: Lease, nodes: Sequence[Node], now: int) -> Lease | None:
    """Give nodes to a waiting lease; None when a node or the lease is no longer what it was."""
    ids = [each.id for each in nodes]
    # Waits for rows rather than passing over them: they were free a moment ago.
    locked = connection.execute(AWAIT, {"b_nodes": sorted(ids)}).scalars().all()
    if len(locked) < len(ids):
        return None
    values = {
        "b_lease": waiting.id,
        "b_nodes": json.dumps(ids),
        "b_run": f"rent-{waiting.id}",
        "b_now": now,
        "b_until": now + waiting.wish.seconds * 1000,
    }
    if connection.execute(GRANT, values).rowcount == 0:
        return None
    hold(connection, waiting.id, ids)
    start_run(connection, "rent", waiting.id, f"rent-{waiting.id}", "the queue")
    made = to_lease(connection.execute(LEASE, {"b_lease": waiting.id}).one())
    _tell(connection, made)
    return made


def locked_lease(connection: Connection, lease_id: str) -> Lease:
    """Return a lease that nobody else changes until the transaction ends."""
    row = connection.execute(LOCK_LEASE, {"b_lease": lease_id}).one_or_none()
    if row is None:
        raise UnknownError(f"no lease {lease_id}", hint="essaim leases lists yours")
    return to_lease(row)
