"""Every schema there ever was, with rows in it, becomes the newest one, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from essaim.model.fleet import LeaseState
from essaim.model.runs import RunState
from essaim.store import migrations
from essaim.store.database import Database, migrate, open_database
from essaim.store.fleet import Fleet
from essaim.store.journal import SqlJournal
from essaim.store.leases import Leases
from essaim.store.migrate import version
from essaim.store.people import People
from upgrade.rows import ROWS, Rows


def upgrade(database: Database, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0])
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def table(name: str, row: dict[str, Any]) -> sa.TableClause:
    """A table as far as somebody knows it who writes such rows."""
    return sa.table(name, *(sa.column(key) for key in row))


def fill(database: Database, rows: Rows) -> None:
    def body(connection: sa.Connection) -> None:
        for name, its in rows.items():
            for row in its:
                connection.execute(sa.insert(table(name, row)).values(**row))

    database.write(body)


def check(database: Database, rows: Rows) -> None:
    """Find each row again, with all it had."""
    for name, its in rows.items():
        for row in its:
            found = sa.select(table(name, row)).where(
                *(sa.column(key).is_not_distinct_from(value) for key, value in row.items())
            )
            (kept,) = database.read(lambda c, found=found: c.execute(found).mappings().all())
            assert dict(kept) == row


@pytest.mark.parametrize("revision", sorted(ROWS))
def test_nothing_is_lost(revision, empty_url):
    database = open_database(empty_url)
    upgrade(database, revision)
    for rows in ROWS[revision]:
        fill(database, rows)
    migrate(database)
    assert version(database) == migrations.HEAD
    for rows in ROWS[revision]:
        check(database, rows)
    look(database, revision)
    database.close()


def look(database: Database, revision: str) -> None:
    """The present code reads all of it."""
    runs = {run.id: run for run in SqlJournal(database).list()}
    assert {key: run.state for key, run in runs.items()} == {
        "apply-1": RunState.DONE,
        "apply-2": RunState.FAILED,
        "apply-3": RunState.READY,
        "raise-4": RunState.WAITING,
    }
    assert {run.site for run in runs.values()} == {""}
    if revision >= "0002":
        leases = {lease.id: lease for lease in Leases(database).list()}
        assert leases["l-1"].state is LeaseState.ACTIVE
        assert leases["l-1"].nodes == ("n-1",)
        assert (leases["l-1"].wish.home, leases["l-1"].wish.hold) == (True, 0)
        assert {node.id: node.lease for node in Fleet(database).list()}["n-1"] == "l-1"
        assert [user.name for user in People(database).list()] == ["ada", "zoé"]
    if revision >= "0003":
        assert (leases["l-4"].wish.home, leases["l-4"].wish.hold) == (False, 600)


@pytest.mark.parametrize("revision", [key for key in sorted(ROWS) if key >= migrations.OLDEST])
def test_who_is_still_welcome_goes_on_writing_as_before(revision, database):
    for rows in ROWS[revision]:
        fill(database, rows)
    for rows in ROWS[revision]:
        check(database, rows)


def test_all_since_the_oldest_that_is_welcome_only_added(new_database):
    """Nothing they read is gone or of another kind, and nothing new must be said or be unique."""
    database = open_database(new_database("sqlite", empty=True))
    upgrade(database, migrations.OLDEST)
    before = shape(database)
    migrate(database)
    after = shape(database)
    database.close()
    for name, (columns, unique) in before.items():
        now, now_unique = after[name]
        assert {key: now.get(key) for key in columns} == columns, name
        assert {key for key in now.keys() - columns.keys() if now[key][1]} == set(), name
        assert now_unique == unique, name


def shape(database: Database) -> dict[str, tuple[dict[str, tuple[str, bool]], set[str | None]]]:
    """Each table's columns: of which kind, and whether they must be said; its unique indexes."""
    seen = sa.inspect(database.engine)
    return {
        name: (
            {
                its["name"]: (str(its["type"]), not its["nullable"] and its["default"] is None)
                for its in seen.get_columns(name)
            },
            {its["name"] for its in seen.get_indexes(name) if its["unique"]},
        )
        for name in seen.get_table_names()
    }
