"""Disks of machines on a cluster: their size, which of them is grown, where they may be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_lab import TEMPLATE, prox_lab, until_done
from essaim.drivers.proxmox.driver import Proxmox
from essaim.model.errors import NotYetError
from essaim.model.machines import Power
from essaim.model.stacks import Size
from essaim_lab.simulators.proxmox.settings import usual
from patience import in_test_all

VM = replace(TEMPLATE, settings={"template": "debian-vm"})


def sized(it, number: int, gib: int):
    return it.machine("lab", number, size=Size(cores=1, memory=256, disk=gib))


def make(it, machine, image=TEMPLATE, driver=None) -> object:
    driver = driver or it.driver
    driver.create(machine, NETWORK, image, it.seed(machine))
    return it.guest(machine.name)


def resizes(it) -> int:
    with it.sim.cluster.clock.lock:
        return sum(task.type == "resize" for task in it.sim.cluster.tasks.values())


@pytest.fixture
def it(tmp_path):
    with prox_lab(tmp_path) as made:
        made.stack()
        yield made


@pytest.mark.parametrize("image", [TEMPLATE, VM], ids=["lxc", "qemu"])
def test_a_disk_as_large_as_the_template_s_costs_no_call(it, image):  # R-B2
    found = make(it, sized(it, 1, 8), image)
    assert next(iter(found.disks().values()))["size"] == "8G"
    assert resizes(it) == 0
    smaller = make(it, sized(it, 2, 4), image)
    assert next(iter(smaller.disks().values()))["size"] == "8G"
    assert resizes(it) == 0


@pytest.mark.parametrize(
    "image", [pytest.param(TEMPLATE, id="lxc"), pytest.param(VM, marks=in_test_all, id="qemu")]
)
@pytest.mark.parametrize(
    "kinds", [pytest.param("resize", marks=in_test_all), "config", "resize,config"]
)
def test_a_lock_time_out_at_a_resize_is_waited_out(it, image, kinds):  # R-B2
    it.sim.fault("locks", share=1.0, kinds=kinds, count=2)
    found = make(it, sized(it, 1, 12), image)
    assert it.sim.cluster.faults.seen["lock"] == 2
    assert next(iter(found.disks().values()))["size"] == "12G"
    assert len(it.guests(ours=False)) == 1
    it.driver.start(it.machine("lab", 1).name)
    (seen,) = it.driver.observe("lab")
    assert seen.power is Power.ON


@pytest.mark.parametrize(
    "image", [pytest.param(TEMPLATE, id="lxc"), pytest.param(VM, marks=in_test_all, id="qemu")]
)
def test_another_process_goes_on_after_a_resize(it, image):  # R-B2
    it.sim.fault("locks", share=1.0, kinds="config")
    machine = sized(it, 1, 12)

    def grown() -> None:
        with pytest.raises(NotYetError):
            Proxmox.create(it.driver, machine, NETWORK, image, it.seed(machine))
        if not it.sim.cluster.faults.seen.get("lock"):
            raise NotYetError("not grown yet", after=0.05)

    until_done(grown)
    it.sim.heal()
    found = make(it, machine, image, it.new_driver())
    assert next(iter(found.disks().values()))["size"] == "12G"
    assert len(it.guests(ours=False)) == 1
    assert resizes(it) == 1


def test_the_disk_that_a_template_boots_from_is_grown(tmp_path):
    settings, keys = usual(nodes=3), ("virtio0", "sata0", "ide0", "scsi1")
    vm = next(each for each in settings.templates if each.kind == "qemu")
    made = tuple(
        replace(vm, vmid=9500 + number, name=f"vm-{key}", disk=key)
        for number, key in enumerate(keys)
    )
    with prox_lab(tmp_path, settings=replace(settings, templates=made)) as it:
        it.stack()

        def grown(number: int) -> str:
            key = keys[number]
            image = replace(TEMPLATE, settings={"template": f"vm-{key}"})
            return make(it, sized(it, number, 12), image).disks()[key]["size"]

        with ThreadPoolExecutor(len(keys)) as pool:
            assert list(pool.map(grown, range(len(keys)))) == ["12G"] * len(keys)
        assert len(it.guests(ours=False)) == len(keys)


def test_a_machine_from_a_disk_image_has_the_size_asked_for(tmp_path):
    images = {f"local:import/debian-{gib}.qcow2": gib for gib in (3, 20)}
    with prox_lab(tmp_path, settings=replace(usual(nodes=3), disk_images=images)) as it:
        it.stack()

        def size(number: int, gib: int, image_gib: int) -> str:
            source = {"disk": f"local:import/debian-{image_gib}.qcow2"}
            found = make(it, sized(it, number, gib), replace(TEMPLATE, settings=source))
            return found.disks()["scsi0"]["size"]

        with ThreadPoolExecutor(4) as pool:
            asked = list(pool.map(size, (1, 2, 3), (10, 0, 10), (3, 3, 20)))
        assert asked == ["10G", "3G", "20G"]  # a disk is never shrunk


def test_a_disk_image_is_not_finished_before_it_has_grown(it):  # R-B2
    image = replace(TEMPLATE, settings={"disk": "local:import/debian-12.qcow2"})
    it.sim.fault("locks", share=1.0, kinds="resize")
    machine = sized(it, 1, 10)

    def refused() -> None:
        with pytest.raises(NotYetError):
            Proxmox.create(it.driver, machine, NETWORK, image, it.seed(machine))
        if not it.sim.cluster.faults.seen.get("lock"):
            raise NotYetError("not refused yet", after=0.05)

    until_done(refused)
    assert it.driver.observe("lab") == []
    it.driver.close()  # its process has died
    it.sim.heal()
    found = make(it, machine, image, it.new_driver())
    assert found.disks()["scsi0"]["size"] == "10G"
    assert len(it.guests(ours=False)) == 1
