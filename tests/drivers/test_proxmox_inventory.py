"""Names that the cluster does not know are told before anything is made, with what was meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_lab import TEMPLATE, prox_lab
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.driver import Proxmox
from essaim.drivers.proxmox.refusals import Refusal, sort
from essaim.model.errors import NotYetError, RejectedError
from essaim_lab.simulators.proxmox.settings import usual

FULL = replace(TEMPLATE, settings={"template": "debian-gui", "clone": "full"})
VM = replace(TEMPLATE, settings={"template": "debian-vm"})


@pytest.fixture
def it(tmp_path):
    with prox_lab(tmp_path) as made:
        made.stack()
        yield made


def refusal(it, driver, image=FULL, **labels: str) -> RejectedError:
    """What one attempt to make a machine is refused with: there is no second one."""
    machine = it.machine("lab", 1, labels=labels)
    with pytest.raises(RejectedError) as caught:
        Proxmox.create(driver, machine, NETWORK, image, it.seed(machine))
    with pytest.raises(RejectedError) as planned:
        driver.check_machines(image, [machine])
    assert planned.value.what == caught.value.what
    assert it.sim.cluster.tasks == {}
    return caught.value


@pytest.mark.parametrize(
    ("settings", "labels", "what", "hint"),
    [
        ({"storage": "vol-cehp-1"}, {}, "no storage vol-cehp-1", "did you mean vol-ceph-1?"),
        ({}, {"storage": "local-lvn"}, "no storage local-lvn", "did you mean local-lvm?"),
        ({"pool": "student"}, {}, "no pool student", "did you mean students?"),
        ({"bridge": "vibr297"}, {}, "no bridge vibr297", "did you mean vibr279?"),
        ({}, {"bridge": "lan"}, "no bridge lan", "there are: vibr279, vmbr0, vmbr1"),
        ({"nodes": ["pve1", "pev2"]}, {}, "no node pev2", "did you mean pve2?"),
        ({}, {"node": "x"}, "no node x", "there are: pve1, pve2, pve3"),
        ({"storage": "local"}, {}, "storage local may not hold disks of cont", "rootdir"),
    ],
)
def test_a_name_the_cluster_does_not_know_is_refused_at_once(it, settings, labels, what, hint):
    said = refusal(it, it.new_driver(**settings), **labels)
    assert what in said.what
    assert hint in said.hint
    where = "label" if labels else "in the site file"
    assert where in said.hint


def test_what_is_asked_of_the_site_is_asked_once(it):
    driver = it.new_driver()
    machines = [it.machine("lab", number) for number in range(1, 4)]
    driver.check_image(FULL)
    driver.check_machines(FULL, machines[:1])
    before = driver.api.calls
    for _ in range(3):
        driver.check_machines(FULL, machines)
    assert driver.api.calls == before


def test_an_account_that_may_use_and_not_look_is_not_refused(it):
    """A role of one's own may lack Datastore.Audit and Pool.Audit, which nothing else needs."""
    access = it.sim.cluster.access
    access.roles["EssaimPlane"] -= {"Datastore.Audit", "Pool.Audit"}
    access.changed()
    it.driver.check_machines(FULL, [it.machine("lab", 1)])
    assert "no storage nowhere" in refusal(it, it.new_driver(storage="nowhere")).what
    access.roles["EssaimPlane"] |= {"Pool.Audit"}
    access.changed()
    assert "no pool nowhere" in refusal(it, it.new_driver(pool="nowhere")).what


def test_a_virtual_machine_without_a_cloud_init_drive_is_refused_an_address(tmp_path):
    settings = usual(nodes=3)
    kept = tuple(replace(each, cloud_init=False) for each in settings.templates)
    with prox_lab(tmp_path, settings=replace(settings, templates=kept)) as it:
        it.stack()
        said = refusal(it, it.driver, VM)
        assert "template debian-vm (9500) has no cloud-init drive" in said.what
        assert "qm set 9500 --ide2 vol-ceph-1:cloudinit" in said.hint
        # One that asks for its address by DHCP, and brings its keys along, is fine.
        it.driver.check_machines(VM, [it.machine("lab", 1, labels={"address": "dhcp"})])
        it.driver.check_machines(TEMPLATE, [it.machine("lab", 1)])


def test_an_archive_on_one_node_only_is_unpacked_there(tmp_path):
    volume = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
    settings = replace(usual(nodes=3), only_on={volume: ("pve3",)})
    with prox_lab(tmp_path, settings=settings) as it:
        it.stack()
        for number, name in enumerate((volume, "local:debian-12-standard"), 1):
            image = replace(TEMPLATE, settings={"ostemplate": name})
            machine = it.machine("lab", number)
            it.driver.create(machine, NETWORK, image, it.seed(machine))
            assert it.guest(machine.name).node == "pve3"
        near = {"ostemplate": volume.replace("12.7", "12.8")}
        said = refusal_of_image(it, replace(TEMPLATE, settings=near))
        assert f"did you mean {volume}?" in said.hint
        it.driver.check_image(replace(TEMPLATE, settings={"disk": "/mnt/images/debian.qcow2"}))
        typo = replace(TEMPLATE, settings={"ostemplate": "localx:debian-12-standard"})
        said = refusal_of_image(it, typo)
        assert "no storage localx" in said.what
        assert "did you mean local?" in said.hint


def refusal_of_image(it, image) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        it.driver.check_image(image)
    return caught.value


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (500, "storage 'vol-cehp-1' does not exist", "wrong"),
        (403, "Permission check failed (pool 'x' does not exist)", "wrong"),
        (500, "bridge 'vmbr9' does not exist", "wrong"),
        (500, "no such cluster node 'pve9'", "wrong"),
        (500, "volume 'local:vztmpl/x.tar.zst' does not exist", "wrong"),
        (500, "disk 'scsi0' does not exist", "wrong"),
        (500, "snapshot 'x' does not exist", "wrong"),
        (500, "no such user ('x@pve')", "wrong"),
        (500, "clone failed: storage 'fast' is not available on node 'pve3'", "wrong"),
        (500, "Configuration file 'nodes/pve1/qemu-server/9.conf' does not exist", "gone"),
        (500, "no such guest '9'", "gone"),
        (500, "not enough free space (0 < 8388608)", "full"),
        (500, "clone failed: rbd: create error: (28) No space left on device", "full"),
        (500, "zfs error: cannot create 'rpool/data/x': out of space", "full"),
    ],
)
def test_what_does_not_exist_decides_whether_a_retry_is_of_use(code, text, kind):  # R-B2
    assert sort(code, text) is Refusal(kind)
    error = ApiError(Refusal(kind), text).ours("pve", "making it")
    assert isinstance(error, RejectedError) is (kind != "gone")
    assert "quorum" not in error.hint
    if kind == "wrong" and "snapshot" not in text:
        assert "names it" in error.hint


def test_a_full_storage_is_told_once_and_nothing_is_left(it):  # R-B2
    it.sim.fault("full", storage="vol-ceph-1")
    machine = it.machine("lab", 1)

    def tried() -> RejectedError:
        while True:
            try:
                Proxmox.create(it.driver, machine, NETWORK, FULL, it.seed(machine))
            except NotYetError:
                continue
            except RejectedError as error:
                return error

    said = tried()
    assert "No space left on device" in said.what
    assert said.hint.startswith("storage vol-ceph-1 is full: make room there")
    assert len([task for task in it.sim.cluster.tasks.values() if task.type == "vzclone"]) == 1
    it.driver.destroy(machine.name)
    assert it.guests(ours=False) == {}
