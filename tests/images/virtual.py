"""A virtual machine under emulation, made from a disk and the seed a driver would give it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network, Size
from essaim.remote.seeds import seed_files
from essaim_lab.computer import free_port

MAC, ACCESS_MAC = "52:54:00:aa:00:02", "52:54:00:aa:00:01"
#: Seconds a machine may take to answer or to go, on a computer that has other things to do.
PATIENCE = 280.0


class Guest:
    """One machine, off until it is started."""

    def __init__(self, place: Path, disk: Path, *, memory: int) -> None:
        self.place, self.memory, self.port = place, memory, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.overlay, self.serial = place / "disk.qcow2", place / "serial"
        for name in ("user", "host"):
            words = ["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(place / name)]
            subprocess.run(["ssh-keygen", *words], check=True)
        self._write_seed()
        backing = ["-b", str(disk), "-F", "qcow2"]
        words = ["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(self.overlay), "6G"]
        subprocess.run(words, check=True)

    def _write_seed(self) -> None:
        key = (self.place / "user.pub").read_text().strip()
        host = (self.place / "host").read_text()
        machine = Machine(
            name=MachineName("lab", "n1"), group="n", index=1, address="10.77.0.5", image="x",
            size=Size(cores=1, memory=128),
        )  # fmt: skip
        seed = Seed(hostname="n1", host_key=host, authorized_keys=(key,))
        network = Network(cidr="10.77.0.0/24")
        files = seed_files(machine, network, seed, mac=MAC, access_mac=ACCESS_MAC)
        for name, body in files.items():
            path = self.place / "seed" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        words = ["-quiet", "-r", "-J", "-V", "cidata", "-o", str(self.place / "seed.iso")]
        subprocess.run(["genisoimage", *words, str(self.place / "seed")], check=True)
        public = (self.place / "host.pub").read_text()
        (self.place / "known").write_text(f"[127.0.0.1]:{self.port} {public}")

    def start(self) -> None:
        group = "socket,id=c,mcast=230.77.0.5:21977,localaddr=127.0.0.1"
        self.process = subprocess.Popen(
            [
                "qemu-system-x86_64", "-accel", "tcg", "-m", str(self.memory), "-nodefaults",
                "-display", "none", "-serial", f"file:{self.serial}",
                "-monitor", f"unix:{self.place}/monitor,server,nowait",
                "-drive", f"file={self.overlay},if=virtio,format=qcow2",
                "-drive", f"file={self.place}/seed.iso,if=virtio,format=raw,readonly=on",
                "-netdev", f"user,id=a,hostfwd=tcp:127.0.0.1:{self.port}-:22",
                "-device", f"virtio-net-pci,netdev=a,mac={ACCESS_MAC},romfile=",
                "-netdev", group, "-device", f"virtio-net-pci,netdev=c,mac={MAC},romfile=",
                "-device", "virtio-rng-pci",
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run(self, command: str, within: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command there as root; its host key must be the seed's."""
        return subprocess.run(
            [
                "ssh", "-p", str(self.port), "-i", str(self.place / "user"), "-F", "none",
                "-o", f"UserKnownHostsFile={self.place / 'known'}", "-o", "BatchMode=yes",
                "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes",
                "-o", "ConnectTimeout=30", "root@127.0.0.1", command,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=within,
        )  # fmt: skip

    def wait(self) -> float:
        """Wait until an authenticated command is answered; how long that took."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE:
            assert self.process is not None
            assert self.process.poll() is None, "the machine has ended"
            if self._banner() and self.run("true").returncode == 0:
                return time.monotonic() - began
            time.sleep(0.2)
        raise AssertionError(f"no answer; it printed: {self.printed()[-2000:]}")

    def _banner(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as link,
        ):
            return link.recv(4) == b"SSH-"
        return False

    def printed(self) -> str:
        return self.serial.read_text(errors="replace") if self.serial.exists() else ""

    def press_power(self) -> None:
        """Press the power button and wait until it is off."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self.place / "monitor"))
            monitor.recv(4096)
            monitor.sendall(b"system_powerdown\n")
            assert self.process is not None
            assert self.process.wait(PATIENCE) == 0

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def guest(place: Path, disk: Path, *, memory: int) -> Iterator[Guest]:
    """A machine that is off, and gone at the end."""
    place.mkdir(parents=True)
    it = Guest(place, disk, memory=memory)
    try:
        yield it
    finally:
        it.end()
        shutil.rmtree(place)
