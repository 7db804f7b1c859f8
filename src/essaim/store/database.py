"""One database, three kinds: short transactions that are repeated when the database asks for it.

A transaction is a function of a connection.  It may be called more than once, so it reads what it
needs itself and touches nothing but the database.  None is ever open across a network call.  One
that is begun within another, by the same thread, is part of that other.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from essaim.model.errors import MissingExtraError, SetupError, StoreAwayError, StoreBrokenError
from essaim.store.faults import Fault, fault_of
from essaim.store.migrate import migrate

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

__all__ = ["Database", "db_now", "migrate", "open_database"]

T = TypeVar("T")

DRIVERS = {
    "sqlite": "sqlite",
    "mariadb": "mariadb+pymysql",
    "mysql": "mariadb+pymysql",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}

#: How long a transaction is repeated while the database is away or busy.
PATIENCE = 30.0

#: Two writers that both saw a name free: the loser looks again and sees it taken.
CONFLICTS = 5

#: Connections to a server that are kept, and how many more may be open for moments.  None is opened
#: before it is needed; to open one costs more than most transactions do.
POOL = (32, 32)

#: Seconds after which a server that went without a word, as one whose power failed does, counts as
#: away.  Else whoever waits for its answer would wait for hours.
SILENT, PROBE, PROBES = 10, 5, 3
GONE = SILENT + PROBE * PROBES

#: Seconds for which a transaction may stand still.  None does but that of a process that is frozen,
#: and it would keep everybody else from the rows it has locked; woken, it finds itself undone.
STILL = 30


class db_now(FunctionElement[int]):  # noqa: N801 - it stands in SQL like a function
    """Milliseconds since 1970 in the database's clock."""

    inherit_cache = True
    name = "db_now"
    type = sa.BigInteger()


