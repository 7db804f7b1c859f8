from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from essaim.model.errors import (
    ConflictError,
    QuotaError,
    RejectedError,
    UnauthorisedError,
    UnknownError,
)
from essaim.model.fleet import LeaseState, NodeState, Quota, Wish
from essaim.plan.health import Policy
from essaim.plan.quota import usage as pure_usage
from essaim.store import quotas, renting
from essaim.store.schema import lease as lease_table
from essaim.store.schema import pulse
from usecases.plane import KEY, Plane, together

WISH = Wish(seconds=3600)


@pytest.fixture
def plane(database) -> Plane:
    return Plane(database)


def rent(plane, user, wish=WISH, **more):
    return plane.leases.rent(user.id, wish, KEY, **more)


def set_lease(plane, lease_id: str, **values) -> None:
    change = sa.update(lease_table).where(lease_table.c.id == lease_id).values(**values)
    plane.database.write(lambda c: c.execute(change))


def test_a_wish_is_granted_with_its_node_and_its_run(plane):
    node, ann = plane.ready("one"), plane.user("ann", project="physics")
    lease = rent(plane, ann)
    assert lease.state is LeaseState.GRANTED
    assert (lease.user, lease.project, lease.public_key) == (ann.id, "physics", KEY)
    assert lease.nodes == (node.id,)
    assert lease.account == lease.id
    assert lease.expires_at - lease.granted_at == pytest.approx(3_600_000, abs=2000)
    held = plane.fleet.get(node.id)
    assert (held.state, held.lease) == (NodeState.HELD, lease.id)
    run = plane.journal.get(f"rent-{lease.id}")
    assert (run.workflow, run.subject, run.input) == ("rent", lease.id, {"lease": lease.id})
    assert lease.run == run.id
    assert plane.leases.get(lease.id) == lease


def test_all_or_nothing(plane):
    plane.ready("one")
    lease = rent(plane, plane.user("ann"), replace(WISH, count=2))
    assert (lease.state, lease.nodes, lease.expires_at) == (LeaseState.QUEUED, (), None)
    assert plane.fleet.list(states=[NodeState.HELD]) == []
    assert plane.runs("rent") == []
    plane.ready("two")
    (granted,) = plane.leases.grant_some()
    assert granted.id == lease.id
    assert len(set(granted.nodes)) == 2
    assert plane.leases.grant_some() == []


def test_requirements_are_kept_over_many_pages(plane, monkeypatch):
    monkeypatch.setattr(renting, "FIRST_PAGE", 2)
    monkeypatch.setattr(renting, "PAGE", 4)
    for number in range(11):
        plane.ready(f"m{number}", cores=1 + number % 3)
    wanted = plane.ready("gpu", labels={"gpu": "a"}, cores=3, site="north")
    also = plane.ready("gpu2", labels={"gpu": "a"}, cores=2)
    ann = plane.user("ann")
    both = rent(plane, ann, replace(WISH, count=2, labels={"gpu": "a"}))
    assert set(both.nodes) == {wanted.id, also.id}
    rest = rent(plane, ann, replace(WISH, count=11))
    assert rest.state is LeaseState.GRANTED
    assert rent(plane, ann).state is LeaseState.QUEUED


def test_site_cores_and_memory_count(plane):
    plane.ready("small", cores=1, memory=512)
    large = plane.ready("large", cores=8, memory=4096, site="north")
    ann = plane.user("ann")
    assert rent(plane, ann, replace(WISH, site="south")).state is LeaseState.QUEUED
    assert rent(plane, ann, replace(WISH, cores=4, memory=2048, site="north")).nodes == (large.id,)


@pytest.mark.parametrize("problem", ["silent", "failing", "drained", "cleaning"])
def test_a_node_that_is_not_well_is_never_given(plane, problem):
    node = plane.ready("one")
    if problem == "silent":
        old = plane.fleet.now() - round(1000 * plane.fleet.policy.fresh) - 1000
        plane.database.write(lambda c: c.execute(sa.update(pulse).values(beat_at=old)))
    elif problem == "failing":
        plane.fleet.checked(node.id, well=False)
    elif problem == "drained":
        plane.fleet.drain(node.id, on=True)
    else:
        plane.fleet.move(node.id, NodeState.CLEANING, of=[NodeState.READY])
    assert rent(plane, plane.user("ann")).state is LeaseState.QUEUED
    assert plane.leases.grant_some() == []


