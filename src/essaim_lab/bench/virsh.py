"""The peers that cost nothing to install: a loop of virsh commands, and boots started by hand.

Both get what Essaim made: the same XML, the same image already there, the same seeds.
"""

from __future__ import annotations

import functools
import os
import shlex
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt.dial import first_to_speak
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from essaim_lab.bench.libvirt_server import Server

NAME = "virsh, one by one"
PATIENCE = 900.0
_SOON = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One of Essaim's machines, written down while it stood."""

    name: str
    xml: Path
    seed: Path  #: what its seed held
    base: str  #: the volume it was made from
    size: int  #: of its disk, in bytes
    port: int  #: where it answers on the loopback


def write_down(server: Server, pool: str, folder: Path) -> list[Guest]:
    """Write down every domain there is, so that the same can be made again without Essaim."""
    folder.mkdir(parents=True)
    # virsh writes as the account there.
    os.chown(folder, server.uid, server.gid)
    return [_one(server, pool, folder, name) for name in server.domains()]


def _one(server: Server, pool: str, folder: Path, name: str) -> Guest:
    text = server.virsh("dumpxml", "--inactive", name)
    xml, seed = folder / f"{name}.xml", folder / f"{name}.iso"
    xml.write_text(text)
    xml.chmod(0o644)
    server.virsh("vol-download", "--pool", pool, f"{name}.seed", str(seed))
    disk = ET.fromstring(server.virsh("vol-dumpxml", "--pool", pool, f"{name}.qcow2"))  # noqa: S314 - libvirt's own
    backing, size = disk.findtext("backingStore/path"), disk.findtext("capacity")
    if not backing or not size:
        raise CannotRunError(f"the disk of {name} is no overlay")
    return Guest(
        name=name,
        xml=xml,
        seed=seed,
        base=backing.rpartition("/")[2],
        size=int(size),
        port=_port(text, name),
    )


def _port(xml: str, name: str) -> int:
    _, _, rest = xml.partition("hostfwd=tcp:127.0.0.1:")
    number = rest.partition("-")[0]
    if not number.isdigit():
        raise CannotRunError(f"{name} is not reached through a port of the loopback")
    return int(number)


class Loop:
    """What somebody with a shell does: one virsh after the other, over SSH."""

    def __init__(self, server: Server, pool: str, key: Path) -> None:
        self._server = server
        self._pool = pool
        self._key = key
        wrapper = server.place / "ssh"
        options = f"-F none -o UserKnownHostsFile={shlex.quote(str(server.known_hosts()))}"
        options += " -o StrictHostKeyChecking=yes -o BatchMode=yes"
        wrapper.write_text(f'#!/bin/sh\nexec ssh {options} "$@"\n')
        wrapper.chmod(0o755)
        self._uri = f"{server.uri}?keyfile={server.key}&command={wrapper}"

    def turn(self, guests: Sequence[Guest]) -> tuple[float, float]:
        """Make them and remove them; seconds of each."""
        return self.up(guests), self.down(guests)

    def up(self, guests: Sequence[Guest]) -> float:
        """Make and start each; seconds until the last has answered an authenticated command."""
        began = time.monotonic()
        for guest in guests:
            self.make(guest)
            self._virsh(f"start {guest.name}")
        self.await_all(guests)
        return time.monotonic() - began

    def await_all(self, guests: Sequence[Guest]) -> None:
        """Wait until each has answered an authenticated command, or CannotRunError."""
        with ThreadPoolExecutor(len(guests)) as pool:
            list(pool.map(lambda guest: answer(guest.name, guest.port, self._key), guests))

    def make(self, guest: Guest) -> None:
        """Make disk, seed and definition: one virsh for all of it, as a connection costs most."""
        name, pool = guest.name, self._pool
        self._virsh(
            f"vol-create-as {pool} {name}.qcow2 {guest.size} --format qcow2 "
            f"--backing-vol {guest.base} --backing-vol-format qcow2",
            f"vol-create-as {pool} {name}.seed {guest.seed.stat().st_size} --format raw",
            f"vol-upload --pool {pool} {name}.seed {guest.seed}",
            f"define {guest.xml}",
        )

    def down(self, guests: Sequence[Guest]) -> float:
        """Remove each; seconds until that is done."""
        began = time.monotonic()
        for guest in guests:
            self._virsh(f"destroy {guest.name}")
            self.remove(guest)
        return time.monotonic() - began

    def remove(self, guest: Guest) -> None:
        """Remove definition and disks."""
        self._virsh(
            f"undefine {guest.name}",
            f"vol-delete --pool {self._pool} {guest.name}.qcow2",
            f"vol-delete --pool {self._pool} {guest.name}.seed",
        )

    def _virsh(self, *commands: str) -> None:
        words = ["virsh", "--quiet", "--connect", self._uri, "; ".join(commands)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise CannotRunError(f"virsh {'; '.join(commands)}: {done.stderr.strip()}")


def boots_by_hand(server: Server, loop: Loop, guests: Sequence[Guest]) -> tuple[float, float]:
    """Start machines that are made already, all at once, on the server itself; remove them.

    Seconds until the last has answered an authenticated command, which is what the boots alone
    cost, and of removing them one by one.
    """
    for guest in guests:
        loop.make(guest)
    began = time.monotonic()
    with ThreadPoolExecutor(len(guests)) as pool:
        list(pool.map(lambda guest: server.virsh("start", guest.name), guests))
    loop.await_all(guests)
    return time.monotonic() - began, loop.down(guests)


def answer(name: str, port: int, key: Path) -> None:
    """Wait until a machine has answered an authenticated command."""
    deadline = time.monotonic() + PATIENCE
    words = [
        "ssh", "-F", "none", "-i", str(key), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
        # Nothing is said over it that a stranger may not hear: this is the peers' own haste.
        "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
        "-o", "KexAlgorithms=curve25519-sha256", "-p", str(port), "root@127.0.0.1", "true",
    ]  # fmt: skip
    while (left := deadline - time.monotonic()) > 0:
        # The emulator takes connections long before its machine does: look for the banner first,
        # in the way Essaim does, so that nobody is late for want of a better one.
        with suppress(OSError):
            first_to_speak(functools.partial(_connect, port), left, insist=left).close()
            if not subprocess.run(words, capture_output=True, check=False).returncode:
                return
        time.sleep(_SOON)
    raise CannotRunError(f"{name} did not answer at port {port} within {PATIENCE:.0f} s")


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 5)
