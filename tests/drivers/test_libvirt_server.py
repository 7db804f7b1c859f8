"""The libvirt driver on a real server, with machines that have nothing to boot from."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drivers.contract import in_process, refuses, succeeded
from drivers.lab import IMAGE, NETWORK
from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.model.stacks import Size
from patience import in_test_libvirt

pytestmark = [
    pytest.mark.root,
    in_test_libvirt,
]


STRANGER = """<domain type='qemu'>
<name>lab.m1</name><memory unit='MiB'>16</memory><os><type>hvm</type></os>
</domain>"""


@pytest.fixture
def it(server, disk):
    from drivers.libvirt_lab import virt_lab

    with virt_lab(server, disk) as made:
        yield made


@pytest.fixture(autouse=True)
def _nobody_speaks(server, monkeypatch):
    """Nothing boots here, so that a dial need not wait for a greeting."""
    from essaim.drivers.libvirt import driver

    monkeypatch.setattr(driver, "_SPEAKS_WITHIN", 0.5)


def is_silent(driver, name) -> bool:
    """Whether the emulator takes connections for a machine that has nothing to say."""
    return "silent for" in str(refuses(TransientError, lambda: driver.dial(name, 22)))


def started(it, stack: str, *numbers: int):
    names = [it.create(it.machine(stack, number)) for number in numbers]
    for name in names:
        it.driver.start(name)
    return names


def test_what_is_raised_and_closed_leaves_nothing_but_the_base(it, server):  # R-A3
    from hypervisor import watching

    stack = it.stack()
    with watching(server):
        names = started(it, stack, 1, 2, 3)
        assert {str(seen.power) for seen in it.driver.observe(stack)} == {"on"}
        assert len(it.first_processes(stack)) == 3
        assert len(it.held()) == 3 * 3 + 1
    for _ in range(2):
        it.driver.destroy(names[0])
    assert len(it.driver.observe(stack)) == 2
    # A long log is moved aside by libvirt, without its pool being told.
    assert not server.run("touch", ".local/share/essaim/pool/lab.m1.log.0").returncode
    for _ in range(2):
        it.driver.close_network(stack)
    it.nothing_left()


def test_an_image_is_brought_once(it, server, disk):
    stack = it.stack()
    it.create(it.machine(stack, 1))
    pool = server.home / ".local/share/essaim/pool"
    bases = sorted(pool.glob("base-*"))
    before = [(path.stat().st_ino, path.stat().st_mtime) for path in bases]
    assert sorted(path.suffix for path in bases) == [".qcow2", ".whole"]
    it.create(it.machine(stack, 2))
    assert [(path.stat().st_ino, path.stat().st_mtime) for path in bases] == before
    assert pool.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in pool.iterdir())


def test_no_secret_is_in_the_definition(it, server):
    name = it.create(it.machine(it.stack(), 1))
    assert "PRIVATE" not in server.virsh("dumpxml", "--security-info", f"{name.stack}.m1")


def test_the_disk_is_as_large_as_asked_for_and_as_the_image(it, server):
    stack = it.stack()
    it.create(it.machine(stack, 1))
    it.create(it.machine(stack, 2, size=Size(cores=1, memory=64, disk=3)))
    sizes = [
        int(
            server.virsh("vol-info", "--bytes", f"lab.m{n}.qcow2", "essaim")
            .split("Capacity:")[1]
            .split()[0]
        )
        for n in (1, 2)
    ]
    assert sizes == [16 << 20, 3 << 30]


def test_a_taken_port_gives_way_to_the_next(it):  # R-A4
    (name,) = [it.create(it.machine(it.stack(), 1))]
    before = int(it.seen(name).detail["port"])
    with contextlib.ExitStack() as held:
        for port in (before, before + 1):
            stranger = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody else has it already
                stranger.bind(("127.0.0.1", port))
                stranger.listen()
        it.driver.start(name)
    seen = it.seen(name)
    assert seen.power == "on"
    assert int(seen.detail["port"]) not in (before, before + 1)
    assert is_silent(it.driver, name)


def test_each_start_is_another_boot_whoever_does_it(it, server):
    (name,) = started(it, it.stack(), 1)
    boots = [it.seen(name).boot]
    for _ in range(2):
        server.virsh("destroy", "lab.m1")
        assert (it.seen(name).power, it.seen(name).boot) == ("off", "")
        server.virsh("start", "lab.m1")
        boots.append(it.seen(name).boot)
    server.virsh("destroy", "lab.m1")
    it.driver.start(name)
    boots.append(it.seen(name).boot)
    assert len(set(boots)) == 4
    assert "" not in boots


def test_one_that_does_not_listen_loses_its_power(it, monkeypatch):
    from essaim.drivers.libvirt import driver

    monkeypatch.setitem(driver._END_WITHIN, "tcg", 1.0)
    (name,) = started(it, it.stack(), 1)
    it.driver.stop(name)
    assert it.seen(name).power == "off"


def test_what_others_have_is_left_alone(it, server, tmp_path):
    stack = it.stack()
    define(server, STRANGER)
    other = it.new_driver("plane-2")
    try:
        name = it.machine(stack, 1).name
        assert "somebody else" in str(
            refuses(RejectedError, lambda: it.create(it.machine(stack, 1)))
        )
        for verb in (it.driver.start, it.driver.stop, it.driver.destroy):
            refuses(RejectedError, lambda verb=verb: verb(name))
        assert list(it.driver.observe(stack)) == []
        two = it.create(it.machine(stack, 2))
        assert list(other.observe(stack)) == []
        assert other.network(stack) is None
        refuses(RejectedError, lambda: other.open_network(stack, NETWORK))
        refuses(RejectedError, lambda: other.destroy(two))
        other.close_network(stack)
        assert [seen.name for seen in it.driver.observe(stack)] == [two]
        it.driver.close_network(stack)
        assert list(server.domains()) == ["lab.m1"]
    finally:
        other.close()
        server.virsh("undefine", "lab.m1")
    it.nothing_left()


def define(server, text: str) -> None:
    file = server.place / "stranger.xml"
    file.write_text(text)
    file.chmod(0o644)
    server.virsh("define", str(file))


def test_one_that_was_adopted_is_a_machine_until_it_is_given_back(it, server):
    stack = it.stack()
    define(server, STRANGER.replace("lab.m1", "Old-VM"))
    try:
        (found,) = it.driver.inventory()
        machine = it.machine(stack, 5)
        it.driver.adopt(found.id, machine, NETWORK)
        assert [(s.name, s.address) for s in it.driver.observe(stack)] == [
            (machine.name, machine.address)
        ]
        it.driver.start(machine.name)
        assert it.is_on(machine.name)
        it.driver.close_network(stack)
        assert list(it.driver.observe(stack)) == []
        (still,) = it.driver.inventory()
        assert (still.name, str(still.power), still.owner) == ("Old-VM", "on", "")
        assert "essaim" not in server.virsh("dumpxml", "--inactive", "Old-VM")
        server.virsh("destroy", "Old-VM")
    finally:
        server.virsh("undefine", "Old-VM")
    define(server, STRANGER)
    try:
        (found,) = it.driver.inventory()
        machine = it.machine(it.stack("other"), 1)
        error = refuses(RejectedError, lambda: it.driver.adopt(found.id, machine, NETWORK))
        assert "rename" in error.hint
    finally:
        server.virsh("undefine", "lab.m1")


def test_what_libvirt_says_becomes_whose_fault_it_is(server):
    from essaim.drivers.libvirt.connection import translate
    from essaim.drivers.libvirt.sdk import libvirt

    def said(text: str, code: str, domain: str = "VIR_FROM_QEMU") -> EssaimError:
        libvirt.virResetLastError()  # which a new error would take for its own
        error = libvirt.libvirtError(text)
        error.err = (getattr(libvirt, code), getattr(libvirt, domain), text, 2, "", "", "", 0, 0)
        return translate(error, "site rhodey: starting lab/m1")

    lock = said("cannot acquire state change lock", "VIR_ERR_OPERATION_TIMEOUT")
    lost = said("client socket is closed", "VIR_ERR_INTERNAL_ERROR", "VIR_FROM_RPC")
    away = said("Cannot recv data: closed", "VIR_ERR_SYSTEM_ERROR", "VIR_FROM_RPC")
    assert {type(error) for error in (lock, lost, away)} == {TransientError}
    full = said("cannot write: No space left on device", "VIR_ERR_SYSTEM_ERROR", "VIR_FROM_STORAGE")
    bare = said("sh: 1: nc: not found", "VIR_ERR_SYSTEM_ERROR", "VIR_FROM_RPC")
    denied = said("authentication unavailable", "VIR_ERR_AUTH_UNAVAILABLE", "VIR_FROM_REMOTE")
    assert {type(error) for error in (full, bare, denied)} == {RejectedError}
    assert "free space" in full.hint
    assert "not installed" in bare.hint
    assert "session" in denied.hint
    assert str(lock).startswith("site rhodey: starting lab/m1: ")


def test_two_stacks_of_one_cidr_meet_in_different_groups(it):
    for stack in ("one", "two"):
        it.create(it.machine(it.stack(stack), 1))
    facts = [it.driver.domains.of(stack)[0].facts for stack in ("one", "two")]
    assert facts[0].address == facts[1].address
    assert facts[0].group != facts[1].group
    assert facts[0].port != facts[1].port


def test_many_threads_at_once(it):
    stack = it.stack()
    for number in range(1, 13):
        it.host_key(f"m{number}")
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: started(it, stack, number), range(1, 13)))
        seen = it.driver.observe(stack)
        assert [str(one.power) for one in seen] == ["on"] * 12
        assert len({one.detail["port"] for one in seen}) == 12
        list(pool.map(it.driver.destroy, [one.name for one in seen[:6]]))
    assert len(it.first_processes(stack)) == 6
    closers = [in_process(lambda: it.driver.close_network(stack)) for _ in range(3)]
    assert all([succeeded(closer) for closer in closers])  # noqa: C419 - each must be waited for
    it.nothing_left()


def test_a_creator_may_be_killed_at_any_moment(it):  # R-A6
    it._stacks.append("lab")
    machine = it.machine("lab", 1)
    it.host_key("m1")
    for number in range(12):
        maker = in_process(lambda: started(it, "lab", 1))
        time.sleep(random.uniform(0, 0.2 * number))  # the moment is what is tried
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        if number % 4 == 3:
            it.driver.close_network("lab")
            it.nothing_left()
    started(it, "lab", 1)
    assert [one.name for one in it.driver.observe("lab")] == [machine.name]
    assert len(it.first_processes("lab")) == 1
    it.driver.close_network("lab")
    it.nothing_left()


def test_a_remover_may_be_killed_at_any_moment(it):
    it._stacks.append("lab")
    for number in range(6):
        (name,) = started(it, it.stack(), 1)
        remover = in_process(lambda name=name: it.driver.destroy(name))
        time.sleep(random.uniform(0, 0.3 * number))  # the moment is what is tried
        os.kill(remover, signal.SIGKILL)
        os.waitpid(remover, 0)
        if number % 2:
            it.driver.destroy(name)
            assert it.traces()["volumes"] == ["lab.network"]
        else:
            it.driver.close_network("lab")
            it.nothing_left()


def test_a_lost_way_is_found_again(it, server):
    it.state = it.place / ("far away" * 20)  # longer than a socket's address can be
    (name,) = started(it, it.stack(), 1)
    before = it.driver.observe("lab")

    def patiently():
        with contextlib.suppress(TransientError):  # the call in which the loss is noticed
            it.driver.observe("lab")
        return it.driver.observe("lab")

    for program in ("libvirtd", "virt-ssh-helper", "sshd:"):
        it.end(program)
        assert patiently() == before
        assert is_silent(it.driver, name)
    folder = it.driver.connection.folder
    leave = ["ssh", "-F", "config", "-O", "exit", "127.0.0.1"]
    subprocess.run(leave, cwd=folder, check=True)
    assert patiently() == before


def test_this_computer_can_be_the_server(it, server, disk):
    from drivers.libvirt_lab import Held
    from essaim.drivers.libvirt.driver import Libvirt
    from essaim.model.stacks import Site

    theirs = server.place / "blank.qcow2"
    shutil.copy(disk, theirs)
    theirs.chmod(0o644)
    it.create(it.machine(it.stack(), 1))  # so that all that is imported late is imported
    machine = it.machine("own", 1)
    seed = it.seed(machine)

    def as_them() -> None:
        os.setgroups([])
        os.setgid(server.gid)
        os.setuid(server.uid)
        os.environ.clear()
        os.environ.update(server.environ)
        held = Held()
        here = Site(
            name="here", driver="libvirt", settings={"uri": "qemu:///session", "accelerator": "tcg"}
        )
        driver = Libvirt(here, lambda _image: theirs, held, "plane-1", server.home / "state")
        driver.create(machine, NETWORK, IMAGE, seed)
        driver.start(machine.name)
        assert is_silent(driver, machine.name)
        driver.close_network("own")
        assert driver.observe("own") == []
        assert not held.numbers

    assert succeeded(in_process(as_them))
    assert it.volumes() == {"lab.network", *(f"lab.m1.{kind}" for kind in ("qcow2", "seed", "log"))}


def test_a_forked_child_has_a_connection_of_its_own(it):
    driver = it.driver
    name = it.create(it.machine(it.stack(), 1))
    before = driver.observe("lab")
    for _ in range(3):
        assert succeeded(in_process(lambda: driver.observe("lab") == before or os._exit(1)))
        assert driver.observe("lab") == before
    driver.start(name)


def test_who_the_server_is_and_who_we_are_is_checked(it):
    other = it.new_key("other")
    public = " ".join(other.with_suffix(".pub").read_text().split()[:2])
    for settings, said in (
        ({"host_key": public}, "host_key"),
        ({"key": str(other)}, "let this account in"),
    ):
        driver = it.new_driver(**settings)
        error = refuses(RejectedError, lambda driver=driver: driver.observe("lab"))
        assert said in str(error)
        assert error.hint


def test_a_pool_that_was_stopped_or_emptied_by_hand_is_used_again(it, server):
    stack = it.stack()
    it.create(it.machine(stack, 1))
    server.virsh("pool-destroy", "essaim")
    with contextlib.suppress(TransientError):
        it.create(it.machine(stack, 2))
    it.create(it.machine(stack, 2))
    it.driver.destroy(it.machine(stack, 1).name)
    it.driver.destroy(it.machine(stack, 2).name)
    for base in (server.home / ".local/share/essaim/pool").glob("base-*.qcow2"):
        base.unlink()
    started(it, stack, 3)


@pytest.fixture
def large(tmp_path) -> Path:
    """A file that takes a moment to bring."""
    path = tmp_path / "large.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(path), "1G"], check=True)
    with path.open("ab") as file:
        for _ in range(96):
            file.write(secrets.token_bytes(1 << 20))
    return path


def counting(counts: Path, cut_after: float = float("inf")):
    """Note how much is sent, and be gone when it is enough."""
    from essaim.drivers.libvirt import bases, storage

    def send(stream, body: bytes) -> None:
        storage.send(stream, body)
        with counts.open("a") as file:
            file.write(f"{len(body)}\n")
        if sent(counts) > cut_after:
            os.kill(os.getpid(), signal.SIGKILL)

    bases.send = send


def opened(server, file: Path) -> bool:
    """Whether a process of the account has the file open."""
    links = (link for pid in server.processes() for link in Path(f"/proc/{pid}/fd").glob("*"))
    for link in links:
        with contextlib.suppress(OSError):
            if os.readlink(link) == str(file):
                return True
    return False


def sent(counts: Path) -> int:
    return sum(map(int, counts.read_text().split())) if counts.exists() else 0


def test_an_upload_that_was_cut_goes_on_where_it_ended(it, server, large, tmp_path):
    from drivers.libvirt_lab import wait_for
    from essaim.drivers.libvirt import bases

    it.disk = large
    it._stacks.append("lab")
    machines = [it.machine("lab", number) for number in (1, 2, 3)]
    for machine in machines:
        it.host_key(machine.name.machine)
    pool = server.home / ".local/share/essaim/pool"
    wanted = bases.inspect(IMAGE, large)
    file = pool / wanted.volume

    def make(counts: Path, machine, cut_after: float = float("inf")) -> None:
        counting(counts, cut_after)
        it.create(machine)

    first = tmp_path / "first"
    assert not succeeded(in_process(lambda: make(first, machines[0], 20 << 20)))
    wait_for(lambda: not opened(server, file), "libvirt has noticed that nothing comes any more")
    cut, inode = file.stat().st_size, file.stat().st_ino
    assert 1 << 20 < cut < wanted.size
    assert not (pool / wanted.seal).exists()
    then = tmp_path / "then"
    makers = [in_process(lambda m=machine: make(then, m)) for machine in machines]
    assert all([succeeded(maker) for maker in makers])  # noqa: C419 - each must be waited for
    assert sent(then) == wanted.size - cut
    assert (file.stat().st_size, file.stat().st_ino) == (wanted.size, inode)
    assert file.read_bytes() == large.read_bytes()
    assert (pool / wanted.seal).exists()


def test_an_upload_that_arrived_changed_is_done_again(it, server, large):
    from essaim.drivers.libvirt import bases

    it.disk = large
    it._stacks.append("lab")
    wanted = bases.inspect(IMAGE, large)
    it.driver.storage.pool()
    volume = it.driver.storage.make(wanted.volume)
    it.driver.storage.write(volume, b"QFI\xfb" + bytes(1 << 20))
    it.create(it.machine("lab", 1))
    file = server.home / ".local/share/essaim/pool" / wanted.volume
    assert file.read_bytes() == large.read_bytes()
