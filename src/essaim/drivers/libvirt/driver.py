"""The libvirt driver: `Libvirt` is a Driver with networks of its own that can be dialled into."""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from essaim.drivers.checks import address_of, check_name, check_stack
from essaim.drivers.libvirt import dial, ssh
from essaim.drivers.libvirt.abilities import Abilities
from essaim.drivers.libvirt.accelerator import Accelerators
from essaim.drivers.libvirt.bases import Bases
from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.definition import domain_name
from essaim.drivers.libvirt.domains import Domains, Seen
from essaim.drivers.libvirt.machines import Machines, mark_boot, power_off
from essaim.drivers.libvirt.networks import Networks
from essaim.drivers.libvirt.sdk import libvirt
from essaim.drivers.libvirt.storage import Storage
from essaim.model.errors import RejectedError, TransientError, UnknownError
from essaim.model.machines import Form, Observed, Reservations, Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network, Site

#: Seconds a machine has to end by itself once it was asked to, by accelerator.
_LONGEST_END = 30.0
_END_WITHIN = {"kvm": 15.0, "tcg": _LONGEST_END}
_LOOK_EVERY = 0.2
_PORT_TRIES = 32
_WIDTH = 5
#: Seconds for which a dial looks for the quickest way to a machine that may still be booting.
_SPEAKS_WITHIN = 50.0
_SSH = 22


