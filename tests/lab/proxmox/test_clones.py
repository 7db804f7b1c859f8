"""Clones and their locks, as the real thing has them."""

from __future__ import annotations

import re

import pytest
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox import Simulator, StorageSettings, VirtualClock
from lab.proxmox.client import Client

LOCKED = "can't lock file '/var/lock/qemu-server/lock-{}.conf' - got timeout"


def refused(act) -> str:
    with pytest.raises(ResourceException) as error:
        act()
    assert error.value.status_code == 500
    return error.value.content


# Containers


def test_a_containers_clone_locks_its_source_at_once(sim, root):
    first = root.clone(101, full=1)
    assert root.node().lxc(9000).config.get()["lock"] == "disk"
    assert root.node().lxc(101).config.get()["lock"] == "create"
    assert refused(lambda: root.clone(102, full=1)) == "CT is locked (disk)"
    assert 102 not in sim.cluster.guests
    # Another template is not concerned.
    second = root.clone(102, source=9001, node="pve2", full=1)
    assert [root.done(first), root.done(second)] == ["OK", "OK"]
    assert "lock" not in root.node().lxc(9000).config.get()
    root.made(103)


def test_a_container_under_construction_is_neither_started_nor_changed_nor_removed(root):
    clone = root.clone(101, full=1)
    assert root.done(root.node().lxc(101).status.start.post()) == "CT is locked (create)"
    for act in (
        lambda: root.node().lxc(101).config.put(memory=1024),
        lambda: root.node().lxc(101).delete(),
    ):
        assert refused(act) == "CT is locked (create)"
    assert root.done(clone) == "OK"
    assert root.done(root.node().lxc(101).status.start.post()) == "OK"


def test_a_containers_number_that_is_taken_is_refused_and_the_source_is_free_again(root):
    root.made(101)
    assert refused(lambda: root.clone(101)) == "CT 101 already exists on node 'pve1'"
    root.made(102)


def test_a_clone_is_a_machine_of_its_own(root):
    root.made(101, hostname="alice", description="hers", full=1)
    conf = root.node().lxc(101).config.get()
    base = root.node().lxc(9000).config.get()
    assert (conf["hostname"], conf["description"]) == ("alice", "hers")
    assert conf["rootfs"] == "vol-ceph-1:vm-101-disk-0,size=8G"
    assert "template" not in conf
    macs = [re.search("hwaddr=([^,]+)", each["net0"])[1] for each in (conf, base)]
    assert macs[0] != macs[1]


def test_a_linked_clone_is_quick_and_keeps_its_template_from_being_removed(sim, root):
    before = sim.clock.now()
    root.made(101)
    assert sim.clock.now() - before == pytest.approx(0.8, abs=0.1)
    rootfs = root.node().lxc(101).config.get()["rootfs"]
    assert rootfs == "vol-ceph-1:base-9000-disk-0/vm-101-disk-0,size=8G"
    text = root.done(root.node().lxc(9000).delete())
    assert text == "base volume 'vol-ceph-1:base-9000-disk-0' is still in use by linked cloned"
    said = refused(lambda: root.clone(102, storage="local-lvm"))
    assert said == "parameter 'storage' not allowed for linked clones"
    said = refused(lambda: root.clone(102, source=101, full=0))
    disk = "vol-ceph-1:base-9000-disk-0/vm-101-disk-0"
    assert said == f"Linked clone feature for '{disk}' is not available"


def test_a_running_container_is_copied_only_from_a_snapshot(root):
    root.made(101)
    root.done(root.node().lxc(101).status.start.post())
    said = refused(lambda: root.clone(102, source=101, full=1))
    assert said == "Full clone of a running container is only possible from a snapshot"
    root.done(root.node().lxc(101).snapshot.post(snapname="before"))
    root.made(102, source=101, full=1, snapname="before")


def test_a_clone_for_another_node_needs_a_shared_storage(root):
    root.made(101, target="pve3", full=1)
    assert root.node("pve3").lxc(101).config.get()["memory"] == 512
    said = refused(lambda: root.clone(102, target="pve3", full=1, storage="local-lvm"))
    assert said == "can't clone to non-shared storage 'local-lvm'"
    said = refused(root.node("pve1").lxc(101).config.get)
    assert said == "Configuration file 'nodes/pve1/lxc/101.conf' does not exist"


