"""Renting, extending, giving back: what each may do, and with whose leases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.errors import (
    ForbiddenError,
    ImpossibleError,
    InvalidError,
    QuotaError,
    UnknownError,
)
from essaim.model.fleet import LeaseState, NodeState, Quota, Role, Wish
from essaim.store.schema import lease as lease_table
from essaim.usecases import events, leases, runs, watching
from usecases.plane import KEY, Plane


@pytest.fixture
def plane(sqlite) -> Plane:
    return Plane(sqlite)


def test_from_rent_to_release(database):
    plane = Plane(database)
    node, ann = plane.ready("one"), plane.user("ann")
    lease = leases.rent(plane, ann, Wish(), KEY)
    assert plane.courier.woken == [f"rent-{lease.id}"]
    view = leases.lease(plane, ann, lease.id)
    assert [each.id for each in view.nodes] == [node.id]
    assert (view.position, view.eta) == (None, None)
    longer = leases.extend(plane, ann, lease.id, 600)
    assert longer.expires_at == lease.expires_at + 600_000
    ending = leases.release(plane, ann, lease.id)
    assert ending.state is LeaseState.ENDING
    assert plane.courier.woken[-1] == ending.run
    assert plane.journal.get(ending.run).input == {"lease": lease.id}


def test_who_waits_sees_their_place_and_when(database):
    plane = Plane(database)
    plane.ready("one")
    ann, bob, cat = plane.user("ann"), plane.user("bob"), plane.user("cat")
    first = leases.rent(plane, ann, Wish(seconds=3600), KEY)
    second = leases.rent(plane, bob, Wish(seconds=600), KEY)
    asked = sa.update(lease_table).where(lease_table.c.id == second.id)
    plane.database.write(lambda c: c.execute(asked.values(asked_at=second.asked_at - 1)))
    third = leases.rent(plane, cat, Wish(seconds=600), KEY)
    views = [leases.lease(plane, bob, second.id), leases.lease(plane, cat, third.id)]
    assert [view.position for view in views] == [1, 2]
    assert [view.eta for view in views] == [first.expires_at, first.expires_at + 600_000]
    leases.release(plane, ann, first.id)
    plane.returned(first.id)
    (granted,) = leases.grant_queue(plane)
    assert granted.id == second.id
    assert plane.courier.woken[-1] == f"rent-{second.id}"
    assert leases.lease(plane, bob, second.id).position is None
    assert leases.lease(plane, cat, third.id).position == 1


def test_a_wish_that_nothing_can_fulfil_has_no_estimate(plane):
    ann = plane.user("ann")
    lease = leases.rent(plane, ann, Wish(), KEY)
    assert leases.lease(plane, ann, lease.id).eta is None


def test_a_newcomer_of_another_kind_is_served_at_once_past_the_queue(plane):
    plane.ready("small", cores=1)
    plane.leases.rent(plane.user("ann").id, Wish(cores=8), KEY)  # when there was such a machine
    assert leases.rent(plane, plane.user("bob"), Wish(), KEY).state is LeaseState.GRANTED


def test_a_newcomer_behind_an_impossible_wish_is_served_at_once(plane):
    plane.ready("one")
    plane.leases.rent(plane.user("ann").id, Wish(count=9), KEY)  # when there were so many
    assert leases.rent(plane, plane.user("bob"), Wish(), KEY).state is LeaseState.GRANTED


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish(cores=64), "no machine is that large: the largest has 8 cores and 2048 MiB"),
        (Wish(memory=2**20), "the largest has 8 cores and 2048 MiB"),
        (Wish(cores=4, site="south"), "the largest has 2 cores and 1024 MiB"),
        (Wish(cores=2, site="west"), "the largest has 1 core and 512 MiB"),
        (Wish(count=50), "you ask for 50 machines, and there are 4 of the kind"),
        (Wish(count=2, cores=4), "you ask for 2 machines, and there are 1 of the kind"),
        (Wish(site="mars"), "there is no machine of the kind: mars"),
        (Wish(labels={"gpu": "yes"}), "there is no machine of the kind: gpu=yes"),
    ],
)
def test_what_there_is_not_is_refused_and_what_there_is_named(plane, wish, expected):
    ann = plane.user("ann")
    drained = plane.ready("one", cores=2, memory=1024, site="south")
    lost = plane.ready("two", cores=2, memory=1024, site="south")
    plane.ready("three", cores=8, memory=2048, site="north")
    plane.ready("four", cores=1, memory=512, site="west")
    plane.fleet.drain(drained.id, on=True)
    plane.fleet.move(lost.id, NodeState.LOST, of=[NodeState.READY], reason="silent")
    with pytest.raises(ImpossibleError, match=expected) as caught:
        leases.rent(plane, ann, wish, KEY)
    assert len(caught.value.what.splitlines()) == 2, "in English and in French"
    assert leases.leases(plane, ann) == []
    assert leases.rent(plane, ann, Wish(count=4), KEY).state is LeaseState.QUEUED
    # The two that are free are not enough: that they are free is no estimate.
    (waits,) = leases.leases(plane, ann)
    assert leases.lease(plane, ann, waits.id).eta is None


def test_a_wish_of_another_kind_than_what_is_free_has_no_estimate_of_nothing(plane):
    large = plane.ready("large", cores=8)
    plane.ready("small", cores=1)
    ann = plane.user("ann")
    plane.fleet.drain(large.id, on=True)
    waits = leases.rent(plane, ann, Wish(cores=4), KEY)
    assert leases.lease(plane, ann, waits.id).eta is None


def test_the_same_key_is_the_same_lease(plane):
    plane.ready("one")
    ann = plane.user("ann")
    first = leases.rent(plane, ann, Wish(), KEY, key="k1")
    assert leases.rent(plane, ann, Wish(), KEY, key="k1") == first
    leases.release(plane, ann, first.id)
    plane.returned(first.id)
    assert leases.rent(plane, ann, Wish(), KEY, key="k1").state is LeaseState.ENDED
    assert leases.rent(plane, ann, Wish(), KEY, key="k2").id != first.id


def test_a_quota_is_a_rejection_with_its_own_code(plane):
    ann = plane.user("ann", quota=Quota(machines=1, hours=10))
    leases.rent(plane, ann, Wish(), KEY)
    with pytest.raises(QuotaError, match="2 machines; 1 allowed") as caught:
        leases.rent(plane, ann, Wish(), KEY)
    assert caught.value.code == "quota"
    assert caught.value.hint


@pytest.mark.parametrize(
    "wish",
    [
        Wish(count=0),
        Wish(count=10**6),
        Wish(cores=0),
        Wish(memory=-1),
        Wish(seconds=0),
        Wish(seconds=10**9),
        Wish(site="a b"),
        Wish(labels={"a b": "c"}),
        Wish(labels={str(n): "x" for n in range(99)}),
        Wish(priority=10**9),
    ],
)
def test_senseless_wishes_are_refused(plane, wish):
    with pytest.raises(InvalidError):
        leases.rent(plane, plane.user("ann", Role.OPERATOR), wish, KEY)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ssh-ed25519",
        f"{KEY}\n{KEY}",
        f'command="id" {KEY}',
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "ssh-dss AAAAB3NzaC1kc3MAAACBAJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3",
    ],
)
def test_only_one_plain_public_key_is_taken(plane, key):
    with pytest.raises(InvalidError, match="public_key"):
        leases.rent(plane, plane.user("ann"), Wish(), key)


def test_only_operators_set_priorities(plane):
    with pytest.raises(ForbiddenError):
        leases.rent(plane, plane.user("ann"), Wish(priority=1), KEY)
    leases.rent(plane, plane.user("otto", Role.OPERATOR), Wish(priority=1), KEY)


def test_another_tenants_lease_does_not_exist(plane):
    plane.ready("one")
    ann, eve = plane.user("ann", project="physics"), plane.user("eve", project="physics")
    operator, admin = plane.user("otto", Role.OPERATOR), plane.user("root", Role.ADMIN)
    lease = leases.rent(plane, ann, Wish(), KEY)
    acts = [
        lambda by, key: leases.lease(plane, by, key),
        lambda by, key: leases.extend(plane, by, key, 60),
        lambda by, key: leases.release(plane, by, key),
    ]
    for act in acts:
        told = []
        for key in (lease.id, "l-nothing1"):
            with pytest.raises(UnknownError) as caught:
                act(eve, key)
            told.append(caught.value.what.replace(key, "KEY"))
        assert told[0] == told[1]
    assert leases.leases(plane, eve) == []
    with pytest.raises(ForbiddenError):
        leases.leases(plane, eve, all=True)
    for by in (operator, admin):
        assert [each.id for each in leases.leases(plane, by, all=True)] == [lease.id]
        assert leases.leases(plane, by) == []
        assert leases.lease(plane, by, lease.id).lease.user == ann.id
        leases.extend(plane, by, lease.id, 60)
    assert leases.release(plane, operator, lease.id).reason == "released by otto"


def test_expired_leases_are_ended_by_one_of_many(plane):
    plane.ready("one")
    lease = leases.rent(plane, plane.user("ann"), Wish(), KEY)
    assert leases.expire(plane) == []
    past = sa.update(lease_table).values(expires_at=plane.fleet.now() - 1)
    plane.database.write(lambda c: c.execute(past))
    (ended,) = leases.expire(plane)
    assert (ended.id, ended.state) == (lease.id, LeaseState.ENDING)
    assert leases.expire(plane) == []
    assert len(plane.runs("release")) == 1


def test_a_lost_nodes_lease_is_moved_once(plane):
    node = plane.ready("one")
    lease = leases.rent(plane, plane.user("ann"), Wish(), KEY)
    plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.HELD], reason="silent")
    run = leases.migrate(plane, lease.id, node.id, "silent")
    assert run == plane.courier.woken[-1]
    assert leases.migrate(plane, lease.id, node.id, "silent") == ""


def running(plane, user, **wish):
    plane.ready(f"machine of {user.name}")
    lease = leases.rent(plane, user, Wish(**wish), KEY)
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    return lease


def test_what_failed_is_held_once_and_then_given_back(plane):  # R-D4
    ann = plane.user("ann")
    lease = running(plane, ann, hold=600)
    held = leases.release(plane, ann, lease.id, failed=True)
    assert (held.state, held.held_at is not None) == (LeaseState.ACTIVE, True)
    assert plane.runs("release") == []
    assert leases.release(plane, ann, lease.id, failed=True).state is LeaseState.ENDING


def test_what_did_not_fail_or_was_not_to_be_held_is_given_back(plane):  # R-D4
    ann, bob = plane.user("ann"), plane.user("bob")
    good, unheld = running(plane, ann, hold=600), running(plane, bob)
    assert leases.release(plane, ann, good.id).state is LeaseState.ENDING
    assert leases.release(plane, bob, unheld.id, failed=True).state is LeaseState.ENDING
    waits = leases.rent(plane, ann, Wish(count=2, hold=600), KEY)
    assert leases.release(plane, ann, waits.id, failed=True).state is LeaseState.ENDED


def test_nothing_is_held_longer_than_a_day(plane):
    with pytest.raises(InvalidError, match="hold"):
        leases.rent(plane, plane.user("ann"), Wish(hold=24 * 3600 + 1), KEY)


def test_visits_are_seen_by_the_owner_and_operators(plane):  # R-D4
    ann, bob = plane.user("ann"), plane.user("bob")
    lease = running(plane, ann)
    plane.visits.opened(lease=lease.id, node=lease.nodes[0], client="192.0.2.9", key="SHA256:x")
    for by in (ann, plane.user("otto", Role.OPERATOR)):
        assert [each.client for each in leases.visits(plane, by, lease.id)] == ["192.0.2.9"]
    with pytest.raises(UnknownError):
        leases.visits(plane, bob, lease.id)


def test_runs_are_seen_by_the_owner_of_their_lease_and_operators(plane):  # R-D2
    ann, bob = plane.user("ann"), plane.user("bob")
    lease = running(plane, ann)
    for by in (ann, plane.user("otto", Role.OPERATOR)):
        assert runs.work(plane, by, lease.run).run.subject == lease.id
    for key in (lease.run, "rent-l-nothing1", plane.runs("clean")[0].id):
        with pytest.raises(UnknownError, match=f"no run {key}"):
            runs.work(plane, bob, key)


def test_events_are_one_s_own_unless_an_operator_asks_for_all(plane):  # R-D2
    ann, otto = plane.user("ann"), plane.user("otto", Role.OPERATOR)
    leases.rent(plane, ann, Wish(), KEY)
    plane.ready("one")
    assert [each.kind for each in events.since(plane, ann, 0)] == ["lease.queued"]
    assert events.since(plane, otto, 0) == []
    everything = events.since(plane, otto, 0, all=True)
    assert [each.kind for each in everything] == ["lease.queued", "node.joined", "node.ready"]
    assert events.last(plane, ann) == everything[-1].id
    with pytest.raises(ForbiddenError):
        events.since(plane, ann, 0, all=True)
    with pytest.raises(ForbiddenError):
        events.last(plane, ann, all=True)


def test_numbers_are_for_operators_and_this_computer(plane):
    leases.rent(plane, plane.user("ann"), Wish(), KEY)
    plane.fleet.drain(plane.ready("one").id, on=True)
    found = watching.numbers(plane, None)
    assert (found.nodes, found.drained) == ({NodeState.READY: 1}, 1)
    assert found.leases == {LeaseState.QUEUED: 1}
    with pytest.raises(ForbiddenError):
        watching.numbers(plane, plane.user("mia"))
    watching.ready(plane)
