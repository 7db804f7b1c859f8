"""Tells a database's errors apart: which of them go away when a transaction is repeated."""

from __future__ import annotations

import enum
import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError


class Fault(enum.Enum):
    """Whose fault a database error is."""

    PASSING = enum.auto()  #: deadlock, lock time-out, lost connection, server away: repeat
    CONFLICT = enum.auto()  #: two wrote the same key at once: repeat, and the loser will see it
    OURS = enum.auto()  #: wrong SQL or a missing table: repeating is of no use


#: Deadlock, lock wait time-out, changed since read, and the ways of losing or not getting a
#: connection.
MARIADB = frozenset({1020, 1040, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 1927, 2002, 2003, 2006})
MARIADB_CLIENT = frozenset({2013, 2014, 2055})

#: Serialisation failure, deadlock, lock not available, too many connections, shutting down.
POSTGRESQL = frozenset({"40001", "40P01", "55P03", "53300", "57P01", "57P02", "57P03"})


def fault_of(error: DBAPIError) -> Fault:
    """Say what kind of error the database gave."""
    if isinstance(error, IntegrityError):
        return Fault.CONFLICT
    passing = error.connection_invalidated or _passes(error.orig)
    return Fault.PASSING if passing else Fault.OURS


def _passes(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        return state in POSTGRESQL
    if type(cause).__module__.startswith("psycopg"):
        # No SQLSTATE: the server could not be reached at all.
        return type(cause).__name__ in {"OperationalError", "ConnectionTimeout"}
    number = cause.args[0] if cause is not None and cause.args else None
    return number in MARIADB or number in MARIADB_CLIENT
