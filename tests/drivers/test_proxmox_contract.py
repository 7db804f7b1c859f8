"""The Proxmox driver keeps the promises of a driver, on a simulated cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivers import contract
from drivers.proxmox_lab import TEMPLATE, prox_lab
from essaim.model.errors import RejectedError, UnknownError
from essaim.model.machines import Cards, Inventory, Networks, Power, Slow, Snapshots
from essaim.model.names import MachineName
from patience import in_test_all

SSH = "nobody answers in a simulation"
#: Promises that this driver keeps otherwise, or not, and why.
NOT_HERE = {
    contract.creating_twice_changes_nothing: SSH,
    contract.stopping_keeps_the_disk_and_starting_makes_a_new_boot: SSH + "; see below",
    contract.stopping_asks_before_it_takes_the_power: SSH,
    contract.a_name_and_an_address_can_be_used_again: SSH,
    contract.observing_changes_nothing: "it has no networks; see below",
    contract.a_killed_machine_is_seen_off_and_can_be_started: "the listing lags; see below",
    contract.after_a_crash_all_is_off_and_comes_back_with_its_disk: SSH,
    contract.after_a_crash_closing_leaves_nothing: "it has no networks",
    contract.machines_know_each_other_by_name: SSH,
    contract.the_pinned_host_key_answers_and_no_other_passes: SSH,
    contract.only_the_given_key_opens_the_door: SSH,
    contract.two_stacks_share_a_cidr_side_by_side: "the bridge is the site's",
    contract.a_network_is_what_it_was_opened_as: "it has no networks",
    contract.a_dial_that_fails_says_so_soon: "machines are on the site's network",
    contract.a_slow_dial_holds_up_nobody: "likewise",
    contract.a_creator_may_be_killed_at_any_moment: "see test_proxmox_crashes",
    contract.closing_leaves_nothing: "it has no networks",
    contract.two_may_close_at_once: "it has no networks",
}
HERE = [check for check in contract.CHECKS if check not in NOT_HERE]
LATER = (contract.many_threads_at_once, contract.two_processes_create_one_machine)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with prox_lab(tmp_path_factory.mktemp("pve")) as made:
        yield made


@pytest.fixture
def it(cluster):
    yield cluster
    for stack in ("lab", "one", "two"):
        for seen in cluster.driver.observe(stack):
            cluster.driver.destroy(seen.name)
    assert cluster.guests(ours=False) == {}
    assert cluster.held() == {}
    assert cluster.uses() == []


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[in_test_all] if check in LATER else [], id=check.__name__)
        for check in HERE
    ],
)
def test_it_keeps_the_promise(it, check):  # R-B5
    check(it)


def test_what_it_can(it):  # R-B5
    for ability in (Snapshots, Inventory, Cards, Slow):
        assert isinstance(it.driver, ability)
    assert not isinstance(it.driver, Networks)


def test_observing_changes_nothing(it):  # R-B5
    assert list(it.driver.observe("nowhere")) == []
    stack = it.stack()
    it.up(stack, 1)
    it.create(it.machine(stack, 2))
    before = it.driver.observe(stack)
    assert [one.power for one in before] == [Power.ON, Power.OFF]
    calls = it.driver.api.calls
    assert all(it.driver.observe(stack) == before for _ in range(5))
    assert it.driver.api.calls == calls + 5
    other = it.new_driver()
    assert [one.boot for one in other.observe(stack)][1] == ""


def test_each_start_makes_a_new_boot_and_a_stop_is_seen_at_once(it):  # R-B5
    (name,) = it.up(it.stack(), 1)
    first = it.seen(name)
    it.driver.stop(name)
    it.driver.stop(name)
    off = it.seen(name)
    assert (off.power, off.boot) == (Power.OFF, "")
    it.driver.start(name)
    again = it.seen(name)
    assert again.power is Power.ON
    assert again.boot not in ("", first.boot)


@pytest.mark.parametrize("source", ["clone", "full", "vm", "ostemplate", "archive", "iso"])
def test_a_machine_is_what_was_asked_for(it, source):  # R-B5
    settings = {
        "clone": {"template": "debian-gui"},
        "full": {"template": 9000, "clone": "full"},
        "vm": {"template": "debian-vm", "kind": "qemu"},
        "ostemplate": {"ostemplate": "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"},
        "archive": {"ostemplate": "dirs-nfs:debian-11-standard"},
        "iso": {"iso": "local:iso/debian-12.9.0-amd64-netinst.iso"},
    }[source]
    image = replace(TEMPLATE, settings=settings)
    machine = it.machine(it.stack(), 1)
    machine = replace(machine, size=replace(machine.size, cores=3, memory=2048, disk=16))
    card = it.driver.card(machine.name)
    from drivers.lab import NETWORK

    it.driver.create(machine, NETWORK, image, it.seed(machine))
    guest = it.guest(machine.name)
    assert card == it.driver.card(machine.name)
    assert card.startswith("bc:24:11:")
    assert card.upper() in guest.conf["net0"]
    assert (int(guest.conf["cores"]), int(guest.conf["memory"])) == (3, 2048)
    assert guest.vmid in it.sim.cluster.pools["students"].vms
    kind = "qemu" if source in ("vm", "iso") else "lxc"
    assert guest.kind == kind
    disk = guest.conf["rootfs" if kind == "lxc" else "scsi0"]
    assert "size=16G" in disk
    assert ("base-9000" in disk) is (source == "clone")
    if kind == "lxc":
        assert "ip=10.77.0.11/24" in guest.conf["net0"]
        assert guest.conf["hostname"] == "m1"
    else:
        assert guest.conf["ipconfig0"] == "ip=10.77.0.11/24"
        assert guest.conf["sshkeys"].startswith("ssh-ed25519%20AAAA")
    assert '"stack": "lab"' in guest.conf["description"]
    assert "not asked for" not in str(guest.conf)


def test_what_the_cluster_has_not_is_told_before_anything_is_made(it):
    it.driver.check_image(TEMPLATE)
    it.driver.check_image(replace(TEMPLATE, settings={"ostemplate": "dirs-nfs:debian-11-standard"}))
    for settings, hint in (
        ({"template": "debian-gu"}, "did you mean debian-gui?"),
        ({"ostemplate": "local:debian-13-standard"}, "did you mean debian-12-standard?"),
    ):
        with pytest.raises(RejectedError) as caught:
            it.driver.check_image(replace(TEMPLATE, settings=settings))
        assert caught.value.hint == hint


def test_snapshots_are_kept_restored_and_dropped(it):  # R-B5
    (name,) = it.up(it.stack(), 1)
    it.driver.snapshot(name, "before")
    contract.refuses(RejectedError, lambda: it.driver.snapshot(name, "before"))
    contract.refuses(RejectedError, lambda: it.driver.snapshot(name, "../x"))
    (kept,) = it.driver.snapshots(name)
    assert (kept.label, kept.power) == ("before", Power.ON)
    it.driver.restore(name, "before")
    assert it.seen(name).power is Power.OFF
    contract.refuses(UnknownError, lambda: it.driver.restore(name, "never"))
    for _ in range(2):
        it.driver.drop_snapshot(name, "before")
    assert list(it.driver.snapshots(name)) == []


def test_a_strangers_machine_is_adopted_and_given_back(it):  # R-B5
    from drivers.lab import NETWORK
    from essaim.model.errors import RejectedError

    it.sim.fault("foreign", ids="123")
    assert "123" not in {one.id for one in it.driver.inventory()}
    with it.sim.cluster.clock.lock:
        it.sim.cluster.into_pool("students", 123)  # the token sees its pool alone
    machine = replace(it.machine(it.stack(), 1), image="d-none")
    (found,) = [one for one in it.driver.inventory() if one.id == "123"]
    assert (found.owner, found.power) == ("", Power.OFF)
    it.driver.adopt("123", machine, NETWORK)
    it.driver.adopt("123", machine, NETWORK)
    assert [one.name for one in it.driver.observe("lab")] == [machine.name]
    other = replace(machine, name=MachineName("lab", "m2"), address="10.77.0.12")
    contract.refuses(RejectedError, lambda: it.driver.adopt("123", other, NETWORK))
    contract.refuses(UnknownError, lambda: it.driver.adopt("9000", other, NETWORK))
    it.driver.destroy(machine.name)
    assert it.driver.observe("lab") == []
    guest = it.guests(ours=False)[123]
    assert "essaim" not in str(guest.conf.get("tags", ""))
    with it.sim.cluster.clock.lock:
        it.sim.cluster.remove(guest)
