"""Limits that adapt: all workers share them, and who uses them is written down.

A use is taken before the thing is begun and given back when it has ended, so that whoever comes
after a worker that died finds what it had begun, and which task of the site it was.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, Integer, Table, bindparam

from essaim.plan import limits as plan
from essaim.plan.limits import Gate, Limit
from essaim.store.columns import MARIADB, NAME, metadata
from essaim.store.database import db_now
from essaim.store.reservations import OWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

# Not `limit`, which is a word of SQL.
adaptive = Table(
    "adaptive",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("allowed", Integer, nullable=False),
    Column("borne", Integer, nullable=False),
    Column("streak", Integer, nullable=False),
    Column("patience", Integer, nullable=False),
    Column("share", Integer, nullable=False, server_default="0"),
    Column("halved_at", BigInteger, nullable=False),
    **MARIADB,
)

adaptive_use = Table(
    "adaptive_use",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("holder", NAME, primary_key=True),
    Column("task", NAME, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Index("adaptive_use_holder", "holder"),
    **MARIADB,
)

_FIELDS = tuple(adaptive.c[field.name] for field in fields(Limit))
_NAMED = adaptive.c.name == bindparam("b_name")
FIND = sa.select(*_FIELDS).where(_NAMED)
LOCK = FIND.with_for_update()
LOWERED = sa.update(adaptive).where(_NAMED).values(halved_at=db_now())
#: Whether a use was begun after the limit was last lowered.
FRESH = sa.select(adaptive_use.c.since_at >= adaptive.c.halved_at).where(
    adaptive.c.name == bindparam("b_name"),
    adaptive_use.c.name == adaptive.c.name,
    adaptive_use.c.holder == bindparam("b_holder"),
)
PUT = (
    sa.update(adaptive)
    .where(_NAMED)
    .values({field: bindparam(f"b_{field.name}") for field in _FIELDS})
)
_USERS = adaptive_use.c.name == bindparam("b_name")
COUNT = sa.select(sa.func.count()).select_from(adaptive_use).where(_USERS)
_HELD = adaptive_use.c.holder == bindparam("b_holder")
HELD = sa.select(adaptive_use.c.name).where(_HELD)
TAKE = sa.insert(adaptive_use).values(
    name=bindparam("b_name"), holder=bindparam("b_holder"), task="", since_at=db_now()
)
BIND = sa.update(adaptive_use).where(_HELD).values(task=bindparam("b_task"))
FREE = sa.delete(adaptive_use).where(_HELD)
USES = (
    sa.select(
        adaptive_use.c.holder,
        sa.func.min(adaptive_use.c.task).label("task"),
        (db_now() - sa.func.max(adaptive_use.c.since_at)).label("age"),
    )
    .where(adaptive_use.c.holder.startswith(bindparam("b_prefix"), autoescape=False))
    .group_by(adaptive_use.c.holder)
)


@dataclass(frozen=True, slots=True)
class Full:
    """No use was given: `used` of `allowed` are taken at that gate."""

    gate: str
    used: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Use:
    """Somebody does something, or did when they died."""

    holder: str
    task: str  #: what the site calls it; empty: not begun, or not known
    seconds: float  #: since the use was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Somebody who wants to pass some gates; `number` must be theirs still."""

    holder: str
    gates: tuple[Gate, ...]
    number: tuple[str, str, str, int] | None = None  #: site, kind, holder, number: a reservation


