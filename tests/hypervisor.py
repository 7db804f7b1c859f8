"""A KVM server without root for the tests, and a look at what its account listens on.

`hypervisor()` gives one; `watching(server)` fails when anything of its account ever listened on an
address that others can reach.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from essaim_lab.bench import libvirt_server

_TCP_LISTEN = "0A"
_UDP_CONNECTED = "01"


@dataclass(frozen=True, order=True)
class Listener:
    """A socket that takes what comes to it."""

    protocol: str
    address: str
    port: int
    joined: tuple[str, ...] = ()  #: devices on which the group is heard, for a multicast address

    @property
    def private(self) -> bool:
        """Whether only this computer reaches it."""
        where = ipaddress.ip_address(self.address)
        if where.is_multicast:
            return set(self.joined) <= {"lo"}  # a group that nobody has joined is not heard
        where = getattr(where, "ipv4_mapped", None) or where
        return where.is_loopback


@dataclass(frozen=True, kw_only=True)
class Server(libvirt_server.Server):
    """The server of the benchmarks, with what only tests look at."""

    def listeners(self) -> set[Listener]:
        """Give what the account's processes listen on now, in whichever network they are."""
        found: set[Listener] = set()
        networks: dict[str, tuple[int, set[str]]] = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                network = os.readlink(f"/proc/{pid}/ns/net")
                networks.setdefault(network, (pid, set()))[1].update(_sockets(pid))
        for pid, inodes in networks.values():
            with contextlib.suppress(OSError):
                found |= _listening(Path(f"/proc/{pid}/net"), self.uid, inodes)
        return found


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    return inodes


def _listening(net: Path, uid: int, inodes: set[str]) -> set[Listener]:
    groups = _groups(net)
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in (net / protocol).read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, owner, _, inode, *_ = line.split()
            # A connected UDP socket takes only what its peer sends.
            takes = state == _TCP_LISTEN if "tcp" in protocol else state != _UDP_CONNECTED
            if takes and (int(owner) == uid or inode in inodes):
                address, port = _endpoint(local)
                found.add(Listener(protocol, address, port, groups.get(address, ())))
    return found


def _endpoint(text: str) -> tuple[str, int]:
    """Read `0100007F:1F90`: words in the order of this computer's bytes, the port as people do."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    return str(ipaddress.ip_address(b"".join(words))), int(port, 16)


def _groups(net: Path) -> dict[str, tuple[str, ...]]:
    """On which devices each multicast group is heard."""
    heard: dict[str, set[str]] = {}
    device = ""
    for line in (net / "igmp").read_text().splitlines()[1:]:
        if not line.startswith("\t"):
            device = line.split()[1]
        else:
            group = str(ipaddress.ip_address(bytes.fromhex(line.split()[0])[::-1]))
            heard.setdefault(group, set()).add(device)
    return {group: tuple(sorted(devices)) for group, devices in heard.items()}


@dataclass
class Watch:
    """What was seen so far."""

    seen: set[Listener] = field(default_factory=set)
    looks: int = 0

    @property
    def strays(self) -> list[Listener]:
        return sorted(one for one in self.seen if not one.private)


@contextmanager
def watching(server: Server, every: float = 0.3) -> Iterator[Watch]:
    """Look all along what the account listens on; fails in the end when others could reach it."""
    watch, over = Watch(), threading.Event()
    problems: list[BaseException] = []

    def look() -> None:
        try:
            while not watch.looks or not over.wait(every):  # once, however soon it is over
                watch.seen |= server.listeners()
                watch.looks += 1
        except BaseException as error:  # noqa: BLE001 - said where it can be heard, below
            problems.append(error)

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
    assert not problems, problems
    assert watch.looks
    assert not watch.strays, watch.strays


@contextmanager
def hypervisor() -> Iterator[Server]:
    """A KVM server on this computer that a new plain account has; gone afterwards."""
    if os.geteuid() != 0:
        pytest.skip("only root can make an account")
    with libvirt_server.libvirt_server() as made:
        yield Server(**vars(made))