def test_fresh_is_one_and_a_half_intervals():
    assert Policy(interval=30).fresh == 45


def test_the_same_request_is_the_same_lease(plane):
    plane.ready("one")
    plane.ready("two")
    ann, bob = plane.user("ann"), plane.user("bob")
    leases = together(lambda _n: rent(plane, ann, request="r1"), range(6))
    assert len({lease.id for lease in leases}) == 1
    assert rent(plane, bob, request="r1").id != leases[0].id
    assert len(plane.leases.list()) == 2


@pytest.mark.parametrize("other", [{"count": 2}, {"labels": {"gpu": "yes"}}, {"hold": 60}])
def test_a_key_used_for_another_wish_is_a_conflict(plane, other):  # R-D2
    plane.ready("one")
    ann = plane.user("ann")
    first = rent(plane, ann, request="r1")
    with pytest.raises(ConflictError, match=first.id):
        rent(plane, ann, replace(WISH, **other), request="r1")
    with pytest.raises(ConflictError):
        plane.leases.rent(ann.id, WISH, KEY.replace("me@here", "you@there"), request="r1")
    assert rent(plane, ann, request="r1") == first


def test_quotas_hold_however_many_ask_at_once(plane):
    for number in range(8):
        plane.ready(f"m{number}")
    ann = plane.user("ann", quota=Quota(machines=3, hours=1000))

    def ask(_number: int) -> bool:
        try:
            rent(plane, ann)
        except QuotaError:
            return False
        return True

    assert together(ask, range(8)).count(True) == 3
    assert len(plane.fleet.list(states=[NodeState.HELD])) == 3


def test_a_projects_quota_is_shared(plane):
    for number in range(8):
        plane.ready(f"m{number}")
    plane.people.put_project("physics", {"machines": 2, "hours": 1000.0})
    users = [plane.user(f"user-{number}", project="physics") for number in range(6)]
    refusals: list[str] = []

    def ask(user) -> bool:
        try:
            rent(plane, user)
        except QuotaError as error:
            refusals.append(error.what)
            return False
        return True

    assert together(ask, users).count(True) == 2
    assert all("project physics" in refusal for refusal in refusals)
    assert rent(plane, plane.user("other")).state is LeaseState.GRANTED


def test_hours_are_limited_too(plane):
    plane.ready("one")
    ann = plane.user("ann", quota=Quota(machines=5, hours=2))
    with pytest.raises(QuotaError, match="machine-hours"):
        rent(plane, ann, replace(WISH, seconds=3 * 3600))
    lease = rent(plane, ann)
    with pytest.raises(QuotaError):
        plane.leases.extend(lease.id, 2 * 3600)
    longer = plane.leases.extend(lease.id, 1800)
    assert longer.expires_at == lease.expires_at + 1_800_000


def test_the_database_counts_as_the_pure_function_does(plane):
    ann = plane.user("ann")
    now = plane.fleet.now()
    hour, day = 3_600_000, 86_400_000
    ids = [rent(plane, ann, replace(WISH, count=1 + n)).id for n in range(6)]
    ended = {"state": "ended", "ended_at": now - hour}
    set_lease(plane, ids[0], **ended)  # given up while it waited
    set_lease(plane, ids[1], **{**ended, "granted_at": now - 5 * hour, "expires_at": now})
    set_lease(plane, ids[2], **{**ended, "granted_at": now - 31 * day, "expires_at": now})
    set_lease(plane, ids[3], state="ended", granted_at=now - 40 * day, ended_at=now - 35 * day)
    set_lease(plane, ids[4], state="active", granted_at=now - hour, expires_at=now + hour)
    counted = plane.database.read(lambda c: quotas.usage(c, quotas.OF_PERSON, ann.id, now))
    expected = pure_usage(plane.leases.list(user=ann.id), now)
    assert counted.machines == expected.machines
    assert counted.hours == pytest.approx(expected.hours)
    assert expected.hours > 100


def test_who_is_disabled_rents_nothing(plane):
    plane.ready("one")
    ann = plane.user("ann")
    plane.people.change("ann", {"disabled": True})
    with pytest.raises(UnauthorisedError):
        rent(plane, ann)


