"""Guests that the HA manager looks after, nodes in maintenance, and guests locked by a backup."""

from __future__ import annotations

import pytest
from proxmoxer import ResourceException


def refused(act) -> str:
    with pytest.raises(ResourceException) as error:
        act()
    return error.value.content


@pytest.mark.parametrize(("kind", "word"), [("lxc", "CT"), ("qemu", "VM")])
def test_the_ha_manager_starts_and_stops_what_it_looks_after(sim, root, kind, word):
    root.made(101, kind)
    sim.fault("managed", vmid=101)
    it = getattr(root.node(), kind)(101)
    assert it.status.current.get()["ha"] == {"managed": 1}
    task = it.status.start.post()
    assert ":hastart:101:" in task
    assert root.done(task) == "OK"
    assert it.status.current.get()["status"] == "stopped"  # it was only asked for
    sim.clock.advance(30.0)
    assert it.status.current.get()["status"] == "running"
    (row,) = [row for row in root.api.cluster.resources.get(type="vm") if row["vmid"] == 101]
    assert row["hastate"] == "started"
    task = it.status.shutdown.post()
    assert ":hastop:101:" in task
    root.done(task)
    sim.clock.advance(30.0)
    assert it.status.current.get()["status"] == "stopped"
    said = f"unable to remove {word} 101 - used in HA resources and purge parameter not set."
    assert refused(it.delete) == said
    assert root.done(it.delete(purge=1)) == "OK"
    assert sim.cluster.ha == {}


def test_a_node_in_maintenance_is_listed_as_such(sim, root):
    assert "hastate" not in root.api.cluster.resources.get(type="node")[1]
    sim.fault("maintenance", node="pve2")
    rows = {row["node"]: row for row in root.api.cluster.resources.get(type="node")}
    assert (rows["pve2"]["status"], rows["pve2"]["hastate"]) == ("online", "maintenance")
    sim.heal()
    assert "hastate" not in root.api.cluster.resources.get(type="node")[1]


def test_a_backup_holds_a_machine_for_its_time(sim, root):
    root.made(101)
    sim.fault("backup", vmid=101, seconds=3600)
    it = root.node().lxc(101)
    assert root.done(it.status.start.post()) == "CT is locked (backup)"
    assert refused(it.delete) == "CT is locked (backup)"
    sim.clock.advance(3600.0)
    assert root.done(it.status.start.post()) == "OK"
