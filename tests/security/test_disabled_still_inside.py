"""Whoever is disabled is out: of their machines, of the gateway and of the API, within seconds."""

from __future__ import annotations

import subprocess

import pytest

from endtoend.fleet_rig import PATIENCE, wait_for
from essaim.controllers.leases import Expiry
from essaim.model.fleet import LeaseState, Role, Wish
from essaim.usecases import people
from usecases.plane import KEY, Plane

#: Seconds a busy computer may take; it takes two or three.
SECONDS = 30


@pytest.mark.root
@pytest.mark.timeout(600)
def test_a_disabled_tenant_loses_the_machine_the_connection_and_the_session(its):
    eve = its.tenant("eve")
    lease = its.rent(eve)
    machine = its.machine_of(lease)
    port = str(its.gateway.getsockname()[1])
    inside = subprocess.Popen(
        ["ssh", *its.options(eve.key), "-p", port, f"{lease}@127.0.0.1", "echo in; sleep 3000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert inside.stdout.readline() == "in\n"
        disabled = its.call("PATCH", "users/eve", its.admin, disabled=True)
        assert disabled.is_success, disabled.text
        assert its.call("GET", "leases", eve.token).status_code == 401
        assert inside.wait(SECONDS) != 0
        wait_for(lambda: its.lease(lease)["state"] == "ended", "the lease ends", SECONDS)
    finally:
        inside.kill()
        inside.communicate(timeout=PATIENCE)
    assert its.accounts(machine) == set()
    assert its.lease(lease)["reason"] == "its owner was disabled"
    its.await_node(machine)


def rented(plane: Plane):
    """Somebody with a machine."""
    plane.ready("one")
    eve = plane.user("eve")
    lease = plane.leases.rent(eve.id, Wish(), KEY)
    plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
    return lease


def is_released(plane: Plane, lease_id: str) -> bool:
    lease = plane.leases.get(lease_id)
    runs = {run.id for run in plane.runs("release")}
    return lease.state is LeaseState.ENDING and lease.run in runs & set(plane.courier.woken)


def test_disabling_somebody_begins_the_release_of_what_they_have(sqlite):
    plane = Plane(sqlite)
    lease = rented(plane)
    others = plane.ready("two") and plane.leases.rent(plane.user("ann").id, Wish(), KEY)
    root = plane.user("root", Role.ADMIN)
    people.change_user(plane, root, "eve", machines=9)
    assert plane.leases.get(lease.id).state is LeaseState.ACTIVE
    people.change_user(plane, root, "eve", disabled=True)
    assert is_released(plane, lease.id)
    assert plane.leases.get(others.id).state is LeaseState.GRANTED


def test_a_lease_that_outlived_the_disabling_of_its_owner_is_released_by_the_next_look(sqlite):
    """Its owner was disabled by a process of an earlier version, or one that died in between."""
    plane = Plane(sqlite)
    lease = rented(plane)
    plane.people.change("eve", {"disabled": True})
    expiry = Expiry(plane)
    try:
        expiry.reconcile()
    finally:
        expiry.close()
    assert is_released(plane, lease.id)
