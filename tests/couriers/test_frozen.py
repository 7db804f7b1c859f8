"""A worker that is frozen past its lease and woken again writes nothing, on each database."""

from __future__ import annotations

import signal

import pytest
import sqlalchemy as sa

from databases import KINDS
from essaim.store.schema import hold, run, slot_use, step, wait

TABLES = (run, step, wait, hold, slot_use)


def all_rows(database):
    def body(connection):
        return [sorted(map(repr, connection.execute(sa.select(table)))) for table in TABLES]

    return database.read(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_worker_that_wakes_writes_nothing(kind, make_crew, new_database, brokers):
    broker = brokers("redis")
    broker.forget()
    crew = make_crew(new_database(kind), broker.url)
    frozen = crew.worker(lease=2.0)
    crew.add("long", workflow="lingers")
    crew.courier.wake()
    crew.until(lambda: ("long", "one") in crew.traces())
    crew.freeze(frozen)
    other = crew.worker(lease=2.0)
    crew.until(lambda: crew.doers("long") == {frozen.pid, other.pid})
    crew.go()
    crew.finish("long")
    assert crew.journal.get("long").epoch == 2
    other.send(signal.SIGTERM)
    assert other.wait() == 0
    before = all_rows(crew.database)
    frozen.send(signal.SIGCONT)
    # Its step ends now; it has come to rest when it has ended, warmly, by itself.
    frozen.send(signal.SIGTERM)
    assert frozen.wait() == 0, frozen.said
    assert all_rows(crew.database) == before
    assert crew.journal.steps("long")[0].output == {"by": str(other.pid)}
    assert crew.traces() == {("long", "one"): 2, ("long", "two"): 1}
