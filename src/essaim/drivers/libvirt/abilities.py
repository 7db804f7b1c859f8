"""What a libvirt site can beyond the verbs of a driver: snapshots, consoles, inventory, checks."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from essaim.drivers.checks import address_of, check_name
from essaim.drivers.doctor import Check
from essaim.drivers.libvirt import consoles, inventory, snapshots
from essaim.drivers.libvirt.accelerator import Accelerators
from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.doctor import doctor
from essaim.drivers.libvirt.domains import Domains, looks_made
from essaim.drivers.libvirt.storage import Storage
from essaim.model.errors import EssaimError, RejectedError, SiteAwayError, UnknownError
from essaim.model.machines import Found, Snapshot
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network


class Abilities:
    """Slow, Snapshots, Consoles and Inventory for whoever has the parts named here."""

    connection: Connection
    domains: Domains
    storage: Storage
    accelerators: Accelerators
    plane: str

    @contextmanager
    def _with(self, name: MachineName, doing: str, *, alone: bool = False) -> Iterator[Any]:
        """The domain of a machine; UnknownError when there is none."""
        check_name(name)
        with self.connection.doing(f"{doing} {name}"):
            if not alone:
                yield self._domain(name)
                return
            with self.storage.alone(f"machine {name}"):
                yield self._domain(name)

    def _domain(self, name: MachineName) -> Any:
        seen = self.domains.find(name)
        if seen is None:
            raise UnknownError(f"{name} does not exist")
        return seen.domain

    # Reachable, Slow

    def check_reachable(self) -> None:
        """SiteAwayError, within some seconds, when the server does not answer or refuses us."""
        try:
            self.connection.get()
        except SiteAwayError:
            raise
        except EssaimError as error:
            site = self.connection.settings.site
            what = f"site {site} cannot be reached: {error.what.removeprefix(f'site {site}: ')}"
            raise SiteAwayError(
                what, hint=error.hint or f"essaim doctor --site {site} says more"
            ) from error

    def answers_within(self) -> float:
        """Seconds a machine may take from power-on to its first answer before it is silent."""
        return self.accelerators.answers_within()

    # Snapshots

    def snapshots(self, name: MachineName) -> Sequence[Snapshot]:
        """List them, oldest first."""
        with self._with(name, "listing the snapshots of") as domain:
            return snapshots.snapshots(domain)

    def snapshot(self, name: MachineName, label: str) -> None:
        """Keep the disk as it is now.  RejectedError when there is one of that label."""
        with self._with(name, "keeping a snapshot of", alone=True) as domain:
            snapshots.snapshot(domain, name, label)

    def restore(self, name: MachineName, label: str) -> None:
        """Go back; the machine is off afterwards, and what came after the snapshot is lost."""
        with self._with(name, "restoring", alone=True) as domain:
            snapshots.restore(domain, name, label)

    def drop_snapshot(self, name: MachineName, label: str) -> None:
        """Forget a snapshot.  Nothing if it is gone."""
        with self._with(name, "dropping a snapshot of", alone=True) as domain:
            snapshots.drop_snapshot(domain, label)

    # Consoles

    def console(self, name: MachineName) -> socket.socket:
        """Return a connected stream socket to the machine's serial console."""
        with self._with(name, "opening the console of") as domain:
            return consoles.open_console(self.connection, domain, name)

    def console_log(self, name: MachineName) -> str:
        """What the machine has printed on its console since it was last started."""
        with self._with(name, "reading the console of") as domain:
            return consoles.read_log(self.connection, domain)

    # Inventory

    def inventory(self) -> Sequence[Found]:
        """List every machine of the site that this account may see."""
        with self.connection.doing("listing its machines"):
            return inventory.inventory(self.connection.get(), self.plane)

    def adopt(self, id: str, machine: Machine, network: Network) -> None:  # noqa: A002 - Found's
        """Take a machine that is not ours under our care, and leave its disk and power alone."""
        check_name(machine.name)
        address_of(machine, network)
        with self.connection.doing(f"adopting {machine.name}"):
            self._check_title(id)
            inventory.adopt(self.connection.get(), self.plane, id, machine, network)

    def _check_title(self, id: str) -> None:  # noqa: A002 - Found's
        """Refuse what would not be found again, because it is called as machines of ours are."""
        titles = {
            each.UUIDString(): each.name() for each in self.connection.get().listAllDomains(0)
        }
        if looks_made(titles.get(id, "")):
            raise RejectedError(
                f"{titles[id]} is called like a machine that was made here",
                hint=f"rename it first, on the server: virsh domrename {titles[id]} NEW-NAME",
            )

    def doctor(self) -> list[Check]:
        """Check what the account may do there."""
        return doctor(self.connection, self.accelerators)
