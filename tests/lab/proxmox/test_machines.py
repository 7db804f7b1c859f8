"""The life of machines of both kinds: made, started, kept, gone back to, resized, removed."""

from __future__ import annotations

import pytest
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox import NodeSettings, Simulator, VirtualClock
from lab.proxmox.client import Client

TEMPLATE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"


def refused(act) -> str:
    with pytest.raises(ResourceException) as error:
        act()
    return error.value.content


def guest(root, kind: str, vmid: int = 101):
    return getattr(root.node(), kind)(vmid)


@pytest.mark.parametrize("kind", ["lxc", "qemu"])
def test_a_machine_is_started_and_stopped(sim, root, kind):
    root.made(101, kind)
    it = guest(root, kind)
    assert it.status.current.get()["status"] == "stopped"
    assert root.done(it.status.start.post()) == "OK"
    now = it.status.current.get()
    assert (now["status"], now["uptime"]) == ("running", 0)
    sim.clock.advance(60.0)
    assert it.status.current.get()["uptime"] == 60
    assert root.done(it.status.shutdown.post()) == "OK"
    assert root.done(it.status.start.post()) == "OK"
    assert root.done(it.status.reboot.post()) == "OK"
    assert root.done(it.status.stop.post()) == "OK"
    assert it.status.current.get()["status"] == "stopped"


def test_a_container_that_is_on_is_not_started_and_one_that_is_off_not_stopped(root):
    root.made(101)
    it = guest(root, "lxc")
    assert refused(it.status.stop.post) == "CT 101 not running"
    root.done(it.status.start.post())
    assert refused(it.status.start.post) == "CT 101 already running"
    assert refused(it.delete) == "unable to destroy CT 101 - container is running"
    assert root.done(it.delete(force=1)) == "OK"
    assert refused(it.status.current.get).endswith("'nodes/pve1/lxc/101.conf' does not exist")


def test_a_virtual_machine_says_so_in_its_task(root):
    root.made(101, "qemu")
    it = guest(root, "qemu")
    root.done(it.status.start.post())
    assert root.done(it.status.start.post()) == "VM 101 already running"
    assert refused(it.delete) == "VM 101 is running - destroy failed"
    root.done(it.status.stop.post())
    assert root.done(it.delete()) == "OK"


@pytest.mark.parametrize(("kind", "word"), [("lxc", "CT"), ("qemu", "vm")])
def test_a_template_is_not_started(root, kind, word):
    base = {"lxc": 9000, "qemu": 9500}[kind]
    said = root.done(guest(root, kind, base).status.start.post())
    assert said == f"you can't start a {word} if it's a template"


def test_nothing_starts_on_a_bridge_that_is_not_there(root):
    root.made(101)
    guest(root, "lxc").config.put(net0="name=eth0,bridge=vmbr9")
    ended = root.done(guest(root, "lxc").status.start.post())
    assert ended == "startup for container '101' failed"


def test_starts_share_the_node(sim, root):
    for vmid in range(101, 109):
        root.made(vmid)
    before = sim.clock.now()
    tasks = [guest(root, "lxc", vmid).status.start.post() for vmid in range(101, 109)]
    assert {root.done(task) for task in tasks} == {"OK"}
    assert sim.clock.now() - before == pytest.approx(2 * 3.0, abs=0.1)  # where four have room


def test_a_start_that_takes_too_long_fails():
    node = NodeSettings(name="pve", start_seconds=3.0, starts=1, start_timeout=7.0)
    with Simulator(nodes=1, node=node, clock=VirtualClock()) as sim:
        root = Client(sim)
        for vmid in (101, 102, 103):
            root.made(vmid)
        tasks = [guest(root, "lxc", vmid).status.start.post() for vmid in (101, 102, 103)]
        assert {root.done(task) for task in tasks} == {"start failed: got timeout"}
        # Two at a time are done in six seconds.
        tasks = [guest(root, "lxc", vmid).status.start.post() for vmid in (101, 102)]
        assert {root.done(task) for task in tasks} == {"OK"}


def test_addresses_are_told_by_those_that_run(sim, root):
    root.made(101)
    it = guest(root, "lxc")
    it.config.put(net0="name=eth0,bridge=vmbr0,ip=10.20.0.5/24,gw=10.20.0.1")
    assert it.interfaces.get() is None
    root.done(it.status.start.post())
    assert it.interfaces.get()[1]["inet"] == "10.20.0.5/24"

    root.made(102, "qemu")
    vm = guest(root, "qemu", 102)
    ask = vm.agent("network-get-interfaces").get
    assert refused(ask) == "VM 102 is not running"
    root.done(vm.status.start.post())
    assert refused(ask) == "QEMU guest agent is not running"
    sim.clock.advance(5.0)
    card = ask()["result"][1]
    assert card["ip-addresses"][0]["ip-address-type"] == "ipv4"
    mac = vm.config.get()["net0"].partition("=")[2].partition(",")[0]
    assert card["hardware-address"] == mac.lower()
    vm.config.put(delete="agent")
    assert refused(ask) == "No QEMU guest agent configured"


@pytest.mark.parametrize("kind", ["lxc", "qemu"])
def test_snapshots_are_kept_gone_back_to_and_forgotten(root, kind):
    root.made(101, kind, full=1)
    it = guest(root, kind)
    it.config.put(memory=1024)
    assert root.done(it.snapshot.post(snapname="before", description="all is well")) == "OK"
    assert root.done(it.snapshot.post(snapname="before")) == "snapshot name 'before' already used"
    it.config.put(memory=2048)
    root.done(it.status.start.post())
    names = [(each["name"], each.get("parent")) for each in it.snapshot.get()]
    assert names == [("before", None), ("current", "before")]
    assert root.done(it.snapshot("before").rollback.post()) == "OK"
    assert str(it.config.get()["memory"]) == "1024"
    assert it.status.current.get()["status"] == "stopped"
    assert root.done(it.snapshot("before").rollback.post(start=1)) == "OK"
    assert it.status.current.get()["status"] == "running"
    assert root.done(it.snapshot("before").delete()) == "OK"
    assert [each["name"] for each in it.snapshot.get()] == ["current"]
    assert root.done(it.snapshot("before").delete()) == "snapshot 'before' does not exist"
    said = refused(lambda: it.snapshot.post(snapname="current"))
    assert said == "unable to use snapshot name 'current' (reserved name)"