@compiles(db_now, "sqlite")
def _now_sqlite(_element: db_now, _compiler: Any, **_options: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(db_now, "mysql")
@compiles(db_now, "mariadb")
def _now_mariadb(_element: db_now, _compiler: Any, **_options: Any) -> str:
    return "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"  # the session's time zone is UTC


@compiles(db_now, "postgresql")
def _now_postgresql(_element: db_now, _compiler: Any, **_options: Any) -> str:
    # Not clock_timestamp(): it may change from row to row, so no index could be asked with it.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


class Database:
    """A pool of connections that runs transactions.  Safe to share between threads."""

    def __init__(self, engine: sa.Engine, *, patience: float = PATIENCE) -> None:
        self.engine = engine
        self.kind = "mariadb" if engine.dialect.name == "mysql" else engine.dialect.name
        self.patience = patience
        self._lock = threading.Lock()
        self._writer: Connection | None = None
        self._thread = threading.local()  # `.writes`: the transaction it is in
        # Every statement sees what is committed by then, in a transaction or not: without one there
        # is no BEGIN and no ROLLBACK to wait for.  Elsewhere the switch itself would cost as much.
        self._reading = (
            engine.execution_options(isolation_level="AUTOCOMMIT")
            if self.kind == "postgresql"
            else engine
        )

    @property
    def where(self) -> str:
        """The URL, without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def read(self, body: Callable[[Connection], T]) -> T:
        """Return what `body` reads."""
        outer = self._outer()
        return self._persist(lambda: self._read(body)) if outer is None else body(outer)

    def write(self, body: Callable[[Connection], T]) -> T:
        """Return what `body` does, once all that it wrote is there for good."""
        outer = self._outer()
        if outer is not None:
            return body(outer)
        once = self._write_sqlite if self.kind == "sqlite" else self._write
        return self._persist(lambda: once(body))

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        self.engine.dispose()

    def _read(self, body: Callable[[Connection], T]) -> T:
        with self._reading.connect() as connection:
            return body(connection)

    def _write(self, body: Callable[[Connection], T]) -> T:
        with self.engine.begin() as connection:
            return self._within(connection, body)

    def _write_sqlite(self, body: Callable[[Connection], T]) -> T:
        # SQLite lets one writer in and makes the others poll.  Within this process they queue here
        # instead, and share one connection with warm caches.
        with self._lock:
            if self._writer is None:
                self._writer = self.engine.connect()
            connection = self._writer
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                result = self._within(connection, body)
                connection.commit()
            except BaseException:
                self._writer = None
                connection.close()  # rolls back
                raise
            return result

    def _outer(self) -> Connection | None:
        return getattr(self._thread, "writes", None)

    def _within(self, connection: Connection, body: Callable[[Connection], T]) -> T:
        self._thread.writes = connection
        try:
            return body(connection)
        finally:
            self._thread.writes = None

    def _persist(self, once: Callable[[], T]) -> T:
        began = time.monotonic()
        delay = 0.005
        conflicts = 0
        while True:
            try:
                return once()
            except DBAPIError as error:
                fault = fault_of(error)
                conflicts += fault is Fault.CONFLICT
                if fault is Fault.PLACE:
                    raise StoreBrokenError(
                        f"database {self.where} cannot be used: {error.orig}",
                        hint="see to its disk (full? read-only?), then repeat the command",
                    ) from error
                if fault is Fault.OURS or conflicts > CONFLICTS:
                    raise
                waited = time.monotonic() - began
                if waited + delay > self.patience:
                    raise StoreAwayError(
                        f"database {self.where}: no answer in {waited:.0f} s: {error.orig}",
                        hint="see that the database runs, then repeat the command",
                    ) from error
            except PoolTimeoutError as error:
                raise StoreAwayError(
                    f"database {self.where}: all connections are in use",
                    hint="repeat the command; if it stays so, let this process have more of them",
                ) from error
            time.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - to spread retries
            delay = min(delay * 2, 1.0)

    def delete(self, table: sa.Table, old: sa.ColumnElement[bool], batch: int = 1000) -> int:
        """Delete rows by their ids, in many short transactions; return how many."""
        ids = sa.select(table.c.id).where(old).limit(batch)

        def body(connection: Connection) -> int:
            its = connection.execute(ids).scalars().all()
            connection.execute(sa.delete(table).where(table.c.id.in_(its)))
            return len(its)

        gone = last = self.write(body)
        while last == batch:
            last = self.write(body)
            gone += last
        return gone

    def insert_missing(self, table: sa.Table) -> sa.Insert:
        """Make an INSERT that leaves rows alone whose key is already there."""
        if self.kind == "postgresql":
            from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - only there

            return insert(table).on_conflict_do_nothing()
        return sa.insert(table).prefix_with("OR IGNORE" if self.kind == "sqlite" else "IGNORE")


def open_database(url: str, pool: tuple[int, int] = POOL) -> Database:
    """Open the database at a URL: `sqlite:///path`, `mariadb://…` or `postgresql://…`.

    `pool` is how many connections to a server are kept, and how many more may be open for moments.

    A missing SQLite file is made, readable by its owner alone.  Nothing else is touched, and a
    server is not called upon before the first transaction.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        driver = DRIVERS[backend]
    except (ArgumentError, KeyError) as error:
        raise SetupError(
            f"{url.partition('://')[0]}: not a database Essaim knows",
            hint="use sqlite:///path, mariadb://user@host/name or postgresql://user@host/name",
        ) from error
    if driver == "sqlite":
        return Database(_sqlite(parsed))
    try:
        engine = sa.create_engine(
            parsed.set(drivername=driver),
            connect_args={} if driver.startswith("mariadb") else _noticing(parsed),
            isolation_level="READ COMMITTED",
            pool_size=pool[0],
            max_overflow=pool[1],
            pool_recycle=1800,
        )
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the Python package {error.name} is not installed", driver.partition("+")[0]
        ) from error
    if backend in {"mariadb", "mysql"}:
        sa.event.listen(engine, "connect", _mariadb_settings)
    else:
        sa.event.listen(engine, "connect", _postgresql_settings)
    return Database(engine)


def _noticing(url: sa.URL) -> dict[str, int]:
    """How PostgreSQL's library notices a server that went without a word; a URL may say other."""
    usual = {
        "connect_timeout": 10,
        "keepalives_idle": SILENT,
        "keepalives_interval": PROBE,
        "keepalives_count": PROBES,
        "tcp_user_timeout": GONE * 1000,
    }
    return {name: value for name, value in usual.items() if name not in url.query}


def _postgresql_settings(connection: Any, _record: object) -> None:
    # Said here and not when connecting: what pools connections takes no options then.
    connection.execute(f"SET idle_in_transaction_session_timeout = {STILL * 1000}")
    connection.commit()


def _mariadb_settings(connection: Any, _record: object) -> None:
    # A zone with summer time would make one hour of autumn nights happen twice.  What is between
    # the slashes is a comment to MySQL, which does not know it.
    still = f"/*M! , idle_transaction_timeout = {STILL} */"
    with connection.cursor() as cursor:
        cursor.execute(f"SET time_zone = '+00:00' {still}")
    line: socket.socket = connection._sock  # noqa: SLF001 - PyMySQL has no setting for it
    if line.family != socket.AF_UNIX:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE * 1000)


def _sqlite(url: sa.URL) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise SetupError("sqlite needs a file: runs must outlive the process")
    path = Path(url.database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise SetupError(f"cannot open the database {path}: {error.strerror}") from error
    engine = sa.create_engine(url, connect_args={"timeout": 10.0}, pool_size=8, max_overflow=56)
    sa.event.listen(engine, "connect", _sqlite_settings)
    return engine


def _sqlite_settings(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where Python guesses
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # in WAL mode still safe against kill -9
