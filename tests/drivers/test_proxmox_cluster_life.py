"""What administrators do to a cluster: maintenance, HA, backups, storages on some nodes only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_lab import TEMPLATE, prox_lab, until_done
from essaim.drivers.proxmox.driver import Proxmox
from essaim.model.errors import NotYetError, RejectedError
from essaim.model.machines import Power
from essaim_lab.simulators.proxmox import NodeSettings, StorageSettings
from essaim_lab.simulators.proxmox.settings import usual
from patience import in_test_all

FULL = replace(TEMPLATE, settings={"template": "debian-gui", "clone": "full"})
VM = replace(TEMPLATE, settings={"template": "debian-vm"})
#: An hour of the cluster in two seconds.
FAST = 1800.0


@pytest.fixture
def it(tmp_path):
    with prox_lab(tmp_path) as made:
        made.stack()
        yield made


def make(it, number: int, image=TEMPLATE, **labels: str) -> object:
    machine = it.machine("lab", number, labels=labels)
    it.driver.create(machine, NETWORK, image, it.seed(machine))
    return it.guest(machine.name)


def what_waits(it, verb: str, *args: object) -> str:
    with pytest.raises(NotYetError) as caught:
        getattr(Proxmox, verb)(it.driver, *args)
    return caught.value.what


def test_a_node_in_maintenance_gets_no_machines(it):  # R-B5
    for node in ("pve1", "pve2"):
        it.sim.fault("maintenance", node=node)
    homes = {make(it, number).node for number in (1, 2)}
    assert homes == {"pve3"}
    it.sim.fault("maintenance", node="pve3")
    it.driver.cluster.listing(within=0)
    machine = it.machine("lab", 3)
    said = what_waits(it, "create", machine, NETWORK, TEMPLATE, it.seed(machine))
    assert "pve1 is in maintenance, pve2 is in maintenance, pve3 is in maintenance" in said
    it.sim.heal()
    it.driver.cluster.listing(within=0)
    make(it, 3)
    assert len(it.guests(ours=False)) == 3


@pytest.mark.parametrize("image", [TEMPLATE, pytest.param(VM, marks=in_test_all)])
def test_what_the_ha_manager_looks_after_is_started_stopped_and_removed(it, image):  # R-B2
    guest = make(it, 1, image)
    name = it.machine("lab", 1).name
    it.sim.fault("managed", vmid=guest.vmid)
    it.driver.cluster.listing(within=0)
    said = ""
    while "HA manager" not in said:  # it is told first, and acts some seconds later
        said = what_waits(it, "start", name)
    assert f"to start {guest.vmid} (stopped)" in said
    it.driver.start(name)
    assert guest.running
    it.driver.stop(name)
    assert not guest.running
    it.driver.start(name)
    (seen,) = it.driver.observe("lab")
    assert seen.power is Power.ON
    it.driver.destroy(name)
    assert it.guests(ours=False) == {}
    assert it.sim.cluster.ha == {}
    assert it.held() == {}


def test_a_linked_clone_of_a_local_template_stays_on_its_node(tmp_path):  # R-B5
    settings = usual(nodes=3)
    local = tuple(replace(each, storage="local-lvm", node="pve2") for each in settings.templates)
    with prox_lab(tmp_path, settings=replace(settings, templates=local)) as it:
        it.stack()
        assert {make(it, number).node for number in (1, 2)} == {"pve2"}
        it.sim.fault("maintenance", node="pve2")
        it.driver.cluster.listing(within=0)
        machine = it.machine("lab", 3)
        said = what_waits(it, "create", machine, NETWORK, TEMPLATE, it.seed(machine))
        assert "pve2 is in maintenance" in said
        it.sim.fault("node", name="pve2")
        it.driver.cluster.listing(within=0)
        said = what_waits(it, "create", machine, NETWORK, TEMPLATE, it.seed(machine))
        assert "pve2 does not answer" in said
        it.sim.heal()


def test_machines_only_go_to_nodes_that_have_their_storage_and_bridge(tmp_path):  # R-B5
    fast = StorageSettings(name="vol-ceph-1", nodes=("pve1", "pve2"))
    own = StorageSettings(name="own", nodes=("pve3",))
    settings = usual(nodes=3, storages=(fast, own))
    nodes = (*settings.nodes[1:], NodeSettings(name="pve1", bridges=("vmbr9",)))
    with prox_lab(tmp_path, settings=replace(settings, nodes=nodes)) as it:
        it.stack()
        homes = {make(it, number, image).node for number, image in enumerate((TEMPLATE, FULL), 1)}
        assert homes == {"pve2"}  # pve1 has another bridge, pve3 not the storage
        assert make(it, 3, bridge="vmbr9").node == "pve1"
        machine = it.machine("lab", 4, labels={"storage": "own"})
        with pytest.raises(RejectedError, match="pve1, which does not have storage own"):
            Proxmox.create(it.driver, machine, NETWORK, FULL, it.seed(machine))


@pytest.mark.parametrize("image", [TEMPLATE, pytest.param(VM, marks=in_test_all)])
def test_a_backup_of_an_hour_is_waited_for_and_nothing_is_doubled(tmp_path, image):  # R-B2
    with prox_lab(tmp_path, speed=FAST) as it:
        it.stack()
        guest = make(it, 1, image)
        name = it.machine("lab", 1).name
        texts: set[str] = set()

        def patiently(verb: str) -> None:
            """Do as the engine does, and keep what a person reads meanwhile."""
            it.sim.fault("backup", vmid=guest.vmid, seconds=3600.0)

            def once() -> None:
                try:
                    getattr(Proxmox, verb)(it.driver, name)
                except NotYetError as error:
                    texts.add(error.what)
                    raise

            until_done(once, tries=1)  # it never counts as a failure
            assert any("is locked (backup)" in text for text in texts)
            texts.clear()

        patiently("start")
        assert guest.running
        assert list(it.guests(ours=False)) == [guest.vmid]
        patiently("stop")
        assert not guest.running
        machine = it.machine("lab", 1)
        it.driver.create(machine, NETWORK, image, it.seed(machine))  # it is there
        assert list(it.guests(ours=False)) == [guest.vmid]
        patiently("destroy")
        assert it.guests(ours=False) == {}


def test_two_planes_leave_each_other_s_machines_alone(it, tmp_path):  # R-B2
    """Also those that are half made, of the same name, under the same rights."""
    (tmp_path / "two").mkdir()
    other = it.new_driver("ffff00", database=f"sqlite:///{tmp_path}/two/e.db")
    machine = it.machine("lab", 1)
    with pytest.raises(NotYetError):
        Proxmox.create(other, machine, NETWORK, FULL, it.seed(machine))

    def begun() -> None:
        if not it.guests(ours=False):
            raise NotYetError("not begun", after=0.01)

    until_done(begun)
    (theirs,) = it.guests(ours=False)
    it.driver.machines.leftovers.sweep()
    it.driver.destroy(machine.name)
    ours = make(it, 1, FULL)
    other.create(machine, NETWORK, FULL, it.seed(machine))
    assert sorted(it.guests(ours=False)) == sorted((theirs, ours.vmid))
    (found,) = [one for one in it.driver.inventory() if one.id == str(theirs)]
    assert (found.owner, found.detail["note"]) == ("", "belongs to another control plane")
    with pytest.raises(RejectedError, match="of another control plane"):
        it.driver.adopt(str(theirs), it.machine("lab", 2), NETWORK)
    it.driver.destroy(machine.name)
    assert list(it.guests(ours=False)) == [theirs]
    assert [one.name for one in other.observe("lab")] == [machine.name]