def test_a_machine_being_snapshotted_is_locked(root):
    root.made(101)
    it = guest(root, "lxc")
    task = it.snapshot.post(snapname="now")
    root.sim.clock.advance(0.5)
    assert refused(lambda: it.config.put(memory=1024)) == "CT is locked (snapshot)"
    assert root.done(task) == "OK"


def test_a_disk_grows_and_does_not_shrink(root):
    root.made(101, full=1)
    it = guest(root, "lxc")
    assert root.done(it.resize.put(disk="rootfs", size="+4G")) == "OK"
    assert it.config.get()["rootfs"].endswith("size=12G")
    assert refused(lambda: it.resize.put(disk="rootfs", size="2G")) == "unable to shrink disk size"
    assert refused(lambda: it.resize.put(disk="mp0", size="2G")) == "disk 'mp0' does not exist"


def test_a_container_is_made_from_an_archive(root):
    said = {"vmid": 101, "ostemplate": TEMPLATE, "storage": "vol-ceph-1", "rootfs": "vol-ceph-1:10",
            "hostname": "alice", "net0": "name=eth0,bridge=vmbr0,ip=dhcp", "start": 1}  # fmt: skip
    assert root.done(root.node().lxc.post(**said)) == "OK"
    conf = root.node().lxc(101).config.get()
    assert conf["rootfs"] == "vol-ceph-1:vm-101-disk-0,size=10G"
    assert root.node().lxc(101).status.current.get()["status"] == "running"
    text = "unable to create CT 101 - CT 101 already exists on node 'pve1'"
    assert refused(lambda: root.node().lxc.post(**said)) == text
    missing = {**said, "vmid": 102, "ostemplate": "local:vztmpl/none.tar.zst"}
    assert "does not exist" in refused(lambda: root.node().lxc.post(**missing))


def test_a_virtual_machine_is_made_from_nothing_and_becomes_a_template(root):
    made = root.node().qemu.post(vmid=101, name="base", scsi0="vol-ceph-1:20", memory=1024)
    assert root.done(made) == "OK"
    it = guest(root, "qemu")
    assert it.config.get()["scsi0"] == "vol-ceph-1:vm-101-disk-0,size=20G"
    assert root.done(it.template.post()) == "OK"
    assert it.config.get()["scsi0"] == "vol-ceph-1:base-101-disk-0,size=20G"
    root.made(102, "qemu", source=101)


def test_a_protected_machine_is_not_removed(root):
    root.made(101)
    it = guest(root, "lxc")
    it.config.put(protection=1)
    assert refused(it.delete) == "can't remove CT 101 - protection mode enabled"
    it.config.put(delete="protection")
    assert root.done(it.delete()) == "OK"


def test_a_change_based_on_what_is_no_more_is_refused(root):
    root.made(101)
    it = guest(root, "lxc")
    old = it.config.get()["digest"]
    it.config.put(memory=1024, digest=old)
    assert "detected modified configuration" in refused(lambda: it.config.put(cores=2, digest=old))
    assert refused(it.config.put) == "no options specified"


def test_listings_show_powers_as_they_were_gathered_last(sim, root):
    def seen():
        return {each["vmid"]: each for each in root.api.cluster.resources.get(type="vm")}

    sim.clock.advance(11.0 - sim.clock.now() % 10.0)
    root.made(101, hostname="alice")
    assert (seen()[101]["status"], seen()[101].get("name")) == ("unknown", None)
    sim.clock.advance(10.0)
    assert (seen()[101]["status"], seen()[101]["name"]) == ("stopped", "alice")
    root.done(guest(root, "lxc").status.start.post())
    guest(root, "lxc").config.put(tags="essaim")
    assert (seen()[101]["status"], seen()[101]["tags"]) == ("stopped", "essaim")
    sim.clock.advance(10.0)
    assert seen()[101]["status"] == "running"


def test_what_there_is(root):
    root.made(101, pool="students", full=1)
    assert root.node().storage("vol-ceph-1").content.get(vmid=101)[0]["content"] == "rootdir"
    archives = [each["storage"] for each in root.node().storage.get(content="vztmpl")]
    assert archives == ["local", "dirs-nfs"]
    assert root.node().storage("local").content.get()[0]["volid"] == TEMPLATE
    assert TEMPLATE not in [x["volid"] for x in root.node().storage("dirs-nfs").content.get()]
    assert root.api.pools("students").get()["members"][0]["vmid"] == 101
    assert [each["name"] for each in root.api.cluster.status.get()][1:] == ["pve1", "pve2", "pve3"]
    assert root.node().status.get()["memory"]["total"] > 0
    assert root.node().network.get()[0]["iface"] == "vmbr0"
    assert root.node().lxc(101).vncproxy.post()["port"]
    assert refused(lambda: root.api.pools("students").delete()) == (
        "delete pool failed: pool 'students' is not empty (contains VM 101)"
    )
    root.api.pools("students").put(vms="101", delete=1)
    root.api.pools("students").delete()
    assert (
        refused(lambda: root.api.cluster.nextid.get(vmid=101)) == "Parameter verification failed."
    )
