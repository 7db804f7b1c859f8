"""Keeps the audit trail.

Who acts adds a row with one INSERT.  Transactions end in another order than they numbered their
rows in, so a row gets its place in the chain, and its hash, only when all can see it: one process
at a time seals what is there.  A chain by itself does not tell that its end was cut off, so the
newest link is kept apart, and said in the log.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.audit import Entry, Link, Sealed, chain_hash, read_link
from essaim.store.audit.table import audit
from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds
from essaim.store.schema import setting, slot

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

#: The row that is locked by whoever seals.
SEALING = "audit-seal"
#: Settings: the newest link, and the last one that was pruned.
HEAD, ANCHOR = "audit-head", "audit-anchor"
#: Rows that are sealed, or read, at once.
BATCH = 500
LONGEST = 190  #: of a column

ADD = sa.insert(audit).values(at=db_now()).inline()
# Ordered by both, or PostgreSQL may walk along all rows to find that none lacks its place.
OPEN = (
    sa.select(audit).where(audit.c.place.is_(None)).order_by(audit.c.place, audit.c.id).limit(BATCH)
)
LOCK = sa.select(slot.c.name).where(slot.c.name == SEALING).with_for_update()
SEAL = (
    sa.update(audit)
    .where(audit.c.id == bindparam("b_id"))
    .values(place=bindparam("b_place"), previous=bindparam("b_previous"), hash=bindparam("b_hash"))
)
SETTING = sa.select(setting.c.value).where(setting.c.name == bindparam("b_name"))
PUT = sa.update(setting).where(setting.c.name == bindparam("b_name"))


class AuditLog:
    """The audit trail of one control plane."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._slot_made = False

    def add(self, entries: Sequence[Entry]) -> None:
        """Keep entries, all in one transaction."""
        rows = [_row(each) for each in entries]
        self._database.write(lambda c: c.execute(ADD, rows))

    def seal(self) -> Link | None:
        """Chain what is not chained yet; return the newest link, or None when all was."""
        newest = None
        while self._database.read(lambda c: c.execute(OPEN.limit(1)).first()) is not None:
            self._make_slot()
            newest = self._database.write(self._seal_some)
        return newest

    def head(self) -> Link:
        """Return the newest link, as it is kept apart from the chain."""
        return self._link(HEAD)

    def anchor(self) -> Link:
        """Return the link after which the chain begins: what came before was pruned."""
        return self._link(ANCHOR)

    def chain(self) -> Iterator[Sealed]:
        """Give what is sealed, in the order of its places."""
        after = -1
        while True:
            wanted = (
                sa.select(audit).where(audit.c.place > after).order_by(audit.c.place).limit(BATCH)
            )
            rows = self._database.read(functools.partial(_all, wanted))
            yield from map(_sealed, rows)
            if len(rows) < BATCH:
                return
            after = rows[-1].place

    def entries(
        self, *, since: int = 0, who: str = "", after: int = 0, limit: int = 100
    ) -> list[Sealed]:
        """List what was sealed after a place and a time, the oldest first: a person's, or all."""
        wanted = sa.select(audit).where(audit.c.place > after, audit.c.at >= since)
        if who:
            wanted = wanted.where(sa.or_(audit.c.name == who, audit.c.who == who))
        ordered = wanted.order_by(audit.c.place).limit(limit)
        return [_sealed(row) for row in self._database.read(lambda c: c.execute(ordered).all())]

    def prune(self, older_than: float) -> int:
        """Forget entries older than so many seconds, and keep the link after them."""
        self.seal()
        old = sa.select(audit.c.place, audit.c.hash).where(
            audit.c.at < db_now() - milliseconds(older_than), audit.c.place.is_not(None)
        )
        last = self._database.read(
            lambda c: c.execute(old.order_by(audit.c.place.desc()).limit(1)).first()
        )
        if last is None:
            return 0
        # First the link, then the rows: cut short in between, the chain only begins too early.
        self._database.write(lambda c: _put(c, ANCHOR, Link(place=last.place, hash=last.hash)))
        return self._database.delete(audit, audit.c.place <= last.place)

    def _link(self, name: str) -> Link:
        kept = self._database.read(lambda c: c.execute(SETTING, {"b_name": name}).scalar())
        return read_link(kept)

    def _seal_some(self, connection: Connection) -> Link:
        connection.execute(LOCK).one()
        link = read_link(connection.execute(SETTING, {"b_name": HEAD}).scalar())
        sealed: list[dict[str, Any]] = []
        for row in connection.execute(OPEN).all():
            place = link.place + 1
            digest = chain_hash(link.hash, place, row.at, _entry(row))
            sealed.append(
                {"b_id": row.id, "b_place": place, "b_previous": link.hash, "b_hash": digest}
            )
            link = Link(place=place, hash=digest)
        if sealed:
            connection.execute(SEAL, sealed)
            _put(connection, HEAD, link)
        return link

    def _make_slot(self) -> None:
        if not self._slot_made:
            row = self._database.insert_missing(slot).values(name=SEALING)
            self._database.write(lambda c: c.execute(row))
            self._slot_made = True


def _all(wanted: sa.Select[Any], connection: Connection) -> Sequence[Row[Any]]:
    return connection.execute(wanted).all()


def _put(connection: Connection, name: str, link: Link) -> None:
    if connection.execute(PUT.values(value=str(link)), {"b_name": name}).rowcount == 0:
        connection.execute(sa.insert(setting).values(name=name, value=str(link)))


def _row(entry: Entry) -> dict[str, Any]:
    said = {key: value[:LONGEST] for key, value in asdict(entry).items() if key != "details"}
    return {**said, "details": json.dumps(entry.details, sort_keys=True)}


def _entry(row: Row[Any]) -> Entry:
    try:
        details = json.loads(row.details)
    except ValueError:  # somebody changed it: the hash will tell
        details = {"unreadable": row.details}
    return Entry(
        action=row.action,
        outcome=row.outcome,
        who=row.who,
        name=row.name,
        address=row.address,
        object=row.object,
        request=row.request,
        details=details,
    )


def _sealed(row: Row[Any]) -> Sealed:
    return Sealed(
        place=row.place, at=row.at, entry=_entry(row), previous=row.previous, hash=row.hash
    )
