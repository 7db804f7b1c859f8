from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.errors import ReplayError, UnauthorisedError
from essaim.model.fleet import Beat, LeaseState, NodeState, Wish
from essaim.store.schema import enrolment, pulse
from essaim.store.schema import lease as lease_table
from essaim.store.schema import node as node_table
from essaim.usecases.credentials import digest
from usecases.plane import KEY, Plane, beat, machine, together


@pytest.fixture
def plane(database) -> Plane:
    return Plane(database)


def allowed(act) -> bool:
    try:
        act()
    except UnauthorisedError:
        return False
    return True


def test_a_machine_joins_to_be_cleaned_first(plane):
    node, _credential = plane.join("one", cores=4, memory=8192, labels={"gpu": "a"}, port=2222)
    assert node.state is NodeState.CLEANING
    assert (node.name, node.cores, node.memory, node.port) == ("one", 4, 8192, 2222)
    assert node.labels == {"gpu": "a"}
    assert plane.fleet.now() - node.beat_at < 60_000
    (run,) = plane.runs("clean")
    assert (run.subject, run.input) == (node.id, {"node": node.id})
    assert plane.fleet.get(node.id) == node
    assert plane.fleet.get("n-nobody") is None


def test_the_enrolment_knows_better_than_the_machine(plane):
    plane.fleet.enrol("d", uses=1, seconds=60, site="north", labels={"gpu": "b"})
    said = machine("one", site="south", labels={"gpu": "a", "disk": "ssd"})
    node, _run = plane.fleet.register("d", said, "c")
    assert (node.site, node.labels) == ("north", {"gpu": "b", "disk": "ssd"})


def test_an_enrolment_serves_as_often_as_it_says(plane):
    plane.fleet.enrol("d", uses=3, seconds=3600)

    def join(number: int) -> bool:
        said = machine(f"m{number}")
        return allowed(lambda: plane.fleet.register("d", said, f"c{number}"))

    assert together(join, range(8)).count(True) == 3
    assert len(plane.fleet.list()) == 3


def test_an_enrolment_ends(plane):
    plane.fleet.enrol("d", uses=3, seconds=0)
    assert not allowed(lambda: plane.fleet.register("d", machine("one"), "c"))
    assert not allowed(lambda: plane.fleet.register("unknown", machine("one"), "c"))


def test_one_host_key_is_one_node_and_the_first_credential_ends(plane):
    first, old = plane.join("one")
    plane.fleet.beat(digest(old), beat(1))
    plane.fleet.enrol("again", uses=1, seconds=60)
    # The comment after a key says nothing.
    said = machine("one", address="192.0.2.9")
    again, _run = plane.fleet.register("again", said, digest("new"), proven=True)
    assert again.id == first.id
    assert again.address == "192.0.2.9"
    with pytest.raises(UnauthorisedError):
        plane.fleet.beat(digest(old), beat(2))
    plane.fleet.beat(digest("new"), beat(1))
    assert len(plane.fleet.list()) == 1


def test_two_that_join_with_one_identity_at_once_are_one_node(plane):
    plane.fleet.enrol("d", uses=5, seconds=3600)

    def join(number: int) -> str:
        return plane.fleet.register("d", machine("one"), f"c{number}", proven=True)[0].id

    assert len(set(together(join, range(4)))) == 1
    known = [plane.fleet.known(f"c{number}") for number in range(4)]
    assert sum(node is not None for node in known) == 1


def test_joining_anew_neither_frees_a_held_node_nor_pardons_a_quarantined_one(plane):
    node, _credential = plane.join("one")
    plane.fleet.move(node.id, NodeState.QUARANTINED, of=[NodeState.CLEANING], reason="immortal")
    plane.fleet.enrol("again", uses=1, seconds=60)
    again, run = plane.fleet.register("again", machine("one"), "c2", proven=True)
    assert (again.state, again.reason, run) == (NodeState.QUARANTINED, "immortal", "")


