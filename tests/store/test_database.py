from __future__ import annotations

import stat
import threading

import pytest
import sqlalchemy as sa

from essaim.model.errors import SetupError, TransientError
from essaim.store.database import Database, open_database
from essaim.store.schema import slot


def test_the_file_is_for_its_owner_only(tmp_path):
    database = open_database(f"sqlite:///{tmp_path}/new/folder/essaim.db")
    database.read(lambda c: c.exec_driver_sql("SELECT 1"))
    path = tmp_path / "new" / "folder" / "essaim.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for beside in path.parent.iterdir():
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    database.close()


@pytest.mark.parametrize("url", ["oracle://x", "nonsense", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused_with_a_reason(url):
    with pytest.raises(SetupError):
        open_database(url)


def test_a_password_is_never_told():
    database = open_database("postgresql://ann:secret@127.0.0.1:1/x")
    database.patience = 0.2
    with pytest.raises(TransientError) as caught:
        database.write(lambda c: c.exec_driver_sql("SELECT 1"))
    assert "secret" not in caught.value.what
    assert "127.0.0.1" in caught.value.what
    database.close()


def test_a_failed_transaction_leaves_nothing(database: Database):
    def body(connection):
        connection.execute(sa.insert(slot), {"name": "a"})
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        database.write(body)
    assert names(database) == []
    database.write(lambda c: c.execute(sa.insert(slot), {"name": "b"}))
    assert names(database) == ["b"]


def test_a_transaction_within_another_is_part_of_it(database: Database):
    def add(name: str) -> None:
        database.write(lambda c: c.execute(sa.insert(slot), {"name": name}))

    def body(_connection, *, fails: bool) -> list[str]:
        add("a")
        add("b")
        if fails:
            raise ValueError("on purpose")
        return names(database)

    with pytest.raises(ValueError, match="on purpose"):
        database.write(lambda c: body(c, fails=True))
    assert names(database) == []
    assert database.write(lambda c: body(c, fails=False)) == ["a", "b"]
    add("c")
    assert names(database) == ["a", "b", "c"]


def test_a_deadlock_is_repeated(kind, database: Database):
    if kind == "sqlite":
        pytest.skip("one writer at a time cannot deadlock")
    database.write(lambda c: c.execute(sa.insert(slot), [{"name": "a"}, {"name": "b"}]))
    barrier = threading.Barrier(2)
    tries = []

    def work(first: str, second: str) -> None:
        def body(connection):
            tries.append(first)
            lock = sa.select(slot).with_for_update()
            connection.execute(lock.where(slot.c.name == first)).all()
            if len(tries) <= 2:
                barrier.wait(60)  # both have one, and want the other's
            connection.execute(lock.where(slot.c.name == second)).all()
            connection.execute(sa.insert(slot), {"name": f"{first}{second}"})

        database.write(body)

    threads = [threading.Thread(target=work, args=pair) for pair in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    # One was repeated; again, when it was back at PostgreSQL before the other had been woken.
    assert len(tries) >= 3
    assert names(database) == ["a", "ab", "b", "ba"]


def test_a_lost_connection_is_replaced(kind, database: Database):
    if kind == "sqlite":
        pytest.skip("there is no connection to lose")
    asked = []

    def body(connection):
        asked.append(1)
        if len(asked) == 1:
            kill(database, connection)
        connection.execute(sa.insert(slot), {"name": "a"})

    database.write(body)
    assert len(asked) == 2
    assert names(database) == ["a"]


def test_one_that_stands_still_within_a_transaction_keeps_nobody_from_its_rows(
    kind, url, database: Database, monkeypatch
):
    """As a process does that is frozen; woken, it is repeated and sees what came meanwhile."""
    if kind == "sqlite":
        pytest.skip("its lock is the file's: nobody but the kernel could take it away")
    monkeypatch.setattr("essaim.store.database.STILL", 1)
    database.write(lambda c: c.execute(sa.insert(slot), {"name": "a"}))
    frozen, seen = open_database(url), []
    longer = sa.update(slot).values(name=slot.c.name + "x")

    def body(connection):
        seen.append(connection.execute(sa.select(slot.c.name).with_for_update()).scalar())
        if len(seen) == 1:
            database.write(lambda c: c.execute(longer))  # waits for the row
        connection.execute(longer)

    frozen.write(body)
    assert seen == ["a", "ax"]
    assert names(database) == ["axx"]
    frozen.close()


def kill(database: Database, connection) -> None:
    """End the connection from the server's side, as a restart would."""
    ask, end = {
        "mariadb": ("SELECT CONNECTION_ID()", "KILL {}"),
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    }[database.kind]
    number = connection.exec_driver_sql(ask).scalar()
    with database.engine.connect() as other:
        other.exec_driver_sql(end.format(number))


def names(database: Database) -> list[str]:
    wanted = sa.select(slot.c.name).order_by(slot.c.name)
    return list(database.read(lambda c: c.execute(wanted).scalars().all()))


def test_wrong_sql_is_not_repeated(database: Database):
    asked = []

    def body(connection):
        asked.append(1)
        connection.exec_driver_sql("SELECT nothing FROM nowhere")

    with pytest.raises(sa.exc.DBAPIError):
        database.write(body)
    assert len(asked) == 1


def test_a_full_disk_is_said_in_a_sentence_and_loses_nothing(sqlite: Database):
    sqlite.write(lambda c: c.execute(sa.insert(slot), {"name": "before"}))

    def too_much(connection):
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.execute(sa.insert(slot), [{"name": f"{n:0150}"} for n in range(1000)])

    with pytest.raises(SetupError, match="full"):
        sqlite.write(too_much)
    assert names(sqlite) == ["before"]


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_whoever_finds_all_connections_in_use_is_told(kind, new_database):
    database = open_database(new_database(kind), (1, 0))
    database.engine.pool._timeout = 0.1  # not the 30 s of everyday
    with database.engine.connect(), pytest.raises(TransientError, match="all connections are in"):
        database.read(lambda c: c.exec_driver_sql("SELECT 1"))
    assert database.read(lambda c: c.exec_driver_sql("SELECT 1").scalar()) == 1
    database.close()
