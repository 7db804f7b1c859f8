"""Which due runs workers are to be told of.

A message is only a hint, so what was sent is kept beside the run and nothing else: a run is told of
when it became due after the last message about it, and again when nobody came for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.journal import Outbox
from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds
from essaim.store.schema import run
from essaim.store.workers import ALIVE_WITHIN, SERVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection

_FRESH = run.c.sent_at < run.c.due_at
_UNTOLD = (
    run.c.due_at <= db_now(),
    sa.or_(_FRESH, run.c.sent_at < db_now() - bindparam("b_again")),
)
# Nobody is told of a site without a live worker: messages that nobody reads would pile up.
FOUND = (
    sa.select(run.c.id)
    .where(*_UNTOLD, run.c.site.in_(SERVED))
    .order_by(run.c.due_at, run.c.id)
    .limit(bindparam("b_most"))
)
# By their keys alone, and passing over those being claimed or sent: no claim has to wait for this.
LOCKED = (
    sa.select(run.c.id, run.c.site, _FRESH.label("fresh"))
    .where(run.c.id.in_(bindparam("b_runs", expanding=True)), *_UNTOLD)
    .order_by(run.c.due_at, run.c.id)
    .with_for_update(skip_locked=True)
)
SENT = (
    sa.update(run).where(run.c.id.in_(bindparam("b_runs", expanding=True))).values(sent_at=db_now())
)
NEXT = sa.select(sa.func.min(run.c.due_at) - db_now()).where(run.c.due_at > db_now())


def outbox(database: Database, again: float, limit: int) -> Outbox:
    """See `model.journal.Journal.outbox`."""
    values = {"b_again": milliseconds(again)}
    wanted = {**values, "b_within": milliseconds(ALIVE_WITHIN), "b_most": limit}

    def look(connection: Connection) -> tuple[Sequence[str], int | None]:
        ids = connection.execute(FOUND, wanted).scalars().all()
        return ids, None if ids else connection.execute(NEXT).scalar()

    ids, left = database.read(look)
    if not ids:
        return Outbox(fresh={}, stale={}, next_due=None if left is None else left / 1000)
    rows = database.write(lambda c: _mark(c, values, ids))
    return Outbox(
        fresh=_by_site(row for row in rows if row.fresh),
        stale=_by_site(row for row in rows if not row.fresh),
        next_due=0.0,
    )


def _mark(connection: Connection, values: dict[str, Any], ids: Sequence[str]) -> Sequence[Any]:
    rows = connection.execute(LOCKED, {**values, "b_runs": ids}).all()
    if rows:
        connection.execute(SENT, {"b_runs": [row.id for row in rows]})
    return rows


def _by_site(rows: Iterable[Any]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.site, []).append(row.id)
    return found