def test_beats_are_kept(plane):
    node, credential = plane.join("one")
    before = plane.fleet.get(node.id).beat_at
    plane.fleet.beat(digest(credential), beat(1, load=1.5))
    seen = plane.fleet.get(node.id)
    assert seen.load == 1.5
    assert seen.beat_at >= before
    assert plane.fleet.known(digest(credential)).id == node.id


def test_a_beat_that_was_seen_before_is_refused(plane):
    _node, credential = plane.join("one")
    key = digest(credential)
    plane.fleet.beat(key, beat(1))
    plane.fleet.beat(key, beat(5))
    for number in (5, 4, 1):
        with pytest.raises(ReplayError):
            plane.fleet.beat(key, beat(number))
    plane.fleet.beat(key, beat(1, boot="boot-2"))
    # Not even with the number that would have come next in the boot before.
    for number in (5, 6, 1000):
        with pytest.raises(ReplayError):
            plane.fleet.beat(key, beat(number, boot="boot-1"))
    plane.fleet.beat(key, beat(2, boot="boot-2"))
    with pytest.raises(UnauthorisedError):
        plane.fleet.beat("nobody", beat(1))


def test_of_many_copies_of_one_beat_one_counts(plane):
    _node, credential = plane.join("one")
    plane.fleet.beat(digest(credential), beat(1))

    def copy(_number: int) -> bool:
        try:
            plane.fleet.beat(digest(credential), beat(2))
        except ReplayError:
            return False
        return True

    assert together(copy, range(6)).count(True) == 1


def test_an_ordinary_beat_is_one_statement(plane):
    _node, credential = plane.join("one")
    plane.fleet.beat(digest(credential), beat(1))
    said: list[str] = []

    def listen(_connection, _cursor, statement, *_more) -> None:
        said.append(statement)

    sa.event.listen(plane.database.engine, "before_cursor_execute", listen)
    plane.fleet.beat(digest(credential), beat(2))
    sa.event.remove(plane.database.engine, "before_cursor_execute", listen)
    assert [each.split()[0] for each in said if not each.startswith("BEGIN")] == ["UPDATE"]


def test_a_beat_does_not_wait_for_whoever_rents_the_node(plane, kind):
    if kind == "sqlite":
        pytest.skip("one writer at a time")
    node, credential = plane.join("one")
    plane.fleet.beat(digest(credential), beat(1))
    lock = sa.select(node_table.c.id).where(node_table.c.id == node.id).with_for_update()
    with plane.database.engine.begin() as connection:
        connection.execute(lock)
        plane.fleet.beat(digest(credential), beat(2))


def test_a_beat_finds_its_row_through_an_index(plane, kind):
    if kind != "sqlite":
        pytest.skip("planners of servers look at statistics")
    text = sa.text("EXPLAIN QUERY PLAN UPDATE pulse SET load = 1 WHERE credential = 'x'")
    plan = plane.database.read(lambda c: c.execute(text).all())
    assert "pulse_credential" in str(plan)
    assert pulse.c.credential.nullable is False


def test_checks_count_failures_until_one_succeeds(plane):
    node, _credential = plane.join("one")
    plane.fleet.checked(node.id, well=False)
    plane.fleet.checked(node.id, well=False)
    assert plane.fleet.get(node.id).failures == 2
    plane.fleet.checked(node.id, well=True)
    seen = plane.fleet.get(node.id)
    assert seen.failures == 0
    assert seen.checked_at > 0


def test_of_many_who_move_a_node_one_does(plane):
    node, _credential = plane.join("one")

    def lose(_number: int) -> bool:
        return plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.CLEANING], reason="silent")

    assert together(lose, range(6)).count(True) == 1
    assert plane.fleet.get(node.id).reason == "silent"


def test_cleaning_begins_once(plane):
    node, _credential = plane.join("one")
    plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.CLEANING])

    def clean(_number: int) -> str | None:
        return plane.fleet.clean(node.id, of=[NodeState.LOST])

    runs = [run for run in together(clean, range(5)) if run]
    assert len(runs) == 1
    assert plane.journal.get(runs[0]).input == {"node": node.id}
    assert plane.fleet.get(node.id).state is NodeState.CLEANING


