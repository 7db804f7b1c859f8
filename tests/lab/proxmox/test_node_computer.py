"""The computer that plays the nodes: apart from this one, and gone with who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from databases import find
from essaim.model.errors import TransientError
from essaim_lab.simulators.proxmox.node_computer import NodeComputer
from servers import daemons

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces with real devices are root's"),
]


@pytest.fixture(autouse=True)
def programs() -> None:
    for program, package in (
        ("lxc-start", "lxc"), ("newuidmap", "uidmap"), ("sshd", "openssh-server"),
        ("ip", "iproute2"),
    ):  # fmt: skip
        find(program, package)


def test_what_is_written_there_is_not_here(tmp_path):
    node = NodeComputer(tmp_path / "node", [])
    try:
        with node.dial("127.0.0.1", 22) as link:
            assert link.recv(4) == b"SSH-"
        with pytest.raises(TransientError, match=r"10\.0\.0\.1:1 does not answer"):
            node.dial("10.0.0.1", 1)
        done = node.run("sh", "-c", "touch /etc/x /var/lib/x /run/x /mnt/x && hostname")
        assert (done.returncode, done.stdout) == (0, "pve\n")
        for folder in ("/etc", "/var/lib", "/run", "/mnt"):
            assert not Path(folder, "x").exists()
        # What is shared on purpose: the file system of the cluster, locks, and the homes.
        (tmp_path / "node/pve/lxc/101.conf").write_text("arch: amd64\n")
        assert node.run("cat", "/etc/pve/lxc/101.conf").stdout == "arch: amd64\n"
        assert node.run("touch", "/mnt/pve/homes/x", "/run/lock/lxc/y").returncode == 0
        assert (tmp_path / "node/homes/x").exists()
        assert (tmp_path / "node/lock/y").exists()
    finally:
        node.close()
    assert not (tmp_path / "node").exists()


_HOLDER = """
import sys, time
from pathlib import Path
from essaim_lab.simulators.proxmox.node_computer import NodeComputer
node = NodeComputer(Path(sys.argv[1]), [])
node.run("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
print(node._pid, flush=True)
time.sleep(1000)
"""


def test_it_ends_with_who_started_it_however_that_ended(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "node")], stdout=subprocess.PIPE, text=True
    ) as holder:
        first = int(holder.stdout.readline())
        space = os.readlink(f"/proc/{first}/ns/pid")
        assert len(_inside(space)) > 1
        holder.send_signal(signal.SIGKILL)
    daemons.wait("the last of its processes", lambda: not _inside(space))


def _inside(space: str) -> list[str]:
    """Processes of a namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns" / "pid") == space:
                found.append(process.name)
        except OSError:
            continue  # gone meanwhile
    return found
