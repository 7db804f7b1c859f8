from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from essaim.store.events import Events, tell
from essaim.store.schema import event as event_table
from usecases.plane import together


@pytest.fixture
def events(database) -> Events:
    return Events(database)


def test_events_are_read_in_order_after_an_id(events):
    for number in range(5):
        events.tell("lease.queued", f"number {number}", lease="l-aaaa", user="u-1")
    told = events.since(0)
    assert [each.text for each in told] == [f"number {number}" for number in range(5)]
    assert [each.id for each in told] == sorted({each.id for each in told})
    assert events.since(told[2].id) == told[3:]
    assert events.since(0, limit=2) == told[:2]
    assert events.last() == told[-1].id
    assert told[0].at > 0
    assert events.since(told[-1].id) == []


def test_a_person_reads_only_their_own(events):
    events.tell("lease.active", "ann's", user="u-ann")
    events.tell("lease.active", "bob's", user="u-bob")
    events.tell("node.lost", "for operators", node="n-1")
    assert [each.text for each in events.since(0, user="u-ann")] == ["ann's"]
    assert [each.text for each in events.since(0)] == ["ann's", "bob's", "for operators"]


def test_what_a_repeated_step_tells_is_kept_once(events):
    for _ in range(3):
        events.tell("lease.warning", "it ends soon", user="u-1", once="warn l-aaaa 17")
    together(lambda _n: events.tell("fleet.blind", "many fail", once="blind 3"), range(6))
    told = events.since(0)
    assert [(each.kind, each.urgent) for each in told] == [
        ("lease.warning", False),
        ("fleet.blind", True),
    ]


def test_long_marks_that_begin_alike_are_not_the_same(events):
    for end in "ab":
        for _ in range(2):
            events.tell("lease.moved", end, once="x" * 300 + end)
    assert [each.text for each in events.since(0)] == ["a", "b"]


def test_an_event_of_a_transaction_that_ends_late_is_not_missed(database, events):  # R-D2
    """Its row has a smaller number than one already read; it must come after it all the same."""
    if database.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    wrote, may_end = threading.Event(), threading.Event()

    def slow(connection) -> None:
        tell(connection, "lease.granted", "late")
        wrote.set()
        assert may_end.wait(60)

    thread = threading.Thread(target=database.write, args=[slow])
    thread.start()
    assert wrote.wait(60)
    events.tell("lease.granted", "early")
    seen = events.since(0)
    may_end.set()
    thread.join(60)
    assert [each.text for each in seen] == ["early"]
    assert [each.text for each in events.since(seen[-1].id)] == ["late"]


def test_many_who_tell_and_many_who_read_miss_nothing(events):  # R-D2
    done = threading.Event()
    read: list[list[str]] = []

    def follow() -> None:
        seen: list[str] = []
        after = 0
        while True:
            over = done.is_set()
            some = events.since(after, limit=7)
            seen += [each.text for each in some]
            after = some[-1].id if some else after
            if over and not some:
                break
        read.append(seen)

    readers = [threading.Thread(target=follow) for _ in range(3)]
    for each in readers:
        each.start()
    together(lambda who: [events.tell("lease.active", f"{who} {n}") for n in range(20)], range(4))
    done.set()
    for each in readers:
        each.join(60)
    assert len(read) == 3
    assert read[0] == read[1] == read[2]
    assert sorted(read[0]) == sorted(f"{who} {n}" for who in range(4) for n in range(20))


def test_old_events_are_forgotten_but_ids_go_on(database, events):
    for number in range(3):
        events.tell("lease.active", str(number))
    newest = events.last()
    database.write(lambda c: c.execute(sa.update(event_table).values(at=1)))
    assert events.prune(3600) == 2
    assert events.prune(3600) == 0
    events.tell("lease.active", "new")
    assert [each.text for each in events.since(newest)] == ["new"]
    assert events.last() == newest + 1
