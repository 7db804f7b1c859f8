"""Who came through the gateway, when, for how long, and how much went by."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.database import Database, db_now
from essaim.store.rows import fitting, milliseconds, to_visit
from essaim.store.schema import gateway, lease, visit
from essaim.store.tunnels import ALIVE

if TYPE_CHECKING:
    import builtins

    from essaim.model.fleet import Visit

OWNER = sa.select(lease.c.person).where(lease.c.id == bindparam("b_lease")).scalar_subquery()
# A refused one is over at once.
OPEN = sa.insert(visit).values(
    person=sa.func.coalesce(OWNER, ""),
    opened_at=db_now(),
    closed_at=sa.case((bindparam("b_over", type_=sa.Boolean()), db_now()), else_=None),
    bytes_in=0,
    bytes_out=0,
)
CLOSE = (
    sa.update(visit)
    .where(visit.c.id == bindparam("b_visit"), visit.c.closed_at.is_(None))
    .values(closed_at=db_now(), bytes_in=bindparam("b_in"), bytes_out=bindparam("b_out"))
)
# How much went by, nobody knows any more; of visits without a gateway, nobody knows whose they are.
ABANDON = (
    sa.update(visit)
    .where(
        visit.c.closed_at.is_(None),
        visit.c.gateway != "",
        visit.c.gateway.not_in(sa.select(gateway.c.id).where(ALIVE)),
    )
    .values(closed_at=db_now())
)


class Visits:
    """Keeps visits.  What was typed or sent is not kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def opened(
        self, *, lease: str, node: str, client: str, key: str, refused: str = "", through: str = ""
    ) -> str:
        """Keep that somebody came; return the visit, to be closed.  A refused one is over."""
        made = f"v-{secrets.token_hex(8)}"
        values = {
            "id": made,
            "lease": fitting(lease),
            "b_lease": lease,
            "node": fitting(node),
            "client": fitting(client),
            "public_key": fitting(key),
            "refused": refused,
            "gateway": through,
            "b_over": bool(refused),
        }
        self._database.write(lambda c: c.execute(OPEN, values))
        return made

    def closed(self, visit_id: str, bytes_in: int, bytes_out: int) -> None:
        """Keep that a visit is over, and how much went in and out.  The first time counts."""
        values = {"b_visit": visit_id, "b_in": bytes_in, "b_out": bytes_out}
        self._database.write(lambda c: c.execute(CLOSE, values))

    def abandoned(self) -> int:
        """Keep that visits are over whose gateway is dead; return how many were open."""
        return self._database.write(lambda c: c.execute(ABANDON).rowcount)

    def list(
        self,
        *,
        lease: str | None = None,
        user: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 200,
    ) -> builtins.list[Visit]:
        """List visits, the newest first: all, to a lease, or of a person's leases.

        With `after`, the `opened_at` and id of one visit, those that come after it in the list.
        """
        wanted = sa.select(visit).order_by(visit.c.opened_at.desc(), visit.c.id).limit(limit)
        if lease is not None:
            wanted = wanted.where(visit.c.lease == lease)
        if user is not None:
            wanted = wanted.where(visit.c.person == user)
        if after is not None:
            opened, key = after
            same = sa.and_(visit.c.opened_at == opened, visit.c.id > key)
            wanted = wanted.where(sa.or_(visit.c.opened_at < opened, same))
        return [to_visit(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def prune(self, older_than: float) -> int:
        """Forget visits that began more than so many seconds ago; return how many."""
        old = visit.c.opened_at < db_now() - milliseconds(older_than)
        return self._database.delete(visit, old)