def test_a_newcomer_does_not_jump_the_queue(plane):
    plane.ready("one")
    cat = rent(plane, plane.user("cat"))
    first = rent(plane, plane.user("ann"), replace(WISH, count=2))
    plane.ready("two")  # one of the two that ann waits for
    second = rent(plane, plane.user("bob"))
    assert (first.state, second.state) == (LeaseState.QUEUED, LeaseState.QUEUED)
    assert plane.leases.grant_some() == []
    plane.leases.release(cat.id)
    plane.returned(cat.id)
    assert [lease.id for lease in plane.leases.grant_some()] == [first.id]
    assert plane.leases.get(second.id).state is LeaseState.QUEUED


def test_other_kinds_are_not_held_up(plane):
    rent(plane, plane.user("ann"), replace(WISH, labels={"gpu": "a"}))
    plane.ready("plain")
    assert rent(plane, plane.user("bob")).state is LeaseState.GRANTED


def test_a_wish_beyond_the_fleet_holds_nobody_up(plane):
    plane.ready("one")
    rent(plane, plane.user("ann"), replace(WISH, count=50))
    bob = rent(plane, plane.user("bob"))
    assert [lease.id for lease in plane.leases.grant_some()] == ([bob.id] if not bob.nodes else [])
    assert plane.leases.get(bob.id).state is LeaseState.GRANTED


def test_the_queue_is_granted_in_fair_order(plane):
    ann, bob = plane.user("ann"), plane.user("bob")
    anns = [rent(plane, ann).id for _ in range(3)]
    bobs = [rent(plane, bob).id for _ in range(2)]
    urgent = rent(plane, ann, replace(WISH, priority=5)).id
    for number, key in enumerate([*anns, *bobs, urgent]):
        set_lease(plane, key, asked_at=number)  # they may have asked in the same millisecond
    line = [lease.id for lease in plane.leases.line().leases]
    assert line == [urgent, bobs[0], anns[0], bobs[1], anns[1], anns[2]]
    granted = []
    for number in range(6):
        plane.ready(f"m{number}")
        granted += [lease.id for lease in plane.leases.grant_some()]
    assert granted == line


def test_many_at_once_grant_each_lease_once(plane):
    users = [plane.user(f"user-{number}") for number in range(30)]
    for user in users:
        rent(plane, user)
    waiting = [lease.id for lease in plane.leases.line().leases]
    for number in range(20):
        plane.ready(f"m{number}")
    granted = [
        x.id for some in together(lambda _n: plane.leases.grant_some(), range(5)) for x in some
    ]
    while some := plane.leases.grant_some():
        granted += [lease.id for lease in some]
    assert sorted(granted) == sorted(waiting[:20])
    assert len({plane.leases.get(key).nodes for key in granted}) == 20
    assert len(plane.runs("rent")) == 20


def test_release_starts_its_run_once(plane):
    plane.ready("one")
    lease = rent(plane, plane.user("ann"))
    answers = together(lambda _n: plane.leases.release(lease.id, reason="done"), range(5))
    assert {each.state for each in answers} == {LeaseState.ENDING}
    assert len(plane.runs("release")) == 1
    assert len({each.run for each in answers}) == 1
    with pytest.raises(RejectedError):
        plane.leases.extend(lease.id, 60)


def test_giving_up_waiting_needs_no_run(plane):
    lease = rent(plane, plane.user("ann"))
    ended = plane.leases.release(lease.id)
    assert ended.state is LeaseState.ENDED
    assert ended.ended_at is not None
    assert plane.runs("release") == []
    with pytest.raises(UnknownError):
        plane.leases.release("l-nothing1")


def test_moves_happen_from_the_states_named_alone(plane):
    plane.ready("one")
    lease = rent(plane, plane.user("ann"))
    assert plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    assert not plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    assert plane.leases.move(lease.id, LeaseState.FAILED, of=[LeaseState.ACTIVE], reason="why")
    failed = plane.leases.get(lease.id)
    assert (failed.state, failed.reason) == (LeaseState.FAILED, "why")
    assert failed.ended_at is not None


