"""Real machines behind simulated ones: cloned, started, logged in to, gone."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests

from essaim.images.cache import Images
from essaim.model.stacks import Image
from essaim_lab.simulators.proxmox import Simulator
from essaim_lab.simulators.proxmox.backing import Backing, inside, outside
from lab.proxmox.client import Client, start_lab, stop_lab
from patience import in_test_all

PATIENCE = 120.0
BOOT = "cut -d' ' -f22 /proc/1/stat"  #: differs after every start
BASE = Image(
    name="test-base",
    builder="debian",
    digest="test-base-1",
    settings={
        "suite": "bookworm",
        "packages": ["openssh-server", "iproute2", "procps", "iputils-ping", "python3-minimal"],
    },
)


@pytest.fixture(scope="module")
def rootfs() -> Path:
    """The image the drivers' tests use: built once and kept between runs of the suite."""
    wanted = {"mmdebstrap": "mmdebstrap", "ssh": "openssh-client"}
    missing = [package for tool, package in wanted.items() if shutil.which(tool) is None]
    if missing:
        subprocess.run(["apt-get", "install", "-y", "-qq", *missing], check=True)
    kept = os.environ.get("ESSAIM_TEST_CACHE")
    cache = Path(kept) if kept else Path.home() / ".cache" / "essaim-tests"
    return Images(cache / "images").build(BASE, lambda _line: None)


def wait_for(condition, what: str):
    deadline = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.05)


def finished(root: Client, upid: str) -> None:
    wait_for(lambda: root.status(upid)["status"] == "stopped", f"{upid} has ended")
    assert root.status(upid)["exitstatus"] == "OK"


def answers(place: str) -> bool:
    host, _, port = place.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as link:
            link.settimeout(PATIENCE)
            return link.recv(64).startswith(b"SSH-")
    except OSError:
        return False


def test_addresses():
    assert inside("10.77.3.4/24") == "10.77.3.4"
    assert inside("192.168.3.4/24") == "10.168.3.4"
    assert outside("10.77.3.4/24") == "127.77.3.4"
    assert outside("127.77.3.4") == "127.77.3.4"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="port 22 of another address is root's")
def test_a_cloned_container_is_a_machine_one_can_log_in_to(rootfs, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text()
    with Simulator(nodes=1, speed=50.0) as sim:
        backing = Backing(sim, tmp_path / "machines", rootfs, [public])
        try:
            root = Client(sim)
            finished(root, root.clone(101, hostname="alice"))
            guest = root.node().lxc(101)
            guest.config.put(net0="name=eth0,bridge=vmbr0,ip=10.214.7.5/16")
            finished(root, guest.status.start.post())
            seen = wait_for(lambda: backing.machines().get("101"), "it is a machine")
            assert (seen["address"], seen["ssh"]) == ("10.214.7.5", "127.214.7.5:22")
            wait_for(lambda: answers(seen["ssh"]), "it answers")
            assert _run(key, tmp_path, seen, "hostname; hostname -I").split() == [
                "alice",
                "10.214.7.5",
            ]
            run = functools.partial(_run, key, tmp_path, seen)
            run("echo mine > /root/file")
            before = run(BOOT)
            finished(root, guest.status.reboot.post())
            wait_for(lambda: run(BOOT, patient=True) not in ("", before), "it has started again")
            assert run("cat /root/file") == "mine\n"
            finished(root, guest.status.stop.post())
            wait_for(lambda: not answers(seen["ssh"]), "it is off")
            finished(root, guest.delete())
            wait_for(lambda: not backing.machines(), "it is gone")
        finally:
            backing.close()
        assert backing.defects == []
    assert not (tmp_path / "machines" / "pve").exists()


def _run(
    key: Path, folder: Path, seen: dict[str, str], command: str, *, patient: bool = False
) -> str:
    host = seen["ssh"].partition(":")[0]
    known = folder / "known_hosts"
    known.write_text(f"{host} {seen['host_key']}\n")
    options = ["IdentitiesOnly=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}"]
    words = [word for option in options for word in ("-o", option)]
    done = subprocess.run(
        ["ssh", "-F", "none", "-i", str(key), *words, f"root@{host}", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert patient or done.returncode == 0, done.stderr
    return done.stdout


@in_test_all
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="port 22 of another address is root's")
@pytest.mark.timeout(1800)
def test_the_command_makes_real_machines(tmp_path):
    child, told = start_lab(tmp_path, "--real", "--nodes", "1", "--speed", "50")
    try:
        root = Client.of(told)
        finished(root, root.clone(101, hostname="alice"))
        root.node().lxc(101).config.put(net0="name=eth0,bridge=vmbr0,ip=127.215.7.6/16")
        finished(root, root.node().lxc(101).status.start.post())
        wait_for(lambda: answers("127.215.7.6:22"), "it answers at its own address")
        (seen,) = requests.get(
            f"{told['url']}/lab/machines",
            headers={"Authorization": f"Bearer {Path(told['lab_secret']).read_text()}"},
            verify=told["ca"],
            timeout=60,
        ).json()["data"].values()  # fmt: skip
        assert _run(tmp_path / "keys" / "id_ed25519", tmp_path, seen, "hostname") == "alice\n"
    finally:
        stop_lab(child)
    assert not answers("127.215.7.6:22")
    assert not (tmp_path / "lab" / "proxmox" / "machines" / "pve").exists()
