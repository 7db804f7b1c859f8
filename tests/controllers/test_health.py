"""Lost nodes are noticed once, whoever looks; those that return are cleaned; the blind wait."""

from __future__ import annotations

from controllers.plane import Services
from essaim.controllers.health import Checks, Health
from essaim.model.fleet import LeaseState, NodeState
from usecases.plane import together


def test_every_node_is_asked_once_however_many_look(planes):  # R-D7
    nodes = planes[0].fleet_of(3)
    dead = nodes[0].id
    for plane in planes:
        plane.remote.silent.add(dead)
    together(lambda plane: Checks(plane).reconcile(), planes)
    asked = [key for plane in planes for key in plane.remote.asked]
    assert sorted(asked) == sorted(node.id for node in nodes)
    assert [planes[0].fleet.get(node.id).failures for node in nodes] == [1, 0, 0]
    together(lambda plane: Checks(plane).reconcile(), planes)
    assert planes[0].fleet.get(dead).failures == 1, "its interval is not over"
    planes[0].due_now()
    together(lambda plane: Checks(plane).reconcile(), planes)
    assert planes[0].fleet.get(dead).failures == 2


def test_a_lost_node_is_treated_once_however_many_look(planes):  # R-D7
    plane = planes[0]
    plane.fleet_of(12)
    lease = plane.active(plane.user("ada"))
    lost = lease.nodes[0]
    plane.silence(lost)
    together(lambda each: [Health(each).reconcile() for _ in range(3)], planes)
    assert plane.fleet.get(lost).state is NodeState.LOST
    assert plane.leases.get(lease.id).state is LeaseState.MIGRATING
    assert len(plane.runs("migrate")) == 1
    assert plane.kinds("node.lost", "lease.moving") == ["node.lost", "lease.moving"]
    assert [key for each in planes for key in each.remote.dropped] == [lost]


def test_failed_checks_count_too(plane):
    nodes = plane.fleet_of(5)
    plane.remote.silent.add(nodes[0].id)
    for _ in range(plane.fleet.policy.failures):
        plane.due_now()
        Checks(plane).reconcile()
    Health(plane).reconcile()
    assert plane.fleet.get(nodes[0].id).state is NodeState.LOST
    assert "checks over SSH" in plane.fleet.get(nodes[0].id).reason


def test_a_node_that_is_heard_of_but_cannot_be_reached_is_not_taken_back(plane):  # R-D6
    nodes = plane.fleet_of(5)
    lost = nodes[0].id
    plane.remote.silent.add(lost)
    for _ in range(plane.fleet.policy.failures + 2):
        plane.due_now()
        Checks(plane).reconcile()
        Health(plane).reconcile()
    cleaned = len(plane.runs("clean"))
    assert plane.fleet.get(lost).state is NodeState.LOST
    plane.remote.silent.clear()
    plane.due_now()
    Checks(plane).reconcile()
    Health(plane).reconcile()
    assert plane.fleet.get(lost).state is NodeState.CLEANING
    assert len(plane.runs("clean")) == cleaned + 1


def test_when_many_fail_at_once_nothing_is_moved_and_a_person_is_told_once(planes):  # R-D5
    plane = planes[0]
    nodes = plane.fleet_of(6)
    lease = plane.active(plane.user("ada"))
    plane.silence(*(node.id for node in nodes[:3]), *lease.nodes)
    together(lambda each: [Health(each).reconcile() for _ in range(3)], planes)
    assert NodeState.LOST not in plane.states().values()
    assert plane.runs("migrate") == []
    assert plane.kinds().count("fleet.blind") == 1
    (told,) = [event for event in plane.events.since(0) if event.kind == "fleet.blind"]
    assert told.urgent
    plane.beat(*(node.id for node in nodes))
    together(lambda each: [Health(each).reconcile() for _ in range(3)], planes)
    assert plane.kinds("fleet.blind", "fleet.sighted") == ["fleet.blind", "fleet.sighted"]
    # Another time is another thing to tell.
    plane.silence(*(node.id for node in nodes[:3]))
    together(lambda each: Health(each).reconcile(), planes)
    assert plane.kinds().count("fleet.blind") == 2


def test_a_person_who_has_looked_drains_what_is_really_gone(plane):  # R-D5
    plane.fleet_of(6)
    ada = plane.user("ada")
    leases = [plane.active(ada) for _ in range(3)]
    gone = [lease.nodes[0] for lease in leases]
    plane.silence(*gone)
    Health(plane).reconcile()
    assert plane.runs("migrate") == []
    plane.fleet.drain(gone[0], on=True)
    Health(plane).reconcile()
    assert [run.subject for run in plane.runs("migrate")] == [leases[0].id]
    assert [plane.fleet.get(key).state for key in gone[1:]] == [NodeState.HELD] * 2


def test_a_returning_node_is_cleaned_once_although_the_server_was_restarted(
    planes, database, tmp_path
):  # R-D6
    plane = planes[0]
    plane.fleet_of(12)
    lost = plane.active(plane.user("ada")).nodes[0]
    plane.silence(lost)
    Health(plane).reconcile()
    (lease,) = plane.leases.list()
    assert plane.fleet.get(lost).state is NodeState.LOST
    plane.beat(lost)
    Health(plane).reconcile()
    assert plane.fleet.get(lost).state is NodeState.LOST, "a lease still counts on it"
    new = plane.leases.spare(lease.id)
    plane.leases.switch(lease.id, lost, new.id)
    # All that knew of it in memory is gone.
    later = [Services(database, tmp_path) for _ in range(3)]
    before = len(plane.runs("clean"))
    together(lambda each: [Health(each).reconcile() for _ in range(3)], later)
    assert plane.fleet.get(lost).state is NodeState.CLEANING
    assert len(plane.runs("clean")) == before + 1


def test_a_silent_node_is_looked_at_again_when_its_next_beat_is_missing(plane):
    nodes = plane.fleet_of(3)
    interval = plane.fleet.policy.interval
    assert Health(plane).reconcile() == interval
    late = plane.fleet.now() - round(interval * 2800)
    plane.sql(f"UPDATE pulse SET beat_at = {late} WHERE node = '{nodes[0].id}'")
    assert interval / 10 <= Health(plane).reconcile() <= interval * 0.21


def test_nodes_behind_a_gateway_are_asked_only_where_there_is_one(planes):  # R-D7
    there, *elsewhere = planes
    direct, behind = there.ready("direct"), there.ready("behind", tunnel=True)
    for plane in elsewhere:
        Checks(plane).reconcile()
    there.lending.dial = lambda _node: None
    Checks(there).reconcile()
    asked = [key for plane in elsewhere for key in plane.remote.asked]
    assert (asked, there.remote.asked) == ([direct.id], [behind.id])


def test_silence_while_nobody_listened_counts_for_nothing(plane):  # R-D6
    nodes = plane.fleet_of(5)
    plane.silence(nodes[0].id)
    restarted = Health(plane, since=plane.fleet.now())
    restarted.reconcile()
    assert plane.fleet.get(nodes[0].id).state is NodeState.READY
    Health(plane).reconcile()
    assert plane.fleet.get(nodes[0].id).state is NodeState.LOST
