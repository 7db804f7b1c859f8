"""Sessions end when the lease does, and go to where it is.  R-D5."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from drivers.lab import PATIENCE
from essaim.gateway import gateway, hub, visit
from gateway.rig import ACCOUNT, finish, read_until, running, wait_for


def begun(fleet, **more):
    client = fleet.start("echo ready; exec sleep 1000", **more)
    read_until(client, b"ready\n")
    return client


def test_cut_ends_the_sessions_of_this_lease_at_once_and_says_why(fleet):
    clients = [begun(fleet) for _ in range(3)]
    fleet.gateway.cut(ACCOUNT, f"lease {ACCOUNT} was released")
    # One second is promised; the computer the test runs on may be busy.  By itself none would end.
    ends = [finish(client) for client in clients]
    for code, _, err in ends:
        assert code == 255
        assert f"essaim: lease {ACCOUNT} was released".encode() in err
    wait_for(fleet.book.all_closed, "they are recorded as closed")


def test_cut_leaves_other_leases_alone(fleet):
    fleet.gateway.cut("l-somebody")
    client = begun(fleet)
    fleet.gateway.cut("l-somebody")
    assert client.poll() is None
    fleet.gateway.cut(ACCOUNT)
    assert b"has ended or moved" in finish(client)[2]


def test_a_client_that_only_forwards_is_told_too(fleet):
    client = fleet.start(flags=["-N"])
    wait_for(lambda: fleet.book.sessions, "it is in")
    fleet.gateway.cut(ACCOUNT)
    code, _, err = finish(client)
    assert code == 255
    assert b"has ended or moved" in err


def test_a_client_that_does_not_read_is_ended_as_well(fleet):
    client = fleet.start("cat /dev/zero")
    wait_for(lambda: fleet.book.sessions, "it is in")
    client.stdout.read(100_000)
    fleet.gateway.cut(ACCOUNT)
    wait_for(fleet.book.all_closed, "it is recorded as closed")
    assert finish(client)[0] == 255


@pytest.fixture
def watchful(empty_fleet):
    """A gateway that soon knows what has changed, so that no login races with an expiry."""
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(check_every=0.1)):
        yield empty_fleet


def expire(fleet, seconds):
    """Let the lease expire soon, and wait until the gateway knows; gives the time."""
    end = time.time() + seconds
    fleet.book.change(expires_at=end)
    # One that was too busy to ask before that time ends the visit with the first answer.
    wait_for(lambda: known(fleet) in ([end], []), "the gateway knows")
    return end


def known(fleet):
    """When the lease of each visit that goes on expires, as far as the gateway knows."""
    visitors = fleet.gateway._running.hub.visitors.get(ACCOUNT, ())
    return [one._route.expires_at for one in list(visitors)]


def test_a_lease_that_expires_ends_its_sessions(watchful):
    client = begun(watchful)
    end = expire(watchful, 2)
    code, _, err = finish(client)
    assert time.time() >= end
    assert code == 255
    assert f"essaim: lease {ACCOUNT} has expired".encode() in err
    assert b"Permission denied" in watchful.ssh("true").stderr


def test_a_control_plane_that_hangs_does_not_prolong_a_lease(watchful):
    client = begun(watchful)
    expire(watchful, 3)
    release = threading.Event()
    watchful.book.lease = lambda _account: release.wait(PATIENCE) and None
    try:
        assert f"essaim: lease {ACCOUNT} has expired".encode() in finish(client)[2]
    finally:
        release.set()


def test_a_lease_that_was_extended_goes_on(watchful, monkeypatch):
    # A clock that is set: the lease must not expire because this computer is busy.
    now = [time.time()]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(visit, "time", clock)
    client = begun(watchful)
    end = expire(watchful, 1000)
    watchful.book.change(expires_at=end + 1000)
    wait_for(lambda: known(watchful) == [end + 1000], "the gateway knows")
    now[0] = end + 1
    asked = watchful.book.asked
    # The answer to one question has been heard when the next is asked.
    wait_for(lambda: watchful.book.asked > asked + 1, "the gateway looks again when it is time")
    assert client.poll() is None
    watchful.gateway.cut(ACCOUNT)
    finish(client)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda fleet: fleet.book.leases.clear(), "has ended"),
        (lambda fleet: fleet.lease(1), "has moved to another machine: log in again"),
        (lambda fleet: fleet.book.change(node=""), "has lost its machine: log in again"),
        (lambda fleet: fleet.book.change(keys=()), "has another key now"),
    ],
    ids=["released", "moved", "lost", "key"],
)
def test_what_another_process_decides_is_noticed(watchful, change, line):
    client = begun(watchful)
    change(watchful)
    assert f"essaim: lease {ACCOUNT} {line}".encode() in finish(client)[2]


def test_after_a_migration_the_same_address_leads_to_the_new_machine(fleet):
    words = fleet.words("hostname; cat note 2>/dev/null; echo was-here >note")
    assert fleet.ssh("hostname; rm -f note; echo first >note").stdout == b"m1\n"
    fleet.root(1, f"echo second >/home/{ACCOUNT}/note")
    client = begun(fleet)
    fleet.lease(1)
    fleet.gateway.cut(ACCOUNT, f"lease {ACCOUNT} has moved: log in again")
    assert b"has moved: log in again" in finish(client)[2]
    # The very same command line, the very same known_hosts.
    assert words == fleet.words("hostname; cat note 2>/dev/null; echo was-here >note")
    assert fleet.ssh("hostname; cat note").stdout == b"m2\nsecond\n"
    assert {session.node for session in fleet.book.sessions.values()} == {"m1", "m2"}


def test_who_logs_in_while_the_lease_is_being_moved_waits_for_the_new_machine(empty_fleet):
    empty_fleet.lease(node="")
    asked = []
    real = empty_fleet.book.lease
    empty_fleet.book.lease = lambda account: asked.append(account) or real(account)
    with running(empty_fleet.make_gateway(patience=PATIENCE)):
        client = empty_fleet.start("hostname")
        wait_for(lambda: len(asked) > 3, "it waits")
        assert client.poll() is None
        empty_fleet.lease(1)
        assert finish(client)[1] == b"m2\n"


def test_a_stopping_gateway_tells_its_clients(empty_fleet):
    empty_fleet.lease()
    with running(empty_fleet.make_gateway()):
        client = begun(empty_fleet)
    assert b"essaim: the gateway is stopping: log in again" in finish(client)[2]
    assert empty_fleet.book.all_closed()


def test_sentences_are_in_both_languages(fleet):
    client = begun(fleet)
    fleet.gateway.cut(ACCOUNT)
    lines = finish(client)[2].decode().splitlines()
    assert f"essaim: lease {ACCOUNT} has ended or moved" in lines
    assert f"essaim: la location {ACCOUNT} est terminée ou a été déplacée" in lines


def test_a_gateway_stops_although_the_control_plane_does_not_answer(
    empty_fleet, monkeypatch, caplog
):
    monkeypatch.setattr(gateway, "PART_WITHIN", 0.2)
    answer = threading.Event()
    empty_fleet.lease()
    with running(empty_fleet.make_gateway()):
        client = begun(empty_fleet)
        empty_fleet.book.closed = lambda *_about: answer.wait(PATIENCE)
        empty_fleet.gateway.stop()
        assert not answer.is_set()
    answer.set()
    assert b"the gateway is stopping" in finish(client)[2]
    assert "still busy" not in caplog.text


def test_a_gateway_can_be_started_again(empty_fleet):
    empty_fleet.lease()
    made = empty_fleet.make_gateway()
    for _ in range(2):
        with running(made):
            assert empty_fleet.ssh("echo in").stdout == b"in\n"
    made.stop()


def test_a_login_that_waits_for_a_lost_machine_follows_the_lease(fleet, monkeypatch):
    monkeypatch.setattr(hub, "REACH_WITHIN", PATIENCE)  # no move takes too long
    # A node behind a tunnel that is gone is waited for: it may only be changing networks.
    fleet.lease(0, node="gone", tunnel=True)
    client = fleet.start("hostname")
    wait_for(lambda: fleet.book.asked >= 5, "the gateway waits for the machine")
    fleet.lease(1)
    name = fleet.machines[1].machine
    assert finish(client) == (0, f"{name}\n".encode(), b"")
    assert [session.node for session in fleet.book.sessions.values()] == [name]
