"""What happened, told once, in an order in which nobody who reads along misses anything.

Who changes something tells of it in the same transaction, with one INSERT.  Transactions end in
another order than they numbered their rows in, so a row gets its place in the stream only when it
can be seen by all, and one reader at a time gives out places.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds, to_event
from essaim.store.schema import event, lease, node, slot

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from essaim.model.fleet import Event

#: The row that is locked by whoever gives places to events.
PLACES = "event-places"

#: Events that get their places in one transaction, which keeps it short.
BATCH = 500

LONGEST = 190  #: of a column

#: Kinds that a person has to look at.
URGENT = frozenset({"node.quarantined", "fleet.blind", "lease.failed"})

# Inline: nobody asks for its number.
TELL = sa.insert(event).values(at=db_now()).inline()
_TOLD = ("at", "kind", "body", "lease", "node", "person", "urgent")
_KIND: sa.BindParameter[str] = bindparam("b_kind", type_=sa.String())
_BODY: sa.BindParameter[str] = bindparam("b_body", type_=sa.String())
_URGENT: sa.BindParameter[bool] = bindparam("b_urgent", type_=sa.Boolean())
_NONE = sa.literal("", sa.String())
# Whose lease and which node it is, the database knows: one statement rather than two.
OF_LEASE = sa.insert(event).from_select(
    _TOLD,
    sa.select(db_now(), _KIND, _BODY, lease.c.id, _NONE, lease.c.person, _URGENT).where(
        lease.c.id == bindparam("b_id")
    ),
)
OF_NODE = sa.insert(event).from_select(
    _TOLD,
    sa.select(db_now(), _KIND, node.c.name + _BODY, _NONE, node.c.id, _NONE, _URGENT).where(
        node.c.id == bindparam("b_id")
    ),
)

# Ordered by both, or PostgreSQL may walk along all events to find that none lacks its place.
UNPLACED = (
    sa.select(event.c.id)
    .where(event.c.place.is_(None))
    .order_by(event.c.place, event.c.id)
    .limit(BATCH)
)
LOCK = sa.select(slot.c.name).where(slot.c.name == PLACES).with_for_update()
LAST = sa.select(sa.func.coalesce(sa.func.max(event.c.place), 0))
PLACE = sa.update(event).where(event.c.id == bindparam("b_id")).values(place=bindparam("b_place"))


def tell(
    connection: Connection,
    kind: str,
    text: str,
    *,
    lease: str = "",
    node: str = "",
    user: str = "",
) -> None:
    """Tell of something within the transaction in which it happens."""
    connection.execute(TELL, _row(kind, text, lease=lease, node=node, user=user))


def _row(kind: str, text: str, *, lease: str, node: str, user: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "body": text,
        "lease": lease,
        "node": node,
        "person": user,
        "urgent": kind in URGENT,
    }


def tell_lease(connection: Connection, kind: str, lease_id: str, text: str) -> None:
    """Tell the owner of a lease, within the transaction in which something happens to it."""
    _tell_of(connection, OF_LEASE, kind, lease_id, text)


def tell_node(connection: Connection, kind: str, node_id: str, text: str) -> None:
    """Tell operators of a node; the text goes on after the node's name."""
    _tell_of(connection, OF_NODE, kind, node_id, f" {text}")


def _tell_of(connection: Connection, how: sa.Insert, kind: str, key: str, text: str) -> None:
    values = {"b_kind": kind, "b_id": key, "b_body": text, "b_urgent": kind in URGENT}
    connection.execute(how, values)


class Events:
    """Keeps events.  Their ids grow without any that appears later between two that were read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._slot_made = False

    def tell(
        self,
        kind: str,
        text: str,
        *,
        lease: str = "",
        node: str = "",
        user: str = "",
        urgent: bool = False,
        once: str = "",
    ) -> None:
        """Keep an event; one with the same `once` as an earlier one is that one."""
        values = _row(kind, text, lease=lease, node=node, user=user)
        values["once"] = _short(once) if once else None
        values["urgent"] |= urgent
        keep = self._database.insert_missing(event).values(at=db_now(), **values)
        self._database.write(lambda c: c.execute(keep))

    def since(self, after: int, *, user: str | None = None, limit: int = 200) -> list[Event]:
        """List the events after one, the oldest first: a person's, or (None) all there are."""
        self._place()
        wanted = sa.select(event).where(event.c.place > after).order_by(event.c.place).limit(limit)
        if user is not None:
            wanted = wanted.where(event.c.person == user)
        return [to_event(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def last(self) -> int:
        """Return the id of the newest event, or 0."""
        self._place()
        newest: int = self._database.read(lambda c: c.execute(LAST).scalar_one())
        return newest

    def prune(self, older_than: float) -> int:
        """Forget events older than so many seconds, but never the newest; return how many."""
        self._place()
        old = event.c.at < db_now() - milliseconds(older_than)
        # The newest stays, so that places are never given out twice.
        newest = self._database.read(lambda c: c.execute(LAST).scalar_one())
        return self._database.delete(event, sa.and_(old, event.c.place < newest))

    def _place(self) -> None:
        """Give their places to the events that can be seen now."""
        while self._database.read(lambda c: c.execute(UNPLACED.limit(1)).first()) is not None:
            self._make_slot()
            self._database.write(_give_places)

    def _make_slot(self) -> None:
        if not self._slot_made:
            row = self._database.insert_missing(slot).values(name=PLACES)
            self._database.write(lambda c: c.execute(row))
            self._slot_made = True


def _short(text: str) -> str:
    # Two long ones that begin alike are still two.
    return text if len(text) <= LONGEST else hashlib.sha256(text.encode()).hexdigest()


def _give_places(connection: Connection) -> None:
    connection.execute(LOCK).one()
    last = connection.execute(LAST).scalar_one()
    ids = connection.execute(UNPLACED).scalars().all()
    rows: list[dict[str, Any]] = [
        {"b_id": key, "b_place": place} for place, key in enumerate(ids, last + 1)
    ]
    if rows:
        connection.execute(PLACE, rows)