def test_what_is_due_is_found(plane):
    for number in range(3):
        plane.ready(f"m{number}")
    ann = plane.user("ann")
    over, soon, later = (rent(plane, ann, replace(WISH, seconds=s)) for s in (3600, 3600, 90_000))
    now = plane.fleet.now()
    set_lease(plane, over.id, expires_at=now - 1000)
    set_lease(plane, soon.id, expires_at=now + 120_000)
    assert [lease.id for lease in plane.leases.expired()] == [over.id]
    assert {lease.id for lease in plane.leases.warnable(600)} == {over.id, soon.id}
    assert together(lambda _n: plane.leases.warned(soon.id), range(4)).count(True) == 1
    assert {lease.id for lease in plane.leases.warnable(600)} == {over.id}
    plane.leases.extend(soon.id, 60)
    assert {lease.id for lease in plane.leases.warnable(600)} == {over.id, soon.id}
    assert later.id not in {lease.id for lease in plane.leases.warnable(600)}


def test_a_lease_moves_to_another_node(plane):
    old = plane.ready("old")
    lease = rent(plane, plane.user("ann"))
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    plane.fleet.move(old.id, NodeState.LOST, of=[NodeState.HELD], reason="silent")
    assert plane.leases.stranded() == [(plane.leases.get(lease.id), old.id)]
    runs = together(lambda _n: plane.leases.migrate(lease.id, old.id), range(5))
    (run,) = [run for run in runs if run]
    assert plane.journal.get(run).input == {"lease": lease.id, "node": old.id}
    assert plane.leases.get(lease.id).state is LeaseState.MIGRATING
    assert plane.leases.stranded() == []
    assert plane.leases.spare(lease.id) is None
    new = plane.ready("new")
    assert plane.leases.spare(lease.id).id == new.id
    assert plane.leases.spare(lease.id).id == new.id  # asked again
    assert plane.fleet.get(new.id).lease == lease.id
    for _ in range(2):
        assert plane.leases.switch(lease.id, old.id, new.id).nodes == (new.id,)
    assert plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.MIGRATING])
    assert plane.leases.migrate(lease.id, old.id) == ""
    assert plane.fleet.get(old.id).lease is None


def test_a_lost_node_is_not_cleaned_while_its_lease_has_it(plane):
    node = plane.ready("one")
    lease = rent(plane, plane.user("ann"))
    plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.HELD])
    assert plane.fleet.get(node.id).lease == lease.id
    assert plane.fleet.clean(node.id, of=[NodeState.LOST]) is None
    plane.leases.release(lease.id)
    plane.leases.move(lease.id, LeaseState.ENDED, of=[LeaseState.ENDING])
    assert plane.fleet.get(node.id).lease is None
    assert plane.fleet.clean(node.id, of=[NodeState.LOST])


def test_a_node_lost_while_its_lease_ends_is_let_go_at_once(plane):
    node = plane.ready("one")
    lease = rent(plane, plane.user("ann"))
    plane.leases.release(lease.id)
    assert plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.HELD])
    assert plane.fleet.get(node.id).lease is None


def test_old_leases_are_forgotten(plane):
    lease = rent(plane, plane.user("ann"))
    plane.leases.release(lease.id)
    assert plane.leases.prune(3600) == 0
    an_hour_ago = sa.update(lease_table).values(ended_at=lease_table.c.ended_at - 3_600_000)
    plane.database.write(lambda c: c.execute(an_hour_ago))
    assert plane.leases.prune(1800) == 1
    assert plane.leases.get(lease.id) is None


def test_a_transaction_that_fails_leaves_no_trace(plane, monkeypatch):
    node, ann = plane.ready("one"), plane.user("ann")

    def fail(*_arguments) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(renting, "start_run", fail)
        with pytest.raises(OSError, match="no"):
            rent(plane, ann)
    assert plane.fleet.get(node.id).state is NodeState.READY
    assert plane.leases.list() == []
    assert rent(plane, ann).nodes == (node.id,)


def kinds(plane, **more) -> list[str]:
    return [each.kind for each in plane.events.since(0, **more)]