class Limits:
    """Who passes which gates, and how many may.  Any number of processes at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: set[str] = set()

    def limit(self, gate: Gate) -> int:
        """How many may pass now."""
        found = self._database.read(lambda c: c.execute(FIND, {"b_name": gate.name}).first())
        return min(found.allowed, gate.most) if found else gate.first

    def take(self, asks: Sequence[Ask]) -> list[Full | bool]:
        """Let each pass, in that order, in one transaction.

        True: it may begin.  False: it must not, for it has begun already, or has lost its number.
        """
        gates = {gate.name: gate for ask in asks for gate in ask.gates}
        for gate in gates.values():
            self._make(gate)

        def body(connection: Connection) -> list[Full | bool]:
            limits = {name: _lock(connection, name) for name in sorted(gates)}
            used = {name: _count(connection, name) for name in gates}
            return [_take(connection, ask, limits, used) for ask in asks]

        return self._database.write(body)

    def bind(self, holder: str, task: str) -> None:
        """Write down what the site calls that which the holder has begun."""
        self._database.write(lambda c: c.execute(BIND, {"b_holder": holder, "b_task": task}))

    def free(
        self, holder: str, gates: Sequence[Gate] = (), *, refused: frozenset[str] | None = None
    ) -> None:
        """Give back all the holder uses.

        With `gates`, they learn from it: those in `refused` were too many, or with an empty set
        that all went well.  Without, or with None, nothing is learnt.
        """

        def body(connection: Connection) -> None:
            if refused is not None:
                held = set(connection.execute(HELD, {"b_holder": holder}).scalars())
                for gate in sorted(gates, key=lambda gate: gate.name):
                    if gate.name in held:
                        _learn(connection, gate, holder, refused)
            connection.execute(FREE, {"b_holder": holder})

        self._database.write(body)

    def uses(self, prefix: str) -> list[Use]:
        """List whoever uses a limit, of those whose name begins so."""
        rows = self._database.read(lambda c: c.execute(USES, {"b_prefix": prefix}).all())
        return [Use(row.holder, row.task, row.age / 1000) for row in rows]

    def _make(self, gate: Gate) -> None:
        if gate.name in self._known:
            return
        first = Limit(min(gate.first, gate.most))
        row = {"name": gate.name, "halved_at": 0, **_columns(first)}
        insert = self._database.insert_missing(adaptive).values(row)
        self._database.write(lambda c: c.execute(insert))
        self._known.add(gate.name)


def _columns(limit: Limit) -> dict[str, int]:
    return dict(zip((field.name for field in _FIELDS), astuple(limit), strict=True))


def _lock(connection: Connection, name: str) -> Limit:
    return Limit(*connection.execute(LOCK, {"b_name": name}).one())


def _count(connection: Connection, name: str) -> int:
    return int(connection.execute(COUNT, {"b_name": name}).scalar_one())


def _take(
    connection: Connection, ask: Ask, limits: dict[str, Limit], used: dict[str, int]
) -> Full | bool:
    if connection.execute(HELD, {"b_holder": ask.holder}).first():
        return False
    if ask.number is not None:
        site, kind, holder, number = ask.number
        its = {"b_site": site, "b_kind": kind, "b_holder": holder}
        if connection.execute(OWN, its).scalar() != number:
            return False
    for gate in ask.gates:
        allowed = min(limits[gate.name].allowed, gate.most)
        if used[gate.name] >= allowed:
            return Full(gate.name, used[gate.name], allowed)
    for gate in ask.gates:
        connection.execute(TAKE, {"b_name": gate.name, "b_holder": ask.holder})
        used[gate.name] += 1
    return True


def _learn(connection: Connection, gate: Gate, holder: str, refused: frozenset[str]) -> None:
    before, used = _lock(connection, gate.name), _count(connection, gate.name)
    if gate.name in refused:
        if not connection.execute(FRESH, {"b_name": gate.name, "b_holder": holder}).scalar():
            return  # one of many that began before the limit was lowered
        after = plan.refused(before, used)
        if after.allowed < before.allowed:
            connection.execute(LOWERED, {"b_name": gate.name})
    elif refused:
        return  # what was refused elsewhere says nothing about this one
    else:
        after = plan.succeeded(before, used, gate.most)
    if after != before:
        values = {f"b_{key}": value for key, value in _columns(after).items()}
        connection.execute(PUT, {"b_name": gate.name, **values})
