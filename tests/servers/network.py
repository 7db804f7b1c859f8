"""A small network of its own: a side for a DHCP server, a side for a card that asks it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from databases import find
from servers import daemons

SERVER = "10.77.0.1"
CIDR = "10.77.0.0/24"

# What udhcpc calls with what it was given.
_SCRIPT = """#!/bin/sh
[ "$1" = bound ] && echo "$ip $hostname" >> "$0.bound"
exit 0
"""


@dataclass(frozen=True, slots=True)
class Network:
    """Two namespaces joined by a cable."""

    server: int  #: a process inside
    client: int
    place: Path

    def at_server(self, command: Sequence[object]) -> list[str]:
        return _inside(self.server, command)

    def at_client(self, command: Sequence[object]) -> list[str]:
        return _inside(self.client, command)

    def ask(self, card: str, tries: int = 2) -> str:
        """What a DHCP client with that card is given: address and name; empty for nothing."""
        subprocess.run(self.at_client(["ip", "link", "set", "card", "address", card]), check=True)
        script = self.place / "script"
        script.write_text(_SCRIPT)
        script.chmod(0o755)
        bound = self.place / "script.bound"
        bound.unlink(missing_ok=True)
        words = ["busybox", "udhcpc", "-i", "card", "-f", "-q", "-n", "-s", script]
        subprocess.run(
            self.at_client([*words, "-t", tries, "-T", "1", "-O", "hostname"]),
            check=False,
            capture_output=True,
            timeout=daemons.PATIENCE,
        )
        return bound.read_text().strip() if bound.exists() else ""


@dataclass(frozen=True)
class Asked:
    """A DHCP server that can be asked, and what it says of those who ask."""

    network: Network
    log: Path

    def given(self, card: str) -> str:
        """The address and the name the card is given."""
        return self.network.ask(card, tries=60)

    def refuses(self, card: str) -> bool:
        """Whether the card, which did ask, was given nothing: Kea says so itself."""
        before = self._refusals(card)
        if self.network.ask(card):
            return False
        daemons.wait("Kea's refusal", lambda: self._refusals(card) > before)
        return True

    def _refusals(self, card: str) -> int:
        lines = self.log.read_text().splitlines()
        return sum(card in line and "ALLOC_FAIL" in line for line in lines)


def _inside(pid: int, command: Sequence[object]) -> list[str]:
    return ["nsenter", "-t", str(pid), "-n", "--", *(str(word) for word in command)]


@contextlib.contextmanager
def namespace() -> Iterator[int]:
    """A network without anything in it; gives a process inside."""
    holder = subprocess.Popen(["unshare", "--net", "--", "sleep", "infinity"])
    ours = os.readlink("/proc/self/ns/net")
    try:
        daemons.wait(
            "a namespace",
            lambda: (
                os.readlink(f"/proc/{holder.pid}/ns/net") != ours
                and Path(f"/proc/{holder.pid}/comm").read_text().strip() == "sleep"
            ),
            holder,
        )
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Make it; it goes with its two processes."""
    find("ip", "iproute2")
    find("busybox", "busybox-static")  # as tests of the smallest machines need it
    with daemons.folder() as place, namespace() as server, namespace() as client:
        made = Network(server, client, place)
        cable = ["ip", "link", "add", "served", "netns", str(server), "type", "veth"]
        subprocess.run([*cable, "peer", "name", "card", "netns", str(client)], check=True)
        for words in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "address", "add", f"{SERVER}/24", "dev", "served"),
            ("ip", "link", "set", "served", "up"),
        ):
            subprocess.run(made.at_server(words), check=True)
        subprocess.run(made.at_client(("ip", "link", "set", "card", "up")), check=True)
        show = made.at_server(("ip", "-o", "link", "show", "served"))
        # A DHCP server takes no interest in an interface without a cable.
        daemons.wait("a cable", lambda: b"state UP" in subprocess.check_output(show))
        yield made
