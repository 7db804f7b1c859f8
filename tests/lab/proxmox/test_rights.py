"""Rights are checked on the paths on which Proxmox VE checks them, in versions 7, 8 and 9.

Where each check was read from is in docs/proxmox-behaviour.md.
"""

from __future__ import annotations

import pytest
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox import Simulator, VirtualClock
from lab.proxmox.client import Client

POOL = "/pool/students"
STORAGE = ("/storage/vol-ceph-1", "PVEDatastoreUser")
BRIDGE = ("/sdn/zones/localnetwork/vmbr0", "PVESDNUser")
ARCHIVE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"


@pytest.fixture
def sim_of():
    """Makes a cluster of that version."""
    made = []

    def make(version: int, **how) -> Simulator:
        sim = Simulator(nodes=2, clock=VirtualClock(), version=version, **how)
        sim.open()
        made.append(sim)
        return sim

    yield make
    for sim in made:
        sim.close()
        assert not sim.cluster.kernel.defects


def new_person(sim: Simulator, name: str, *rights: tuple[str, str], **privileges: str) -> Client:
    """Somebody with these roles; `Name="VM.Audit …"` makes a role first."""
    root = Client(sim).api
    root.access.users.post(userid=f"{name}@pve")
    for role, words in privileges.items():
        root.access.roles.post(roleid=role, privs=words)
    for path, role in rights:
        root.access.acl.put(path=path, roles=role, users=f"{name}@pve")
    token = root.access.users(f"{name}@pve").token("own").post(privsep=0)
    return Client(sim, token["full-tokenid"], token["value"])


def refused(act) -> tuple[int, str]:
    with pytest.raises(ResourceException) as error:
        act()
    return error.value.status_code, error.value.content


def lacks(what: str) -> tuple[int, str]:
    return 403, f"Permission check failed ({what})"


# Bridges


def test_a_bridge_is_guarded_since_version_8_and_not_listed_for_strangers(sim_of):
    rights = [("/vms/101", "PVEVMAdmin"), ("/vms/9000", "PVETemplateUser"), STORAGE]
    for version in (7, 8, 9):
        sim = sim_of(version)
        bob = new_person(sim, "bob", *rights)
        seen = {row["iface"] for row in bob.node().network.get()}
        if version == 7:
            bob.made(101)
            assert "vmbr0" in seen
        else:
            lacking = lacks("/sdn/zones/localnetwork/vmbr0, SDN.Use")
            assert refused(lambda bob=bob: bob.clone(101)) == lacking
            assert seen == {"eno1"}


def test_a_vlan_needs_the_right_on_the_vlan_and_one_on_the_bridge_goes_on_to_it(sim_of):
    sim = sim_of(8)
    root = Client(sim)
    root.made(101)
    amy = new_person(sim, "amy", ("/vms/101", "PVEVMAdmin"))
    put = amy.node().lxc(101).config.put
    acl = root.api.access.acl.put
    bridge = "/sdn/zones/localnetwork/vmbr0"
    given = {"path": bridge, "roles": "PVESDNUser", "users": "amy@pve"}
    tagged = "name=eth0,bridge=vmbr0,tag=285"
    acl(**given, propagate=0)
    put(net0="name=eth0,bridge=vmbr0")
    assert refused(lambda: put(net0=tagged)) == lacks(f"{bridge}/285, SDN.Use")
    acl(**given, propagate=1)
    put(net0=tagged)
    acl(**given, delete=1)
    acl(path=f"{bridge}/285", roles="PVESDNUser", users="amy@pve")
    put(net0=tagged, memory=1024)
    assert "vmbr0" in {row["iface"] for row in amy.node().network.get()}
    assert refused(lambda: put(net0="name=eth0,bridge=vmbr0"))[1].endswith(f"({bridge}, SDN.Use)")
    trunk = "virtio,bridge=vmbr0,trunks=285;300-301"
    root.made(102, "qemu")
    acl(path="/vms/102", roles="PVEVMAdmin", users="amy@pve")
    acl(path=bridge, roles="PVESDNUser", users="amy@pve", propagate=0)
    assert refused(lambda: amy.node().qemu(102).config.put(net0=trunk)) == lacks(
        f"{bridge}/300, SDN.Use"
    )


# Settings of machines


