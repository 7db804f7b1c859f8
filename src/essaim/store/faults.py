"""Tells a database's errors apart: which of them go away when a transaction is repeated."""

from __future__ import annotations

import enum
import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError


class Fault(enum.Enum):
    """Whose fault a database error is."""

    PASSING = enum.auto()  #: deadlock, lock time-out, lost connection, server away: repeat
    CONFLICT = enum.auto()  #: two wrote the same key at once: repeat, and the loser will see it
    PLACE = enum.auto()  #: disk full, read-only, broken: a person has to see to it
    OURS = enum.auto()  #: wrong SQL or a missing table: repeating is of no use


#: Deadlock, lock wait time-out, changed since read (1020: a row, 1412: the table), and the ways of
#: losing or not getting a connection.
MARIADB = frozenset({1020, 1040, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 1412, 1927})
MARIADB_CLIENT = frozenset({2002, 2003, 2006, 2013, 2014, 2055})

#: Serialisation failure, deadlock, lock not available, too many connections, shutting down, and a
#: transaction that stood still for too long.
POSTGRESQL = frozenset({"40001", "40P01", "55P03", "53300", "57P01", "57P02", "57P03", "25P03"})

SQLITE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

#: Full, read-only, unreadable: SQLite's, MariaDB's and PostgreSQL's names for it.
PLACES = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
        *(1021, 1036, 1114, 1290, 1836),
        *("25006", "53100", "58030"),
    }
)


def fault_of(error: DBAPIError) -> Fault:
    """Say what kind of error the database gave."""
    if isinstance(error, IntegrityError):
        return Fault.CONFLICT
    code = _code(error.orig)
    if code in PLACES:
        return Fault.PLACE
    passing = error.connection_invalidated or code in PASSING
    return Fault.PASSING if passing else Fault.OURS


#: What stands for a PostgreSQL server that could not be reached at all: it has no SQLSTATE.
UNREACHED = "unreached"

PASSING = SQLITE | MARIADB | MARIADB_CLIENT | POSTGRESQL | {UNREACHED}


def _code(cause: BaseException | None) -> object:
    """Find the code by which this database names the error."""
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if type(cause).__module__.startswith("psycopg"):
        away = type(cause).__name__ in {"OperationalError", "ConnectionTimeout"}
        return getattr(cause, "sqlstate", None) or (UNREACHED if away else None)
    # MariaDB's number: its SQLSTATE, which PyMySQL has as well, is mostly HY000.
    return cause.args[0] if cause is not None and cause.args else None
