"""Which processes of the control plane live, and whose runs its workers carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.journal import Worker
from essaim.model.runs import RunState
from essaim.store.database import db_now
from essaim.store.rows import fitting, milliseconds
from essaim.store.schema import run, worker

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

#: The kind of process that carries runs.
CARRIES = "worker"
#: Seconds between two signs of life, and after how many without one a process counts as dead.
SEEN_EVERY, ALIVE_WITHIN = 5.0, 20.0
#: Seconds after which nobody asks any more what became of a process.
FORGET_AFTER = 3600.0

SEEN = (
    sa.update(worker)
    .where(worker.c.id == bindparam("b_id"), worker.c.site == bindparam("b_site"))
    .values(seen_at=db_now())
)
GONE = sa.delete(worker).where(worker.c.id == bindparam("b_id"))
LIVE = worker.c.seen_at > db_now() - bindparam("b_within")
ALIVE = sa.select(worker).where(LIVE).order_by(worker.c.kind, worker.c.id, worker.c.site)
#: The sites of live workers, as a condition on runs.
SERVED = sa.select(worker.c.site).where(worker.c.kind == CARRIES, LIVE).distinct()
WAITING = (
    sa.select(run.c.site, sa.func.count())
    .where(run.c.due_at <= db_now(), run.c.state == RunState.READY.value)
    .group_by(run.c.site)
)
DEAD = worker.c.seen_at < db_now() - bindparam("b_within")


class Workers:
    """The processes of one control plane."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.insert_missing(worker).values(
            id=bindparam("b_id"),
            site=bindparam("b_site"),
            kind=bindparam("b_kind"),
            host=bindparam("b_host"),
            pid=bindparam("b_pid"),
            since_at=db_now(),
            seen_at=db_now(),
        )

    def seen(
        self, worker_id: str, sites: Collection[str], host: str, pid: int, kind: str = CARRIES
    ) -> None:
        """Keep that a process lives now; a worker says whose runs it carries."""
        rows = [
            {
                "b_id": worker_id,
                "b_site": site,
                "b_kind": kind,
                "b_host": fitting(host),
                "b_pid": pid,
            }
            for site in sorted(set(sites) or {""})
        ]

        def body(connection: Connection) -> None:
            for row in rows:
                if not connection.execute(SEEN, row).rowcount:
                    connection.execute(self._add, row)

        self._database.write(body)

    def alive(self, within: float = ALIVE_WITHIN) -> list[Worker]:
        """The processes that gave a sign of life in the last so many seconds."""
        wanted = {"b_within": milliseconds(within)}
        found: dict[str, Worker] = {}
        for row in self._database.read(lambda c: c.execute(ALIVE, wanted).all()):
            before = found[row.id].sites if row.id in found else ()
            found[row.id] = Worker(
                id=row.id,
                kind=row.kind,
                sites=(*before, row.site),
                host=row.host,
                pid=row.pid,
                since_at=row.since_at,
                seen_at=row.seen_at,
            )
        return list(found.values())

    def sites(self, within: float = ALIVE_WITHIN) -> set[str]:
        """The sites whose runs a live worker carries; the empty name is runs of no site."""
        wanted = {"b_within": milliseconds(within)}
        return set(self._database.read(lambda c: c.execute(SERVED, wanted).scalars().all()))

    def waiting(self) -> Mapping[str, int]:
        """How many runs are due and taken by nobody, by site."""
        rows = self._database.read(lambda c: c.execute(WAITING).all())
        return {site: count for site, count in rows}  # noqa: C416 - rows are not pairs to mypy

    def gone(self, worker_id: str) -> None:
        """Keep that a process has ended, so that nobody counts on it a moment longer."""
        self._database.write(lambda c: c.execute(GONE, {"b_id": worker_id}))

    def prune(self, older_than: float = FORGET_AFTER) -> int:
        """Forget processes that gave no sign of life for so many seconds."""
        wanted = {"b_within": milliseconds(older_than)}
        old = sa.delete(worker).where(DEAD)
        return self._database.write(lambda c: c.execute(old, wanted).rowcount)
