"""How the Proxmox driver comes to know the host keys of machines."""

from __future__ import annotations

import hashlib

import pytest

from drivers.proxmox_lab import prox_lab, until_done
from essaim.model.errors import RejectedError, TransientError
from essaim.model.machines import Executed, HostKeys, HostKeySource
from essaim.model.stacks import Image, Network


def image(**settings) -> Image:
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()
    return Image(name="gui", builder="template", digest=digest, settings=settings)


LXC, QEMU = image(template="debian-gui"), image(template="debian-vm")


@pytest.fixture(scope="module")
def it():
    with prox_lab(image=QEMU) as lab:
        lab.stack("lab")
        yield lab


def ssh(place) -> dict:
    return {"key": str(place / "none"), "host_keys": {"pve1": "ssh-ed25519 AAAA"}}


def test_api_alone_reads_the_keys_of_virtual_machines_and_of_no_container(it):
    driver = it.driver
    assert isinstance(driver, HostKeys)
    assert driver.host_key_access(QEMU).source is HostKeySource.READ
    found = driver.host_key_access(LXC)
    assert found.source is HostKeySource.SHOWN
    assert "image gui: containers make their own" in found.reason
    assert found.hint == "add ssh: to site/pve.yaml"
    archive = driver.host_key_access(image(ostemplate="local:debian-12-standard"))
    assert archive.source is HostKeySource.SHOWN
    disk = image(disk="local:import/debian.qcow2")
    assert driver.host_key_access(disk).source is HostKeySource.READ  # made with an agent


def test_ssh_to_the_nodes_gives_them(it):
    with_ssh = it.new_driver(ssh=ssh(it.place))
    assert with_ssh.host_key_access(LXC).source is HostKeySource.GIVEN
    assert with_ssh.host_key_access(QEMU).source is HostKeySource.READ
    snippets = it.new_driver(ssh=ssh(it.place), snippets="local")
    assert snippets.host_key_access(QEMU).source is HostKeySource.GIVEN


def test_without_an_agent_there_is_nothing_to_read(it):
    off = it.driver.host_key_access(image(template="debian-vm", config={"agent": "0"}))
    assert off.source is HostKeySource.SHOWN
    assert "template debian-vm sets no guest agent" in off.reason
    assert "qm set 9500 --agent 1" in off.hint


def test_an_account_that_may_not_ask_agents_is_told_which_right_it_lacks(it):
    access = it.sim.cluster.access
    usual = access.roles["PVEVMAdmin"]
    access.roles["PVEVMAdmin"] = usual - {"VM.Monitor"}
    access.changed()
    try:
        found = it.new_driver().host_key_access(QEMU)
        assert found.source is HostKeySource.SHOWN
        assert "essaim@pve!plane may not read them" in found.reason
        assert "VM.Monitor (since Proxmox VE 9: VM.GuestAgent.FileRead) on /pool/students" in (
            found.hint
        )
        # Version 9 knows another name for it, and is believed.
        access.roles["PVEVMAdmin"] |= {"VM.GuestAgent.FileRead"}
        access.changed()
        assert it.new_driver().host_key_access(QEMU).source is HostKeySource.READ
    finally:
        access.roles["PVEVMAdmin"] = usual
        access.changed()


def test_a_misspelt_template_is_said_to_be_one(it):
    with pytest.raises(RejectedError, match="there is no template debian-gvi") as caught:
        it.driver.host_key_access(image(template="debian-gvi"))
    assert "debian-gui" in caught.value.hint


def test_the_key_is_read_inside_the_machine_once_its_agent_answers(it):
    name = it.create(it.machine("lab", 1))
    with pytest.raises(TransientError, match="is not running"):
        it.driver.read_host_key(name)
    it.driver.start(name)
    keys: list[str] = []
    until_done(lambda: keys.append(it.driver.read_host_key(name)))
    guest = it.guest(name)
    assert guest.files["/etc/ssh/ssh_host_ed25519_key.pub"].decode().startswith(keys[0])
    assert it.driver.found_host_key(str(guest.vmid)) == keys[0]

    guest.files["/etc/ssh/ssh_host_ed25519_key.pub"] = b"\n"  # first boot: not written yet
    with pytest.raises(TransientError, match="holds no key yet"):
        it.driver.read_host_key(name)
    guest.conf.pop("agent")
    with pytest.raises(RejectedError, match="No QEMU guest agent configured") as caught:
        it.driver.read_host_key(name)
    assert "qm set ID --agent 1" in caught.value.hint


class FakeNodes:
    """Stands for SSH to the nodes: what `pct exec` prints there."""

    def __init__(self, done: Executed) -> None:
        self.done, self.asked = done, []

    def execute(self, guest, command) -> Executed:
        self.asked.append((guest.id, *command))
        return self.done

    def close(self) -> None:
        pass


def test_ssh_to_the_nodes_reads_the_key_in_a_container(it):
    machine = it.machine("lab", 3)
    it.driver.create(machine, Network(cidr="10.77.0.0/24"), LXC, it.seed(machine))
    driver, number = it.new_driver(), it.guest(machine.name).vmid
    driver._extras = FakeNodes(Executed(exit_code=0, output="ssh-ed25519 AAAA root@x\n"))
    assert driver.found_host_key(str(number)) == "ssh-ed25519 AAAA"
    assert driver.read_host_key(machine.name) == "ssh-ed25519 AAAA"
    assert set(driver._extras.asked) == {(number, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")}
    driver._extras = FakeNodes(Executed(exit_code=255, output="CT is not running"))
    with pytest.raises(TransientError, match="CT is not running"):
        driver.found_host_key(str(number))


def test_containers_without_ssh_to_their_node_show_nothing(it):
    machine = it.machine("lab", 2)
    it.driver.create(machine, Network(cidr="10.77.0.0/24"), LXC, it.seed(machine))
    guest = it.guest(machine.name)
    with pytest.raises(RejectedError, match="has no SSH to its nodes"):
        it.driver.found_host_key(str(guest.vmid))
    with pytest.raises(RejectedError, match="there is no machine 7"):
        it.driver.found_host_key("7")
