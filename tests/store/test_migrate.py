from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from essaim.model.errors import SetupError
from essaim.store import migrate as migrate_module
from essaim.store import migrations
from essaim.store.condition import condition
from essaim.store.database import migrate, open_database
from essaim.store.leases import Leases
from essaim.store.migrate import _upgrade, oldest, version
from essaim.store.schema import metadata
from essaim.store.settings import Settings


def test_migrations_make_exactly_the_schema(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_head_constant_is_alembics_head(sqlite):
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0])
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.HEAD]


def test_many_may_migrate_at_once(empty_url):
    def one(_number: int) -> None:
        database = open_database(empty_url)
        migrate(database)
        database.close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(6)))
    database = open_database(empty_url)
    assert set(metadata.tables) <= set(sa.inspect(database.engine).get_table_names())
    database.close()


def test_a_database_at_head_costs_no_alembic(new_database):
    url = new_database("sqlite")
    program = (
        "import sys; from essaim.store.database import migrate, open_database;"
        f"d = open_database({url!r}); migrate(d); d.close(); print('alembic' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert answer.stdout.strip() == b"False"


def test_a_migration_cut_short_starts_over(database):
    # MariaDB commits each table by itself: some may be there without the version.
    database.write(lambda c: c.execute(sa.text("DELETE FROM alembic_version")))
    database.write(lambda c: c.execute(sa.text("DROP TABLE plan")))
    migrate(database)
    assert "plan" in sa.inspect(database.engine).get_table_names()


def test_a_newer_schema_that_does_without_ours_is_refused_with_a_reason(database):
    newer(database, "9999", oldest="9998")
    with pytest.raises(SetupError, match="does not know") as caught:
        migrate(database)
    assert "newer" in caught.value.hint
    assert not condition(database).welcome


def test_a_newer_schema_that_only_adds_is_worked_with_and_left_alone(database):
    newer(database, "9999", oldest=migrations.OLDEST)
    migrate(database)
    assert version(database) == "9999"
    assert condition(database).welcome


def test_a_newer_schema_that_says_nothing_of_older_ones_is_refused(database):
    newer(database, "9999", oldest=None)
    with pytest.raises(SetupError, match="does not know"):
        migrate(database)


def test_whoever_comes_to_migrate_after_a_newer_one_leaves_it_alone(database):
    """Between the look and the lock somebody else may have migrated."""
    newer(database, "9999", oldest=migrations.OLDEST)
    with database.engine.connect() as connection:
        _upgrade(connection)
        connection.rollback()
    assert version(database) == "9999"


def test_the_oldest_that_is_welcome_is_kept_and_never_lowered(url, monkeypatch):
    database = open_database(url)
    migrate(database)
    assert oldest(database) == migrations.OLDEST
    for said, kept in (("0005", "0005"), ("0004", "0005")):
        monkeypatch.setattr(migrations, "OLDEST", said)
        database.write(_upgrade)
        assert oldest(database) == kept
    database.close()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_whoever_uses_a_table_is_not_stopped_for_long(kind, new_database, monkeypatch):
    """A backup may have a table open for minutes: others must not queue behind the change."""
    monkeypatch.setattr(migrate_module, "BETWEEN", 0.2)
    database = open_database(new_database(kind, empty=True))
    with database.engine.begin() as connection:
        upgrade(connection, "0003")
    look = sa.text("SELECT COUNT(*) FROM run")
    with ThreadPoolExecutor(1) as threads, database.engine.connect() as backup:
        backup.execute(look)
        migrating = threads.submit(migrate, database)
        try:
            wait(lambda: stopped(database) or migrating.done(), "the change waits for the backup")
            for _ in range(5):
                database.read(lambda connection: connection.execute(look))
            assert not migrating.done(), migrating.exception()
        finally:
            backup.rollback()
        migrating.result()
    assert version(database) == migrations.HEAD
    database.close()


STOPPED = {
    "mariadb": "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for "
    "table metadata lock' AND db = DATABASE()",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'relation' AND "
    "datname = current_database()",
}


def stopped(database) -> bool:
    """Whether somebody waits for a table."""
    ask = sa.text(STOPPED[database.kind])
    return bool(database.read(lambda connection: connection.execute(ask).scalar()))


def wait(look, what: str) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def newer(database, version: str, *, oldest: str | None) -> None:
    """Let it look as if a later Essaim had migrated it."""
    found = sa.text("UPDATE alembic_version SET version_num = :version")
    database.write(lambda c: c.execute(found, {"version": version}))
    settings = Settings(database)
    settings.drop("schema.oldest")
    if oldest is not None:
        settings.put("schema.oldest", oldest)


def test_leases_of_an_older_schema_keep_their_meaning(empty_url):
    """A revision only adds: what an older Essaim wrote, or goes on writing, stays valid."""
    database = open_database(empty_url)
    with database.engine.begin() as connection:
        upgrade(connection, "0002")
    values = {
        column.name: 7 if column.type.python_type is int else "x"
        for column in metadata.tables["lease"].columns
        if not column.nullable and column.name not in {"home", "hold"}
    }
    values |= {"labels": "{}", "nodes": "[]", "state": "active"}
    before = sa.table("lease", *(sa.column(name) for name in values))
    database.write(lambda c: c.execute(sa.insert(before).values(**{**values, "id": "l-old"})))
    migrate(database)
    database.write(lambda c: c.execute(sa.insert(before).values(**{**values, "id": "l-new"})))
    for lease in Leases(database).list():
        assert (lease.wish.home, lease.wish.hold, lease.held_at) == (True, 0, None)
    database.close()


def upgrade(connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0])
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
