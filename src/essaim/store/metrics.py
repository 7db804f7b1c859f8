"""Figures for monitoring that no other part of the store asks for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam
from sqlalchemy.pool import QueuePool

from essaim.model.fleet import LeaseState, NodeState
from essaim.model.runs import RunState
from essaim.store.database import Database, db_now
from essaim.store.schema import lease, node, pulse, run, visit

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

NOW = sa.select(db_now())
# Runs that are over are pruned, so only the others can be counted.
OPEN_RUNS = (
    sa.select(run.c.state, sa.func.count())
    .where(run.c.state.in_([state.value for state in RunState if not state.over]))
    .group_by(run.c.state)
)
OVERDUE = sa.select(sa.func.min(run.c.due_at)).where(run.c.state == RunState.READY.value)
QUEUED_SINCE = sa.select(sa.func.min(lease.c.asked_at)).where(
    lease.c.state == LeaseState.QUEUED.value
)
# Lost and quarantined nodes are silent: their age says nothing new.
SILENT_SINCE = (
    sa.select(sa.func.min(pulse.c.beat_at))
    .join(node, node.c.id == pulse.c.node)
    .where(node.c.state.not_in([NodeState.LOST.value, NodeState.QUARANTINED.value]))
)
OPEN_SESSIONS = sa.select(sa.func.count()).where(visit.c.closed_at.is_(None))
TRAFFIC = (
    sa.select(
        sa.func.count(),
        sa.func.coalesce(sa.func.sum(sa.case((visit.c.refused != "", 1), else_=0)), 0),
        sa.func.coalesce(sa.func.sum(visit.c.bytes_in), 0),
        sa.func.coalesce(sa.func.sum(visit.c.bytes_out), 0),
    )
    .where(visit.c.closed_at > bindparam("b_after"))
    .where(visit.c.closed_at <= bindparam("b_until"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits, and how many seconds the oldest of each kind has waited."""

    runs: Counter[RunState]  #: those that are not over
    overdue: float  #: a run that could be carried and is not
    queued: float  #: a lease that waits for nodes
    silent: float  #: since the oldest last heartbeat of the nodes in service
    sessions: int  #: open at the gateways


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Sessions that ended at the gateways in a period."""

    ended: int = 0
    refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The connections of this process to the database."""

    in_use: int
    idle: int


class Metrics:
    """Reads figures; writes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> int:
        """Return the time of the database's clock, in milliseconds."""
        found: int = self._database.read(lambda c: c.execute(NOW).scalar_one())
        return found

    def backlog(self) -> Backlog:
        """Measure what waits."""

        def body(connection: Connection) -> Backlog:
            now = connection.execute(NOW).scalar_one()

            def age(since: sa.Select[Any]) -> float:
                found = connection.execute(since).scalar()
                return 0.0 if found is None else max(0.0, (now - found) / 1000)

            rows = connection.execute(OPEN_RUNS).all()
            return Backlog(
                runs=Counter({RunState(state): count for state, count in rows}),
                overdue=age(OVERDUE),
                queued=age(QUEUED_SINCE),
                silent=age(SILENT_SINCE),
                sessions=connection.execute(OPEN_SESSIONS).scalar_one(),
            )

        return self._database.read(body)

    def traffic(self, after: int, until: int) -> Traffic:
        """Sum up the sessions that ended after one time and up to another, in milliseconds."""
        period = {"b_after": after, "b_until": until}
        row = self._database.read(lambda c: c.execute(TRAFFIC, period).one())
        ended, refused, bytes_in, bytes_out = (int(value) for value in row)
        return Traffic(
            ended=ended - refused, refused=refused, bytes_in=bytes_in, bytes_out=bytes_out
        )

    def pool(self) -> Pool | None:
        """Count this process's connections; None where they are not pooled."""
        pool = self._database.engine.pool
        if not isinstance(pool, QueuePool):
            return None
        return Pool(in_use=pool.checkedout(), idle=pool.checkedin())
