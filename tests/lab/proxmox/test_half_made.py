"""What a machine looks like while it is made, who sees it, and what is left when that dies."""

from __future__ import annotations

import pytest
from proxmoxer import ResourceException

ARCHIVE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
IMAGE = "local:import/debian-12.qcow2"
#: The rights docs/proxmox.md asks for.
POOL_ONLY = (
    ("/pool/students", "PVEVMAdmin,PVEPoolUser"),
    ("/vms/9000", "PVETemplateUser"),
    ("/vms/9500", "PVETemplateUser"),
    ("/storage", "PVEDatastoreUser"),
    ("/sdn/zones/localnetwork", "PVESDNUser"),
    ("/nodes", "PVEAuditor"),
)


@pytest.fixture
def narrow(person):
    return person("ann", *POOL_ONLY)


def refused(act) -> tuple[int, str]:
    with pytest.raises(ResourceException) as error:
        act()
    return error.value.status_code, f"{error.value.content} {error.value.errors or ''}"


def seen(client) -> set[int]:
    return {row["vmid"] for row in client.api.cluster.resources.get(type="vm")}


def until(sim, moment) -> None:
    while not moment():
        assert sim.clock.jump(), "nothing will ever happen"


def makers(client, how: str, newid: int) -> str:
    """Begin to make a machine in one of the ways there are; gives the task."""
    said = {"pool": "students", "description": "hers"}
    if how in ("qemu", "lxc"):
        return client.clone(newid, how, full=1, **said)
    if how == "archive":
        disk = {"storage": "vol-ceph-1", "rootfs": "vol-ceph-1:4", "unprivileged": 1}
        return client.node().lxc.post(vmid=newid, ostemplate=ARCHIVE, **disk, **said)
    disk = f"vol-ceph-1:0,import-from={IMAGE}"
    return client.node().qemu.post(vmid=newid, scsi0=disk, **said)


def test_a_virtual_machines_clone_says_nothing_until_its_first_disk_is_there(sim, root):
    task = root.clone(101, "qemu", full=1, description="hers", name="ann")
    until(sim, lambda: 101 in sim.cluster.guests)
    conf = root.node().qemu(101).config.get()
    assert {key: conf[key] for key in conf if key != "digest"} == {
        "lock": "clone",
        "description": " qmclone temporary file",
    }
    (row,) = [each for each in root.api.cluster.resources.get(type="vm") if each["vmid"] == 101]
    assert row["lock"] == "clone"
    assert "tags" not in row
    assert root.done(task) == "OK"
    conf = root.node().qemu(101).config.get()
    assert (conf["description"], conf["name"]) == ("hers", "ann")
    assert "lock" not in conf


def test_a_clone_for_another_node_is_on_its_sources_until_the_end(sim, root):
    task = root.clone(101, "qemu", full=1, target="pve2")
    until(sim, lambda: 101 in sim.cluster.guests)
    assert sim.cluster.guests[101].node == "pve1"
    assert root.done(task) == "OK"
    assert sim.cluster.guests[101].node == "pve2"


@pytest.mark.parametrize("how", ["archive", "image"])
def test_what_is_made_from_stock_is_a_lock_until_it_is_unpacked(sim, root, how):
    kind = {"archive": "lxc", "image": "qemu"}[how]
    task = makers(root, how, 101)
    conf = getattr(root.node(), kind)(101).config.get()
    assert {key: conf[key] for key in conf if key != "digest"} == {"lock": "create"}
    assert f":{ {'lxc': 'vz', 'qemu': 'qm'}[kind] }create:101:" in task
    before = sim.clock.now()
    assert root.done(task) == "OK"
    assert sim.clock.now() - before > 1.0
    assert getattr(root.node(), kind)(101).config.get()["description"] == "hers"


@pytest.mark.parametrize("how", ["qemu", "lxc", "archive", "image"])
def test_a_token_of_a_pool_sees_a_machine_only_once_it_is_made(sim, root, narrow, how):
    assert seen(narrow) == {9000, 9500}
    task = makers(narrow, how, 101)
    until(sim, lambda: 101 in sim.cluster.guests)
    kind = sim.cluster.guests[101].kind
    assert 101 in seen(root)
    assert 101 not in seen(narrow)
    code, text = refused(getattr(narrow.node(), kind)(101).config.get)
    assert (code, "/vms/101" in text) == (403, True)
    code, text = refused(getattr(narrow.node(), kind)(101).delete)
    assert (code, "/vms/101" in text) == (403, True)
    code, text = refused(lambda: narrow.api.cluster.nextid.get(vmid=101))
    assert code == 400
    assert "VM 101 already exists" in text
    assert narrow.api.cluster.nextid.get(vmid=102) == "102"
    # Its own tasks are listed by each node, and by the cluster only to who may audit all of it.
    assert narrow.api.cluster.tasks.get() == []
    (row,) = narrow.node().tasks.get(source="active")
    assert row["upid"] == task
    assert narrow.done(task) == "OK"
    assert 101 in seen(narrow)
    assert getattr(narrow.node(), kind)(101).config.get()["description"] == "hers"


def test_an_id_that_a_token_cannot_see_is_refused_as_taken(sim, narrow):
    sim.fault("foreign", ids="101,102,103")
    assert seen(narrow) == {9000, 9500}
    assert sim.cluster.guests[103].node == "pve1"
    for number in (101, 102, 103):
        node = sim.cluster.guests[number].node
        where = f"VM {number} already exists on node '{node}'"
        assert refused(lambda n=number: makers(narrow, "lxc", n)) == (500, f"{where} ")
        said = f"unable to create CT {number} - {where} "
        assert refused(lambda n=number: makers(narrow, "archive", n)) == (500, said)
        said = f"unable to create VM {number} - {where} "
        assert refused(lambda n=number: makers(narrow, "image", n)) == (500, said)
    said = "unable to create VM 103: config file already exists "
    assert refused(lambda: makers(narrow, "qemu", 103)) == (500, said)
    file = "/etc/pve/nodes/pve1/qemu-server/101.conf"
    end = narrow.done(makers(narrow, "qemu", 101))  # another node's: seen by the task alone
    assert end == f"close (rename) atomic file '{file}' failed: File exists"


@pytest.mark.parametrize("how", ["qemu", "lxc", "archive", "image"])
def test_what_is_killed_while_it_makes_a_machine_leaves_it_locked_with_its_disk(sim, root, how):
    sim.fault("deaths", after=0.9, count=1)
    task = makers(root, how, 101)
    assert root.done(task) == "unexpected status"
    guest = sim.cluster.guests[101]
    assert guest.conf["lock"] == {"qemu": "clone"}.get(how, "create")
    assert not guest.disks()  # nobody wrote down what it had begun to fill
    assert [file for file, vmid in sim.cluster.volumes.items() if vmid == 101]
    sim.cluster.faults.unlock(101)
    gone = getattr(root.node(), guest.kind)(101)
    assert root.done(gone.delete(**{"destroy-unreferenced-disks": 1})) == "OK"
    assert 101 not in sim.cluster.volumes.values()


@pytest.mark.parametrize("how", ["qemu", "lxc", "archive", "image"])
def test_what_fails_while_it_makes_a_machine_leaves_nothing(sim, root, how):
    task = makers(root, how, 101)
    until(sim, lambda: 101 in sim.cluster.volumes.values())
    root.node().tasks(task).delete()
    assert "received interrupt" in root.done(task)
    assert 101 not in sim.cluster.guests
    assert 101 not in sim.cluster.volumes.values()
