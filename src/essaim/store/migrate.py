"""Brings a database to the newest schema, once, whoever else tries at the same moment."""

from __future__ import annotations

import contextlib
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from essaim.model.errors import SetupError
from essaim.store import migrations
from essaim.store.faults import Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

VERSION = sa.text("SELECT version_num FROM alembic_version")

#: Where the oldest schema is kept whose processes are still welcome.
OLDEST = {"name": "schema.oldest"}
FIND = sa.text("SELECT value FROM setting WHERE name = :name")
KEEP = sa.text("INSERT INTO setting (name, value) VALUES (:name, :value)")
RAISE = sa.text("UPDATE setting SET value = :value WHERE name = :name AND value < :value")

#: Far longer than any migration of a journal that is pruned.
LOCK_SECONDS = 300
#: Seconds a change waits for those who use a table: as long, everybody who comes after it waits.
STALL_SECONDS = 1
STALL = {
    "mariadb": "SET SESSION lock_wait_timeout = {}",
    "postgresql": "SET lock_timeout = '{}s'",
}
USUAL = {"mariadb": "SET SESSION lock_wait_timeout = DEFAULT", "postgresql": "RESET lock_timeout"}
#: Seconds in which they go on before it is tried again.
BETWEEN = 1.0


def migrate(database: Database) -> None:
    """Bring the database to the newest schema.  Costs one SELECT when it is there already.

    One that is newer than ours is left as it is, if we may still work with it; else SetupError.
    """
    found = version(database)
    if found == migrations.HEAD:
        return
    if found is not None and found > migrations.HEAD:
        _check_welcome(found, oldest(database))
    elif database.kind == "sqlite":
        database.write(_upgrade)
    else:
        _upgrade_server(database)


def version(database: Database) -> str | None:
    """Return the schema the database has; None when it is empty."""
    return _look(database, lambda connection: connection.execute(VERSION).scalar())


def oldest(database: Database) -> str | None:
    """Return the oldest schema whose processes may work with the database; None if none is kept."""
    return _look(database, lambda connection: connection.execute(FIND, OLDEST).scalar())


def _look(database: Database, body: Callable[[Connection], str | None]) -> str | None:
    try:
        return database.read(body)
    except DBAPIError as error:
        if fault_of(error) is Fault.OURS:
            return None  # no such table: an empty database
        raise


def _check_welcome(found: str, kept: str | None) -> None:
    if kept is None or kept > migrations.HEAD:
        raise SetupError(
            f"the database's schema is {found}, which this version of Essaim does not know: it "
            f"knows those up to {migrations.HEAD}" + (f", and {kept} is needed" if kept else ""),
            hint="it was made by a newer Essaim: use that one, or another database",
        )


def _upgrade_server(database: Database) -> None:
    # MariaDB commits at each CREATE TABLE, so the lock must belong to the session.
    with database.engine.connect() as connection, _locked(connection, database):
        until = time.monotonic() + LOCK_SECONDS
        while not _upgraded(connection, database):
            if time.monotonic() > until:
                raise SetupError(
                    f"database {database.where}: somebody has been using a table that is to be "
                    f"changed for {LOCK_SECONDS} s without a pause",
                    hint="end the transaction that is open, perhaps a backup, and start again",
                )
            time.sleep(BETWEEN)


def _upgraded(connection: Connection, database: Database) -> bool:
    """Do it; False when others were in the way for longer than they may be stopped."""
    try:
        connection.execute(sa.text(STALL[database.kind].format(STALL_SECONDS)))
        # Each revision by itself: what is locked for one is free before the next.
        _upgrade(connection, after_each=connection.commit)
    except DBAPIError as error:
        connection.rollback()
        if fault_of(error) is Fault.PASSING and not error.connection_invalidated:
            return False
        raise
    finally:
        if not connection.invalidated:
            connection.execute(sa.text(USUAL[database.kind]))
            connection.commit()
    return True


@contextlib.contextmanager
def _locked(connection: Connection, database: Database) -> Iterator[None]:
    name = f"essaim-migrate:{database.engine.url.database}"
    values: dict[str, str | int]
    if database.kind == "postgresql":
        values = {"key": zlib.crc32(name.encode())}
        take, free = "SELECT 1 FROM pg_advisory_lock(:key)", "SELECT pg_advisory_unlock(:key)"
    else:
        values = {"key": name[:64]}
        take, free = f"SELECT GET_LOCK(:key, {LOCK_SECONDS})", "SELECT RELEASE_LOCK(:key)"
    if connection.execute(sa.text(take), values).scalar() != 1:
        raise SetupError(
            f"database {database.where}: another has been migrating it for {LOCK_SECONDS} s",
            hint="see whether it still lives, then repeat the command",
        )
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(sa.text(free), values)
        connection.commit()


def _upgrade(connection: Connection, after_each: Callable[[], None] = lambda: None) -> None:
    # Half a second of imports that only an outdated database pays for.
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.migration import MigrationContext  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see above

    config = Config()
    folder = Path(migrations.__file__).parent
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = connection
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found > migrations.HEAD:  # somebody else was quicker
        _check_welcome(found, connection.execute(FIND, OLDEST).scalar())
        return
    # Before anything is taken away, whoever needs it is told not to start any more.
    _say_oldest(connection)
    after_each()
    scripts = ScriptDirectory.from_config(config)
    for script in reversed(list(scripts.iterate_revisions("head", found or "base"))):
        command.upgrade(config, script.revision)
        after_each()
    _say_oldest(connection)
    after_each()


def _say_oldest(connection: Connection) -> None:
    if not sa.inspect(connection).has_table("setting"):
        return
    values = {**OLDEST, "value": migrations.OLDEST}
    known = connection.execute(FIND, OLDEST).scalar() is not None
    connection.execute(RAISE if known else KEEP, values)
