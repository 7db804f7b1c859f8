from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from essaim.model.errors import SetupError
from essaim.store import migrations
from essaim.store.database import migrate, open_database
from essaim.store.leases import Leases
from essaim.store.schema import metadata


def test_migrations_make_exactly_the_schema(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_head_constant_is_alembics_head(sqlite):
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0])
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.HEAD]


def test_many_may_migrate_at_once(url):
    def one(_number: int) -> None:
        database = open_database(url)
        migrate(database)
        database.close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(6)))
    database = open_database(url)
    assert set(metadata.tables) <= set(sa.inspect(database.engine).get_table_names())
    database.close()


def test_a_database_at_head_costs_no_alembic(new_database):
    url = new_database("sqlite")
    first = open_database(url)
    migrate(first)
    first.close()
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


def test_a_newer_schema_is_refused_with_a_reason(database):
    database.write(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(SetupError, match="does not know") as caught:
        migrate(database)
    assert "newer" in caught.value.hint


def test_leases_of_an_older_schema_keep_their_meaning(url):
    """A revision only adds: what an older Essaim wrote, or goes on writing, stays valid."""
    database = open_database(url)
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
