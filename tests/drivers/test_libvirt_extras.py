"""Snapshots, consoles and the choice of an accelerator, on a real server with a tiny guest."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from essaim.model.errors import HeldError, RejectedError, UnknownError
from essaim.model.machines import Consoles, Inventory, Power, Slow, Snapshots
from essaim.model.names import MachineName
from patience import in_test_libvirt

pytestmark = [
    pytest.mark.root,
    in_test_libvirt,
]

WORDS = "the guest is here\r\n"


@pytest.fixture(scope="module")
def disk(server, tmp_path_factory) -> Path:
    from drivers.libvirt_guest import guest_disk

    return guest_disk(tmp_path_factory.mktemp("disk") / "guest.qcow2", WORDS)


@pytest.fixture
def it(server, disk):
    from drivers.libvirt_lab import virt_lab

    with virt_lab(server, disk) as made:
        yield made


@pytest.fixture
def one(it) -> MachineName:
    """A machine that is off."""
    return it.create(it.machine(it.stack(), 1))


def domain(name: MachineName) -> str:
    return f"{name.stack}.{name.machine}"


def cut_power(it, name: MachineName) -> None:
    """End a machine at once: the guest does not listen when it is asked to end by itself."""
    it.server.virsh("destroy", domain(name))


def volume(server, name: MachineName) -> Path:
    return server.home / f".local/share/essaim/pool/{domain(name)}.qcow2"


def write(server, name: MachineName, pattern: int) -> None:
    """Write to the disk of a machine that is off."""
    change = f"write -P {pattern} 512k 64k"
    subprocess.run(["qemu-io", "-c", change, volume(server, name)], check=True, capture_output=True)


def holds(server, name: MachineName, pattern: int) -> bool:
    look = f"read -P {pattern} 512k 64k"
    words = ["qemu-io", "-r", "-U", "-c", look, str(volume(server, name))]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "read 65536/65536 bytes" in done.stdout, done
    return "verification failed" not in done.stdout


def hear(line: socket.socket, words: str) -> str:
    """Listen until that is said."""
    line.settimeout(120)
    heard = b""
    while words.encode() not in heard:
        piece = line.recv(4096)
        assert piece, f"it ended after {heard!r}"
        heard += piece
    return heard.decode()


def ends(line: socket.socket) -> bool:
    """Whether the other side ends, whatever it has still to say."""
    line.settimeout(120)
    while line.recv(4096):
        pass
    return True


def logged(it, name: MachineName, words: str) -> str:
    from drivers.libvirt_lab import wait_for

    wait_for(lambda: words in it.driver.console_log(name), f"{name} says {words!r}")
    return it.driver.console_log(name)


def test_the_driver_offers_it_all(it):
    assert isinstance(it.driver, Snapshots)
    assert isinstance(it.driver, Consoles)
    assert isinstance(it.driver, Inventory)
    assert isinstance(it.driver, Slow)


# -- snapshots --------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [Power.OFF, Power.ON])
def test_a_disk_goes_back_to_what_was_kept(it, server, one, power):  # R-A3
    write(server, one, 0x11)
    if power is Power.ON:
        it.driver.start(one)
    it.driver.snapshot(one, "good")
    (kept,) = it.driver.snapshots(one)
    assert (kept.label, kept.power) == ("good", power)
    assert abs(kept.made_at - time.time()) < 120
    assert it.is_on(one) is (power is Power.ON)
    if power is Power.ON:
        cut_power(it, one)
    write(server, one, 0x22)
    it.driver.start(one)
    before = it.seen(one).boot
    it.driver.restore(one, "good")
    assert it.seen(one).power is Power.OFF
    assert holds(server, one, 0x11)
    it.driver.start(one)
    assert it.seen(one).boot not in ("", before)
    assert holds(server, one, 0x11)
    assert [snapshot.label for snapshot in it.driver.snapshots(one)] == ["good"]


def test_a_restored_machine_has_the_port_it_had_last(it, one):
    it.driver.snapshot(one, "early")
    before = it.seen(one).detail["port"]
    moved = it.driver._machines.move(it.driver.domains.find(one)).facts.port
    assert str(moved) != before
    it.driver.restore(one, "early")
    assert it.seen(one).detail["port"] == str(moved)
    it.driver.start(one)
    (line,) = [line for line in it.server.processes().values() if f"guest={domain(one)}," in line]
    now = it.seen(one).detail["port"]  # another one if somebody just took that port
    assert f"hostfwd=tcp:127.0.0.1:{now}-:22" in line
    assert now != before


def test_snapshots_are_listed_oldest_first_and_dropped_one_by_one(it, server, one):
    for pattern, label in ((0x11, "b"), (0x22, "a")):
        write(server, one, pattern)
        it.driver.snapshot(one, label)
        time.sleep(1.1)  # libvirt counts in seconds
    assert [snapshot.label for snapshot in it.driver.snapshots(one)] == ["b", "a"]
    it.driver.start(one)
    for _ in range(2):
        it.driver.drop_snapshot(one, "b")
    assert [snapshot.label for snapshot in it.driver.snapshots(one)] == ["a"]
    info = ["qemu-img", "info", "--force-share", "--output=json", str(volume(server, one))]
    said = json.loads(subprocess.run(info, check=True, capture_output=True).stdout)
    assert [snapshot["name"] for snapshot in said["snapshots"]] == ["a"]
    it.driver.restore(one, "a")
    assert holds(server, one, 0x22)


def test_a_snapshot_must_have_a_new_and_sensible_label(it, one):
    it.driver.snapshot(one, "good")
    for label in ("good", "", "-x", "a b", "a/b", "<a>", "x" * 80):
        with pytest.raises(RejectedError):
            it.driver.snapshot(one, label)
    with pytest.raises(UnknownError, match="no snapshot goood") as caught:
        it.driver.restore(one, "goood")
    assert "good" in caught.value.hint
    with pytest.raises(UnknownError):
        it.driver.snapshots(MachineName("lab", "nobody"))


def test_a_machine_goes_with_its_snapshots(it, one):
    it.driver.start(one)
    it.driver.snapshot(one, "good")
    it.driver.close_network(one.stack)
    it.nothing_left()


# -- consoles ---------------------------------------------------------------------------------


def test_a_console_is_for_one_and_ends_with_the_machine(it, one):
    with pytest.raises(RejectedError, match="is off") as caught:
        it.driver.console(one)
    assert f"essaim console --log {one}" in caught.value.hint
    it.driver.start(one)
    logged(it, one, WORDS.strip())
    with it.driver.console(one) as line:
        line.sendall(b"is anybody there?")
        hear(line, "is anybody there?")
        with pytest.raises(HeldError):
            it.driver.console(one)
    from drivers.libvirt_lab import wait_for

    opened = []

    def free() -> bool:
        try:
            opened.append(it.driver.console(one))
        except HeldError:
            return False
        return True

    wait_for(free, "the console is free again")
    with opened[0] as line:
        line.sendall(b"still?")
        hear(line, "still?")
        cut_power(it, one)
        assert ends(line)


def test_a_silent_console_holds_up_nobody(it, one):
    it.driver.start(one)
    with it.driver.console(one), ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(it.driver.observe, one.stack) for _ in range(200)]
        assert all(look.result(timeout=120) for look in looks)


def test_the_log_is_of_the_last_start_and_outlives_it(it, one):
    assert it.driver.console_log(one) == ""
    it.driver.start(one)
    logged(it, one, WORDS.strip())
    cut_power(it, one)
    assert it.driver.console_log(one).count(WORDS.strip()) == 1
    it.driver.start(one)
    assert logged(it, one, WORDS.strip()).count(WORDS.strip()) == 1


def test_a_log_that_only_libvirt_may_read_is_brought_by_it(it, server, one):
    from essaim.drivers.libvirt import consoles

    it.driver.start(one)
    logged(it, one, WORDS.strip())
    path = volume(server, one).with_suffix(".log")
    conn = it.driver.connection.get()
    assert WORDS.encode() in consoles._download(conn, str(path))


# -- accelerators -----------------------------------------------------------------------------


def accelerators(it, **settings):
    from essaim.drivers.libvirt.accelerator import Accelerators

    driver = it.new_driver(**settings)
    return Accelerators(driver.connection, it.state)


def test_an_account_without_kvm_gets_emulation_and_more_patience(it, server, one):
    if os.stat("/dev/kvm").st_mode & 0o006 if os.path.exists("/dev/kvm") else False:
        pytest.skip("everybody may use KVM here")
    auto = accelerators(it, accelerator="auto")
    verdict = auto.choose("/nowhere", "digest")
    assert verdict.accelerator == "tcg"
    assert "KVM is not offered" in verdict.why
    assert auto.remembered() == []
    assert auto.answers_within() >= 300
    assert accelerators(it, accelerator="kvm").choose("/nowhere", "digest").accelerator == "kvm"
    assert accelerators(it, accelerator="kvm").answers_within() < auto.answers_within()


def test_a_busy_server_is_waited_for_longer(it):
    idle = it.driver.answers_within()
    stack = it.stack()
    for number in range(1, 2 * (os.cpu_count() or 1) + 1):
        it.driver.start(it.create(it.machine(stack, number)))
    assert it.driver.answers_within() == 2 * idle


@pytest.mark.parametrize(
    ("words", "boots"),
    [
        ("Debian GNU/Linux 12 one ttyS0\r\n\r\none login: ", True),
        ("[    1.0] Run /sbin/init as init process\r\n", True),
        ("SeaBIOS\r\nBooting from Hard Disk...\r\n", False),
    ],
)
def test_a_trial_boot_tells_a_system_from_a_boot_loader(it, server, tmp_path, words, boots):
    from drivers.libvirt_guest import guest_disk
    from essaim.drivers.libvirt import accelerator

    base = server.home / "trial.qcow2"
    base.write_bytes(guest_disk(tmp_path / "trial.qcow2", words).read_bytes())
    os.chown(base, server.uid, server.gid)
    before = base.read_bytes()
    within = (60.0, 120.0) if boots else (2.0, 60.0)
    why = accelerator.hangs(it.driver.connection, str(base), kind="tcg", within=within)
    assert (why == "") is boots, why
    assert boots or "Booting from Hard Disk" in why
    assert base.read_bytes() == before
    base.unlink()
    assert server.domains() == {}
    assert not list(server.home.glob("trial*"))


def test_a_trial_that_cannot_start_is_a_verdict(it):
    from essaim.drivers.libvirt import accelerator

    why = accelerator.hangs(it.driver.connection, "/nowhere/at-all.qcow2", kind="tcg")
    assert "does not start" in why


def test_one_trial_serves_all_and_is_remembered(it, monkeypatch):
    from essaim.drivers.libvirt import accelerator

    trials = []

    def hangs(_connection, base):
        trials.append(base)
        time.sleep(0.5)
        return "" if "good" in base else "it hung"

    monkeypatch.setattr(accelerator, "hangs", hangs)
    monkeypatch.setattr(accelerator, "kvm_missing", lambda _conn: "")
    auto = accelerators(it, accelerator="auto")
    assert auto.answers_within() >= 300  # nothing is known yet
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: auto.choose("/good", "g"), range(8)))
    assert {verdict.accelerator for verdict in found} == {"kvm"}
    assert auto.answers_within() < 300
    again = accelerators(it, accelerator="auto")
    assert again.choose("/good", "g") == found[0]
    assert trials == ["/good"]
    assert again.choose("/bad", "b").accelerator == "tcg"
    assert accelerators(it, accelerator="auto").choose("/bad", "b").why == "it hung"
    assert trials == ["/good", "/bad"]
    assert again.answers_within() >= 300
    monkeypatch.setattr(accelerator, "DOUBTED_FOR", 0.0)
    for base, digest in (("/good", "g"), ("/bad", "b")):
        accelerators(it, accelerator="auto").choose(base, digest)
    assert trials == ["/good", "/bad", "/bad"]
