"""Making and removing a machine on the server, so that either may be cut short at any moment.

A machine is there when its domain is defined, which is the last thing done to make it and the
first undone.  Its disk is the first thing made and the last removed, so that whatever else a
machine had, such as a port, can be found by its name.
"""

from __future__ import annotations

import re
from dataclasses import replace

from essaim.drivers.checks import address_of
from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.definition import (
    BOOT_NAMESPACE,
    Facts,
    Hardware,
    boot_element,
    build,
    domain_name,
    has_access,
    with_access,
)
from essaim.drivers.libvirt.domains import Domains, Seen
from essaim.drivers.libvirt.inventory import give_back, is_adopted
from essaim.drivers.libvirt.networks import Note
from essaim.drivers.libvirt.ports import mac_address, mac_candidates, port_candidates
from essaim.drivers.libvirt.sdk import libvirt
from essaim.drivers.libvirt.storage import Storage
from essaim.model.errors import RejectedError
from essaim.model.machines import Reservations, Seed
from essaim.model.names import NAME, MachineName
from essaim.model.stacks import Image, Machine, Network
from essaim.remote.seeds import seed_files, seed_iso

_GIB = 1 << 30
DISK, SEED, LOG = "qcow2", "seed", "log"


def volume_name(name: MachineName, kind: str) -> str:
    """What a volume of a machine is called."""
    return f"{domain_name(name)}.{kind}"


class Machines:
    """The machines of this control plane on one server."""

    def __init__(
        self,
        connection: Connection,
        plane: str,
        storage: Storage,
        domains: Domains,
        reservations: Reservations,
    ) -> None:
        self._connection = connection
        self._settings = connection.settings
        self._plane = plane
        self._storage = storage
        self._domains = domains
        self._reservations = reservations

    def make(
        self,
        machine: Machine,
        note: Note,
        image: Image,
        seed: Seed,
        *,
        base: str,
        virtual: int,
        **known: str,
    ) -> None:
        """Make a machine over the base at that path of the server.  Nothing if it is there.

        `known` are its facts that were settled before: `accelerator` and `content`.
        """
        name = machine.name
        with self._storage.alone(f"machine {name}"):
            if self._domains.find(name):
                return
            # Whatever an earlier call left is of an unknown age: begin anew.
            self._clear(name)
            size = max(machine.size.disk * _GIB, virtual)
            disk = self._storage.make(volume_name(name, DISK), size=size, base=base)
            try:
                facts = self._facts(machine, note, image, **known)
            except RejectedError:
                self._clear(name)
                raise
            hardware = Hardware(
                cores=machine.size.cores,
                memory=machine.size.memory,
                disk=disk.path(),
                seed=self._seed(machine, seed, facts),
                log=self._storage.make(volume_name(name, LOG)).path(),
                network=self._settings.network,
            )
            self._connection.get().defineXML(build(facts, hardware))

    def _facts(self, machine: Machine, note: Note, image: Image, **known: str) -> Facts:
        name, holder = machine.name, str(machine.name)
        self._hold_address(machine, note)
        reserve, site = self._reservations.reserve, self._settings.site
        ports = port_candidates(name, self._plane, self._settings.ports, self._domains.ports())
        return Facts(
            plane=self._plane,
            stack=name.stack,
            machine=name.machine,
            address=machine.address,
            cidr=note.cidr,
            image=image.digest,
            port=reserve(site, "port", holder, ports),
            mac=reserve(site, "mac", holder, mac_candidates(name, self._plane)),
            group=note.group,
            internet=int(note.internet),
            **known,
        )

    def _hold_address(self, machine: Machine, note: Note) -> None:
        address = address_of(machine, Network(cidr=note.cidr))
        kind, holder = f"address.{machine.name.stack}", str(machine.name)
        site, wanted = self._settings.site, int(address)
        try:
            held = self._reservations.reserve(site, kind, holder, [wanted])
            if held != wanted:
                self._reservations.reserve(site, kind, holder, [wanted], anew=True)
        except RejectedError as error:
            raise RejectedError(
                f"{machine.name}: {address} is the address of another machine of the stack"
            ) from error

    def _seed(self, machine: Machine, seed: Seed, facts: Facts) -> str:
        files = seed_files(
            machine,
            Network(cidr=facts.cidr),
            seed,
            mac=mac_address(facts.mac),
            access_mac=mac_address(facts.mac, access=True),
        )
        volume = self._storage.make(volume_name(machine.name, SEED))
        self._storage.write(volume, seed_iso(files))
        return str(volume.path())

    def remove(self, name: MachineName) -> Seen | None:
        """Remove a machine and all it had, and say what it was.  Nothing if it is gone."""
        with self._storage.alone(f"machine {name}"):
            seen = self._domains.find(name)
            if seen is not None and is_adopted(seen.facts):
                mark_boot(seen, None)
                give_back(seen.domain)
            elif seen is not None:
                power_off(seen)
                _undefine(seen)
            self._clear(name)
            return seen

    def _clear(self, name: MachineName) -> None:
        """Remove what a machine without a domain has."""
        disk = volume_name(name, DISK)
        mine = [each for each in self._storage.names() if each.startswith(volume_name(name, ""))]
        for volume in mine:
            if volume != disk:
                self._storage.remove(volume)
        self._reservations.release(self._settings.site, str(name))
        if disk in mine:
            self._storage.remove(disk)

    def forget(self, name: MachineName) -> None:
        """Release what is reserved for a machine, without asking the server."""
        self._reservations.release(self._settings.site, str(name))

    def leftovers(self, stack: str) -> list[MachineName]:
        """Machines of which there are volumes."""
        volume = re.compile(rf"{re.escape(stack)}\.({NAME.pattern})\..+")
        found = {match[1] for name in self._storage.names() if (match := volume.fullmatch(name))}
        return [MachineName(stack, machine) for machine in sorted(found)]

    def move(self, seen: Seen) -> Seen:
        """Give a machine that is off another access port."""
        name, facts = seen.facts.name, seen.facts
        taken = self._domains.ports()
        ports = port_candidates(name, self._plane, self._settings.ports, taken)
        ahead = sorted(ports, key=lambda port: (port < facts.port, port))
        port = self._reservations.reserve(self._settings.site, "port", str(name), ahead, anew=True)
        moved = replace(facts, port=port)
        text = seen.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        domain = self._connection.get().defineXML(with_access(text, moved))
        return replace(seen, domain=domain, facts=moved)

    def renew_access(self, seen: Seen, *, internet: bool) -> Seen:
        """Let a machine that is off out, or keep it in; also one of an earlier version."""
        facts = replace(seen.facts, internet=int(internet))
        text = seen.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        if is_adopted(facts) or has_access(text, facts):
            return seen
        domain = self._connection.get().defineXML(with_access(text, facts))
        return replace(seen, domain=domain, facts=facts)


def mark_boot(seen: Seen, token: str | None) -> None:
    """Write what distinguishes the domain's next start from all others, or take it away."""
    seen.domain.setMetadata(
        libvirt.VIR_DOMAIN_METADATA_ELEMENT,
        boot_element(token) if token else None,
        "boot" if token else None,
        BOOT_NAMESPACE,
        libvirt.VIR_DOMAIN_AFFECT_CONFIG,
    )


def power_off(seen: Seen) -> None:
    """Take the power from a domain.  Nothing if it is off."""
    try:
        seen.domain.destroy()
    except libvirt.libvirtError:
        if seen.domain.isActive():
            raise


def _undefine(seen: Seen) -> None:
    flags = (
        libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
        | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
        | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
    )
    try:
        seen.domain.undefineFlags(flags)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
