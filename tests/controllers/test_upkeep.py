"""What is too old is forgotten, by one of all processes; loops go on whatever happens."""

from __future__ import annotations

import threading

from controllers.plane import layer
from essaim.controllers.audit_seal import AuditSeal
from essaim.controllers.crew import Crew
from essaim.controllers.loops import Loops
from essaim.controllers.table import controllers
from essaim.controllers.upkeep import DAY, Upkeep
from essaim.model.audit import Entry
from essaim.model.errors import TransientError
from essaim.model.fleet import LeaseState
from usecases.plane import together


def test_what_is_too_old_is_forgotten(planes):
    plane = planes[0]
    plane.fleet_of(2)
    ada = plane.user("ada")
    old, kept = plane.active(ada), plane.active(ada)
    for lease in (old, kept):
        plane.lending.homes.add(lease.id, 0, lease.nodes[0], layer(1), full=True)
    plane.leases.move(old.id, LeaseState.ENDED, of=[LeaseState.ACTIVE])
    long_ago = plane.fleet.now() - round(100 * DAY * 1000)
    plane.sql(f"UPDATE lease SET ended_at = {long_ago} WHERE id = '{old.id}'")
    plane.events.last()
    plane.sql(f"UPDATE event SET at = {long_ago}")
    together(lambda each: Upkeep(each).reconcile(), planes)
    assert plane.leases.get(old.id) is None
    assert plane.leases.get(kept.id) is not None
    assert plane.lending.homes.leases() == [kept.id]
    assert len(plane.events.since(0)) <= 1


def test_it_is_done_once_an_hour(planes):  # R-D7
    assert sorted(plane.turns.take("upkeep", 3600) for plane in planes) == [False, False, True]
    planes[0].due_now()
    assert sum(together(lambda each: each.turns.take("upkeep", 3600), planes)) == 1


def test_loops_go_on_after_trouble_and_end_when_told(sqlite, tmp_path, monkeypatch):
    monkeypatch.setattr("essaim.controllers.loops.AFTER_TROUBLE", 0.0)
    looked = threading.Semaphore(0)

    class Troubled:
        name = "troubled"
        closed = False

        def __init__(self, trouble) -> None:
            self.trouble = trouble

        def reconcile(self) -> float:
            looked.release()
            raise self.trouble

        def close(self) -> None:
            self.closed = True

    troubled = [Troubled(TransientError("no answer")), Troubled(ValueError("a mistake"))]
    loops = Loops(troubled)
    loops.start()
    for _ in range(10):
        assert looked.acquire(timeout=60)
    loops.stop()
    assert [each.closed for each in troubled] == [True, True]


def test_a_crew_does_nothing_twice_at_once():
    crew, go, done = Crew("test", 2), threading.Event(), threading.Semaphore(0)

    def act() -> None:
        go.wait(60)
        done.release()

    assert crew.see_to("a", act)
    assert not crew.see_to("a", act)
    assert crew.see_to("b", act)
    go.set()
    assert done.acquire(timeout=60)
    assert done.acquire(timeout=60)
    crew.close()


def test_every_controller_is_in_the_table(plane):
    names = [each.name for each in controllers(plane)]
    usual = ["checks", "health", "expiry", "queue", "homes", "upkeep", "rollcall"]
    assert names == [*usual, "schooling", "audit-seal"]


def test_what_somebody_did_is_sealed(planes):
    plane = planes[0]
    plane.audit.add([Entry(action="login", outcome="done", name="ada")])
    assert list(plane.audit.chain()) == []
    together(lambda each: AuditSeal(each).reconcile(), planes)
    assert [(each.place, each.entry.name) for each in plane.audit.chain()] == [(1, "ada")]
