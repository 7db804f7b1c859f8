"""A lease of several machines: LEASE is the first, LEASE.2 the second.  R-D5."""

from __future__ import annotations

import pytest

from gateway.rig import ACCOUNT, finish, read_until, run, running, wait_for

SECOND = f"{ACCOUNT}.2"


@pytest.fixture
def pair(empty_fleet):
    """Both machines hold the lease; each has the account under the lease's own name."""
    empty_fleet.lease()
    empty_fleet.book.leases[SECOND] = empty_fleet.route(1)
    with running(empty_fleet.make_gateway(check_every=0.1)):
        yield empty_fleet


def test_each_machine_has_its_name(pair):
    who = "hostname; id -un"
    assert pair.ssh(who).stdout == f"m1\n{ACCOUNT}\n".encode()
    assert pair.ssh(who, user=SECOND).stdout == f"m2\n{ACCOUNT}\n".encode()
    assert b"Permission denied" in pair.ssh(who, user=f"{ACCOUNT}.3").stderr
    assert [(each.account, each.node) for each in pair.book.sessions.values()] == [
        (ACCOUNT, "m1"), (ACCOUNT, "m2"),
    ]  # fmt: skip


def test_files_are_copied_to_the_second_machine(pair, tmp_path):
    (tmp_path / "file").write_text("for the second")
    done = run(["scp", "-q", *pair.options(), str(tmp_path / "file"), f"{SECOND}@gateway:copied"])
    assert done.returncode == 0, done.stderr
    assert pair.root(1, f"cat /home/{ACCOUNT}/copied") == "for the second"


def test_one_that_moves_leaves_the_others_alone_and_the_end_is_everybodys(pair):
    clients = [pair.start("echo ready; exec sleep 1000", user=user) for user in (ACCOUNT, SECOND)]
    for client in clients:
        read_until(client, b"ready\n")
    pair.book.change(SECOND, node="")
    assert f"essaim: lease {SECOND} has lost its machine".encode() in finish(clients[1])[2]
    assert clients[0].poll() is None
    back = pair.start("echo ready; exec sleep 1000")
    read_until(back, b"ready\n")
    pair.gateway.cut(ACCOUNT)
    for client in (clients[0], back):
        assert b"has ended or moved" in finish(client)[2]
    wait_for(pair.book.all_closed, "all are recorded as closed")