def test_nodes_are_listed_by_state_and_by_id(plane):
    nodes = [plane.ready(f"m{number}") for number in range(3)]
    plane.join("other")
    assert plane.fleet.list(states=[NodeState.READY]) == nodes
    assert [n.id for n in plane.fleet.list(ids=[nodes[2].id, "n-none"])] == [nodes[2].id]
    assert plane.fleet.list(ids=[]) == []
    assert len(plane.fleet.list()) == 4


def test_draining_and_forgetting(plane):
    node = plane.ready("one")
    assert plane.fleet.drain(node.id, on=True)
    assert plane.fleet.get(node.id).drained
    assert not plane.fleet.drain("n-none", on=True)
    assert plane.fleet.remove(node.id)
    assert not plane.fleet.remove(node.id)
    assert plane.fleet.known(digest("credential of one")) is None


def test_the_tunnels_key_is_kept(plane):
    node, _credential = plane.join("one", tunnel=True, tunnel_key="ssh-ed25519 AAAA")
    assert plane.fleet.tunnel_key(node.id) == "ssh-ed25519 AAAA"
    assert plane.fleet.tunnel_key("n-none") is None


def test_what_happens_to_nodes_is_told_to_operators(plane):  # R-D2 R-D6
    node = plane.ready("one")
    for on in (True, True, False):
        plane.fleet.drain(node.id, on=on)
    plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.READY], reason="no heartbeat")
    assert not plane.fleet.move(node.id, NodeState.LOST, of=[NodeState.READY])
    plane.fleet.clean(node.id, of=[NodeState.LOST])
    plane.fleet.move(node.id, NodeState.QUARANTINED, of=[NodeState.CLEANING], reason="a file")
    told = plane.events.since(0)
    assert [each.kind for each in told] == [
        "node.joined",
        "node.ready",
        "node.drained",
        "node.lost",
        "node.quarantined",
    ]
    assert {each.node for each in told} == {node.id}
    assert {each.user for each in told} == {""}
    assert [each.urgent for each in told] == [False, False, False, False, True]
    assert told[3].text == "one is lost: no heartbeat"


def reporting(seq: int, *accounts: str) -> Beat:
    return Beat(boot_id="boot-1", seq=seq, accounts=accounts)


def test_a_free_node_that_has_accounts_is_cleaned(plane):  # R-D6
    node, credential = plane.join("one")
    plane.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
    assert plane.fleet.beat(digest(credential), reporting(8)) == ""
    assert plane.fleet.beat(digest(credential), reporting(9, "l-leftover")) == ""
    run = plane.fleet.beat(digest(credential), reporting(16, "l-leftover"))
    assert plane.journal.get(run).input == {"node": node.id}
    assert plane.fleet.get(node.id).state is NodeState.CLEANING
    assert plane.fleet.beat(digest(credential), reporting(24, "l-leftover")) == ""


def test_the_account_of_its_lease_is_no_leftover_nor_is_one_that_just_ended(plane):  # R-D6
    node, credential = plane.join("one")
    plane.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
    lease = plane.leases.rent(plane.user("ann").id, Wish(), KEY)
    assert plane.fleet.beat(digest(credential), reporting(8, lease.id)) == ""
    plane.leases.release(lease.id)
    plane.returned(lease.id)
    assert plane.fleet.get(node.id).state is NodeState.READY
    assert plane.fleet.beat(digest(credential), reporting(16, lease.id)) == ""
    assert plane.fleet.get(node.id).state is NodeState.READY


def silence(plane, seconds: float) -> None:
    """Let all have been silent for so long, as after a restored backup."""
    past = sa.update(pulse).values(beat_at=pulse.c.beat_at - int(seconds * 1000))
    plane.database.write(lambda c: c.execute(past))


