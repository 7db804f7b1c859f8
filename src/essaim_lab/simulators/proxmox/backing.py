"""Real machines behind the simulated ones: sandboxes, or containers of LXC, one can log in to.

A machine that is started becomes a sandbox machine with its address and its authorized keys, and
goes away when it is removed.  With `lxc`, a container that somebody wrote lines for LXC for is what
it would be on Proxmox VE, with hooks, id map and mounts (see `containers`).  A relay listens at
127.B.C.D, port 22 (2222 for a plain user), for a machine whose address is A.B.C.D: so that ssh
reaches it from this computer, where no bridge is.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.errors import EssaimError
from essaim.model.machines import Seed
from essaim.model.names import NAME, MachineName
from essaim.model.stacks import Image, Machine, Network, Size
from essaim.remote.ssh import Target
from essaim_lab.simulators.proxmox.agent_runner import AgentRunner
from essaim_lab.simulators.proxmox.containers import Containers
from essaim_lab.simulators.proxmox.network import address
from essaim_lab.simulators.proxmox.node_computer import NodeComputer
from essaim_lab.simulators.proxmox.simulator import Simulator
from essaim_lab.simulators.proxmox.state import Guest

STACK = "pve"
NODE = MachineName(STACK, "node")
Dial = Callable[[], socket.socket]


@dataclass(slots=True)
class Outcome:
    """How something ended: nothing for well, None until then."""

    said: str | None = None


NETWORK = Network(cidr="10.0.0.0/8")
IMAGE = Image(name="template", builder="debian", digest="template")


def inside(text: str) -> str:
    """The address a machine has on the network of the sandboxes."""
    plain = text.partition("/")[0]
    return str(ipaddress.IPv4Address((10 << 24) | (int(ipaddress.IPv4Address(plain)) & 0xFFFFFF)))


def outside(text: str) -> str:
    """The address of this computer that leads to it."""
    return "127." + inside(text).partition(".")[2]


class Backing:
    """Keeps sandbox machines as the simulated ones are.  `close` removes all of them."""

    def __init__(
        self,
        sim: Simulator,
        folder: Path,
        rootfs: Path,
        keys: Sequence[str] = (),
        *,
        lxc: bool = False,
    ) -> None:
        self.port = 22 if os.geteuid() == 0 else 2222
        self.defects: list[str] = []
        self._sim = sim
        self._keys = tuple(keys)
        self.node = NodeComputer(folder / "node", keys) if lxc else None
        self._containers = Containers(self.node, rootfs) if self.node else None
        self._driver = Sandbox(folder, lambda _image: rootfs)
        self._agents = AgentRunner(folder / "agent", self._reached)
        self._driver.open_network(STACK, NETWORK)
        self._hosts: dict[int, dict[str, str]] = {}
        self._names: dict[int, MachineName] = {}
        self._relay = Relay()
        self._todo: queue.SimpleQueue[tuple[str, Guest, str, Outcome] | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="proxmox-backing", daemon=True)
        self._worker.start()
        sim.cluster.watchers.append(self._told)
        sim.cluster.starter = self._begin
        sim.cluster.agent_runner = self._agents
        for guest in sim.cluster.guests.values():
            self._told(guest, "add")

    def machines(self) -> dict[str, dict[str, str]]:
        """By number: the address, where ssh reaches it, and its host key."""
        return {str(vmid): dict(said) for vmid, said in sorted(self._hosts.items())}

    def open_node(self) -> int:
        """Listen for who logs in to the nodes; returns the port, at 127.0.0.1."""
        if self.node is None:
            raise ValueError("there are no nodes one could log in to")
        return self._relay.open(NODE, "127.0.0.1", 0, partial(self.node.dial, "127.0.0.1", 22))

    def _begin(self, guest: Guest) -> Callable[[], str | None] | None:
        """Begin the start of a container, whose hooks may refuse it; None for sandbox machines."""
        if not (self._containers and guest.kind == "lxc"):
            return None
        self._containers.write(guest)
        if not self._containers.wants(guest):
            return None
        outcome = Outcome()
        self._put("start", guest, outcome)
        return lambda: outcome.said

    def _told(self, guest: Guest, what: str) -> None:
        """Hear of a change, with the clock's lock held: the work is done elsewhere."""
        if self._containers and guest.kind == "lxc":
            if what == "add":
                self._containers.write(guest)
            elif what == "remove":
                self._containers.forget(guest.vmid)
            elif what == "start" and self._containers.wants(guest):
                return  # it was begun before
        if what in ("start", "stop", "destroy"):
            self._put(what, guest, Outcome())

    def _put(self, what: str, guest: Guest, outcome: Outcome) -> None:
        at = address(guest, 0) or f"10.255.{guest.vmid >> 8 & 255}.{guest.vmid & 255}"
        self._todo.put((what, guest, at, outcome))

    def _work(self) -> None:
        if self._containers:
            self._containers.prepare()
        while (job := self._todo.get()) is not None:
            what, guest, at, outcome = job
            try:
                self._act(what, guest, at)
                outcome.said = ""
            except (EssaimError, OSError, subprocess.CalledProcessError) as error:
                outcome.said = str(error)
                self.defects.append(f"{guest.vmid} {what}: {error}")
                sys.stderr.write(f"machine {self.defects[-1]}\n")

    def _act(self, what: str, guest: Guest, at: str) -> None:
        name = self._name(guest)
        if what != "start":
            self._relay.close(name)
        if self._containers and self._containers.wants(guest):
            self._act_on_container(self._containers, what, guest, at)
        elif what == "start":
            self._create(name, guest, at)
            self._driver.start(name)
            dial = partial(self._driver.dial, name, 22)
            self._relay.open(name, outside(at), self.port, dial)
        elif what == "stop":
            self._driver.stop(name)
        else:
            self._driver.destroy(name)
        if what == "destroy":
            self._hosts.pop(guest.vmid, None)
            self._names.pop(guest.vmid, None)

    def _act_on_container(self, containers: Containers, what: str, guest: Guest, at: str) -> None:
        if what == "start":
            key = containers.start(guest, inside(at))
            self._know(guest, at, key)
            dial = partial(containers.dial, inside(at))
            self._relay.open(self._name(guest), outside(at), self.port, dial)
        elif what == "stop":
            containers.stop(guest.vmid)
        else:
            containers.destroy(guest.vmid)

    def _know(self, guest: Guest, at: str, host_key: str) -> None:
        self._hosts[guest.vmid] = {
            "name": guest.name,
            "address": inside(at),
            "ssh": f"{outside(at)}:{self.port}",
            "host_key": host_key,
        }

    def _reached(self, guest: Guest) -> Target | None:
        """How the agent of a sandbox machine is reached; None for one that is not there."""
        known = self._hosts.get(guest.vmid)
        if known is None or guest.kind != "qemu":
            return None
        name = self._name(guest)
        return Target(
            name=name,
            address=known["address"],
            host_key=known["host_key"],
            dial=partial(self._driver.dial, name, 22),
        )

    def _name(self, guest: Guest) -> MachineName:
        """Call it as people do, as long as it is the only one of that name."""
        if guest.vmid not in self._names:
            short = guest.name.partition(".")[0].lower()
            good = NAME.fullmatch(short) and MachineName(STACK, short) not in self._names.values()
            self._names[guest.vmid] = MachineName(STACK, short if good else f"m{guest.vmid}")
        return self._names[guest.vmid]

    def _create(self, name: MachineName, guest: Guest, at: str) -> None:
        known = self._hosts.get(guest.vmid)
        if known and known["address"] == inside(at):
            return
        if known:
            self._driver.destroy(name)  # its address was changed: a sandbox's cannot be
        key = ed25519.Ed25519PrivateKey.generate()
        machine = Machine(
            name=name,
            group="m",
            index=guest.vmid,
            address=inside(at),
            image=IMAGE.name,
            size=Size(cores=guest.cpus(), memory=guest.memory() >> 20),
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        seed = Seed(
            hostname=guest.name,
            host_key=private.decode(),
            authorized_keys=(*self._keys, *_keys(guest), self._agents.key),
        )
        self._driver.create(machine, NETWORK, IMAGE, seed)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        self._know(guest, at, public.decode())

    def close(self) -> None:
        """Remove all machines and relays."""
        self._sim.cluster.watchers.remove(self._told)
        self._sim.cluster.starter = self._sim.cluster.agent_runner = None
        self._agents.close()
        self._todo.put(None)
        self._worker.join()
        self._relay.end()
        if self._containers and self.node:
            for vmid in list(self._hosts):
                self._containers.stop(vmid)
            self.node.close()
        self._driver.close_network(STACK)


def _keys(guest: Guest) -> list[str]:
    text = guest.keys + "\n" + unquote(str(guest.conf.get("sshkeys", "")))
    return [line.strip() for line in text.splitlines() if line.strip()]


class Relay:
    """Passes connections at addresses of this computer on to machines."""

    def __init__(self) -> None:
        self._listeners: dict[MachineName, socket.socket] = {}

    def open(self, name: MachineName, host: str, port: int, dial: Dial) -> int:
        """Listen for a machine, and return the port.  Nothing else if that is done."""
        if name not in self._listeners:
            listener = socket.create_server((host, port))
            self._listeners[name] = listener
            threading.Thread(target=self._accept, args=(listener, dial), daemon=True).start()
        return int(self._listeners[name].getsockname()[1])

    def close(self, name: MachineName) -> None:
        """Listen no more.  Nothing if nobody does."""
        listener = self._listeners.pop(name, None)
        if listener:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def end(self) -> None:
        """Listen for nobody any more."""
        for name in list(self._listeners):
            self.close(name)

    def _accept(self, listener: socket.socket, dial: Dial) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._pass, args=(client, dial), daemon=True).start()

    def _pass(self, client: socket.socket, dial: Dial) -> None:
        with client, contextlib.suppress(OSError, EssaimError), dial() as machine:
            _both_ways(client, machine)


def _both_ways(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as watch:
        watch.register(one, selectors.EVENT_READ, other)
        watch.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in watch.select():
                source: Any = key.fileobj
                data = source.recv(1 << 16)
                if not data:
                    return
                key.data.sendall(data)