# Virtual machines


def test_virtual_machines_are_cloned_from_one_template_at_the_same_time(sim, root):
    tasks = [root.clone(100 + number, "qemu", full=1) for number in range(4)]
    before = sim.clock.now()
    assert {root.done(task) for task in tasks} == {"OK"}
    # Four copies of 8 GiB at full speed, each allocated in turn.
    assert sim.clock.now() - before == pytest.approx(8 * 1.5 + 4 * 0.25, abs=0.1)


def test_more_clones_than_the_storage_copies_at_once_share_it(sim, root):
    tasks = [root.clone(100 + number, "qemu", full=1) for number in range(8)]
    before = sim.clock.now()
    assert {root.done(task) for task in tasks} == {"OK"}
    assert 2 * 8 * 1.5 < sim.clock.now() - before < 2 * 8 * 1.5 + 8 * 0.25


def test_a_virtual_machine_under_construction_is_locked(root):
    clone = root.clone(101, "qemu", full=1)
    root.sim.clock.advance(2.0)
    assert root.node().qemu(101).config.get()["lock"] == "clone"
    assert root.done(root.node().qemu(101).status.start.post()) == LOCKED.format(101)
    assert root.status(clone)["status"] == "running"
    said = refused(lambda: root.clone(101, "qemu"))
    assert said == "unable to create VM 101: config file already exists"
    assert root.done(clone) == "OK"


def test_two_clones_to_one_number_at_the_same_moment(root):
    """Both are begun, for `nextid` gave both the same; one waits for the lock file in vain."""
    ids = {root.api.cluster.nextid.get() for _ in range(2)}
    assert ids == {"100"}
    first, second = (root.clone(100, "qemu", full=1) for _ in range(2))
    assert [root.done(first), root.done(second)] == ["OK", LOCKED.format(100)]


def test_a_number_taken_on_another_node_fails_the_task(root):
    root.made(101, "qemu", source=9501, node="pve2")
    text = root.done(root.clone(101, "qemu"))
    path = "/etc/pve/nodes/pve1/qemu-server/101.conf"
    assert text == f"close (rename) atomic file '{path}' failed: File exists"


def test_a_change_of_a_machine_somebody_clones_to_waits_for_its_lock(root):
    root.clone(101, "qemu", full=1)
    root.sim.clock.advance(0.5)
    before = root.sim.clock.now()
    assert refused(lambda: root.node().qemu(101).config.put(cores=2)) == LOCKED.format(101)
    assert root.sim.clock.now() - before == 10.0


def test_a_running_source_is_cloned_by_one_alone(root):
    root.made(101, "qemu", full=1)
    assert root.done(root.node().qemu(101).status.start.post()) == "OK"
    first, second = (root.clone(number, "qemu", source=101, full=1) for number in (102, 103))
    assert [root.done(first), root.done(second)] == ["OK", LOCKED.format(101)]


# Storages


@pytest.mark.parametrize(
    ("shared", "text"),
    [
        (True, "cfs-lock 'storage-slow' error: got lock request timeout"),
        (False, "can't lock file '/var/lock/pve-manager/pve-storage-slow' - got timeout"),
    ],
)
def test_too_many_at_once_time_out_on_the_storages_lock_and_leave_nothing(shared, text):
    slow = StorageSettings(name="slow", alloc_seconds=4.0, shared=shared, copies=8)
    with Simulator(nodes=1, storages=[slow], clock=VirtualClock()) as sim:
        root = Client(sim)
        tasks = [root.clone(100 + number, "qemu", full=1) for number in range(5)]
        ends = [root.done(task) for task in tasks]
        assert ends == ["OK"] * 3 + [f"clone failed: {text}"] * 2
        assert sorted(sim.cluster.guests)[:4] == [100, 101, 102, 9000]


def test_pools_and_nodes_that_do_not_exist(root):
    with pytest.raises(ResourceException) as error:
        root.clone(101, pool="nowhere")
    assert error.value.status_code == 403
    assert refused(lambda: root.clone(101, target="pve9")) == "no such cluster node 'pve9'"
    assert refused(lambda: root.clone(101, node="pve9")) == "no such cluster node 'pve9'"
    assert refused(lambda: root.clone(101, storage="x1", full=1)) == "storage 'x1' does not exist"