def test_a_lease_tells_of_its_life_to_its_owner(plane):  # R-D2
    ann, bob = plane.user("ann"), plane.user("bob")
    lease = rent(plane, ann)
    first, second = plane.ready("one"), plane.ready("two")
    plane.leases.grant_some()
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    (old,) = plane.leases.get(lease.id).nodes
    new = second.id if old == first.id else first.id
    plane.leases.migrate(lease.id, old, reason="its machine was lost")
    plane.leases.spare(lease.id)
    for _ in range(2):
        plane.leases.switch(lease.id, old, new)
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.MIGRATING])
    for _ in range(2):
        plane.leases.release(lease.id, reason="enough")
    plane.leases.move(lease.id, LeaseState.ENDED, of=[LeaseState.ENDING], reason="enough")
    assert kinds(plane, user=ann.id) == [
        "lease.queued",
        "lease.granted",
        "lease.active",
        "lease.moving",
        "lease.moved",
        "lease.active",
        "lease.ending",
        "lease.ended",
    ]
    told = plane.events.since(0, user=ann.id)
    assert {each.lease for each in told} == {lease.id}
    assert [each.text for each in told][-2:] == ["enough", "enough"]
    assert kinds(plane, user=bob.id) == []


def test_what_fails_or_is_given_up_is_told(plane):  # R-D2
    ann = plane.user("ann")
    lease = rent(plane, ann)
    plane.leases.move(lease.id, LeaseState.FAILED, of=[LeaseState.QUEUED], reason="no luck")
    rent(plane, ann)
    assert plane.leases.give_up_waiting(ann.id) == 1
    told = [(each.kind, each.text, each.urgent) for each in plane.events.since(0)]
    assert [told[1], told[3]] == [
        ("lease.failed", "no luck", True),
        ("lease.ended", "its owner was disabled", False),
    ]


def active(plane, user, **wish):
    plane.ready(f"machine of {user.name}")
    lease = rent(plane, user, replace(WISH, **wish))
    assert plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    return plane.leases.get(lease.id)


def test_a_failed_lease_is_held_as_long_as_it_wished(plane):  # R-D4
    lease = active(plane, plane.user("ann"), hold=7200)
    held = plane.leases.hold(lease.id)
    assert held.expires_at - held.held_at == 7_200_000
    assert held.state is LeaseState.ACTIVE
    assert plane.leases.hold(lease.id) == held
    assert kinds(plane)[-1] == "lease.held"
    assert kinds(plane).count("lease.held") == 1


def test_only_active_leases_that_wished_for_it_are_held(plane):
    ann = plane.user("ann")
    unasked = active(plane, ann)
    assert plane.leases.hold(unasked.id) == unasked
    waits = rent(plane, ann, replace(WISH, hold=60))
    assert plane.leases.hold(waits.id) == waits


def test_holding_is_within_the_quota_and_the_hard_limit(plane, database):
    short = active(plane, plane.user("ann", quota=Quota(machines=1, hours=1.5)), hold=7200)
    with pytest.raises(QuotaError):
        plane.leases.hold(short.id)
    strict = Plane(database, Policy(interval=3600.0, longest=4000))
    lease = active(strict, strict.user("bob"), hold=7200)
    assert strict.leases.hold(lease.id).expires_at == lease.granted_at + 4_000_000


def test_no_lease_outlasts_the_hard_limit(database):  # R-D2
    plane = Plane(database, Policy(interval=3600.0, longest=5000))
    ann = plane.user("ann")
    lease = active(plane, ann)
    plane.leases.extend(lease.id, 1400)
    with pytest.raises(RejectedError, match=r"ends on \d{4}-\d\d-\d\d \d\d:\d\d UTC at the latest"):
        plane.leases.extend(lease.id, 1)
    with pytest.raises(RejectedError, match="at most"):
        rent(plane, ann, replace(WISH, seconds=5001))


def test_lists_go_on_after_a_lease(plane):
    ann = plane.user("ann")
    made = [rent(plane, ann).id for _ in range(7)]
    for key in made[:4]:
        set_lease(plane, key, asked_at=1000)  # of one moment: the id decides
    seen, after = [], None
    while some := plane.leases.list(user=ann.id, after=after, limit=3):
        assert len(some) <= 3
        seen += [each.id for each in some]
        after = some[-1].asked_at, some[-1].id
    assert seen == [each.id for each in plane.leases.list()]
    assert sorted(seen) == sorted(made)


def test_leases_are_counted_by_state(plane):
    plane.ready("one")
    ann = plane.user("ann")
    rent(plane, ann)
    rent(plane, ann)
    over = rent(plane, ann)
    plane.leases.release(over.id)
    assert plane.leases.counts() == {LeaseState.GRANTED: 1, LeaseState.QUEUED: 1}