def test_after_a_silence_a_free_node_is_looked_at_before_anybody_can_rent_it(plane):  # R-D6
    node, credential = plane.join("one")
    plane.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
    plane.fleet.beat(digest(credential), reporting(1))
    silence(plane, 2 * plane.fleet.policy.fresh)
    early = plane.leases.rent(plane.user("ann").id, Wish(), KEY)
    assert early.state is LeaseState.QUEUED  # nobody has heard of the node
    run = plane.fleet.beat(digest(credential), reporting(3, "l-unknown"))
    assert plane.journal.get(run).input == {"node": node.id}
    assert plane.leases.grant_some() == []


def test_after_a_silence_a_beat_that_was_seen_before_is_refused_as_ever(plane):
    _node, credential = plane.join("one")
    plane.fleet.beat(digest(credential), beat(5))
    silence(plane, 2 * plane.fleet.policy.fresh)
    for number in (5, 4):
        with pytest.raises(ReplayError):
            plane.fleet.beat(digest(credential), beat(number))
    plane.fleet.beat(digest(credential), beat(6))


@pytest.fixture
def held(plane):
    """A node with an active lease that is not new, and what its agent shows."""
    node, credential = plane.join("one")
    plane.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
    lease = plane.leases.rent(plane.user("ann").id, Wish(), KEY)
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    plane.fleet.beat(digest(credential), reporting(1, lease.id))
    earlier = sa.update(lease_table).values(granted_at=lease_table.c.granted_at - 10_000_000)
    plane.database.write(lambda c: c.execute(earlier))
    return node, digest(credential), lease


@pytest.mark.parametrize("accounts", [["l-unknown"], ["l-unknown", "its own"], []])
def test_after_a_silence_a_node_gets_its_leases_account_and_no_other(plane, held, accounts):
    """A restored database may know less, or other leases, than there are accounts."""
    node, credential, lease = held
    said = [lease.id if each == "its own" else each for each in accounts]
    silence(plane, 2 * plane.fleet.policy.fresh)
    run = plane.journal.get(plane.fleet.beat(credential, reporting(3, *said)))
    assert (run.workflow, run.subject) == ("renew", lease.id)
    assert run.input == {"lease": lease.id, "node": node.id}
    assert plane.fleet.get(node.id).state is NodeState.HELD
    # Once is enough, until that one is over.
    assert plane.fleet.beat(credential, reporting(8, *said)) == ""


def test_a_node_that_has_what_it_should_is_left_alone(plane, held):
    _node, credential, lease = held
    silence(plane, 2 * plane.fleet.policy.fresh)
    assert plane.fleet.beat(credential, reporting(3, lease.id)) == ""
    plane.leases.release(lease.id)
    silence(plane, 2 * plane.fleet.policy.fresh)
    assert plane.fleet.beat(credential, reporting(4)) == ""  # its release sees to it


def test_nodes_are_counted_by_state(plane):
    plane.join("one")
    plane.ready("two")
    plane.fleet.drain(plane.ready("three").id, on=True)
    assert plane.fleet.counts() == ({NodeState.CLEANING: 1, NodeState.READY: 2}, 1)


def test_enrolments_that_are_over_are_forgotten(plane):
    plane.fleet.enrol("over", uses=1, seconds=0)
    plane.fleet.enrol("good", uses=1, seconds=7200)
    assert plane.fleet.enrolments.prune(3600) == 0
    an_hour_ago = sa.update(enrolment).values(expires_at=enrolment.c.expires_at - 3_600_000)
    plane.database.write(lambda c: c.execute(an_hour_ago))
    assert plane.fleet.enrolments.prune(1800) == 1
    assert plane.fleet.register("good", machine("one"), "credential")


def test_a_node_says_when_it_was_read_by_the_databases_clock(plane):
    """Machines refuse what was asked for because of something read too long ago."""
    node = plane.ready("one")
    before = plane.fleet.now()
    alone, listed = plane.fleet.get(node.id), plane.fleet.list()[0]
    assert before <= alone.read_at <= listed.read_at <= plane.fleet.now()
