"""Leases end in time, are warned of, granted and copied once, however many controllers look."""

from __future__ import annotations

import threading
import time

from essaim.controllers.leases import Expiry, Homes, Queue
from essaim.model.fleet import LeaseState, Wish
from essaim.usecases import leases as leasing
from usecases.plane import KEY, together


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_a_lease_whose_time_is_over_is_ended_once(planes):  # R-D7
    plane = planes[0]
    plane.fleet_of(2)
    lease = plane.active(plane.user("ada"))
    plane.sql(f"UPDATE lease SET expires_at = {plane.fleet.now() - 1}")
    together(lambda each: Expiry(each).reconcile(), planes)
    assert plane.leases.get(lease.id).state is LeaseState.ENDING
    assert len(plane.runs("release")) == 1
    assert plane.kinds().count("lease.ending") == 1


def test_an_owner_is_warned_once_in_both_languages_and_again_after_an_extension(planes):
    plane = planes[0]
    plane.fleet_of(2)
    lease = plane.active(plane.user("ada"), count=2)
    controllers = [Expiry(each) for each in planes]

    def messages():
        return [message for each in planes for message in each.helper.messages]

    for times in (1, 2):
        plane.sql(f"UPDATE lease SET expires_at = {plane.fleet.now() + times * 60_000}")
        together(lambda each: each.reconcile(), controllers)
        until(lambda times=times: len(messages()) == 2 * times)
        told = [event for event in plane.events.since(0) if event.kind == "lease.warning"]
        assert len(told) == times
        assert told[-1].user == lease.user
        plane.leases.extend(lease.id, 1)
    assert {node for _, node, _ in messages()} == set(lease.nodes)
    english, french = messages()[0][2].splitlines()
    assert "This lease ends" in english
    assert "Cette location" in french
    for each in controllers:
        each.close()


def test_the_warning_of_a_new_end_does_not_wait_for_that_of_the_old_one(plane, monkeypatch):
    """A machine that is slow to take the first is told the second all the same."""
    plane.fleet_of(1)
    lease = plane.active(plane.user("ada"))
    told, go_on = [], threading.Event()

    def message(_target, _account, text) -> None:
        told.append(text)
        assert go_on.wait(60)

    monkeypatch.setattr(plane.helper, "message", message)
    controller = Expiry(plane)
    for times in (1, 2):
        plane.sql(f"UPDATE lease SET expires_at = {plane.fleet.now() + times * 60_000}")
        controller.reconcile()
        until(lambda times=times: len(told) == times)
        plane.leases.extend(lease.id, 1)
    go_on.set()
    until(lambda: not controller._crew.busy)
    controller.close()


def test_waiting_leases_are_granted_once(planes):  # R-D7
    plane = planes[0]
    waiting = [leasing.rent(plane, plane.user(f"user-{n}"), Wish(), KEY) for n in range(6)]
    plane.fleet_of(4)
    together(lambda each: Queue(each).reconcile(), planes)
    leases = [plane.leases.get(lease.id) for lease in waiting]
    assert [lease.state for lease in leases].count(LeaseState.GRANTED) == 4
    given = [node for lease in leases for node in lease.nodes]
    assert len(set(given)) == len(given) == 4


def test_homes_are_copied_in_layers_and_not_when_unwanted(plane):
    plane.fleet_of(3)
    ada = plane.user("ada")
    kept, unwanted = plane.active(ada, count=2), plane.active(ada, home=False)
    homes = Homes(plane, every=0.0)
    for times in (1, 2, 3):
        homes.reconcile()
        until(lambda times=times: len(plane.helper.saved) == 2 * times)
        until(lambda: not homes._crew.busy)
    homes.close()
    assert unwanted.id not in {account for account, _, _ in plane.helper.saved}
    first = [since for _, node, since in plane.helper.saved if node == kept.nodes[0]]
    assert first[0] == 0
    assert 0 < first[1] < first[2]
    assert len(plane.lending.homes.layers(kept.id, 0)) == 3


def test_one_slow_machine_delays_no_other(plane):
    plane.fleet_of(3)
    ada = plane.user("ada")
    slow, quick = plane.active(ada), plane.active(ada)
    plane.helper.slow[slow.nodes[0]] = threading.Event()
    homes = Homes(plane, every=0.0)
    for times in (1, 2, 3):
        homes.reconcile()
        until(lambda times=times: len(plane.helper.saved) == times)
        until(lambda: homes._crew.busy == 1)
    assert {account for account, _, _ in plane.helper.saved} == {quick.id}
    plane.helper.slow[slow.nodes[0]].set()
    until(lambda: len(plane.lending.homes.layers(slow.id, 0)) == 1)
    homes.close()


def test_two_who_copy_the_same_home_do_not_do_it_twice(planes):  # R-D7
    plane = planes[0]
    plane.fleet_of(1)
    lease = plane.active(plane.user("ada"))
    homes = [Homes(each, every=1000.0) for each in planes]
    for _ in range(3):
        together(lambda each: each.reconcile(), homes)
        until(lambda: not any(each._crew.busy for each in homes))
    assert len([copy for each in planes for copy in each.helper.saved]) == 1
    assert plane.lending.homes.layers(lease.id, 0)
    for each in homes:
        each.close()
