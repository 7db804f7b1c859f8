from __future__ import annotations

import threading

import sqlalchemy as sa

from essaim.model.journal import Move
from essaim.model.runs import NewRun, RunState
from essaim.store.adding import SITE_QUEUES, site_of
from essaim.store.journal import SqlJournal
from essaim.store.schema import node, worker
from essaim.store.workers import ALIVE_WITHIN, Workers

LEASE = 3600.0


def new(key: str, **its) -> NewRun:
    return NewRun(id=key, workflow="w", subject=key, **its)


def age(database, seconds: float) -> None:
    """Let every process have been silent for so long."""
    change = sa.update(worker).values(seen_at=worker.c.seen_at - int(seconds * 1000))
    database.write(lambda c: c.execute(change))


def test_processes_are_alive_while_they_say_so(database):
    workers = Workers(database)
    workers.seen("w", ["a", "", "a"], "host", 7)
    workers.seen("c", [], "host", 8, "controller")
    workers.seen("w", ["a", ""], "host", 7)
    found = {each.id: each for each in workers.alive()}
    assert found["w"].sites == ("", "a")
    assert (found["w"].kind, found["w"].host, found["w"].pid) == ("worker", "host", 7)
    assert found["c"].kind == "controller"
    assert workers.sites() == {"", "a"}
    age(database, ALIVE_WITHIN + 1)
    assert workers.alive() == []
    assert workers.sites() == set()
    workers.seen("w", ["a"], "host", 7)
    assert workers.sites() == {"a"}
    age(database, 1800)
    assert workers.prune(3600.0) == 0
    workers.seen("w", ["a"], "host", 7)
    assert workers.prune(900.0) == 2
    workers.gone("w")
    assert workers.alive() == []


def test_only_the_runs_of_its_sites_are_claimed(database):
    journal = SqlJournal(database)
    journal.add([new("a", site="x"), new("b", site="y"), new("c")])
    assert journal.claim("me", LEASE, sites=["z"]) is None
    assert journal.claim("me", LEASE, sites=[]) is None
    assert journal.next_due(sites=["z"]) is None
    assert journal.next_due(sites=["x"]) <= 0
    assert journal.claim("me", LEASE, sites=["y", ""]).run.site == "y"
    assert journal.claim("me", LEASE, sites=["y", ""]).run.id == "c"
    assert journal.claim("me", LEASE, sites=["y", ""]) is None
    assert journal.claim("me", LEASE).run.id == "a"


def test_one_run_is_claimed_when_it_is_due_and_only_once(database):
    journal = SqlJournal(database)
    journal.add([new("a"), new("b", site="x")])
    assert journal.claim("me", LEASE, run="nobody") is None
    assert journal.claim("me", LEASE, run="b", sites=[""]) is None
    assert journal.claim("me", LEASE, run="b", sites=["x"]).run.id == "b"
    assert journal.claim("other", LEASE, run="b") is None
    barrier, got = threading.Barrier(4), []

    def take(owner: str) -> None:
        barrier.wait(60)
        got.append(journal.claim(owner, LEASE, run="a"))

    threads = [threading.Thread(target=take, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(claim is not None for claim in got) == 1


def test_children_belong_to_their_parents_site_unless_they_say_otherwise(database):
    journal = SqlJournal(database)
    journal.add([new("p", site="x"), new("q", parent="p"), new("r", parent="q", site="y")])
    journal.add([new("s", parent="q"), new("t", parent="r")])
    assert [journal.get(key).site for key in "pqrst"] == ["x", "x", "y", "x", "y"]
    assert [run.id for run in journal.family("s")] == list("pqrst")


def test_workers_are_told_once_and_again_when_nobody_came(database):
    journal, workers = SqlJournal(database), Workers(database)
    journal.add([new("a", site="x"), new("b")])
    assert journal.outbox(again=3600.0).fresh == {}  # nobody is there to be told
    workers.seen("w", ["x"], "host", 7)
    assert journal.outbox(again=3600.0).fresh == {"x": ["a"]}
    assert journal.outbox(again=3600.0).fresh == {}
    while not (found := journal.outbox(again=0.0)).stale:  # in the next millisecond
        assert not found.fresh
    assert found.stale == {"x": ["a"]}
    claim = journal.claim("me", LEASE, run="a")
    assert journal.outbox(again=0.0).stale == {}
    journal.write(claim.run, LEASE, Move(state=RunState.READY))
    assert journal.outbox(again=3600.0).fresh == {"x": ["a"]}
    claim = journal.claim("me", LEASE, run="a")
    journal.write(claim.run, LEASE, Move(state=RunState.READY, after=LEASE))
    found = journal.outbox(again=0.0)
    assert found.fresh == found.stale == {}
    assert LEASE / 2 < found.next_due <= LEASE


def test_many_who_look_at_once_tell_each_run_once(database):
    journal, workers = SqlJournal(database), Workers(database)
    workers.seen("w", [""], "host", 7)
    journal.add([new(f"r{number:03}") for number in range(200)])
    barrier, told = threading.Barrier(4), []

    def look() -> None:
        barrier.wait(60)
        while found := journal.outbox(again=3600.0, limit=20).fresh:
            told.extend(found[""])

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    told += [key for keys in journal.outbox(again=3600.0).fresh.values() for key in keys]
    assert sorted(told) == [f"r{number:03}" for number in range(200)]


def test_how_many_wait_is_told_by_site(database):
    journal = SqlJournal(database)
    journal.add([new("a", site="x"), new("b", site="x"), new("c"), new("d", waits_for=("a",))])
    assert Workers(database).waiting() == {"x": 2, "": 1}
    journal.claim("me", LEASE, run="a")
    assert Workers(database).waiting() == {"x": 1, "": 1}


def test_nodes_have_a_site_of_their_own_only_where_sites_have_workers(sqlite):
    everywhere = node.c.id != ""
    assert sqlite.read(lambda c: site_of(c, everywhere)) == ""
    sqlite.engine.update_execution_options(**{SITE_QUEUES: True})
    assert sqlite.read(lambda c: site_of(c, everywhere)) == ""  # there are none


def test_the_runs_of_leases_are_for_their_nodes_site(sqlite):
    from essaim.model.fleet import Wish
    from essaim.usecases import leases
    from usecases.plane import KEY, Plane

    sqlite.engine.update_execution_options(**{SITE_QUEUES: True})
    plane = Plane(sqlite)
    ann = plane.user("ann")
    plane.ready("n1", site="grenoble")
    assert {run.site for run in plane.runs("clean")} == {"grenoble"}
    lease = leases.rent(plane, ann, Wish(), KEY)
    assert plane.journal.get(lease.run).site == "grenoble"
    ending = plane.leases.release(lease.id)
    assert plane.journal.get(ending.run).site == "grenoble"
