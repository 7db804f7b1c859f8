from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from essaim.store.database import open_database
from essaim.store.faults import Fault, fault_of

SHORT = {
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 1",
    "postgresql": "SET lock_timeout = '100ms'",
}


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_who_waited_too_long_for_a_lock_may_try_again(kind, new_database):
    database = open_database(new_database(kind))
    database.write(lambda c: c.execute(sa.text("CREATE TABLE thing (id INTEGER PRIMARY KEY)")))
    database.write(lambda c: c.execute(sa.text("INSERT INTO thing VALUES (1)")))
    take = sa.text("SELECT id FROM thing WHERE id = 1 FOR UPDATE")
    with database.engine.connect() as first, database.engine.connect() as second:
        first.execute(take)
        second.execute(sa.text(SHORT[kind]))
        with pytest.raises(DBAPIError) as caught:
            second.execute(take)
    assert fault_of(caught.value) is Fault.PASSING
    database.close()


def test_wrong_sql_is_ours(url):
    database = open_database(url)
    with database.engine.connect() as connection, pytest.raises(DBAPIError) as caught:
        connection.execute(sa.text("SELECT nothing FROM nowhere"))
    assert fault_of(caught.value) is Fault.OURS
    database.close()
