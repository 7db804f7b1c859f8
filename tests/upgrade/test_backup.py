"""A backup that is restored into an empty database is that database, as the documentation says.

R-D7.
"""

from __future__ import annotations

import subprocess

import pytest
import sqlalchemy as sa

from databases import find
from essaim.store import migrations
from essaim.store.database import Database, open_database
from essaim.store.events import Events
from essaim.store.migrate import version
from upgrade.rows import ROWS
from upgrade.test_schemas import check, fill


def places(url: str) -> tuple[list[str], str]:
    """How the server's own programs are told where the server is, and the database's name."""
    its = sa.make_url(url)
    host, port, user = f"--host={its.host}", f"--port={its.port}", f"--user={its.username}"
    return [host, port, user], str(its.database)


def dump(kind: str, url: str) -> bytes:
    where, name = places(url)
    if kind == "mariadb":
        program, words = find("mariadb-dump", "mariadb-client"), ["--single-transaction"]
        words = ["--no-defaults", *where, *words, name]
    else:
        program = find("pg_dump", "postgresql-client")
        words = [*(word.replace("--user=", "--username=") for word in where), name]
    return subprocess.run([program, *words], capture_output=True, check=True).stdout


def restore(kind: str, url: str, data: bytes) -> None:
    where, name = places(url)
    if kind == "mariadb":
        words = [find("mariadb", "mariadb-client"), "--no-defaults", *where, name]
    else:
        told = [word.replace("--user=", "--username=") for word in where]
        words = [find("psql", "postgresql-client"), *told, "--quiet", "-v", "ON_ERROR_STOP=1"]
        words += ["--single-transaction", "-o", "/dev/null", name]
    subprocess.run(words, input=data, check=True)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_backup_made_while_others_write_is_whole_and_goes_on(kind, new_database):
    url, empty = new_database(kind), new_database(kind, empty=True)
    database = open_database(url)
    for rows in ROWS[max(ROWS)]:
        fill(database, rows)
    with database.engine.begin() as connection:
        # Under way, and so not part of it; nor does the dump wait for it.
        connection.execute(sa.text("DELETE FROM lease"))
        data = dump(kind, url)
    database.close()
    restore(kind, empty, data)
    again = open_database(empty)
    assert version(again) == migrations.HEAD
    for rows in ROWS[max(ROWS)]:
        check(again, rows)
    check_goes_on(again)
    again.close()


def check_goes_on(database: Database) -> None:
    """Numbers that the database gives itself go on after those that were given."""
    Events(database).tell("fleet.note", "restored")
    ids = sa.text("SELECT id FROM event ORDER BY id")
    found = database.read(lambda c: c.execute(ids).scalars().all())
    assert len(found) == len(set(found)) == 3
