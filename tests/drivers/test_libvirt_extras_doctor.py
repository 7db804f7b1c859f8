"""The doctor of a libvirt site says what the account may do there, in words that help."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from essaim.model.errors import TransientError
from essaim.model.stacks import Site
from patience import in_test_libvirt

pytestmark = [
    pytest.mark.root,
    in_test_libvirt,
]

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


@pytest.fixture
def it(server):
    from drivers.libvirt_lab import virt_lab

    with virt_lab(server, Path("/nowhere")) as made:
        yield made


def checks(it, **settings):
    return {check.name: check for check in it.new_driver(**settings).doctor()}


def test_an_account_without_any_privilege_can_make_machines(it, server):  # R-A3
    from hypervisor import watching

    with watching(server) as watch:
        found = checks(it, accelerator="auto")
    assert [check for check in found.values() if not check.ok] == []
    assert server.user in found["server"].text
    assert "x86_64" in found["emulator"].text
    assert "tcg" in found["a machine"].text
    assert "GiB free" in found["storage"].text
    assert "of 22000-29999 are free" in found["ports"].text
    assert watch.seen  # it did start one, and that one listened on the loopback alone
    assert server.domains() == {}
    assert not [line for line in server.processes().values() if "qemu-system" in line]


def test_missing_kvm_is_a_warning_with_the_administrators_command(it, server):
    if not os.path.exists("/dev/kvm") or os.access("/dev/kvm", os.R_OK) is False:
        pytest.skip("there is no KVM on this computer to be kept from")
    if os.stat("/dev/kvm").st_mode & 0o006:
        pytest.skip("everybody may use KVM here")
    found = checks(it, accelerator="auto")
    assert found["kvm"].ok
    assert found["kvm"].warn
    assert f"sudo usermod -aG kvm {server.user}" in found["kvm"].text
    assert found["accelerator"].warn
    assert found["accelerator"].text.startswith("tcg")
    assert not checks(it, accelerator="tcg")["accelerator"].warn


def test_another_host_key_is_told_and_nothing_else_is_tried(it):
    found = checks(it, host_key=OTHER_KEY)
    assert list(found) == ["server"]
    assert not found["server"].ok
    assert "another host key" in found["server"].text


def test_a_server_that_is_down_is_told(it, server):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        found = checks(it, uri=f"qemu+ssh://{server.user}@127.0.0.1:{port}/session")
    assert not found["server"].ok
    assert "cannot be reached" in found["server"].text


def test_a_key_that_is_not_let_in_is_told(it, server):
    found = checks(it, key=str(it.new_key("another")))
    assert not found["server"].ok
    assert "authorized_keys" in found["server"].text


def test_the_systems_libvirt_names_the_group_and_the_way_around(it, server):
    if Path("/run/libvirt/libvirt-sock").exists():
        pytest.skip("this computer runs a libvirt of its own")
    found = checks(it, uri=server.uri.replace("/session", "/system"))
    assert not found["libvirt"].ok
    assert f"sudo usermod -aG libvirt {server.user}" in found["libvirt"].text
    assert "/session" in found["libvirt"].text
    assert "kvm" in found


def test_a_network_that_is_not_offered_and_a_full_range_of_ports_fail(it, server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = checks(it, network="office", ports=f"{port}-{port}")
    assert not found["network"].ok
    assert "office is not active" in found["network"].text
    assert not found["ports"].ok
    assert not found["a machine"].ok


def examined(mode: str, facts: dict[str, str]):
    """What is said of a server whose libvirt does not answer, by what its account could see."""
    from essaim.drivers.libvirt import settings
    from essaim.drivers.libvirt.doctor import _Doctor

    def get():
        raise TransientError("no libvirt", hint="try again")

    uri = f"qemu+ssh://ada@server.example.org/{mode}"
    site = Site(name="far", driver="libvirt", settings={"uri": uri, "host_key": OTHER_KEY})
    connection = SimpleNamespace(settings=settings.read(site), remote=True, get=get)
    return {check.name: check for check in _Doctor(connection, None, facts).checks()}


def test_a_server_without_libvirt_is_told_with_the_packages_of_its_kind():
    tools = {"user": "ada", "nc": "/bin/nc", "kvm": "crw-rw---- 1 root kvm 10, 232 x /dev/kvm"}
    for system, said in (
        ("debian", "sudo apt-get install libvirt-daemon "),
        ("rocky rhel fedora", "sudo dnf install libvirt-daemon-driver-qemu "),
    ):
        found = examined("session", {**tools, "system": system})
        assert not found["libvirt"].ok
        assert said in found["libvirt"].text
        assert "sudo usermod -aG kvm ada" in found["kvm"].text
        assert "chgrp" not in found["kvm"].text
    there = {**tools, "libvirtd": "/usr/sbin/libvirtd"}
    assert "no libvirt" in examined("session", there)["libvirt"].text
    assert "usermod -aG libvirt ada" in examined("system", there)["libvirt"].text
    assert not examined("session", {"user": "ada"})["virt-ssh-helper/nc"].ok


def test_an_account_that_may_run_nothing_there_is_not_told_tales():
    found = examined("session", {})
    assert found["commands"].warn
    assert found["kvm"].text == "was not looked at"


def test_what_is_missing_is_asked_for_in_the_administrators_words():
    from essaim.drivers.libvirt import probe

    assert "apt-get install netcat-openbsd" in probe.install({"system": "debian"}, "nc")
    assert "dnf install nmap-ncat" in probe.install({"system": "rocky rhel fedora"}, "nc")
