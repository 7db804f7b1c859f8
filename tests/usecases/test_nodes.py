"""Machines that announce themselves (R-D1), and who looks after them."""

from __future__ import annotations

import pytest

from essaim.model.errors import (
    ForbiddenError,
    InvalidError,
    RejectedError,
    UnauthorisedError,
    UnknownError,
)
from essaim.model.fleet import NodeState, Role
from essaim.usecases import leases, nodes
from usecases.plane import CONTROL_KEY, KEY, Plane, beat, machine


@pytest.fixture
def plane(sqlite) -> Plane:
    return Plane(sqlite)


@pytest.fixture
def admin(plane):
    return plane.user("root", Role.ADMIN)


def test_a_machine_joins_and_lives(database):
    plane = Plane(database)
    token = nodes.enrol(plane, plane.user("root", Role.ADMIN), site="north", labels={"gpu": "a"})
    told = nodes.register(plane, token, machine("one"))
    assert told.server_public_key == CONTROL_KEY
    assert told.interval == plane.fleet.policy.interval
    node = plane.fleet.get(told.node_id)
    assert (node.state, node.site, node.labels) == (NodeState.CLEANING, "north", {"gpu": "a"})
    (run,) = plane.runs("clean")
    assert plane.courier.woken == [run.id]
    nodes.heartbeat(plane, told.credential, beat(1, load=0.5))
    assert plane.fleet.get(node.id).load == 0.5
    with pytest.raises(RejectedError) as caught:
        nodes.heartbeat(plane, told.credential, beat(1))
    assert caught.value.code == "replay"
    with pytest.raises(UnauthorisedError):
        nodes.register(plane, token, machine("two"))


def test_the_second_of_two_agents_with_one_identity_takes_over(plane, admin):
    token = nodes.enrol(plane, admin, uses=2)
    first = nodes.register(plane, token, machine("one"))
    proof = nodes.Proof(credential=first.credential)
    second = nodes.register(plane, token, machine("one"), proof)
    assert first.node_id == second.node_id
    with pytest.raises(UnauthorisedError):
        nodes.heartbeat(plane, first.credential, beat(1))
    nodes.heartbeat(plane, second.credential, beat(1))


def test_tokens_and_credentials_are_kept_as_digests_alone(plane, admin):
    token = nodes.enrol(plane, admin)
    told = nodes.register(plane, token, machine("one"))
    kept = "\n".join(plane.database.read(lambda c: list(c.connection.iterdump())))
    assert token not in kept
    assert told.credential not in kept


@pytest.mark.parametrize(
    "said",
    [
        {"cores": 0},
        {"memory": 0},
        {"cores": 10**9},
        {"port": 0},
        {"port": 70_000},
        {"host_key": ""},
        {"host_key": "ssh-ed25519 AAAA\nssh-rsa BBBB"},
        {"tunnel_key": "rm -rf /"},
        {"address": ""},
        {"address": "host\nother"},
        {"address": "-oProxyCommand=id"},
        {"address": "192.0.2.300"},
        {"address": "fe80::1%eth0"},
        {"labels": {"gpu": "$(id)"}},
        {"labels": {"": "x"}},
        {"site": "north; south"},
        {"name": "a b"},
        {"name": ""},
    ],
)
def test_senseless_announcements_cost_no_use_of_the_token(plane, admin, said):
    token = nodes.enrol(plane, admin)
    with pytest.raises(InvalidError):
        nodes.register(plane, token, machine(**{"name": "one", **said}))
    nodes.register(plane, token, machine("one"))


@pytest.mark.parametrize("given", [{"uses": 0}, {"seconds": 0}, {"site": "a b"}])
def test_senseless_enrolments_are_refused(plane, admin, given):
    with pytest.raises(InvalidError):
        nodes.enrol(plane, admin, **given)


@pytest.mark.parametrize("sent", [beat(-1), beat(2**70), beat(1, boot=""), beat(1, load=-1.0)])
def test_senseless_beats_are_refused(plane, sent):
    _node, credential = plane.join("one")
    with pytest.raises(InvalidError):
        nodes.heartbeat(plane, credential, sent)


def test_nan_is_no_load(plane):
    _node, credential = plane.join("one")
    with pytest.raises(InvalidError):
        nodes.heartbeat(plane, credential, beat(1, load=float("nan")))


def test_members_see_machines_but_not_where_they_are_nor_who_has_them(plane, admin):
    node = plane.ready("one")
    member, other = plane.user("mia"), plane.user("max")
    leases.rent(plane, other, leases.Wish(), KEY)
    for seen in (nodes.node(plane, member, node.id), *nodes.nodes(plane, member)):
        assert (seen.address, seen.host_key, seen.lease) == ("", "", None)
        assert seen.state is NodeState.HELD
    for by in (plane.user("otto", Role.OPERATOR), admin):
        assert nodes.node(plane, by, node.id) == plane.fleet.get(node.id)
        assert nodes.nodes(plane, by)[0].address == "192.0.2.1"
    with pytest.raises(UnknownError):
        nodes.node(plane, admin, "n-nothing")


def test_only_operators_look_after_nodes_and_only_administrators_enrol(plane, admin):
    node = plane.ready("one")
    member, operator = plane.user("mia"), plane.user("otto", Role.OPERATOR)
    with pytest.raises(ForbiddenError):
        nodes.drain(plane, member, node.id, on=True)
    with pytest.raises(ForbiddenError):
        nodes.readmit(plane, member, node.id)
    for by in (member, operator):
        with pytest.raises(ForbiddenError):
            nodes.enrol(plane, by)
        with pytest.raises(ForbiddenError):
            nodes.remove(plane, by, node.id)
    assert nodes.drain(plane, operator, node.id, on=True).drained
    assert not nodes.drain(plane, operator, node.id, on=False).drained
    for act in (nodes.readmit, lambda *a: nodes.drain(*a, on=True), nodes.remove):
        with pytest.raises(UnknownError):
            act(plane, admin, "n-nothing")


def test_readmitting_cleans_first(plane):
    operator = plane.user("otto", Role.OPERATOR)
    node = plane.ready("one")
    with pytest.raises(RejectedError, match="is ready"):
        nodes.readmit(plane, operator, node.id)
    plane.fleet.move(node.id, NodeState.QUARANTINED, of=[NodeState.READY], reason="immortal")
    plane.courier.woken.clear()
    assert nodes.readmit(plane, operator, node.id).state is NodeState.CLEANING
    (run,) = plane.courier.woken
    assert plane.journal.get(run).input == {"node": node.id}


def test_a_held_node_is_not_removed(plane, admin):
    node = plane.ready("one")
    lease = leases.rent(plane, admin, leases.Wish(), KEY)
    with pytest.raises(RejectedError, match=lease.id):
        nodes.remove(plane, admin, node.id)
    leases.release(plane, admin, lease.id)
    plane.returned(lease.id)
    nodes.remove(plane, admin, node.id)
    assert nodes.nodes(plane, admin) == []
