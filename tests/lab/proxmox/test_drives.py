"""Drives as Proxmox VE has them: how they grow, what is imported, what a clone gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox import Simulator, StorageSettings, VirtualClock
from essaim_lab.simulators.proxmox.settings import usual
from lab.proxmox.client import Client


def refused(act) -> str:
    with pytest.raises(ResourceException) as error:
        act()
    return error.value.content


def test_a_container_s_disk_that_has_the_size_is_refused_before_a_task_begins(root):
    root.made(101, full=1)
    it = root.node().lxc(101)
    assert root.done(it.resize.put(disk="rootfs", size="12G")) == "OK"
    tasks = len(root.sim.cluster.tasks)
    said = refused(lambda: it.resize.put(disk="rootfs", size="12G"))
    assert said == "disk is already at specified size"
    assert refused(lambda: it.resize.put(disk="rootfs", size="8G")) == "unable to shrink disk size"
    assert refused(lambda: it.resize.put(disk="mp0", size="8G")) == "disk 'mp0' does not exist"
    assert len(root.sim.cluster.tasks) == tasks


def test_a_virtual_machine_s_disk_that_has_the_size_is_left_alone(root):
    root.made(101, "qemu", full=1)
    it = root.node().qemu(101)
    assert root.done(it.resize.put(disk="scsi0", size="8G")) == "OK"
    said = root.done(it.resize.put(disk="scsi0", size="4G"))
    assert said == "shrinking disks is not supported"
    assert root.done(it.resize.put(disk="virtio0", size="9G")) == "disk 'virtio0' does not exist"
    assert root.done(it.resize.put(disk="ide2", size="9G")) == "you can't resize a cdrom"
    assert root.done(it.resize.put(disk="scsi0", size="+1G")) == "OK"
    assert it.config.get()["scsi0"].endswith("size=9G")


def test_a_resize_waits_for_the_configuration_s_lock_and_gives_up(sim, root):
    root.made(101, full=1)
    sim.fault("locks", share=1.0, kinds="resize,config", count=2)
    it, text = root.node().lxc(101), "can't lock file '/run/lock/lxc/pve-config-101.lock'"
    assert root.done(it.resize.put(disk="rootfs", size="9G")) == f"{text} - got timeout"
    assert refused(lambda: it.config.put(memory=1024)) == f"{text} - got timeout"
    assert root.done(it.resize.put(disk="rootfs", size="9G")) == "OK"


def test_an_imported_disk_has_the_size_of_its_image(root):
    said = {"scsi0": "vol-ceph-1:0,import-from=local:import/debian-12.qcow2"}
    assert root.done(root.node().qemu.post(vmid=101, ide2="vol-ceph-1:cloudinit", **said)) == "OK"
    conf = root.node().qemu(101).config.get()
    assert conf["scsi0"] == "vol-ceph-1:vm-101-disk-0,size=3G"
    assert conf["ide2"] == "vol-ceph-1:vm-101-cloudinit,media=cdrom"
    none = {"scsi0": "vol-ceph-1:0,import-from=local:import/none.qcow2"}
    ended = root.done(root.node().qemu.post(vmid=102, **none))
    assert ended.startswith("cannot import from 'local:import/none.qcow2'")


def test_a_clone_has_a_cloud_init_drive_of_its_own(root):
    root.made(101, "qemu")
    assert root.node().qemu(101).config.get()["ide2"].startswith("vol-ceph-1:vm-101-cloudinit")


def test_without_a_cloud_init_drive_a_machine_never_gets_the_address_it_was_told(sim, root):
    root.made(101, "qemu")
    it = root.node().qemu(101)
    it.config.put(ipconfig0="ip=10.9.9.9/24", delete="ide2")
    root.done(it.status.start.post())
    sim.clock.advance(5.0)
    card = it.agent("network-get-interfaces").get()["result"][1]
    assert card["ip-addresses"][0]["ip-address"] != "10.9.9.9"


@pytest.fixture
def uneven():
    """Three nodes, of which pve1 and pve2 have the shared storage `fast`, and pve1 `own`."""
    fast = StorageSettings(name="fast", nodes=("pve1", "pve2"))
    own = StorageSettings(name="own", type="lvm", shared=False, nodes=("pve1",))
    settings = usual(storages=(fast, own))
    vm = next(each for each in settings.templates if each.kind == "qemu")
    settings = replace(settings, templates=(*settings.templates[:1], replace(vm, disk="virtio0")))
    with Simulator(settings=settings, clock=VirtualClock()) as sim:
        yield Client(sim)


def test_a_storage_is_only_on_the_nodes_it_names(uneven):
    rows = uneven.api.cluster.resources.get(type="storage")
    assert [row["node"] for row in rows if row["storage"] == "fast"] == ["pve1", "pve2"]
    assert "fast" not in [row["storage"] for row in uneven.node("pve3").storage.get()]
    (row,) = [row for row in uneven.api.storage.get() if row["storage"] == "fast"]
    assert row["nodes"] == "pve1,pve2"
    said = "storage 'fast' is not available on node 'pve3'"
    assert refused(lambda: uneven.clone(101, full=1, storage="fast", target="pve3")) == said
    assert uneven.made(101, full=1, storage="fast", target="pve2")


def test_a_cloud_init_drive_on_a_local_storage_ties_a_template_to_its_node(uneven):
    vm = uneven.node().qemu(9500)
    vm.config.put(ide2="own:vm-9500-cloudinit,media=cdrom")
    said = "can't clone VM to node 'pve2' (VM uses local storage)"
    assert refused(lambda: uneven.clone(101, "qemu", target="pve2")) == said


def test_a_full_storage_says_so_and_what_was_begun_is_removed(uneven):
    uneven.sim.fault("full", storage="own")
    ended = uneven.done(uneven.clone(101, full=1, storage="own"))
    assert ended == "clone failed: not enough free space (0 < 8388608)"
    assert 101 not in uneven.sim.cluster.guests
    (row,) = [row for row in uneven.node().storage.get() if row["storage"] == "own"]
    assert row["avail"] == 0
    uneven.sim.heal()
    uneven.made(101, full=1, storage="own")
