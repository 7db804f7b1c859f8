"""The audit trail on every database: chained in one order, however many write and seal at once."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.audit import Entry, Link
from essaim.store.audit.log import AuditLog
from essaim.store.audit.table import audit as table
from essaim.usecases.audit import check_chain
from usecases.plane import together


@pytest.fixture
def trail(database) -> AuditLog:
    return AuditLog(database)


def act(number: int) -> Entry:
    return Entry(action="rent", outcome="done", name="ada", object=f"l-{number}")


def verdict(trail: AuditLog):
    return check_chain(trail.chain(), trail.anchor(), trail.head())


def test_entries_of_many_writers_are_one_chain(trail):
    def write(number: int) -> None:
        for each in range(10):
            trail.add([act(number * 100 + each), act(number * 100 + 50 + each)])
            trail.seal()

    together(write, range(4))
    trail.seal()
    found = list(trail.chain())
    assert [each.place for each in found] == list(range(1, 81))
    assert {each.entry.object for each in found} == {
        f"l-{n * 100 + each + more}" for n in range(4) for each in range(10) for more in (0, 50)
    }
    assert verdict(trail).problem == ""
    assert verdict(trail).head == trail.head() == Link(place=80, hash=found[-1].hash)


def test_nothing_is_sealed_twice(trail):
    trail.add([act(1)])
    first = trail.seal()
    assert first == trail.head()
    assert trail.seal() is None
    assert trail.head() == first


def test_a_person_and_a_time_are_found(trail, database):
    trail.add([act(1), Entry(action="login", outcome="refused", name="bob")])
    trail.seal()
    old = sa.update(table).where(table.c.name == "bob").values(at=5)
    database.write(lambda c: c.execute(old))
    assert [each.entry.name for each in trail.entries(who="ada")] == ["ada"]
    assert [each.entry.name for each in trail.entries(since=6)] == ["ada"]
    assert [each.entry.name for each in trail.entries(after=1)] == ["bob"]


def test_what_is_pruned_leaves_a_chain_that_still_holds(trail, database):
    trail.add([act(number) for number in range(5)])
    trail.seal()
    old = sa.update(table).where(table.c.place <= 2).values(at=5)
    database.write(lambda c: c.execute(old))
    assert trail.prune(3600.0) == 2
    found = list(trail.chain())
    assert [each.place for each in found] == [3, 4, 5]
    assert trail.anchor() == Link(place=2, hash=found[0].previous)
    assert verdict(trail).problem == ""
    assert trail.prune(3600.0) == 0
