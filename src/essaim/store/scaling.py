"""Which process scales a service, what it saw of it, and what it decided.

All that a decision needs is kept here, so that a stand-by goes on where the other was cut off.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Row, bindparam

from essaim.model.runs import RunState
from essaim.plan.scaling import Backlog, Decision, Sample
from essaim.store.database import Database, db_now
from essaim.store.events import tell
from essaim.store.rows import milliseconds
from essaim.store.schema import run, scaler, scaling

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import Connection

NOW = sa.select(db_now())
LOCK = (
    sa.select(scaler, db_now().label("now"))
    .where(scaler.c.service == bindparam("b_service"))
    .with_for_update()
)
TAKE = (
    sa.update(scaler)
    .where(scaler.c.service == bindparam("b_service"))
    .values(
        owner=bindparam("b_owner"),
        epoch=bindparam("b_epoch"),
        since_at=bindparam("b_since"),
        until_at=db_now() + bindparam("b_lease"),
    )
)
LEAVE = (
    sa.update(scaler)
    .where(scaler.c.service == bindparam("b_service"), scaler.c.owner == bindparam("b_owner"))
    .values(until_at=0)
)
HOLDERS = sa.select(scaler, (scaler.c.until_at - db_now()).label("left")).order_by(scaler.c.service)
_DUE = run.c.due_at <= db_now()
_CARRIED = sa.and_(run.c.due_at > db_now(), run.c.state == RunState.RUNNING.value)
BACKLOG = sa.select(
    sa.func.coalesce(sa.func.sum(sa.case((_CARRIED, 1), else_=0)), 0).label("running"),
    sa.func.coalesce(sa.func.sum(sa.case((_DUE, 1), else_=0)), 0).label("waiting"),
    sa.func.min(run.c.due_at).label("oldest"),
    db_now().label("now"),
).where(run.c.due_at.is_not(None))


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a service at one moment, and what was decided then."""

    sample: Sample
    decision: Decision
    seen: int | None  #: replicas that were there; None when that could not be found out
    trouble: str = ""  #: what went wrong since the look before
    #: CPU seconds each replica had used, and the second since 1970 when it was started.
    counters: Mapping[str, tuple[float | None, float]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether another number was wanted from then on."""
        return self.decision.replicas != self.sample.wanted


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that scales a service."""

    service: str
    owner: str
    epoch: int
    since_at: int
    left: float  #: seconds until another may take over; negative when it is overdue


class Scaling:
    """Keeps who scales, and what they saw and decided."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> int:
        """Milliseconds since 1970 in the database's clock."""
        found: int = self._database.read(lambda c: c.execute(NOW).scalar_one())
        return found

    def take(self, service: str, owner: str, lease: float) -> int | None:
        """Be, or go on to be, the one who scales a service, for so many seconds.

        Returns an epoch that grows with each change of hands; None while it is somebody else.
        """
        first = {"service": service, "owner": "", "epoch": 0, "since_at": 0, "until_at": 0}
        know = self._database.insert_missing(scaler).values(**first)

        def body(connection: Connection) -> int | None:
            row = connection.execute(LOCK, {"b_service": service}).one_or_none()
            if row is None:
                connection.execute(know)
                row = connection.execute(LOCK, {"b_service": service}).one()
            mine = row.owner == owner
            if not mine and row.until_at > row.now:
                return None
            epoch: int = row.epoch if mine else row.epoch + 1
            values = {"b_owner": owner, "b_epoch": epoch, "b_lease": milliseconds(lease)}
            since = row.since_at if mine else row.now
            connection.execute(TAKE, {**values, "b_service": service, "b_since": since})
            return epoch

        return self._database.write(body)

    def leave(self, service: str, owner: str) -> None:
        """Let another take over at once, if it is this one's turn."""
        values = {"b_service": service, "b_owner": owner}
        self._database.write(lambda c: c.execute(LEAVE, values))

    def holders(self) -> list[Holder]:
        """List who scales what."""
        rows = self._database.read(lambda c: c.execute(HOLDERS).all())
        return [
            Holder(row.service, row.owner, row.epoch, row.since_at, row.left / 1000) for row in rows
        ]

    def keep(self, service: str, epoch: int, look: Look) -> bool:
        """Keep a look, and tell operators of a change; False when another has taken over."""

        def body(connection: Connection) -> bool:
            row = connection.execute(LOCK, {"b_service": service}).one_or_none()
            if row is None or row.epoch != epoch:
                return False
            connection.execute(sa.insert(scaling).values(service=service, **_values(look)).inline())
            if look.changed:
                tell(connection, _kind(look), _text(service, look))
            return True

        return self._database.write(body)

    def looks(self, service: str, seconds: float) -> list[Look]:
        """List the looks of the last seconds, the oldest first."""
        since = scaling.c.at >= db_now() - milliseconds(seconds)
        wanted = sa.select(scaling).where(scaling.c.service == service, since)
        return self._rows(wanted.order_by(scaling.c.at, scaling.c.id))

    def last(self, service: str) -> Look | None:
        """Return the newest look, or None."""
        found = self._rows(_newest(service).limit(1))
        return found[0] if found else None

    def changes(self, service: str, limit: int = 10) -> list[Look]:
        """List the looks that changed something, the newest first."""
        moved = scaling.c.decided != scaling.c.wanted
        return self._rows(_newest(service).where(moved).limit(limit))

    def backlog(self, sites: Collection[str] | None = None) -> Backlog:
        """Count the runs that are carried and those that wait to be: all, or those of sites."""
        wanted = BACKLOG if sites is None else BACKLOG.where(run.c.site.in_(sorted(sites)))
        row = self._database.read(lambda c: c.execute(wanted).one())
        oldest = max(0, row.now - row.oldest) if row.waiting else 0
        return Backlog(int(row.running), int(row.waiting), oldest / 1000)

    def prune(self, older_than: float) -> int:
        """Forget looks older than so many seconds; return how many."""
        return self._database.delete(scaling, scaling.c.at < db_now() - milliseconds(older_than))

    def _rows(self, wanted: sa.Select[Any]) -> list[Look]:
        return [_look(row) for row in self._database.read(lambda c: c.execute(wanted).all())]


def _newest(service: str) -> sa.Select[Any]:
    wanted = sa.select(scaling).where(scaling.c.service == service)
    return wanted.order_by(scaling.c.at.desc(), scaling.c.id.desc())


def _values(look: Look) -> dict[str, Any]:
    return {
        "at": look.sample.at,
        "seen": look.seen,
        "wanted": look.sample.wanted,
        "decided": look.decision.replicas,
        "low": look.sample.low,
        "high": look.sample.high,
        "pressing": look.sample.pressing,
        "reason": look.decision.reason,
        "trouble": look.trouble,
        "counters": json.dumps(dict(look.counters)),
    }


def _look(row: Row[Any]) -> Look:
    sample = Sample(
        at=row.at, wanted=row.wanted, low=row.low, high=row.high, pressing=bool(row.pressing)
    )
    counters = {key: (used, at) for key, (used, at) in json.loads(row.counters).items()}
    decision = Decision(row.decided, row.reason)
    return Look(sample, decision, row.seen, row.trouble, counters)


def _kind(look: Look) -> str:
    return "scaling.up" if look.decision.replicas > look.sample.wanted else "scaling.down"


def _text(service: str, look: Look) -> str:
    return f"{service}: {look.sample.wanted} → {look.decision.replicas}: {look.decision.reason}"
