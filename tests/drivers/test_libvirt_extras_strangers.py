"""Machines that others made are looked at and left alone, until somebody adopts one."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from drivers.lab import NETWORK
from essaim.model.errors import EssaimError, RejectedError, UnknownError
from essaim.model.machines import Power
from essaim.model.names import MachineName
from essaim.model.stacks import Network
from patience import in_test_libvirt

pytestmark = [
    pytest.mark.root,
    in_test_libvirt,
]

GREETING = b"SSH-2.0-itself\r\n"
STRANGER = """<domain type='qemu'>
<name>{name}</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os>
<metadata><their:note xmlns:their='urn:theirs'>hands off</their:note></metadata>
<devices>
  <disk type='file' device='disk'>
    <driver name='qemu' type='qcow2'/><source file='{disk}'/><target dev='vda' bus='virtio'/>
  </disk>
  <serial type='pty'/>
</devices>
</domain>"""


@pytest.fixture
def it(server, disk):
    from drivers.libvirt_lab import virt_lab

    with virt_lab(server, disk) as made:
        yield made


class Stranger:
    """A domain that somebody else on the same account made by hand, and runs."""

    def __init__(self, server, disk: Path, name: str) -> None:
        self.server, self.name = server, name
        self.disk = server.home / f"{name}.disk"
        self.disk.write_bytes(disk.read_bytes())
        os.chown(self.disk, server.uid, server.gid)
        file = server.home / f"{name}.xml"
        file.write_text(STRANGER.format(name=name, disk=self.disk))
        server.virsh("define", str(file))
        server.virsh("start", name)
        file.unlink()
        self.id = server.virsh("domuuid", name).strip()
        self.before = self.all()

    def all(self) -> tuple[str, ...]:
        """All there is to say of it, down to the process and the file."""
        seen = self.disk.stat()
        return (
            self.server.virsh("dumpxml", self.name),
            self.server.virsh("dumpxml", "--inactive", self.name),
            self.server.virsh("snapshot-list", "--name", self.name),
            str([pid for pid, line in self.server.processes().items() if f"={self.name}," in line]),
            str((seen.st_ino, seen.st_size, seen.st_mtime_ns)),
        )

    def remove(self) -> None:
        if self.name in self.server.domains():
            if self.server.domains()[self.name] == "on":
                self.server.virsh("destroy", self.name)
            self.server.virsh("undefine", "--snapshots-metadata", self.name)
        self.disk.unlink()


@pytest.fixture
def stranger(server, disk):
    """A function that makes one."""
    made = []

    def make(name: str) -> Stranger:
        made.append(Stranger(server, disk, name))
        return made[-1]

    yield make
    for each in made:
        each.remove()


def found(it, one: Stranger):
    (seen,) = [each for each in it.driver.inventory() if each.id == one.id]
    return seen


def own(text: str) -> str:
    """A definition without our notes in it."""
    root = ET.fromstring(text)
    for parent in root.iter("metadata"):
        for note in [note for note in parent if note.tag.startswith("{urn:essaim:")]:
            parent.remove(note)
    return "".join(ET.tostring(root, encoding="unicode").split())


def test_the_inventory_lists_ours_and_strangers_and_changes_nothing(it, stranger):
    one = stranger("old")
    name = it.create(it.machine(it.stack(), 1))
    other = it.new_driver(plane="plane-2").inventory()
    listed = {each.name: each for each in it.driver.inventory()}
    assert sorted(listed) == ["lab.m1", "old"]
    assert (listed["old"].id, listed["old"].owner) == (one.id, "")
    assert listed["old"].power is Power.ON
    assert listed["old"].detail["memory"] == "64 MiB"
    assert str(one.disk) in listed["old"].detail["disks"]
    assert (listed["lab.m1"].owner, listed["lab.m1"].power) == (str(name), Power.OFF)
    assert {each.owner for each in other} == {""}
    assert "another control plane" in str(other[0].detail)
    assert one.all() == one.before


@pytest.mark.parametrize("called", ["lab.m1", "old"])
def test_no_verb_touches_a_stranger(it, stranger, called):  # R-A3
    """Neither one whose name a machine of ours would have, nor any other."""
    one = stranger(called)
    name, machine = MachineName("lab", "m1"), it.machine("lab", 1)
    driver = it.driver
    assert it.stack() == "lab"
    verbs = {
        "observe": lambda: driver.observe("lab"),
        "start": lambda: driver.start(name),
        "stop": lambda: driver.stop(name),
        "dial": lambda: driver.dial(name, 22),
        "proxy": lambda: driver.proxy_command(name),
        "snapshots": lambda: driver.snapshots(name),
        "snapshot": lambda: driver.snapshot(name, "x"),
        "restore": lambda: driver.restore(name, "x"),
        "drop": lambda: driver.drop_snapshot(name, "x"),
        "console": lambda: driver.console(name),
        "log": lambda: driver.console_log(name),
        "inventory": driver.inventory,
        "doctor": driver.doctor,
        "answers": driver.answers_within,
        "destroy": lambda: driver.destroy(name),
        "close": lambda: driver.close_network("lab"),
    }
    if called == "lab.m1":
        verbs = {"create": lambda: it.create(machine), **verbs}
    refused = set()
    for verb, do in verbs.items():
        try:
            do()
        except EssaimError:
            refused.add(verb)
        assert one.all() == one.before, verb
    assert refused >= {"start", "dial", "snapshot", "restore", "console", "log"}
    assert ("create" in refused) is (called == "lab.m1")


def test_an_adopted_machine_is_seen_used_and_given_back_as_it_was(it, stranger):  # R-A3
    one, stack = stranger("old"), it.stack()
    wanted = replace(it.machine(stack, 7), image="d-base")
    for _ in range(2):
        it.driver.adopt(one.id, wanted, NETWORK)
    seen = it.seen(wanted.name)
    assert (seen.power, seen.address, seen.image) == (Power.ON, "10.77.0.17", "d-base")
    assert seen.adopted
    assert (found(it, one).owner, found(it, one).detail["note"]) == (str(wanted.name), "adopted")
    now = one.all()
    assert [own(text) for text in now[:2]] == [own(text) for text in one.before[:2]]
    assert now[2:] == one.before[2:]

    it.driver.snapshot(wanted.name, "kept")
    it.driver.restore(wanted.name, "kept")
    assert it.seen(wanted.name).power is Power.OFF
    it.driver.start(wanted.name)
    assert it.seen(wanted.name).boot
    it.driver.drop_snapshot(wanted.name, "kept")

    for _ in range(2):
        it.driver.destroy(wanted.name)
    assert it.seen(wanted.name) is None
    assert found(it, one).owner == ""
    assert found(it, one).power is Power.ON  # given back as it is, not powered off
    after = one.all()
    assert "urn:essaim" not in "".join(after[:2])
    assert "hands off" in after[0]
    assert own(after[1]) == own(one.before[1])


def test_closing_a_stack_gives_its_adopted_machine_back(it, stranger):
    one, stack = stranger("old"), it.stack()
    it.create(it.machine(stack, 1))
    it.driver.adopt(one.id, replace(it.machine(stack, 7), image="d-base"), NETWORK)
    it.driver.close_network(stack)
    assert it.server.domains() == {"old": "on"}
    assert [own(text) for text in one.all()[:2]] == [own(text) for text in one.before[:2]]
    assert one.all()[2:] == one.before[2:]
    assert "urn:essaim" not in one.all()[1]
    assert it.volumes() == set()
    assert it.held() == []


def greet(sshd: socket.socket) -> None:
    there, _ = sshd.accept()
    with there:
        there.sendall(GREETING)


def test_an_adopted_machine_is_reached_at_its_own_address(it, stranger):
    one = stranger("old")
    network, address = Network(cidr="127.0.9.0/24"), "127.0.9.10"
    wanted = replace(it.machine("lab", 7), image="d-base", address=address)
    it.driver.adopt(one.id, wanted, network)
    with socket.socket() as sshd:
        sshd.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sshd.bind((address, 22))
        except OSError:
            pytest.skip("somebody listens on port 22 of every address here")
        sshd.listen()
        sshd.settimeout(60)
        greeter = threading.Thread(target=greet, args=(sshd,), daemon=True)
        greeter.start()
        with it.driver.dial(wanted.name, 22) as line:
            line.settimeout(60)
            assert line.recv(64) == GREETING
        greeter.join(60)
    it.driver.destroy(wanted.name)


def test_what_cannot_be_adopted(it, stranger, server):
    one, stack = stranger("old"), it.stack()
    wanted = replace(it.machine(stack, 7), image="d-base")
    for unknown in ("00000000-0000-4000-8000-000000000000", "nonsense"):
        with pytest.raises(UnknownError):
            it.driver.adopt(unknown, wanted, NETWORK)
    ours = it.create(it.machine(stack, 1))
    (its,) = [each for each in it.driver.inventory() if each.owner == str(ours)]
    with pytest.raises(RejectedError, match=r"lab\.m1"):
        it.driver.adopt(its.id, wanted, NETWORK)
    with pytest.raises(RejectedError, match="is there already"):
        it.driver.adopt(one.id, replace(wanted, name=ours), NETWORK)
    assert one.all() == one.before
    passing = server.home / "passing.xml"
    passing.write_text(
        "<domain type='qemu'><name>passing</name><memory unit='MiB'>16</memory>"
        "<os><type>hvm</type></os></domain>"
    )
    server.virsh("create", str(passing))
    passing.unlink()
    try:
        with pytest.raises(RejectedError, match="gone when it is powered off"):
            it.driver.adopt(server.virsh("domuuid", "passing").strip(), wanted, NETWORK)
    finally:
        server.virsh("destroy", "passing")
    it.driver.adopt(one.id, wanted, NETWORK)
    with pytest.raises(RejectedError, match="already lab/m7"):
        it.driver.adopt(one.id, replace(wanted, name=MachineName("lab", "m8")), NETWORK)
    with pytest.raises(RejectedError, match="another control plane"):
        it.new_driver(plane="plane-2").adopt(one.id, wanted, NETWORK)