class Libvirt(Abilities):
    """Machines as domains of one libvirt server, which only an account of its own is needed for.

    `disk` says where the bootable file of an image is on this computer, `plane` which control
    plane this is, `state` is a folder for what belongs to this site alone.  May be used by any
    number of threads and processes at once.
    """

    def __init__(
        self,
        site: Site,
        disk: Callable[[Image], Path],
        reservations: Reservations,
        plane: str,
        state: Path,
    ) -> None:
        self.form = Form.DISK
        self.plane = plane
        self.connection = Connection(site, state)
        self._disk = disk
        settings = self.connection.settings
        self.domains = Domains(self.connection, plane)
        self.storage = Storage(self.connection, state)
        self._bases = Bases(self.connection, self.storage)
        self.accelerators = Accelerators(self.connection, state)
        parts = (plane, self.storage, self.domains, reservations)
        self._networks = Networks(settings, *parts)
        self._machines = Machines(self.connection, *parts)

    @contextmanager
    def _doing(self, what: str, name: MachineName) -> Iterator[None]:
        check_name(name)
        with self.connection.doing(f"{what} {name}"):
            yield

    # Driver

    def observe(self, stack: str) -> Sequence[Observed]:
        """List the machines of a stack that exist.  Never changes anything."""
        check_stack(stack)
        with self.connection.doing(f"looking at {stack}"):
            return [seen.observed() for seen in self.domains.of(stack)]

    def create(self, machine: Machine, network: Network, image: Image, seed: Seed) -> None:
        """Make the machine's disk and definition, powered off.  Nothing if it is there."""
        with self._doing("creating", machine.name):
            address_of(machine, network)
            if self.domains.find(machine.name):
                return
            note = self._networks.open(machine.name.stack, network)
            base = self._bases.inspected(image, self._disk(image))
            path = self._bases.path(base)
            verdict = self.accelerators.choose(path, base.sha256)
            self._machines.make(
                machine,
                note,
                image,
                seed,
                base=path,
                virtual=base.virtual,
                accelerator=verdict.accelerator,
                content=base.sha256,
            )

    def destroy(self, name: MachineName) -> None:
        """Remove the machine and its disk, whatever its power.  Nothing if it is gone."""
        with self._doing("destroying", name):
            seen = self._machines.remove(name)
            if seen is not None:
                self._forget(seen)

    def _forget(self, seen: Seen) -> None:
        """Take back the way to a machine's port."""
        if self.connection.folder is not None:
            host = self.connection.settings.host
            dial.forget(self.connection.folder, host, *seen.facts.door)

    def left_behind(self, name: MachineName) -> Mapping[str, str]:
        """What may be left of a machine at the site, for a person to delete by hand."""
        check_name(name)
        return {"domain": domain_name(name)}

    def forget(self, name: MachineName) -> None:
        """Release all that is reserved for a machine.  Nothing is changed at the site."""
        check_name(name)
        self._machines.forget(name)

    def start(self, name: MachineName) -> None:
        """Power it on.  Nothing if it runs."""
        with self._doing("starting", name), self.storage.alone(f"machine {name}"):
            seen = self.domains.find(name)
            if seen is None:
                raise UnknownError(f"{name} does not exist")
            if not seen.runs:
                note = self._networks.own(name.stack)
                seen = self._machines.renew_access(seen, internet=bool(note and note.internet))
            for _ in range(_PORT_TRIES):
                if seen.runs or _started(seen):
                    return
                # A stranger listens on its port.
                self._forget(seen)
                seen = self._machines.move(seen)
            raise TransientError(
                f"{name}: all of {_PORT_TRIES} ports of the server that were tried are taken",
                hint="set `ports` of the site to a range that nobody else uses there",
            )

    def stop(self, name: MachineName) -> None:
        """Power it off and keep its disk.  Nothing if it is off."""
        with self._doing("stopping", name):
            seen = self.domains.find(name)
            if seen is None or not seen.runs:
                return
            with suppress(libvirt.libvirtError):
                seen.domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
            deadline = time.monotonic() + _END_WITHIN.get(seen.facts.accelerator, _LONGEST_END)
            while seen.domain.isActive():
                if time.monotonic() > deadline:
                    power_off(seen)
                time.sleep(_LOOK_EVERY)

    # Networks

    def open_network(self, stack: str, network: Network) -> None:
        """Make the stack's network.  Nothing if it is there."""
        check_stack(stack)
        with self.connection.doing(f"opening the network of {stack}"):
            self._networks.open(stack, network)

    def close_network(self, stack: str) -> None:
        """Remove the stack's network and all that is left of the stack.  Nothing if gone."""
        check_stack(stack)
        with self.connection.doing(f"closing {stack}"):
            note = self._networks.read(stack)
            if note and self._networks.own(stack) is None:
                return  # another control plane's
            self.storage.refresh()
            names = {seen.facts.name for seen in self.domains.of(stack)}
            names |= set(self._machines.leftovers(stack))
            with ThreadPoolExecutor(_WIDTH) as pool:
                list(pool.map(self.destroy, sorted(names)))
            self._networks.close(stack)

    def network(self, stack: str) -> Network | None:
        """Read the network as it is now; None when there is none."""
        check_stack(stack)
        with self.connection.doing(f"looking at the network of {stack}"):
            note = self._networks.own(stack)
            return Network(cidr=note.cidr, internet=note.internet) if note else None

    # Dials

    def dial(self, name: MachineName, port: int) -> socket.socket:
        """Return a connected, blocking stream socket to that port of the machine."""
        if port != _SSH:
            raise RejectedError(
                f"{name}: only its port {_SSH} can be reached from outside",
                hint="forward the other through it: ssh -L",
            )
        with self._doing("looking for", name):
            seen = self.domains.find(name)
        if seen is None or not seen.runs:
            raise TransientError(f"{name} is off", hint="start it first")
        folder, settings, door = self.connection.folder, self.connection.settings, seen.facts.door
        try:
            return dial.first_to_speak(
                lambda: dial.dial(folder, settings.host, *door), _SPEAKS_WITHIN
            )
        except dial.SshError as error:
            raise ssh.explain(settings, str(error)) from error
        except OSError as error:
            raise TransientError(
                f"{name} cannot be reached: {error}", hint="it may still be booting"
            ) from error

    def proxy_command(self, name: MachineName) -> list[str]:
        """Give an OpenSSH ProxyCommand (with ProxyUseFdpass) that reaches the machine's port 22."""
        with self._doing("looking for", name):
            seen = self.domains.find(name)
        folder, settings = self.connection.folder, self.connection.settings
        address, port = seen.facts.door if seen and seen.runs else ("", 0)
        words = [str(folder or ""), settings.host, address, str(port), str(name)]
        return [sys.executable, "-I", "-S", dial.__file__, *words]

    def close(self) -> None:
        """Let go of the connection."""
        self.connection.close()


def _started(seen: Seen) -> bool:
    """Power a domain on; False when its access port is taken."""
    mark_boot(seen, secrets.token_hex(6))
    try:
        seen.domain.create()
    except libvirt.libvirtError as error:
        if seen.domain.isActive():
            return True  # somebody else was quicker
        if "host forwarding rule" not in str(error):
            raise
        return False
    return True
