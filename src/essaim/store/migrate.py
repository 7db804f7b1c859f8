"""Brings a database to the newest schema, once, whoever else tries at the same moment."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from essaim.model.errors import SetupError
from essaim.store import migrations
from essaim.store.faults import Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

VERSION = sa.text("SELECT version_num FROM alembic_version")

#: Far longer than any migration of a journal that is pruned.
LOCK_SECONDS = 300


def migrate(database: Database) -> None:
    """Bring the database to the newest schema.  Costs one SELECT when it is there already."""
    if version(database) == migrations.HEAD:
        return
    if database.kind == "sqlite":
        database.write(_upgrade)
    else:
        _upgrade_server(database)


def version(database: Database) -> str | None:
    """Return the schema the database has; None when it is empty."""
    try:
        found: str | None = database.read(lambda connection: connection.execute(VERSION).scalar())
    except DBAPIError as error:
        if fault_of(error) is Fault.OURS:
            return None  # no such table: an empty database
        raise
    return found


def _upgrade_server(database: Database) -> None:
    # MariaDB commits at each CREATE TABLE, so the lock must belong to the session.
    with database.engine.connect() as connection, _locked(connection, database):
        _upgrade(connection)
        connection.commit()


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


def _upgrade(connection: Connection) -> None:
    # Half a second of imports that only an outdated database pays for.
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.util import CommandError  # noqa: PLC0415 - see above

    config = Config()
    folder = Path(migrations.__file__).parent
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SetupError(
            f"the database's schema is one this version of Essaim does not know: {error}",
            hint="it was made by a newer Essaim: use that one, or another database",
        ) from error
