"""A place to try a driver in: keys, a scratch directory, and what is left after each try.

Standard library only: it is also run by a plain user with the system's Python, without pytest.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.errors import TransientError
from essaim.model.machines import Observed, Power, Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network, Size

PATIENCE = 90.0
NETWORK = Network(cidr="10.77.0.0/24")
IMAGE = Image(name="base", builder="debian", digest="d-base")


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until something is true, however slow the computer is."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.02)


class Lab:
    """One try."""

    def __init__(self, place: Path, rootfs: Path) -> None:
        self.place = place
        self.rootfs = rootfs
        self.state = place / "state"
        self.driver = Sandbox(self.state, lambda _image: rootfs)
        self.key = self.new_key("user")
        self._keys: dict[str, Path] = {}
        self._stacks: list[str] = []

    def new_key(self, name: str) -> Path:
        path = self.place / f"key-{name}"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(command, check=True)
        return path

    def host_key(self, machine: str) -> Path:
        if machine not in self._keys:
            self._keys[machine] = self.new_key(f"host-{machine}".replace("/", "_"))
        return self._keys[machine]

    def stack(self, name: str = "lab") -> str:
        self._stacks.append(name)
        self.driver.open_network(name, NETWORK)
        return name

    def close(self) -> None:
        for stack in self._stacks:
            self.driver.close_network(stack)

    def machine(self, stack: str, number: int, **changes: object) -> Machine:
        values = {
            "name": MachineName(stack, f"m{number}"),
            "group": "m",
            "index": number,
            "address": f"10.77.0.{number + 10}",
            "image": "base",
            "size": Size(cores=1, memory=256),
        }
        return Machine(**{**values, **changes})  # type: ignore[arg-type]

    def seed(self, machine: Machine) -> Seed:
        return Seed(
            hostname=machine.name.machine,
            host_key=self.host_key(machine.name.machine).read_text(),
            authorized_keys=(self.key.with_suffix(".pub").read_text(),),
        )

    def create(self, machine: Machine, network: Network = NETWORK) -> MachineName:
        self.driver.create(machine, network, IMAGE, self.seed(machine))
        return machine.name

    def up(self, stack: str, *numbers: int) -> list[MachineName]:
        """Machines that are there, on, and answering."""
        names = [self.create(self.machine(stack, number)) for number in numbers]
        for name in names:
            self.driver.start(name)
        for name in names:
            self.await_ssh(name)
        return names

    def await_ssh(self, name: MachineName) -> None:
        wait_for(lambda: self.banner(name), f"{name} answers")

    def banner(self, name: MachineName) -> bytes:
        try:
            with self.driver.dial(name, 22) as conn:
                conn.settimeout(PATIENCE)
                return conn.recv(64)
        except TransientError:
            return b""

    def seen(self, name: MachineName) -> Observed | None:
        return next((one for one in self.driver.observe(name.stack) if one.name == name), None)

    def is_on(self, name: MachineName) -> bool:
        seen = self.seen(name)
        return seen is not None and seen.power is Power.ON

    def ssh(
        self, name: MachineName, *command: str, key: Path | None = None, pin: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command over OpenSSH, which accepts only the pinned host key."""
        pinned = (pin or self.host_key(name.machine)).with_suffix(".pub").read_text()
        known = self.place / f"known-{name.stack}-{name.machine}"
        known.write_text(f"pinned {pinned}")
        options = {
            "BatchMode": "yes",
            "ProxyUseFdpass": "yes",
            "ProxyCommand": shlex.join(self.driver.proxy_command(name)),
            "UserKnownHostsFile": str(known),
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": "pinned",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(key or self.key),
            "KexAlgorithms": "curve25519-sha256",
        }
        flags = [word for pair in options.items() for word in ("-o", "=".join(pair))]
        return subprocess.run(
            ["ssh", "-F", "none", *flags, f"root@{name.machine}", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def run(self, name: MachineName, command: str) -> str:
        done = self.ssh(name, command)
        assert done.returncode == 0, (name, command, done.stdout, done.stderr)
        return done.stdout

    def processes(self, *words: str) -> list[int]:
        """Processes of this lab whose command line holds all the words, seen from outside."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(self.state) in line and all(word in line for word in words):
                found.append(int(entry.name))
        return found

    def keeper(self, stack: str) -> int:
        """The process that holds a stack."""
        (pid,) = [
            pid
            for pid in self.processes("keeper.py", f"/{stack} ")
            if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"unshare")
        ]
        return pid

    def crash(self, stack: str) -> None:
        """What a power cut does to a stack."""
        os.kill(self.keeper(stack), signal.SIGKILL)
        wait_for(lambda: not self.processes(), "everything has ended")

    def first_processes(self, stack: str) -> list[int]:
        """The first process of each running machine, seen from outside."""
        keeper = self.keeper(stack)
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        return [int(child) for child in children]

    def traces(self) -> dict[str, list[str]]:
        """What could be left on the computer; each list is empty when nothing is."""
        place = str(self.place)
        return {
            "processes": [str(pid) for pid in self.processes()],
            "mounts": [line for line in _lines("/proc/mounts") if place in line],
            "files": sorted(os.listdir(self.state)) if self.state.exists() else [],
            "devices": [name for _, name in socket.if_nameindex() if name.startswith("m0a4d")],
            "cgroups": [
                str(path)
                for path in itertools.chain(
                    Path("/sys/fs/cgroup").glob("essaim/*"),
                    Path("/sys/fs/cgroup").glob("*/essaim/*"),
                )
                if any(path.name.startswith(f"{stack}-") for stack in self._stacks)
                and path.name.endswith(self.cgroup_mark(path.name.rpartition("-")[0]))
            ],
        }

    def cgroup_mark(self, stack: str) -> str:
        import hashlib

        return hashlib.sha256(os.fsencode(self.state / stack)).hexdigest()[:8]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


@contextmanager
def lab(rootfs: Path, base: Path | None = None) -> Iterator[Lab]:
    """A lab that is taken down, even when the try fails."""
    place = Path(tempfile.mkdtemp(prefix="lab-", dir=base))
    made = Lab(place, rootfs)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(place)