def test_each_setting_of_a_virtual_machine_needs_its_own_privilege(sim_of):
    sim = sim_of(8)
    root = Client(sim)
    root.made(101, "qemu")
    amy = new_person(sim, "amy", ("/vms/101", "Audits"), BRIDGE, STORAGE, Audits="VM.Audit")
    put = amy.node().qemu(101).config.put
    for said, wanted in (
        ({"cores": 2}, "VM.Config.CPU"),
        ({"memory": 1024}, "VM.Config.Memory"),
        ({"scsihw": "virtio-scsi-single"}, "VM.Config.HWType"),
        ({"serial0": "socket"}, "VM.Config.HWType"),
        ({"description": "x"}, "VM.Config.Options"),
        ({"tags": "essaim"}, "VM.Config.Options"),
        ({"boot": "order=scsi0"}, "VM.Config.Disk"),
        ({"scsi1": "vol-ceph-1:4"}, "VM.Config.Disk"),
        ({"delete": "scsi0"}, "VM.Config.Disk"),
        ({"ide3": "none,media=cdrom"}, "VM.Config.CDROM"),
        ({"net0": "virtio,bridge=vmbr0"}, "VM.Config.Network"),
        ({"ipconfig0": "ip=dhcp"}, "VM.Config.Cloudinit|VM.Config.Network"),
        ({"ciuser": "x"}, "VM.Config.Cloudinit|VM.Config.Network"),
    ):
        others = ",".join(sim.cluster.access.roles["PVEVMAdmin"] - set(wanted.split("|")))
        sim.cluster.access.roles["Audits"] = frozenset(others.split(","))
        sim.cluster.access.changed()
        assert refused(lambda said=said: put(**said)) == lacks(f"/vms/101, {wanted}"), said
        sim.cluster.access.roles["Audits"] = frozenset({"VM.Audit", *wanted.split("|")})
        sim.cluster.access.changed()
        put(**said)
    sim.cluster.access.roles["Audits"] = frozenset({"VM.Config.CDROM"})
    sim.cluster.access.changed()
    drive = {"ide0": "vol-ceph-1:cloudinit"}
    assert refused(lambda: put(**drive)) == lacks("/vms/101, VM.Config.Cloudinit")
    assert refused(lambda: put(serial1="/dev/ttyS0")) == (
        500,
        "only root can set 'serial1' config for real devices",
    )


def test_addresses_of_cloud_init_are_a_matter_of_networks_in_version_7(sim_of):
    sim = sim_of(7)
    Client(sim).made(101, "qemu")
    rights = {"Cloud": "VM.Config.Cloudinit"}
    amy = new_person(sim, "amy", ("/vms/101", "Cloud"), **rights)
    put = amy.node().qemu(101).config.put
    assert refused(lambda: put(ipconfig0="ip=dhcp")) == lacks("/vms/101, VM.Config.Network")
    put(ciuser="x")


def test_the_order_of_starts_is_for_those_who_may_change_the_node(sim_of):
    sim = sim_of(8)
    Client(sim).made(101, "qemu")
    amy = new_person(sim, "amy", ("/vms/101", "PVEVMAdmin"))
    assert refused(lambda: amy.node().qemu(101).config.put(startup="order=1")) == lacks(
        "/, Sys.Modify"
    )


def test_nesting_of_a_container_needs_the_right_to_make_one(sim_of):
    sim = sim_of(8)
    Client(sim).made(101)
    amy = new_person(sim, "amy", ("/vms/101", "Options"), Options="VM.Audit VM.Config.Options")
    put = amy.node().lxc(101).config.put
    assert refused(lambda: put(features="nesting=1")) == lacks("/vms/101, VM.Allocate")


def test_a_larger_disk_needs_room_on_its_storage(sim_of):
    sim = sim_of(8)
    Client(sim).made(101)
    amy = new_person(sim, "amy", ("/vms/101", "PVEVMAdmin"))
    act = lambda: amy.node().lxc(101).resize.put(disk="rootfs", size="+1G")  # noqa: E731 - tried
    assert refused(act) == lacks("/storage/vol-ceph-1, Datastore.AllocateSpace")


# Making them


def container(**more):
    usual = {"vmid": 101, "ostemplate": ARCHIVE, "rootfs": "vol-ceph-1:4", "hostname": "x"}
    return {**usual, "pool": "students", "net0": "name=eth0,bridge=vmbr0", **more}


def test_a_container_from_an_archive_needs_its_archive_and_gets_no_tags_by_its_pool(sim_of):
    sim = sim_of(8)
    amy = new_person(sim, "amy", (POOL, "PVEVMAdmin"), STORAGE, BRIDGE)
    make = amy.node().lxc.post
    assert refused(lambda: make(**container())) == lacks(
        "/storage/local, Datastore.AllocateSpace|Datastore.Audit"
    )
    root = Client(sim).api.access.acl.put
    root(path="/storage/local", roles="PVEDatastoreUser", users="amy@pve")
    # The pool's rights do not count for tags: they are asked for on the machine itself.
    assert refused(lambda: make(**container(tags="essaim"))) == lacks("/vms/101, VM.Config.Options")
    assert amy.done(make(**container(unprivileged=1, features="nesting=1"))) == "OK"
    amy.node().lxc(101).config.put(tags="essaim")


