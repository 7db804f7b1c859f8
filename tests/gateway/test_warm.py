"""The way to a machine is kept for some seconds, for the lease's next visit and nobody else's."""

from __future__ import annotations

import pytest

from drivers.lab import PATIENCE
from gateway.rig import ACCOUNT, finish, read_until, running, wait_for

WAY = "echo $SSH_CONNECTION"


@pytest.fixture
def keeping(empty_fleet):
    """A gateway that keeps ways for longer than any test lasts."""
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(warm=PATIENCE)):
        yield empty_fleet


def visit(fleet, command=WAY, **more):
    """A visit that is over."""
    done = fleet.ssh(command, **more)
    wait_for(fleet.book.all_closed, "the visit is over")
    return done


def kept(fleet):
    return len(fleet.gateway._running.hub.warm._kept)


def test_the_next_visit_takes_the_way_of_the_last(keeping):
    first = visit(keeping)
    wait_for(lambda: kept(keeping) == 1, "the way is kept")
    assert visit(keeping).stdout == first.stdout
    assert len(keeping.book.sessions) == 2


def test_two_visits_at_once_have_two_ways_and_one_is_kept(keeping):
    clients = [keeping.start(f"{WAY}; cat") for _ in range(2)]
    ways = {read_until(client, b"\n") for client in clients}
    assert len(ways) == 2
    for client in clients:
        assert finish(client)[0] == 0
    wait_for(lambda: kept(keeping) == 1, "one is kept")
    assert visit(keeping).stdout in ways


def test_a_way_leads_to_the_machine_that_holds_the_lease_now(keeping):
    assert visit(keeping, "hostname").stdout == b"m1\n"
    wait_for(lambda: kept(keeping) == 1, "the way is kept")
    keeping.lease(1)
    assert visit(keeping, "hostname").stdout == b"m2\n"


def test_a_kept_way_lets_nobody_in_who_may_not(keeping):
    visit(keeping)
    wait_for(lambda: kept(keeping) == 1, "the way is kept")
    keeping.book.leases.clear()
    assert b"Permission denied" in keeping.ssh("true").stderr


def test_cut_closes_what_was_kept(keeping):
    visit(keeping)
    wait_for(lambda: kept(keeping) == 1, "the way is kept")
    keeping.gateway.cut("l-somebody")
    keeping.gateway.cut(ACCOUNT)
    wait_for(lambda: kept(keeping) == 0, "it is closed")
    wait_for(lambda: not logins(keeping), "the machine has seen it leave")


def logins(fleet):
    return fleet.root(0, f"pgrep -u {ACCOUNT} -x sshd || true").split()


def test_a_way_that_was_lost_meanwhile_is_not_taken(keeping):
    first = visit(keeping)
    wait_for(lambda: kept(keeping) == 1, "the way is kept")
    keeping.root(0, f"pkill -KILL -u {ACCOUNT} -x sshd")

    def again():
        done = visit(keeping)
        return done.returncode == 0 and done.stdout != first.stdout

    wait_for(again, "another way is made")


def test_what_still_runs_keeps_no_way_open(keeping):
    client = keeping.start("echo ready; exec cat /dev/zero")
    read_until(client, b"ready\n")
    client.kill()
    wait_for(keeping.book.all_closed, "the visit is over")
    wait_for(lambda: not keeping.root(0, f"pgrep -u {ACCOUNT} -x cat || true"), "it has ended")
    finish(client)


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_way_is_kept_no_longer_than_it_was_said(empty_fleet, seconds):
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(warm=seconds)):
        assert visit(empty_fleet, "echo in").stdout == b"in\n"
        wait_for(lambda: not logins(empty_fleet), "the machine has seen it leave")
        assert kept(empty_fleet) == 0