def test_a_virtual_machine_is_made_with_tags_and_its_images_are_guarded(sim_of):
    sim = sim_of(8)
    amy = new_person(sim, "amy", (POOL, "PVEVMAdmin"), STORAGE, BRIDGE)
    usual = {"vmid": 101, "name": "x", "pool": "students", "tags": "essaim", "ide2": "none"}
    make = amy.node().qemu.post
    disk = {"scsi0": "vol-ceph-1:0,import-from=local:import/debian.qcow2"}
    assert refused(lambda: make(**usual, **disk)) == lacks(
        "/storage/local, Datastore.AllocateSpace|Datastore.Audit"
    )
    theirs = {"scsi0": "vol-ceph-1:0,import-from=vol-ceph-1:base-9500-disk-0"}
    assert refused(lambda: make(**usual, **theirs)) == lacks("/vms/9500, VM.Clone")
    assert amy.done(make(**usual, scsi0="vol-ceph-1:4")) == "OK"


# What is seen


def test_what_an_auditor_of_the_nodes_sees_and_others_do_not(sim_of):
    sim = sim_of(8)
    amy = new_person(sim, "amy")
    bob = new_person(sim, "bob", ("/nodes", "PVEAuditor"))
    assert "maxmem" not in amy.api.cluster.resources.get(type="node")[0]
    assert bob.api.cluster.resources.get(type="node")[0]["maxmem"]
    assert refused(amy.node().time.get) == lacks("/nodes/pve1, Sys.Audit")
    assert bob.node().time.get()["timezone"] == "UTC"
    assert refused(bob.api.cluster.status.get) == lacks("/, Sys.Audit")


def test_the_tasks_of_the_cluster_are_for_auditors_of_its_root(sim_of):
    """A token sees not even its own there: they are listed under its user's name."""
    sim = sim_of(8, strict=True)
    plane = Client(sim, sim.plane_token, sim.plane_secret)
    plane.made(101, pool="students")
    assert [task["type"] for task in plane.api.cluster.tasks.get()] == ["vzclone"]
    del sim.cluster.access.rules["/", "user", "essaim@pve"]
    sim.cluster.access.changed()
    assert plane.api.cluster.tasks.get() == []
    assert len(plane.node().tasks.get()) == 1


def test_permissions_say_whether_they_go_on_below(sim_of):
    sim = sim_of(8, strict=True)
    plane = Client(sim, sim.plane_token, sim.plane_secret)
    plane.made(101, pool="students")
    ask = plane.api.access.permissions.get
    assert ask(path="/")["/"]["Sys.Audit"] == 0
    assert ask(path="/nodes")["/nodes"]["Sys.Audit"] == 1
    assert ask(path="/vms/101")["/vms/101"]["VM.Audit"] == 0  # by its pool
    assert ask(path="/vms/102") == {"/vms/102": {}}
    assert {"/vms/101", "/vms/9000", POOL, "/"} <= ask().keys()


# Versions


def test_versions_differ_in_their_privileges(sim_of):
    names, answers = {}, {}
    for version in (7, 8, 9):
        root = Client(sim_of(version)).api
        rows = {row["roleid"]: set(row["privs"].split(",")) for row in root.access.roles.get()}
        names[version], answers[version] = rows["Administrator"], root.version.get()
        assert rows["PVEVMAdmin"] >= {"VM.Allocate", "VM.Snapshot"}
    assert [answers[each]["release"] for each in (7, 8, 9)] == ["7.4", "8.4", "9.1"]
    assert names[8] - names[7] == {
        "Mapping.Audit", "Mapping.Modify", "Mapping.Use", "Sys.AccessNetwork",
    }  # fmt: skip
    assert names[8] - names[9] == {"VM.Monitor"}
    assert {each for each in names[9] - names[8] if "GuestAgent" not in each} == {"VM.Replicate"}
    role = {"roleid": "Old", "privs": "VM.Monitor"}
    root = Client(sim_of(9)).api
    assert "invalid privilege 'VM.Monitor'" in refused(lambda: root.access.roles.post(**role))[1]


def test_the_narrow_token_is_enough_in_each_version_and_sees_no_other_guest(sim_of):
    for version in (7, 8, 9):
        sim = sim_of(version, strict=True)
        Client(sim).made(100)
        plane = Client(sim, sim.plane_token, sim.plane_secret)
        plane.made(101, pool="students", full=1, storage="vol-ceph-1")
        seen = {row["vmid"] for row in plane.api.cluster.resources.get(type="vm")}
        assert seen == {101, 9000, 9500}
        assert refused(plane.node().lxc(100).config.get) == lacks("/vms/100, VM.Audit")
        assert refused(lambda plane=plane: plane.node().lxc(9000).delete()) == lacks(
            "/vms/9000, VM.Allocate"
        )
